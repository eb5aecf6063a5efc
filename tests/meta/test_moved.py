"""Old names of modules lead to the new ones: imports, pickles and `python -m`."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import rammer
from rammer.ir.kernel import Tuning
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.moved import MOVED, STAY
from rammer.plugins import PluginRegistry
from rammer.session.report import SessionReport

ROOT = Path(__file__).parents[2]


def exists(module: str) -> bool:
    paths = [folder.joinpath(*module.split(".")) for folder in (ROOT, ROOT / "plugins/torch", ROOT / "plugins/dask")]
    return any(path.with_suffix(".py").is_file() or (path / "__init__.py").is_file() for path in paths)


def test_the_table_names_modules_that_are_there_and_none_that_hides_one() -> None:
    assert not [new for new in MOVED.values() if not exists(new)]
    assert not [old for old in MOVED if exists(old)]
    assert MOVED.keys() >= {*STAY}


@pytest.fixture
def forgotten() -> Iterator[str]:
    """An old name that leaves nothing behind in other tests."""
    yield "rammer.program"
    sys.modules.pop("rammer.program", None)
    vars(rammer).pop("program", None)


def test_an_old_name_is_the_same_module_with_a_warning_at_the_import(forgotten: str) -> None:
    new = import_module("rammer.runtime.program")
    own = new.__spec__
    with pytest.warns(DeprecationWarning, match=r"rammer\.program is rammer\.runtime\.program now") as caught:
        exec(compile("import rammer.program", "user.py", "exec"), {})
    assert sys.modules[forgotten] is new and new.__spec__ == own and new.__name__ == "rammer.runtime.program"
    assert [w.filename for w in caught] == ["user.py"]


def test_pickles_by_old_names_load(forgotten: str) -> None:
    with pytest.warns(DeprecationWarning, match="now"):
        assert pickle.loads(b"crammer.program\nProgram\n.") is rammer.Program


def test_an_old_package_has_the_new_ones_modules() -> None:
    script = "import rammer.viz, rammer.viz.explain as old, rammer_viz.explain as new; assert old is new"
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=ROOT, check=True, timeout=60)
    code = "import sys; sys.modules['rammer_torch'] = None; import rammer.dynamo"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "not installed: pip install 'rammer-compiler[torch]'" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["-W", "error", "-c", "import rammer.distributed; assert rammer.distributed.connect"],
        ["-m", "rammer.demo", "--help"],
        ["-m", "benchmarks.before", "--help"],
    ],
    ids=lambda c: c[-2].partition(";")[0],
)
def test_commands_by_old_names_run(command: list[str]) -> None:
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True, capture_output=True, timeout=60)


REPORT = {"hits": 1, "misses": 1, "compiled_ahead": 1, "compile_s": 1.0, "padding": 0.0, "programs": ()}
OLD = [  # what plugins pass or read by another name than before
    (rammer.VDeviceSpec, {"name": "a", "num_veus": 2}, "wave", "subgroup_size"),
    (rammer.VDeviceSpec, {"name": "a", "num_veus": 2}, "doubles", "has_float64"),
    (
        SessionReport,
        dict.fromkeys(("hits", "misses", "compiled_ahead", "compile_s", "padding"), 0),
        "put_out",
        "evictions",
    ),
]


@pytest.mark.parametrize(("kind", "others", "old", "new"), OLD, ids=lambda value: str(value))
def test_old_attributes_and_keywords_lead_to_the_new_ones(
    kind: Any, others: dict[str, Any], old: str, new: str
) -> None:
    others = others | ({"programs": ()} if kind is SessionReport else {})
    with pytest.warns(DeprecationWarning, match=rf"{kind.__name__}\.{old} is {new} now"):
        made = kind(**others, **{old: 7})
    with pytest.warns(DeprecationWarning, match="now"):
        assert getattr(made, old) == getattr(made, new) == 7
    assert made == kind(**others, **{new: 7}) == pickle.loads(pickle.dumps(made))
    with pytest.raises(AttributeError, match="never"):
        _ = made.never


def test_a_hook_with_the_old_parameter_gets_the_new_ones_value() -> None:
    class Old:
        @rammer.hookimpl
        def rammer_rkernels(self, operation: object, spec: object, finer: tuple[int, ...]) -> list[object]:
            asked.append(finer)
            return []

    asked: list[tuple[int, ...]] = []
    registry = PluginRegistry()
    with pytest.warns(DeprecationWarning, match=r"finer is tuning\.task_multiples now"):
        registry.register(Old(), "old")
    operation = Operations(OPS).define("relu", (rammer.TensorType((4,), rammer.DType.F32),))
    registry.rkernels(operation, rammer.VDeviceSpec("old", 1), Tuning(task_multiples=(4,)))
    assert asked == [(4,)]


def test_a_name_that_was_never_there_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"rammer\.never"):
        import_module("rammer.never")
