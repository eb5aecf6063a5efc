"""Check the contract of a vDevice, of rKernels or of a policy. A plugin's tests inherit these classes.

class TestToy(VDeviceConformance):
    vdevice = "toy"
    unsupported = {}          # "test_fine_*": "tiles synchronise globally"       (permanent)
    expected_failures = {}    # "test_profile_*": "no timer yet, issue 12"        (temporary, strict)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from rammer import config
from rammer.errors import RammerError
from rammer.ir.device import SyncModel, VDeviceSpec
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import DType, TensorType
from rammer.ir.verify import verify_plan
from rammer.planner.memory import plan_memory
from rammer.plugins import PluginRegistry
from rammer.runtime import artifact
from rammer.scheduler.policy import Problem
from rammer.scheduler.policy_options import parse_policy
from rammer.scheduler.profiler import EstimatingProfiler
from rammer.vdevice.base import BindsPorts, CompiledOnly, Executable, TimedExecutable, VDevice, VDeviceEntry
from rammer.vdevice.proof.verify import verify_image
from rammer_testing.generate import random_graph, random_inputs, random_plan
from rammer_testing.plans import Net, place

SPIN = 100_000  # rounds of the slow probe: long enough to expose a missing wait, short enough for NumPy
INSTALLED = "is its package installed? pip install -e ."


def _entry(registry: PluginRegistry, name: str) -> VDeviceEntry:
    """Return a vDevice that a plugin announces; fails if none does."""
    known = registry.vdevices()
    if name not in known:
        pytest.fail(f"no plugin announces the vDevice {name!r}; {INSTALLED}\n{registry.faults or ''}", pytrace=False)
    return known[name][1]


class _Listed:
    """Base of the kit: skips tests that a plugin lists as unsupported, and expects the failures that it lists."""

    unsupported: ClassVar[dict[str, str]] = {}
    expected_failures: ClassVar[dict[str, str]] = {}

    @pytest.fixture(autouse=True)
    def _apply_lists(self, request: pytest.FixtureRequest) -> None:
        name = request.node.originalname
        for pattern, reason in self.unsupported.items():
            if fnmatch(name, pattern):
                pytest.skip(f"unsupported by design: {reason}")
        for pattern, reason in self.expected_failures.items():
            if fnmatch(name, pattern):
                request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    @pytest.fixture(scope="class")
    @classmethod
    def registry(cls) -> PluginRegistry:
        """Return the registry that finds the plugin; override to register one that is not installed."""
        return PluginRegistry()


class VDeviceConformance(_Listed):
    """The contract of a vDevice. Set `vdevice`; `device` and `arch` are passed to its `open`.

    `emulated`: that device runs anywhere, even if the vDevice's `probe` finds no hardware.
    """

    vdevice: ClassVar[str] = ""
    device: ClassVar[str | int | None] = None
    arch: ClassVar[str | None] = None
    emulated: ClassVar[bool] = False

    @pytest.fixture(scope="class")
    @classmethod
    def opened(cls, registry: PluginRegistry) -> Iterator[VDevice]:
        answer = _entry(registry, cls.vdevice).probe()
        if not answer.ok and not cls.emulated:
            text = f"vDevice {cls.vdevice!r} is unavailable: {answer.reason} ({answer.hint})"
            if cls.vdevice in config.names("RAMMER_REQUIRE_VDEVICES"):
                pytest.fail(text)
            pytest.skip(text)
        vdevice = registry.open(cls.vdevice, arch=cls.arch, device=cls.device)
        yield vdevice
        vdevice.close()

    @pytest.fixture
    def net(self, registry: PluginRegistry, opened: VDevice) -> Net:
        return Net(registry, opened.spec)

    def check(self, vdevice: VDevice, plan: ExecutionPlan, seeds: tuple[int, ...] = (0,)) -> None:
        """Build, decode, load and run a plan on new inputs, once per seed; outputs must equal NumPy's evaluation."""
        plan = replace(plan, memory=plan_memory(plan))
        verify_plan(plan)
        image = vdevice.build(plan)
        verify_image(image, image.plan or plan, vdevice)
        executable = vdevice.load(image)
        try:
            for seed in seeds:
                self.compare(executable, plan, seed)
        finally:
            executable.close()

    def compare(self, executable: Executable, plan: ExecutionPlan, seed: int) -> None:
        """Run on inputs drawn from a seed, and compare with NumPy's evaluation of the graph."""
        inputs = random_inputs(plan.graph, seed)
        found, wanted = executable.run(inputs), evaluate_graph(plan.graph, inputs)
        assert set(found) == set(wanted)
        for name, value in wanted.items():
            assert found[name].dtype == value.dtype and found[name].shape == value.shape
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=f"output {name}")

    def veus(self, opened: VDevice, wanted: int) -> int:
        if opened.spec.num_veus < wanted:
            pytest.skip(f"needs {wanted} vEUs, the vDevice has {opened.spec.num_veus}")
        return wanted

    def slow_then_sum(self, net: Net) -> None:
        """Add a slow operator, and one that reads its result."""
        x = net.input("x", (8,))
        net.output(net.sum(net.spin(x, SPIN), x))

    def test_spec_is_plain_and_sane(self, opened: VDevice) -> None:
        spec = opened.spec
        assert spec.num_veus >= 1 and spec.lanes >= 1 and spec.languages
        assert spec.launch_us >= 0 and spec.barrier_us >= 0
        assert hash(spec) == hash(replace(spec))

    def test_probe_answers_and_never_raises(self, registry: PluginRegistry) -> None:
        assert _entry(registry, self.vdevice).probe().ok in (True, False)

    @pytest.mark.parametrize("option", ["device", "arch"])
    def test_what_it_does_not_have_is_refused(self, registry: PluginRegistry, option: str) -> None:
        """Check that `open` ignores neither `device=` nor `arch=`: programs would run elsewhere than the user asked."""
        given = {"device": self.device, "arch": self.arch, option: "no such one"}
        with pytest.raises(RammerError):
            registry.open(self.vdevice, **given).close()  # type: ignore[arg-type]

    def test_one_rtask(self, opened: VDevice, net: Net) -> None:
        x = net.input("x", (3, 5))
        net.output(net.sum(x, x))
        self.check(opened, place(net, [[(0, 0)]]))

    def test_order_within_a_veu(self, opened: VDevice, net: Net) -> None:
        """Check that slots of a lane run one after another, in order."""
        x = net.input("x", (8,))
        a = net.spin(x, SPIN)
        b = net.sum(a, x)
        net.output(net.sum(b, a))
        self.check(opened, place(net, [[(0, 0), (1, 0), (2, 0)]]), seeds=(0, 1))

    def test_fine_barrier_between_veus(self, opened: VDevice, net: Net) -> None:
        """Check that a barrier-rTask waits for the completion of a slot of another vEU."""
        self.veus(opened, 2)
        self.slow_then_sum(net)
        self.check(opened, place(net, [[(0, 0), (1, 1)]]), seeds=(0, 1))

    def test_fine_barrier_waits_for_the_named_slot(self, opened: VDevice, net: Net) -> None:
        """Check that a barrier waits for the named slot, not for the one before it."""
        self.veus(opened, 2)
        x = net.input("x", (8,))
        quick = net.sum(x, x)
        slow = net.spin(quick, SPIN)
        net.output(net.sum(slow, x))
        self.check(opened, place(net, [[(0, 0), (1, 0), (2, 1)]]), seeds=(0, 1))

    def test_fine_diamond(self, opened: VDevice, net: Net) -> None:
        self.veus(opened, 2)
        x = net.input("x", (16,))
        a = net.spin(x, SPIN)
        left, right = net.sum(a, x), net.spin(a, SPIN)
        net.output(net.sum(left, right))
        self.check(opened, place(net, [[(0, 0), (1, 1), (2, 0), (3, 1)]]), seeds=(0, 1))

    def test_fine_everybody_waits_for_everybody(self, opened: VDevice, net: Net) -> None:
        count = min(opened.spec.num_veus, 8)
        self.veus(opened, 2)
        x = net.input("x", (4,))
        parts = [net.spin(x, SPIN // (1 + n)) for n in range(count)]
        for _ in range(count):
            net.output(net.sum(*parts))
        slots = [(n, n) for n in range(count)] + [(count + n, n) for n in range(count)]
        self.check(opened, place(net, [slots]), seeds=(0, 1))

    def test_second_run_waits_again(self, opened: VDevice, net: Net) -> None:
        """Check that steps counted in one run do not satisfy the barriers of the next."""
        self.veus(opened, 2)
        self.slow_then_sum(net)
        self.check(opened, place(net, [[(0, 0), (1, 1)]]), seeds=(0, 1, 2, 3, 4))

    def test_rprograms_run_one_after_another(self, opened: VDevice, net: Net) -> None:
        last = opened.spec.num_veus - 1
        self.slow_then_sum(net)
        self.check(opened, place(net, [[(0, 0)], [(1, last)]]), seeds=(0, 1))

    def test_constants_reach_the_device(self, opened: VDevice, net: Net) -> None:
        x = net.input("x", (4, 4))
        net.output(net.sum(x, net.constant(np.arange(16, dtype=np.float32).reshape(4, 4))))
        self.check(opened, place(net, [[(0, 0)]]))

    @pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.BOOL, DType.F64, DType.F16])
    def test_element_types(self, opened: VDevice, net: Net, dtype: DType) -> None:
        x = net.input("x", (3, 4), dtype)
        net.output(net.add("where", net.add("equal", x, x), x, x))
        self.check(opened, place(net, [[(0, 0), (1, 0)]]))

    def test_outputs_belong_to_the_caller(self, opened: VDevice, net: Net) -> None:
        x = net.input("x", (4,))
        net.output(net.sum(x, x))
        plan = place(net, [[(0, 0)]])
        plan = replace(plan, memory=plan_memory(plan))
        executable = opened.load(opened.build(plan))
        first = next(iter(executable.run({"x": np.ones(4, np.float32)}).values()))
        executable.run({"x": np.zeros(4, np.float32)})
        executable.close()
        assert (first == 2).all(), "a later run changed outputs that were handed out"

    def in_pieces(self, net: Net, opened: VDevice) -> ExecutionPlan:
        """Return a plan with a constant, and with a wait if there are two vEUs."""
        x = net.input("x", (4, 4))
        first = net.sum(x, net.constant(np.arange(16, dtype=np.float32).reshape(4, 4)))
        net.output(net.sum(first, x))
        plan = place(net, [[(0, 0), (1, min(1, opened.spec.num_veus - 1))]])
        return replace(plan, memory=plan_memory(plan))

    def test_saved_programs_need_their_file_alone(self, opened: VDevice, net: Net, tmp_path: Path) -> None:
        """Check what `program.save` and `rammer.load` do; equal plans give equal files."""
        plan = self.in_pieces(net, opened)
        first, second = (opened.seal(opened.build(plan)) for _ in range(2))
        if not first.files:
            pytest.skip("its programs stay in memory: images have no files")
        assert dict(first.files) == dict(second.files)
        artifact.save(first, tmp_path / "program", {})
        executable = opened.load(artifact.load(tmp_path / "program")[0])
        try:
            self.compare(executable, plan, 0)
        finally:
            executable.close()

    def test_bound_arrays_are_read_and_written(self, opened: VDevice, net: Net) -> None:
        plan = self.in_pieces(net, opened)
        executable = opened.load(opened.build(plan))
        try:
            if not isinstance(executable, BindsPorts):
                pytest.skip("it does not bind arrays: no BindsPorts")
            arrays = random_inputs(plan.graph, 0)
            found = {name: np.zeros_like(value) for name, value in evaluate_graph(plan.graph, arrays).items()}
            call = executable.bind(arrays, found)
            for seed in (1, 2):
                for name, value in random_inputs(plan.graph, seed).items():
                    arrays[name][...] = value
                call()
                for name, value in evaluate_graph(plan.graph, arrays).items():
                    np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=f"output {name}")
        finally:
            executable.close()

    def test_timed_slots_are_those_of_the_plan(self, opened: VDevice, net: Net) -> None:
        plan = self.in_pieces(net, opened)
        executable = opened.load(opened.build(plan))
        try:
            if not isinstance(executable, TimedExecutable) or isinstance(executable, CompiledOnly):
                pytest.skip("it does not time its slots: no TimedExecutable")
            _, times = executable.run_timed(random_inputs(plan.graph, 0))
        finally:
            executable.close()
        for program, lanes, operators in zip(plan.programs, times.programs, times.operators, strict=True):
            for lane, spans, numbers in zip(program.lanes, lanes, operators, strict=True):
                assert numbers.tolist() == [s.uid.operator_id if isinstance(s, RTask) else -1 for s in lane]
                assert spans.shape == (len(lane), 2) and (spans[:, 1] >= spans[:, 0]).all()

    def test_profile_times_are_positive(self, opened: VDevice, net: Net) -> None:
        x = net.input("x", (64,))
        net.output(net.spin(x, 100))
        kernels = place(net, [[(0, 0)]]).kernels
        times = opened.rkernels_us(kernels, budget_s=1.0)
        assert set(times) <= set(kernels) and all(t > 0 for t in times.values())

    @pytest.mark.parametrize("seed", range(6))
    def test_random_plans(self, opened: VDevice, registry: PluginRegistry, seed: int) -> None:
        """Check random graphs of real operators in random legal placements."""
        if opened.spec.sync is SyncModel.GLOBAL:
            pytest.skip("random plans wait for single rTasks; the vDevice synchronises globally")
        graph = random_graph(seed)
        plan = random_plan(graph, seed, num_veus=opened.spec.num_veus, spec=opened.spec, candidates=registry.rkernels)
        self.check(opened, plan)


