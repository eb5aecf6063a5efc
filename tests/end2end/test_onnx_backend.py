"""`rammer_testing.onnx_backend` is ONNX's backend interface, and runs the whole of onnx.backend.test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rammer_testing.onnx_backend
from onnx import TensorProto, helper

from benchmarks.pages.operator_table import table
from rammer import config
from rammer.errors import InputError, ModelError, RammerError

EXPECTED = Path(__file__).parents[1] / "frontend" / "backend_failures.txt"
F32 = np.float32
JOBS = os.cpu_count() or 1


@pytest.fixture(autouse=True)
def _untuned() -> Iterator[None]:
    with config.override(RAMMER_TUNE_SECONDS="0"):
        yield


def relu(op: str = "Relu") -> helper.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_models_and_nodes_run() -> None:
    x = np.array([-1, 0, 2], F32)
    rep = rammer_testing.onnx_backend.prepare(relu())
    for given in ([x], x, {"x": x}, (x[:2],)):
        (y,) = rep.run(given)
        np.testing.assert_array_equal(y, np.maximum(given[0] if isinstance(given, list | tuple) else x, 0))
    np.testing.assert_array_equal(
        rammer_testing.onnx_backend.run_model(relu(), [x], "CPU", rtol=0.1)[0], np.maximum(x, 0)
    )
    split = helper.make_node("Split", ["x", "parts"], ["a", "b"], axis=0)
    a, b = rammer_testing.onnx_backend.run_node(split, [x, np.array([1, 2])], opset_version=13)
    assert (a.tolist(), b.tolist()) == ([-1], [0, 2])
    joined = rammer_testing.onnx_backend.run_node(
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0), [[x, x]]
    )
    assert joined[0].shape == (6,)
    with pytest.raises(InputError, match="2 inputs given, the model takes 1: x"):
        rep.run([x, x])
    with pytest.raises(InputError, match="no option 'fast'"):
        rep.run([x], fast=True)


def test_what_is_supported_is_known_before_it_is_asked_for() -> None:
    assert rammer_testing.onnx_backend.is_compatible(relu()) and not rammer_testing.onnx_backend.is_compatible(
        relu("NoSuchOperator")
    )
    assert rammer_testing.onnx_backend.supports_device("CPU") and not rammer_testing.onnx_backend.supports_device(
        "ABACUS"
    )
    with pytest.raises(RammerError, match="abacus"):
        rammer_testing.onnx_backend.prepare(relu(), "ABACUS").run([np.zeros(1, F32)])
    with pytest.raises(ModelError, match="NoSuchOperator"):
        rammer_testing.onnx_backend.prepare(relu("NoSuchOperator")).run([np.zeros(1, F32)])


@pytest.fixture(scope="module")
def onnx_cases(suite: Any) -> Any:
    from rammer_testing import onnx_cases

    return onnx_cases


@pytest.fixture(scope="module")
def suite() -> Any:
    """Reading all cases takes some ten seconds: only tests that need them do."""
    from rammer_testing import onnx_suite

    return onnx_suite


def check(results: list[Any], listed: dict[str, str]) -> None:
    """Cases pass or are listed; a listed one that passes is stale; and only what is refused or differs is listed."""
    fine = {"passes": "", "refused": "refused: ", "differs": "differs: "}
    bad = [r for r in results if not listed.get(r.name, "").startswith(fine.get(r.outcome, "?"))]
    assert not bad, bad
    stale = [r.name for r in results if r.outcome == "passes" and r.name in listed]
    assert not stale, f"remove from {EXPECTED.name}, they pass: {stale}"
    assert all(reason.startswith(("refused: ", "differs: ")) for reason in listed.values())


@pytest.mark.slow
def test_a_sample_of_the_suite_through_processes(suite: Any) -> None:
    """Workers that die or hang are one case's outcome."""
    names = suite.NAMES[::97]
    results = suite.run(suite.run_case, names, jobs=JOBS)
    assert [r.name for r in results] == list(names)
    check(results, suite.read_failures(EXPECTED))
    (late,) = suite.run(suite.run_case, ["test_vgg19"], seconds=0.01)
    assert late.outcome == "timeout"


