"""What docs/flags.md promises of a compilation: RAMMER_DEBUG, RAMMER_DUMP_DIR, RAMMER_VERIFY; and the plan's notes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from plan_text import parse_programs

import rammer
from rammer import config, passes
from rammer.errors import RammerError, VerificationError
from rammer.ir.analysis.dependency import Dependencies
from rammer.ir.graph import Graph, View
from rammer.ir.operator import ROperator, attributes
from rammer.ir.tensor import DType, TensorType
from rammer_viz.demo import lstm_stack


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return lstm_stack(1, 2, 16)


def compiled(model: onnx.ModelProto) -> rammer.Program:
    return rammer.compile(model, "cpu", device=2, tune_seconds=0)


@pytest.mark.parametrize("level", range(6))
def test_debug_levels_add_up(model: onnx.ModelProto, capsys: pytest.CaptureFixture[str], level: int) -> None:
    with config.override(RAMMER_DEBUG=str(level)):
        compiled(model).close()
    shown = capsys.readouterr().err
    marks = ("'cpu', ", "rammer: passes ", "rammer: rKernels by wave", "\n// ", "\nlane 0\n")
    assert [mark in shown for mark in marks] == [n < level for n in range(5)]


def test_dump_dir_receives_every_compile(model: onnx.ModelProto, tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    flags = {"RAMMER_DUMP_DIR": str(folder), "RAMMER_CACHE_DIR": str(tmp_path / "cache")}
    with config.override(**flags):
        with compiled(model) as program:
            plan = program.plan
        compiled(model).close()
    stem = plan.graph.name
    graph = (folder / f"001-{stem}.graph.txt").read_text()
    assert all(f" {op.kind}(" in graph and repr(op.name) in graph for op in plan.graph.operators)
    assert " matmul(" in (folder / f"001-{stem}.imported.txt").read_text()  # before passes fuse it
    assert parse_programs((folder / f"001-{stem}.plan.txt").read_text()) == plan.programs
    assert "vEU 0" in (folder / f"001-{stem}.timeline.txt").read_text()
    assert (folder / f"002-{stem}.graph.txt").read_text() == graph
    assert all("void" in f.read_text() for f in folder.glob("k_*.c"))
    assert list(folder.glob("k_*.c"))
    log = (folder / "build.log").read_text()
    assert "kernels.c" in log
    assert log.endswith("status 0\n")


def test_an_unusable_dump_dir_is_an_error(model: onnx.ModelProto, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with config.override(RAMMER_DUMP_DIR=str(tmp_path / "file")), pytest.raises(RammerError, match="RAMMER_DUMP_DIR"):
        compiled(model)


def retyped(graph: Graph) -> Graph:
    (out,) = graph.outputs
    return replace(graph, types={**graph.types, out: TensorType((1,), DType.F64)})


def reordered(graph: Graph) -> Graph:
    return replace(graph, operators=graph.operators[::-1])


def doubled(graph: Graph) -> Graph:
    return replace(graph, operators=(*graph.operators, graph.operators[-1]))


def cut(graph: Graph) -> Graph:
    return replace(graph, operators=graph.operators[:-1])


def wrong_constant(graph: Graph) -> Graph:
    name = next(iter(graph.constants))
    return replace(graph, constants={**graph.constants, name: np.zeros(3, np.int8)})


def shared_input(graph: Graph) -> Graph:
    return replace(graph, views={graph.inputs[0]: View(next(iter(graph.constants)), 0)})


@pytest.mark.parametrize("broken", [retyped, reordered, doubled, cut, wrong_constant, shared_input])
def test_verify_2_names_the_pass_that_breaks_a_graph(
    model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Graph], Graph]
) -> None:
    monkeypatch.setattr(passes, "eliminate_dead", broken)
    with config.override(RAMMER_VERIFY="2"), pytest.raises(VerificationError, match="R110") as caught:
        compiled(model)
    assert f"after the pass {broken.__name__!r}" in caught.value.__notes__


def transposed(graph: Graph) -> Graph:
    """The output is computed the other way round, and what computes it agrees."""
    (out,) = graph.outputs
    *others, last = graph.operators
    turned = graph.interner.define("transpose", (graph.types[out],), attributes(perm=(1, 0)))
    inner = replace(last, outputs=("inner",))
    types = {**graph.types, "inner": graph.types[out], out: turned.outputs[0]}
    return replace(graph, operators=(*others, inner, ROperator("turn", turned, ("inner",), (out,))), types=types)


def exchanged(graph: Graph) -> Graph:
    return replace(graph, inputs=graph.inputs[::-1], outputs=graph.outputs[::-1])


def nameless(graph: Graph) -> Graph:
    return replace(graph, symbols={})


@pytest.mark.parametrize("broken", [transposed, exchanged, nameless, retyped, doubled, wrong_constant])
def test_the_graph_is_verified_after_all_passes(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[[Graph], Graph]
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[B,12] x, float[B,12] z) => (float[B,12] y)
    <float[1] c = {2}> { a = Exp(x) b = Add(a, z) d = Mul(b, c) y = Softmax(d) }"""
    model = onnx.parser.parse_model(text)
    monkeypatch.setattr(passes, "mark_static", broken)  # the last one
    assert config.get("RAMMER_VERIFY") == "1"
    with pytest.raises(VerificationError, match="R110") as caught:
        rammer.compile(model, "cpu", device=2, tune_seconds=0, dims={"B": 3})
    assert "after all passes" in caught.value.__notes__


def test_verify_2_passes_what_is_sound(model: onnx.ModelProto) -> None:
    with config.override(RAMMER_VERIFY="2"):
        compiled(model).close()


def test_verify_0_skips_the_plan(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise VerificationError("R100", "asked for")

    monkeypatch.setattr("rammer.compiler.compilation.verify_plan", refuse)
    with pytest.raises(VerificationError, match="asked for"):
        compiled(model)
    with config.override(RAMMER_VERIFY="0"):
        compiled(model).close()


def test_reads_known_as_boxes_are_noted(model: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dependencies, "bounded", lambda self: [f"op {n}: taken as a box" for n in range(20)])
    with compiled(model) as program:
        assert [n for n in program.plan.notes if "box" in n][-2:] == [
            "op 7: taken as a box",
            "12 more inputs are taken as boxes",
        ]
        assert "note: op 0: taken as a box" in str(program.report())