class RKernelConformance(_Listed):
    """The contract of rKernels that a plugin offers. Set `plugin`, its name, and `operations` that it has kernels for.

    An operation is the name of an operator, and shapes of its operands in float32.
    """

    plugin: ClassVar[str] = ""
    operations: ClassVar[tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]] = ()
    target: ClassVar[str] = "cpu"
    device: ClassVar[str | int | None] = None
    arch: ClassVar[str | None] = None

    def test_kernels_are_offered_and_right(self, registry: PluginRegistry) -> None:
        """Run all rTasks of all of its kernels on the device, in another process, and compare them with NumPy."""
        vdevice, interner = registry.open(self.target, arch=self.arch, device=self.device), Operations(OPS)
        try:
            for kind, shapes in self.operations:
                operation = interner.define(kind, tuple(TensorType(shape, DType.F32) for shape in shapes))
                own = [k for k in registry.rkernels(operation, vdevice.spec) if k.origin.split()[:1] == [self.plugin]]
                assert own, f"plugin {self.plugin!r} offers nothing for {kind} of {shapes}; {INSTALLED}"
                assert all(kernel.fits(vdevice.spec) for kernel in own)
                every = frozenset(own)
                assert not vdevice.rkernels_untried(own, every=every)
                assert not vdevice.rkernels_wrong(own, every=every)
        finally:
            vdevice.close()

    def test_other_operations_are_left_to_others(self, registry: PluginRegistry) -> None:
        """Check that an operation which the plugin does not know is not an error."""
        odd = Operations(OPS).define("probe_sum", (TensorType((3, 5), DType.F64),) * 2)
        spec = VDeviceSpec("model", 2, languages=("c", "numpy"))
        assert all(kernel.operation is odd for kernel in registry.rkernels(odd, spec))