def test_lists_and_optional_values_of_the_suite(suite: Any) -> None:
    words = ("sequence_map_add", "optional_get", "if_opt", "loop16", "split_to_sequence_1", "sequence_model7")
    names = [name for name in suite.NAMES if any(word in name for word in words)]
    assert len(names) >= 10
    check([suite.run_case(name) for name in names], suite.read_failures(EXPECTED))


def test_the_suite_counts_by_its_own_tolerances(suite: Any, onnx_cases: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known to differ is named, and neither passes nor may differ by more."""
    listed = suite.read_failures(EXPECTED)
    known = [name for name in suite.NAMES if name in onnx_cases.DIFFERENCES]
    assert known == sorted(onnx_cases.DIFFERENCES) == [n for n, why in listed.items() if why.startswith("differs: ")]
    check([suite.run_case("test_dft_inverse")], listed)
    near = onnx_cases.Difference("less than it is", atol=1.5e-7)
    monkeypatch.setitem(onnx_cases.DIFFERENCES, "test_dft_inverse", near)
    assert suite.run_case("test_dft_inverse").outcome == "wrong"
    monkeypatch.delitem(onnx_cases.DIFFERENCES, "test_dft_inverse")
    assert suite.run_case("test_dft_inverse").outcome == "wrong"
    assert suite.run_case("test_dft").outcome == "passes"


def test_other_vdevices_run_the_suite(suite: Any) -> None:
    assert suite.run_case("test_add", "interpreter").outcome == "passes"
    assert "no vDevice named 'abacus'" in suite.run_case("test_add", "abacus").reason
    assert suite.run_case("test_add").outcome == "passes"


def test_the_table_of_operators_is_of_this_suite(suite: Any) -> None:
    """Its rows and the CPU's types; what passes there is what the tests above expect."""
    page = (Path(__file__).parents[2] / "docs/operators.md").read_text(encoding="utf-8")
    table = [line.split(" | ") for line in page.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    rows = {row[0].removeprefix("| "): row[table[0].index("`CPU`")] for row in table}
    listed = suite.read_failures(EXPECTED)
    wanted: dict[str, set[str]] = {}
    for name in suite.sample(suite.NAMES):
        kind = suite.element_type(name)
        wanted.setdefault(suite.operators(name)[0], set()).add(f"~~{kind}~~" if name in listed else kind)
    rows.pop("operator")
    assert {op: set(cell.split()) for op, cell in rows.items()} == wanted


def test_a_table_says_what_does_not_pass() -> None:
    def result(name: str, kind: str, outcome: str = "passes", reason: str = "") -> dict[str, Any]:
        return {"name": name, "operators": ["Add"], "type": kind, "outcome": outcome, "reason": reason}

    runs = [
        {"device": "CPU", "results": [result("a", "int8"), result("b", "int8", "refused", "x < y")]},
        {"device": "CPU", "results": [result("c", "float32")]},
        {"device": "ipu:emulator", "results": []},
    ]
    page = table(runs, "onnx 1")
    assert "| Add | float32 ~~int8~~ | – |" in page
    assert "* Add on `CPU`, int8 (1 of 2): refused: x ‹ y\n" in page
    assert "## Strings" not in page
    runs += [{"device": d, "results": [result("d", "string", "refused", "no")]} for d in ("CPU", "ipu:emulator")]
    page = table(runs, "onnx 1")
    assert "* Add everywhere, string (1 of 1): refused: no\n" in page
    assert "refused by name: Add." in page.replace("\n", " ")


@pytest.mark.slow
def test_the_whole_suite(suite: Any) -> None:
    results = suite.run(suite.run_case, suite.NAMES, jobs=JOBS, seconds=600)
    listed = suite.read_failures(EXPECTED)
    assert set(listed) <= set(suite.NAMES)
    check(results, listed)
