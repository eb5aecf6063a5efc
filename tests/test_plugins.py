"""Plugins: each hook used by a test plugin, and every way a plugin can be wrong."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from rammer_testing.plans import Net, place

import rammer
from rammer import ForeignSource, RKernel, config, hookimpl
from rammer.cli.commands import main
from rammer.errors import PluginError, RammerError, VerificationError
from rammer.ir.device import VDeviceSpec
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, Slot, TaskUid
from rammer.planner.memory import plan_memory
from rammer.plugins import PluginRegistry
from rammer.scheduler.policies.sequential import SequentialPolicy
from rammer.scheduler.policy import Problem
from rammer.scheduler.profiler import EstimatingProfiler, MeasuredProfiler
from rammer_viz.demo import lstm_stack


class Backwards(SequentialPolicy):
    """A policy of a plugin."""

    name = "backwards"


class PolicyPlugin:
    @hookimpl
    def rammer_policies(self) -> Mapping[str, type]:
        return {"backwards": Backwards}


def test_a_policy_by_plugin() -> None:
    registry = PluginRegistry(third_party=False)
    registry.register(PolicyPlugin(), "researcher")
    assert "backwards" in registry.policies()
    with rammer.compile(lstm_stack(1, 3, 16), "cpu", policy="backwards", registry=registry, tune_seconds=0) as program:
        assert program.plan.policy == "backwards"


def test_a_kernel_by_plugin() -> None:
    text = (
        "void SYMBOL(char *const *args, char *scratch, long rtask, int *status) {\n"
        "  float *out = (float *)args[0]; const float *a = (float *)args[1], *b = (float *)args[2];\n"
        "  (void)scratch; (void)rtask; (void)status; for (int i = 0; i < 15; i++) out[i] = a[i] + b[i];\n}\n"
    ).replace("SYMBOL", "vendor_add")

    class Vendor:
        @hookimpl
        def rammer_rkernels(self, operation: rammer.Operation, spec: rammer.VDeviceSpec) -> Iterable[RKernel]:
            if operation.kind == "probe_sum" and "c" in spec.languages:
                yield RKernel("aaa_vendor_add", operation, ForeignSource("c", "vendor_add", text, ()))

    registry = PluginRegistry(third_party=False)
    registry.register(Vendor(), "vendor")
    device = registry.open("cpu", device=1)
    net = Net(registry, device.spec)
    x = net.input("x", (3, 5))
    net.output(net.sum(x, x))
    plan = place(net, [[(0, 0)]])
    *_, vendors = registry.rkernels(plan.graph.operators[0].operation, device.spec)
    assert vendors.name == "aaa_vendor_add"  # by the order of registration, not by name
    plan = replace(plan, kernels=(vendors,))
    executable = device.load(device.build(replace(plan, memory=plan_memory(plan))))
    value = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.testing.assert_array_equal(next(iter(executable.run({"x": value}).values())), 2 * value)
    executable.close()


@pytest.mark.parametrize("policy", ["sequential", "round_robin", "wavefront", "stationary"])
def test_of_equal_rkernels_the_generators_first_wins(policy: str) -> None:
    """Whatever their names, from the hook through the registry to the plan."""

    class Vendor:
        @hookimpl
        def rammer_rkernels(self, operation: rammer.Operation, spec: VDeviceSpec) -> Iterable[RKernel]:
            for name in ("second", "first", "third"):
                yield RKernel(name, operation, ForeignSource("made up", name, "", ()))

    registry = PluginRegistry(third_party=False)
    registry.register(Vendor(), "vendor")
    net = Net(registry, VDeviceSpec("made up", 2, languages=("made up",)))
    net.output(net.sum(net.input("x", (4,))))
    graph = net.build()
    candidates = {op.operation: registry.rkernels(op.operation, net.spec) for op in graph.operators}
    times = {kernel: 1.0 for kernels in candidates.values() for kernel in kernels}
    problem = Problem(graph, net.spec, candidates, MeasuredProfiler(times, EstimatingProfiler(net.spec)))
    assert [k.name for k in registry.policy(policy).schedule(problem).kernels] == ["second"]


def test_a_vdevice_by_plugin() -> None:
    class Vendor:
        @hookimpl
        def rammer_vdevices(self) -> Iterable[rammer.VDeviceEntry]:
            def raising() -> rammer.Availability:
                raise OSError("driver is on fire")

            return [rammer.VDeviceEntry("fire", open=lambda **_: None, probe=raising)]

    registry = PluginRegistry(third_party=False)
    registry.register(Vendor(), "vendor")
    info = next(d for d in registry.devices() if d.name == "fire")
    assert not info.available and "driver is on fire" in info.reason and info.plugin == "vendor"


@pytest.mark.parametrize(
    ("plugin", "text"),
    [
        (SimpleNamespace(rammer_vdevice=hookimpl(lambda: ())), "rammer_vdevice"),
        (SimpleNamespace(rammer_policies=hookimpl(lambda nonsense: {})), "nonsense"),
    ],
)
def test_misspelt_hooks_and_arguments_are_refused(plugin: object, text: str) -> None:
    registry = PluginRegistry(third_party=False)
    with pytest.raises(PluginError, match=text):
        registry.register(plugin, "typo")
    assert registry.policies()  # the others still work


def test_a_hook_that_raises_names_its_plugin() -> None:
    def broken() -> dict[str, object]:
        raise ZeroDivisionError("oops")

    registry = PluginRegistry(third_party=False)
    registry.register(SimpleNamespace(rammer_policies=hookimpl(broken)), "clumsy")
    with pytest.raises(
        PluginError, match=r"plugin 'clumsy': rammer_policies raised ZeroDivisionError: oops\n.*DISABLE"
    ):
        registry.policies()


class Late(Exception):
    """What a handler of a signal raises."""


def test_what_a_signal_handler_raises_is_not_the_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes as it was raised, and says when; a plugin's own is still the plugin's."""

    class Waits:
        name = "waits"

        def schedule(self, problem: object) -> object:
            signal.raise_signal(signal.SIGALRM)
            raise AssertionError("unreachable")

    def raising(message: str, *_: object) -> None:
        raise Late(message)

    registry = PluginRegistry(third_party=False)
    registry.register(SimpleNamespace(rammer_policies=hookimpl(lambda: {"waits": Waits})), "vendor")
    for handler in (
        lambda *_: raising("too late"),
        functools.partial(raising, "too late"),
        Handler().handle,
        Handler(),
    ):
        before = signal.signal(signal.SIGALRM, handler)
        try:
            with pytest.raises(Late, match="too late") as caught:
                rammer.compile(lstm_stack(1, 1, 4), "interpreter", policy="waits", registry=registry)
        finally:
            signal.signal(signal.SIGALRM, before)
        notes = caught.value.__notes__
        assert notes == ["raised by the handler of SIGALRM while policy 'waits' of plugin 'vendor' ran"]


