"""A complete third-party backend: a vDevice whose vEUs are Python threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

from rammer import BarrierRTask, VDevice, VDeviceEntry, VDeviceSpec, hookimpl
from rammer.ir.semantics.evaluate import Memory
from rammer.ir.semantics.execute import compute_rtask


class ToyExecutable:
    def __init__(self, plan):
        self.plan = plan

    def run(self, inputs):
        memory = Memory(self.plan.graph)
        for name in self.plan.graph.inputs:
            memory.write(name, inputs[name])
        for program in self.plan.programs:  # one device invocation after another
            self.run_program(program, memory)
        return {name: memory.read(name) for name in self.plan.graph.outputs}

    def run_program(self, program, memory):
        steps, changed = [0] * len(program), threading.Condition()  # the step array of §4.1.3

        def veu(v):
            for slot in program[v]:
                if isinstance(slot, BarrierRTask):
                    with changed:
                        changed.wait_for(lambda: all(steps[w.veu] > w.order for w in slot.waits))
                else:
                    compute_rtask(self.plan, slot.uid, memory)
                with changed:
                    steps[v] += 1
                    changed.notify_all()

        with ThreadPoolExecutor(len(program)) as pool:
            list(pool.map(veu, range(len(program))))

    def close(self):
        pass


class ToyVDevice(VDevice):
    def __init__(self, arch=None, device=None):
        self.spec = VDeviceSpec("toy", num_veus=4, languages=("numpy",))

    def load(self, image):
        return ToyExecutable(image.plan)


@hookimpl
def rammer_vdevices():
    return [VDeviceEntry("toy", open=ToyVDevice, summary="Python threads")]