class PolicyConformance(_Listed):
    """The contract of a scheduling policy. Set `policy`."""

    policy: ClassVar[str] = ""

    @pytest.mark.parametrize("num_veus", [1, 3])
    @pytest.mark.parametrize("seed", range(4))
    def test_plans_are_proven(self, registry: PluginRegistry, seed: int, num_veus: int) -> None:
        """Check that every rTask has one slot, every dependency is covered, and memory is planned safely."""
        plan = self._schedule(registry, seed, num_veus)
        assert len(plan.kernels) == len(plan.graph.operators)
        verify_plan(replace(plan, memory=plan_memory(plan)))
        placed = [uid for program in plan.programs for _, uid in program.tasks()]
        wanted = {TaskUid(n, r) for n, k in enumerate(plan.kernels) for r in range(k.num_rtasks)}
        assert len(placed) == len(set(placed)) and set(placed) == wanted

    def test_same_problem_same_plan(self, registry: PluginRegistry) -> None:
        first, second = (self._schedule(registry, 0, 4) for _ in range(2))
        assert first.programs == second.programs
        assert [k.name for k in first.kernels] == [k.name for k in second.kernels]

    def test_reasons_are_given(self, registry: PluginRegistry) -> None:
        assert self._schedule(registry, 0, 2).policy == self.policy

    def test_plans_name_options(self, registry: PluginRegistry) -> None:
        """Check every value of every option: reports and caches distinguish plans by this name."""
        name, given = parse_policy(self.policy)
        for option in registry.policy_options()[name]:
            for value in option.values:
                if value == str(option.default) or option.name in given:
                    continue
                policy = f"{name}:{','.join(f'{n}={v}' for n, v in {**given, option.name: value}.items())}"
                assert parse_policy(self._schedule(registry, 0, 2, policy).policy) == parse_policy(policy)

    def _schedule(self, registry: PluginRegistry, seed: int, num_veus: int, policy: str = "") -> ExecutionPlan:
        graph = random_graph(seed)
        spec = VDeviceSpec("model", num_veus, launch_us=5.0, barrier_us=0.2)
        candidates = {op.operation: registry.rkernels(op.operation, spec) for op in graph.operators}
        return registry.policy(policy or self.policy).schedule(
            Problem(graph, spec, candidates, EstimatingProfiler(spec))
        )