class Handler:
    def handle(self, *_: object) -> None:
        raise Late("too late")

    __call__ = handle


def test_a_fault_of_a_plugin_is_named_where_its_vdevice_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="tpu", dist=SimpleNamespace(name="rammer-tpu", version="3"), load=lambda: 1 / 0)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [entry])
    registry = PluginRegistry()
    for ask in (lambda: registry.open("tpu"), lambda: registry.policy("tpu")):
        with pytest.raises(RammerError, match="plugin 'tpu' of rammer-tpu cannot be used: ZeroDivisionError: division"):
            ask()
    with (
        config.override(RAMMER_DISABLE_PLUGINS="ipu"),
        pytest.raises(RammerError, match="'ipu' is switched off by RAM"),
    ):
        PluginRegistry(third_party=False).open("ipu")


class Wrong:
    """Policies that raise, or make no plan."""

    name = "wrong"

    def __init__(self, made: object) -> None:
        self.made = made

    def schedule(self, problem: object) -> object:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


def unmade() -> Wrong:
    raise KeyError("no settings")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (lambda: Wrong(IndexError("list index out of range")), "raised IndexError: list index out of range"),
        (lambda: Wrong(None), "made a NoneType instead of an ExecutionPlan"),
        (unmade, "raised KeyError: 'no settings'"),
    ],
    ids=["raises", "no plan", "cannot be made"],
)
def test_a_policy_that_fails_is_named_with_its_plugin(policy: object, text: str) -> None:
    registry = PluginRegistry(third_party=False)
    registry.register(SimpleNamespace(rammer_policies=hookimpl(lambda: {"wrong": policy})), "clumsy")
    with pytest.raises(PluginError, match=f"plugin 'clumsy': policy 'wrong' {text}"):
        rammer.compile(lstm_stack(1, 3, 16), "interpreter", policy="wrong", registry=registry)


def first_lane(change: Callable[[tuple[Slot, ...]], tuple[Slot, ...]]) -> Callable[[RProgram], RProgram]:
    return lambda program: RProgram((change(program.lanes[0]), *program.lanes[1:]))


def of_plan(**parts: Callable[[Any], Any]) -> Callable[[ExecutionPlan], ExecutionPlan]:
    """A plan with these parts changed."""
    return lambda plan: replace(plan, **{name: change(getattr(plan, name)) for name, change in parts.items()})


