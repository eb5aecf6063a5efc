"""Who may import whom. The table is CONTRIBUTING.md's; anything not listed is forbidden."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
ROOT = REPOSITORY / "rammer"
BACKENDS = ("cpu", "cuda", "rocm", "ipu")

CORE = {"errors", "moved", "ir.ops", "ir.device", "ir.expr", "ir.graph", "ir.index", "ir.instruction", "ir.kernel"} | {
    *("ir.listing", "ir.operator", "ir.plan", "ir.program", "ir.remembered", "ir.software_pipeline", "ir.tensor"),
    *("ir.text", "ir.tile"),
}

# A module is what a name says and what lies below it; `name=` is the package's own module alone.
# module prefix (longest match wins) -> what it may import from rammer, what from third parties
ALLOWED: dict[str, tuple[set[str], set[str]]] = {
    "rammer.errors": (set(), set()),
    "rammer.config": ({"errors"}, set()),
    "rammer.log": ({"config"}, set()),
    "rammer.files": ({"errors"}, set()),
    "rammer.moved": ({"errors"}, set()),
    "rammer.hookspecs": (set(), {"pluggy"}),
    "rammer.ir": (CORE, {"numpy", "networkx", "ml_dtypes"}),  # data structures: they analyze and prove nothing
    "rammer.ir.ops": (CORE | {"ir.semantics.functions"}, {"numpy", "ml_dtypes"}),
    "rammer.ir.semantics": (CORE | {"ir.semantics"}, {"numpy", "ml_dtypes"}),
    "rammer.ir.analysis": (CORE | {"ir.analysis", "ir.semantics"}, {"numpy", "networkx"}),
    "rammer.ir.verify": (CORE | {"ir.analysis", "ir.semantics", "ir.verify"}, {"numpy"}),  # nothing of the planner
    "rammer.planner": ({"planner", "ir", "errors"}, {"numpy"}),
    "rammer.passes": ({"passes", "ir", "errors"}, {"numpy"}),
    "rammer.cost": ({"cost", "planner.memory", "planner.pieces", "ir", "errors"}, {"numpy"}),
    "rammer.kernels": ({"kernels", "cost", "ir", "errors"}, {"numpy"}),
    "rammer.scheduler": ({"scheduler", "planner", "cost", "ir", "errors"}, {"numpy", "networkx"}),
    "rammer.scheduler.policy_options": ({"ir.kernel", "errors"}, set()),
    "rammer.scheduler.plugin": ({"scheduler", "ir", "errors", "hookspecs"}, set()),
    "rammer.vdevice": (
        {"forkpool", "vdevice", "planner", "ir", "kernels", "errors", "files", "config", "log", "hookspecs"},
        {"numpy"},
    ),
    "rammer.vdevice.toolchain": (
        {"forkpool", "vdevice", "planner", "ir", "kernels", "errors", "files", "config"},
        {"numpy", "ziglang"},
    ),
    # what proves an image imports nothing that writes one
    "rammer.vdevice.proof": ({"vdevice.base", "vdevice.proof", "ir", "errors"}, {"numpy"}),
    "rammer.vdevice.cpu.decode": ({"vdevice.base", "vdevice.proof", "ir"}, {"numpy"}),
    "rammer.vdevice.simt.decode": (
        {
            "vdevice.base",
            "vdevice.proof",
            "vdevice.simt.codegen.slices",
            "vdevice.simt.codegen.prelude",
            "vdevice.simt.codegen.variants",
            "ir",
        },
        {"numpy"},
    ),
    "rammer.vdevice.ipu.decode": ({"vdevice.base", "vdevice.proof", "ir"}, {"numpy"}),
    "rammer.frontend": (
        {"frontend", "ir", "errors", "files", "config"},
        {"numpy", "networkx", "onnx", "google", "ml_dtypes"},
    ),
    "rammer.frontend.tensorflow": ({"errors", "files"}, {"numpy", "tensorflow", "tf2onnx"}),
    "rammer.compiler.models": ({"frontend", "ir", "errors", "runtime.artifact"}, {"numpy", "rammer_torch"}),
    "rammer_torch": ({"frontend", "ir", "errors"}, {"numpy", "onnx", "torch", "rammer_torch"}),
    "rammer_torch.dynamo": (
        {"compiler=", "compiler.options", "runtime.program", "errors"},
        {"torch", "rammer_torch"},
    ),
    "rammer.compiler.progress": ({"config"}, set()),
    "rammer_viz": (  # it explains plans by their prices
        {"cost", "ir", "errors", "scheduler.critical", "scheduler.timeline", "vdevice.supersteps"},
        {"numpy", "rammer_viz"},
    ),
    "rammer.plugins": ({"hookspecs", "scheduler.policy_options", "ir.kernel", "errors", "config", "log"}, {"pluggy"}),
    "rammer.runtime.artifact": ({"vdevice.base", "ir", "errors", "files", "config"}, {"numpy"}),
    "rammer.runtime.usage": ({"vdevice.base"}, {"numpy"}),
    "rammer.runtime.outline": (
        {"runtime.report", "scheduler.timeline", "vdevice.image.tables", "ir", "errors"},
        {"numpy"},
    ),
    "rammer.runtime.call": ({"ir", "errors"}, {"numpy"}),
    "rammer.runtime.state": ({"runtime.call", "ir", "errors"}, set()),
    "rammer.session.embedding": ({"ir"}, set()),
    "rammer.session.specialize": ({"ir"}, {"numpy"}),
    "rammer.session.buckets": (
        {"runtime.call", "session.embedding", "session.specialize", "frontend.builder", "ir", "errors"},
        {"numpy"},
    ),
    "rammer.session.cache": ({"runtime.program", "errors"}, set()),
    "rammer.session.growing_cache": ({"ir", "errors", "session.buckets", "runtime.state"}, {"numpy"}),
    "rammer.session.inputs": (
        {"runtime.call", "frontend", "ir", "errors", "session.buckets", "vdevice.base"},
        {"numpy"},
    ),
    "rammer.session.onnxruntime": ({"runtime.call", "ir", "errors", "log", "plugins"}, {"numpy"}),
    "rammer.session.driven": ({"runtime.program", "vdevice.base", "ir", "errors"}, {"numpy"}),
    "rammer.session.seen": ({"session.cache", "session.outputs"}, {"numpy"}),
    "rammer.session.outputs": ({"frontend"}, set()),
    "rammer.session.padding": (
        {"ir", "errors", "runtime.call", "session.buckets", "session.inputs"},
        {"numpy"},
    ),
    "rammer.session.report": ({"errors", "moved"}, set()),
    "rammer.session.loops": ({"session.buckets", "session.driven", "vdevice.base", "ir", "errors"}, {"numpy"}),
    "rammer.session.control_flow": (
        {"session.inputs", "session.loops", "runtime.state", "frontend", "ir", "errors"},
        {"numpy", "onnx"},
    ),
    "rammer.session": (
        {
            "runtime.call",
            "compiler=",
            "compiler.options",
            "session.inputs",
            "session.growing_cache",
            "session.onnxruntime",
            "session.outputs",
            "session.control_flow",
            "session.buckets",
            "session.padding",
            "runtime.program",
            "session.cache",
            "session.report",
            "session.seen",
            "session.specialize",
            "runtime.state",
            "plugins",
            "vdevice.base",
            "frontend",
            "ir",
            "errors",
        },
        {"numpy"},
    ),
    "rammer.runtime.report": ({"runtime.usage", "ir.text", "errors"}, set()),
    "rammer.runtime": (
        {
            "runtime",
            "runtime.artifact",
            "runtime.joint",
            "runtime.program",
            "runtime.report",
            "runtime.state",
            "runtime.usage",
            "plugins",
            "vdevice.base",
            "files",
            "ir.tensor",
            "errors",
        },
        set(),
    ),
    "rammer.runtime.load": (
        {"runtime", "plugins", "vdevice.base", "errors", "files"}
        | {"compiler.models"},  # for the old meaning of `load`, until 0.7
        set(),
    ),
    "rammer.runtime.program": (
        {
            "runtime.call",
            "runtime.state",
            "runtime.outline",
            "runtime.load",
            "scheduler.timeline",
            "runtime.artifact",
            "files",
            "runtime.report",
            "runtime.usage",
            "vdevice.base",
            "vdevice.export",
            "vdevice.forks",
            "vdevice.proof",
            "ir",
            "errors",
            "config",
        },
        {"numpy", "rammer_viz"},
    ),
    "rammer.compiler": (
        {
            "runtime.artifact",
            "runtime.joint",
            "runtime.program",
            "runtime.state",
            "runtime.report",
            "plugins",
            "scheduler",
            "planner",
            "cost",
            "compiler.candidates",
            "compiler.smoke_run",
            "compiler.trace",
            "log",
        }
        | {
            "compiler",
            "vdevice.base",
            "vdevice.proof",
            "frontend",
            "passes",
            "ir",
            "errors",
            "config",
            "compiler.gcpause",
        },
        set(),
    ),
    "rammer.compiler.gcpause": ({"ir"}, set()),
    "rammer.compiler.checking": (
        {"compiler.candidates", "compiler=", "runtime.measure", "vdevice.base", "ir", "errors"},
        {"onnx"},
    ),
    "rammer.forkpool": (set(), set()),
    "rammer.compiler.candidates": (
        {
            "forkpool",
            "runtime.measure",
            "compiler.smoke_run",
            "runtime.program",
            "vdevice.base",
            "vdevice.profiles",
            "ir",
            "errors",
        },
        {"numpy"},
    ),
    "rammer.compiler.smoke_run": (
        {
            "forkpool",
            "runtime.measure",
            "runtime.report",
            "vdevice.base",
            "vdevice.image.placement",
            "vdevice.profiles",
            "ir",
            "errors",
        },
        {"numpy"},
    ),
    "rammer.compiler.trace": ({"scheduler.timeline", "ir", "errors", "config", "log"}, {"rammer_viz"}),
    "rammer.runtime.measure": ({"runtime.program", "vdevice.base", "ir"}, {"numpy"}),
    "rammer_viz.cli": ({"*"}, {"click", "numpy", "rich", "rammer_viz"}),
    "rammer_viz.tables": ({"errors", "runtime.measure", "runtime.program", "runtime.report"}, {"rich"}),
    "rammer_dask": ({"", "forkpool", "compiler=", "runtime.program", "ir", "errors"}, {"dask"}),
    "rammer.__main__": ({"errors", "cli"}, set()),
    "rammer.cli": (
        {"*"},
        {"click", "numpy", "rich", "rammer_testing", "rammer_viz"},
    ),  # new-plugin is a tool of that package
    "rammer.cli.cache": ({"cli.console", "errors", "files", "vdevice.profiles", "vdevice.toolchain"}, {"click"}),
    "rammer.cli.running": ({"files", "runtime.measure", "runtime.program", "ir", "errors"}, {"numpy"}),
    "rammer.cli.run_only": ({"", "cli.running", "runtime.artifact", "runtime.program", "errors"}, set()),
    "rammer_viz.demo": (
        {"", "runtime.measure", "errors", "files", "scheduler.timeline", "vdevice.base", "ir"},
        {"numpy", "onnx", "rich", "rammer_viz"},
    ),
    "rammer.testing": ({"testing"}, set()),  # the rest is in tools/testing
    "rammer.lazily": (set(), set()),
    "rammer.plugin": ({"lazily"}, set()),
    "rammer": ({"*"}, set()),  # __init__ re-exports
}


VIZ, TORCH, DASK = (
    REPOSITORY / path for path in ("rammer_viz", "plugins/torch/rammer_torch", "plugins/dask/rammer_dask")
)


def modules() -> list[Path]:
    return sorted(path for package in (ROOT, VIZ, TORCH, DASK) for path in package.rglob("*.py"))


def module_name(path: Path) -> str:
    parent = next((package.parent for package in (TORCH, DASK) if path.is_relative_to(package)), ROOT.parent)
    parts = path.relative_to(parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[tuple[int, str]]:
    """Absolute imports of a file outside TYPE_CHECKING blocks, `from a import b` as a.b where b is a module."""
    found: list[tuple[int, str]] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            assert node.module
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = (ROOT.parent / Path(*full.split("."))).with_suffix(".py").exists()
                is_package = (ROOT.parent / Path(*full.split("."))).is_dir()
                found.append((node.lineno, full if is_module or is_package else node.module))
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8")))
    return found


def rule(module: str) -> tuple[set[str], set[str]]:
    prefix = module
    while prefix not in ALLOWED:
        prefix = prefix.rpartition(".")[0]
    return ALLOWED[prefix]


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_imports_follow_the_layering(path: Path) -> None:
    module = module_name(path)
    own, third = rule(module)
    for line, name in imports(path):
        top, _, rest = name.partition(".")
        if top == "rammer":
            names = any(rest == o.removesuffix("=") or (o and rest.startswith(f"{o}.")) for o in own)
            allowed = names or "*" in own or rest == "about"  # the version and names: it imports nothing
            assert allowed, f"{module} must not import {name} ({path.name}:{line})"
            for backend in BACKENDS:
                inside = module.startswith(f"rammer.vdevice.{backend}")
                assert inside or not rest.startswith(f"vdevice.{backend}"), (
                    f"{module} names backend {backend!r} (line {line})"
                )
        elif top not in sys.stdlib_module_names and top != "__future__":
            assert top in third, f"{module} must not import {name} ({path.name}:{line})"


def test_import_loads_no_driver_and_no_model_reader() -> None:
    """`import rammer` and building a registry stay cheap on a machine full of toolkits."""
    code = (
        "import sys, rammer; rammer.PluginRegistry(); rammer.devices();"
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'cupy','hip','poptorch','torch','onnx','cuda'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_default_policy_loads_no_other_for_a_single_image() -> None:
    """`auto` is wavefront then, and takes no longer to be there."""
    code = (
        "import sys, rammer; from rammer_viz.demo import lstm_stack;"
        "rammer.compile(lstm_stack(1, 3, 8), 'interpreter', policy='auto', tune_seconds=0);"
        "print([m for m in sys.modules if m.startswith('rammer.scheduler.') and "
        "m.rpartition('.')[2] in ('graphturbo', 'stationary', 'auto')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rammer.scheduler.policies.auto']"


def others() -> list[Path]:
    """Python files of the repository beside the package and its benchmarks."""
    return [p for folder in ("plugins", "tests", "tools") for p in sorted((ROOT.parent / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", [*modules(), *others()], ids=lambda p: p.name)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 620, "split the file: one job each"


MOST = 16  # modules of a folder, as files are bounded
EQUALS = {  # folders of many small modules behind one interface
    "rammer/frontend/onnx/handlers",
    "rammer/ir/ops",
}


def test_folders_stay_small() -> None:
    folders = Counter(
        p.parent
        for top in ("rammer", "rammer_viz", "benchmarks", "plugins", "tools")
        for p in (REPOSITORY / top).rglob("*.py")
    )
    large = {folder.relative_to(REPOSITORY).as_posix(): n for folder, n in folders.items() if n > MOST}
    assert large.keys() <= EQUALS, f"split the folder, at most {MOST} modules: {large}"
    assert all((REPOSITORY / folder).is_dir() for folder in EQUALS)


def test_the_shell_is_short() -> None:
    """Modules beside the packages are what users and plugins name, and what everything may import."""
    shell = {
        "about",
        "config",
        "errors",
        "files",
        "forkpool",
        "hookspecs",
        "lazily",
        "log",
        "moved",
        "plugin",
        "plugins",
    }
    assert {p.stem for p in ROOT.glob("*.py")} - {"__init__", "__main__"} <= shell


HARDWARE = re.compile(
    r"cuda|cupy|rocm|nvidia|nvrtc|poplar|graphcore|cubin|\bamd|\bhip\b|\bipus?\b|\bptx|\bgfx\d|\bsm_\d"
    r"|\bwarps?\b|wave64|\bw?mma\b|\bmfma|\bamx|\bavx|\bvnni|\bneon\b|\bsse\b|\bgpus?\b"
)


def test_no_device_names_outside_their_folders() -> None:
    """Hardware-neutral layers know no product, and no word of one: a new backend must not need a change there."""
    for folder in ("ir", "planner", "passes", "cost", "kernels", "scheduler", "frontend"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").lower().splitlines(), 1):
                found = HARDWARE.search(line)
                assert not found, f"{path.relative_to(ROOT)}:{number} names {found and found.group()!r}"


def guesses(source: str) -> list[int]:
    """Lines that tell what kind of machine it is from a number of threads, or make up a width of its vectors."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Compare(left, _, [right]):
                sides = (left, right)
            case ast.Call(ast.Name("max" | "min"), [left, right]):
                sides = (left, right)
            case _:
                continue
        names = [s.attr for s in sides if isinstance(s, ast.Attribute)]
        numbers = [s.value for s in sides if isinstance(s, ast.Constant)]
        guessed = ["max_threads"] if isinstance(node, ast.Compare) else ["lanes"]
        if names == guessed and numbers and numbers[0] in range(5):
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "guess",
    ["spec.max_threads > 1", "1 == self.spec.max_threads", "x = not spec.max_threads <= 1", "max(spec.lanes, 4)"],
)
def test_guesses_are_found(guess: str) -> None:
    assert guesses(guess) and not guesses("kernel.num_threads <= spec.max_threads; min(spec.max_threads, 256)")


def test_nobody_guesses_the_kind_of_a_machine() -> None:
    """A spec says what a device is (`execution`, `kept_reads`, `lanes`); only backends know more."""
    for path in modules():
        if "vdevice" not in path.parts and path != ROOT / "ir" / "device.py":  # where the facts are, and checked
            found = guesses(path.read_text(encoding="utf-8"))
            assert not found, f"{path.relative_to(ROOT)}:{found} guesses: use a field of VDeviceSpec"
