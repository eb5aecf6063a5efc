"""The kit must fail vDevices that are deliberately wrong; a kit that passes them proves nothing."""

from __future__ import annotations

import textwrap

import pytest
from rammer_testing.new_plugin import contents

TOY = contents("toy", "device")["rammer_toy.py"]

# what is wrong -> (correct text of the toy, broken text)
MISTAKES = {
    "barrier off by one": ("steps[w.veu] > w.order", "steps[w.veu] >= w.order"),
    "barrier ignored": (
        "if isinstance(slot, rammer.BarrierRTask):",
        "if isinstance(slot, rammer.BarrierRTask):\n                    continue\n                elif False:",
    ),
    "stale step array": (
        "steps, changed = [0] * len(program), threading.Condition()",
        "steps, changed = self.__dict__.setdefault(id(program), [0] * len(program)), threading.Condition()",
    ),
    "lane order reversed": ("for slot in program[v]:", "for slot in reversed(program[v]):"),
    "waits for the first of several": ("all(steps", "any(steps"),
    "rprograms at the same time": (
        "for program in self.plan.programs:",
        "for program in reversed(self.plan.programs):",
    ),
    "device= ignored": ("if arch is not None or device is not None:", "if arch is not None:"),
    "saved without the plan that it needs": (
        "    def load(self",
        "    def build(self, plan, *, progress=None):\n"
        "        return __import__('dataclasses').replace(super().build(plan), files={'a': b'a'})\n\n    def load(self",
    ),
    "outputs of the last run handed out": (
        "memory = Memory(self.plan.graph)",
        "memory = self.__dict__.setdefault('memory', Memory(self.plan.graph))",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_kit_fails_a_broken_vdevice(mistake: str, pytester: pytest.Pytester) -> None:
    good, bad = MISTAKES[mistake]
    assert good in TOY
    pytester.makepyfile(
        rammer_broken=TOY.replace(good, bad),
        test_broken=textwrap.dedent("""
            import pytest
            import rammer_broken
            from rammer.plugins import PluginRegistry
            from rammer.testing import VDeviceConformance

            class TestBroken(VDeviceConformance):
                vdevice = "toy"

                @pytest.fixture(scope="class")
                @classmethod
                def registry(cls):
                    registry = PluginRegistry(third_party=False)
                    registry.register(rammer_broken, "broken")
                    return registry
        """),
    )
    result = pytester.runpytest_subprocess("-q", "-x", "-p", "no:cacheprovider", timeout=120)
    outcomes = result.parseoutcomes()
    assert outcomes.get("failed", 0) and not outcomes.get("errors", 0), f"not caught: {mistake}"