def of_last_program(change: Callable[[RProgram], RProgram]) -> Callable[[ExecutionPlan], ExecutionPlan]:
    return of_plan(programs=lambda programs: (*programs[:-1], change(programs[-1])))


WRONG_PLANS = {
    "left out": ("R106: rTask .* is in no slot", of_last_program(first_lane(lambda lane: lane[:-1]))),
    "twice": ("R106: rTask .* and again in", of_last_program(first_lane(lambda lane: (*lane, lane[-1])))),
    "unknown operator": (
        "R106: .* holds the unknown rTask",
        of_last_program(first_lane(lambda lane: (*lane, RTask(TaskUid(99, 0))))),
    ),
    "unknown rTask": (
        "R106: .* holds the unknown rTask",
        of_last_program(first_lane(lambda lane: (*lane[:-1], RTask(TaskUid(0, 10**6))))),
    ),
    "negative": (
        "R106: .* holds the unknown rTask",
        of_last_program(first_lane(lambda lane: (*lane, RTask(TaskUid(-1, -1))))),
    ),
    "too many lanes": ("R101: .* lanes", of_last_program(lambda program: RProgram((*program.lanes, ())))),
    "too few lanes": ("R101: .* lanes", of_last_program(lambda program: RProgram(program.lanes[:-1]))),
    "waits for nothing": (
        "R102: .* does not exist",
        of_last_program(first_lane(lambda lane: (BarrierRTask((Position(1, 999),)), *lane))),
    ),
    "too few kernels": ("R100: .* kernels for", of_plan(kernels=lambda kernels: kernels[:-1])),
    "no rPrograms": ("R106: .* is in no slot", of_plan(programs=lambda programs: ())),
}


@pytest.mark.parametrize("label", WRONG_PLANS)
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_policys_wrong_plan_is_refused_by_a_rule(label: str, target: str) -> None:
    """Before memory, prices and timelines are made of it, which rely on a slot for every rTask."""
    rule, change = WRONG_PLANS[label]

    class Careless(SequentialPolicy):
        def schedule(self, problem: Problem) -> ExecutionPlan:
            return change(super().schedule(problem))

    registry = PluginRegistry(third_party=False)
    registry.register(SimpleNamespace(rammer_policies=hookimpl(lambda: {"careless": Careless})), "clumsy")
    with pytest.raises(VerificationError, match=rule):
        rammer.compile(lstm_stack(1, 3, 16), target, device=2, policy="careless", registry=registry, tune_seconds=0)


def test_a_vdevice_that_fails_to_open_is_named_with_its_plugin() -> None:
    def burn(**_: object) -> None:
        raise OSError("driver is on fire")

    registry = PluginRegistry(third_party=False)
    entry = rammer.VDeviceEntry("fire", open=burn)
    registry.register(SimpleNamespace(rammer_vdevices=hookimpl(lambda: [entry])), "vendor")
    with pytest.raises(PluginError, match="plugin 'vendor': vDevice 'fire' raised OSError: driver is on fire"):
        registry.open("fire")


def test_two_plugins_may_not_claim_one_name() -> None:
    registry = PluginRegistry(third_party=False)
    entry = rammer.VDeviceEntry("cpu", open=lambda **_: None)
    registry.register(SimpleNamespace(rammer_vdevices=hookimpl(lambda: [entry])), "copycat")
    with pytest.raises(PluginError, match="'cpu' is announced by plugins"):
        registry.vdevices()


def test_plugins_can_be_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMMER_DISABLE_PLUGINS", "cuda,rocm")
    assert {"cuda", "rocm"}.isdisjoint(PluginRegistry(third_party=False).vdevices())


def test_hook_calls_can_be_traced(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAMMER_TRACE_PLUGINS", "1")
    PluginRegistry(third_party=False).policies()
    assert "rammer_policies ->" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "kind", "tests"),
    [
        ("toy_device", "device", ""),
        ("plain_c", "c-device", "one_rtask or diamond or constants or refused or saved or random_plans"),
        ("my_kernels", "kernels", ""),
        ("longest_first", "policy", ""),
    ],
)
def test_a_new_plugin_passes_the_kit(name: str, kind: str, tests: str, tmp_path: Path) -> None:
    """The package that `rammer new-plugin` makes, found through its entry point, as a user would have it."""
    made = run_at(tmp_path, "-m", "rammer", "new-plugin", name, f"--{kind}")
    folder = tmp_path / f"rammer-{name.replace('_', '-')}"
    assert made.returncode == 0 and str(folder.name) in made.stdout, made.stderr
    assert not list(folder.glob("*.in")) and len(list(folder.iterdir())) == 3
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / f"rammer_{name}-{project['version']}.dist-info"  # what pip would write
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = "".join(f"{point} = {module}\n" for point, module in project["entry-points"]["rammer"].items())
    (info / "entry_points.txt").write_text(f"[rammer]\n{points}bad = no_such_module\n")
    code = (
        f"import rammer; r = rammer.PluginRegistry();"
        f"assert {kind == 'kernels'} or {name!r} in {{**r.vdevices(), **r.policies()}};"
        "print([(f.plugin, f.distribution, f.reason) for f in r.faults])"
    )
    assert f"('bad', '{project['name']}', \"ModuleNotFoundError" in run_at(folder, "-c", code).stdout
    done = run_at(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", tests, f"test_{name}.py")
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout
    again = run_at(folder, "-m", "rammer", "new-plugin", name)
    assert again.returncode == 1 and "already" in again.stderr
    if kind == "c-device":  # saved here, loaded in another process, from files alone
        onnx.save(lstm_stack(1, 3, 16), folder / "m.onnx")
        for command in (["compile", "m.onnx", "-o", "m.rammer", "--target", name], ["run", "m.rammer"]):
            done = run_at(folder, "-m", "rammer", *command)
            assert done.returncode == 0, done.stderr
        assert "3×1×16" in done.stdout


MINE = """
from rammer.plugin import Policy, hookimpl
from rammer.scheduler.policies.sequential import SequentialPolicy
class Mine(SequentialPolicy):
    name = "mine"
@hookimpl
def rammer_policies():
    return {"mine": Mine}
"""


def test_a_file_is_a_plugin_for_one_command(tmp_path: Path) -> None:
    onnx.save(lstm_stack(1, 3, 16), tmp_path / "m.onnx")
    (tmp_path / "my_policy.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside/json.py").write_text(MINE)
    show = ("show", "m.onnx", "--policy", "mine", "--target", "interpreter")
    done = run_at(tmp_path, "-P", "-m", "rammer", "--plugin", "my_policy.py", *show)
    assert done.returncode == 0 and "policy mine" in done.stdout, done.stderr
    assert "no policy named 'mine'" in run_at(tmp_path, "-P", "-m", "rammer", *show).stderr
    for file, text in (
        ("broken.py", "broken.py raised ZeroDivisionError: division by zero"),
        ("absent.py", "absent.py raised FileNotFoundError"),
        ("inside/json.py", "a module is named 'json' already"),
    ):
        done = run_at(tmp_path, "-P", "-m", "rammer", "--plugin", file, *show)
        assert done.returncode == 1 and text in " ".join(done.stderr.split()), done.stderr


def test_a_plugins_file_is_loaded_once_and_its_content_is_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "one_of_mine.py"
    file.write_text(MINE)
    monkeypatch.setitem(sys.modules, "one_of_mine", None)  # forgotten afterwards
    del sys.modules["one_of_mine"]
    with config.override(RAMMER_PLUGINS=str(file)):
        first, second = PluginRegistry(), PluginRegistry()
    assert first.policies()["mine"] is second.policies()["mine"]
    assert "mine" not in PluginRegistry(third_party=False).policies()


def run_at(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder whose packages it finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


@pytest.mark.parametrize("name", ["Toy", "1st", "a-b", "a__b", "a_", "../a", "é", "a b", "x" * 41, "", "cpu", "auto"])
def test_a_new_plugin_needs_a_name_that_is_valid_and_free(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["new-plugin", "--", name])
    assert done.exit_code == 1 and "hint:" in done.output
    assert not list(tmp_path.iterdir())


def test_a_new_plugin_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rammer-toy").mkdir()
    Path("rammer-toy/mine").touch()
    done = CliRunner().invoke(main, ["new-plugin", "toy"])
    assert done.exit_code == 1 and "rammer-toy: cannot be written: it is not empty" in done.output
    assert [path.name for path in Path("rammer-toy").iterdir()] == ["mine"]


def test_a_plugin_adds_commands_and_a_broken_one_takes_none_away(tmp_path: Path) -> None:
    info = tmp_path / "rammer_more-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rammer-more\nVersion: 0.1\n")
    lines = ["[rammer.commands]", "hello = rammer_more:hello", "broken = rammer_nowhere:broken"]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "rammer_more.py").write_text(
        "import click\n@click.command()\ndef hello():\n    'Say hello.'\n    click.echo('hello')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    argv = [sys.executable, "-m", "rammer", "hello"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "command 'broken' of plugin rammer_nowhere:broken is not used" in done.stderr
