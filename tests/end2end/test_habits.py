"""What users of ONNX Runtime, NumPy and PyTorch try first works, or says what to write instead."""

from __future__ import annotations

import importlib.resources
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import rammer
from rammer.cli.commands import main
from rammer.errors import InputError, ModelError
from rammer_viz.demo import lstm_stack

F32 = np.float32


def scaled(rows: int | str = 2) -> onnx.ModelProto:
    """y = x * s + n, z = b; with float32, int64 and bool inputs."""
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["p"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["p", "f"], ["y"]),
        helper.make_node("Not", ["b"], ["z"]),
    ]
    kinds = {"x": (1, [rows, 3]), "s": (1, []), "n": (7, []), "b": (9, [])}
    inputs = [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info("y", 1, [rows, 3]), helper.make_tensor_value_info("z", 9, [])]
    graph = helper.make_graph(nodes, "scaled", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="module")
def program() -> Iterator[rammer.Program]:
    with rammer.compile(scaled(), "cpu", device=2, tune_seconds=0) as made:
        yield made


GIVEN: dict[str, Any] = {"x": np.array([[1, 2, 3], [4, 5, 6]], F32), "s": F32(2), "n": np.int64(1), "b": np.True_}
Y = GIVEN["x"] * 2 + 1


def test_calls_by_name_and_in_order(program: rammer.Program) -> None:
    for y, z in (program(**GIVEN), program(*GIVEN.values()), program(GIVEN["x"], F32(2), n=np.int64(1), b=np.True_)):
        np.testing.assert_array_equal(y, Y)
        assert not z
    with pytest.raises(InputError, match="'x' is given twice"):
        program(GIVEN["x"], x=GIVEN["x"])
    with pytest.raises(InputError, match="5 arrays given, the program takes 4: x, s, n, b"):
        program(1, 2, 3, 4, 5)
    with pytest.raises(InputError, match="2 arrays given"):
        program(1, 2)
    with pytest.raises(InputError, match="missing inputs: b"):
        program(GIVEN["x"], s=2, n=1)


def test_arrays_that_fit_are_not_converted(program: rammer.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may take microseconds: an array in the vDevice's own form goes straight there, from each way to call."""
    monkeypatch.setattr(rammer.Program, "_checked", lambda *_: pytest.fail("arrays were looked at one by one"))
    arrays = {name: np.asarray(value) for name, value in GIVEN.items()}
    with rammer.Session(scaled("rows"), "cpu", device=2, tune_seconds=0) as session:
        for run in (program.run, program.stream().run, session.run):
            y, z = run(None, arrays)
            np.testing.assert_array_equal(y, Y)
            assert not z
    with pytest.raises(pytest.fail.Exception):
        program.run(None, {**arrays, "s": 2})


def test_run_as_onnx_runtime_does(program: rammer.Program) -> None:
    y, z = program.run(None, GIVEN)
    np.testing.assert_array_equal(y, Y)
    assert [a.tolist() for a in program.run(["z", "y"], GIVEN)] == [z.tolist(), Y.tolist()]
    with pytest.raises(InputError, match=r"no output named 'Y'(.|\n)*did you mean 'y'"):
        program.run(["Y"], GIVEN)
    with pytest.raises(InputError, match="inputs are a ndarray"):
        program.run(GIVEN["x"])


def test_numbers_and_lists_are_converted_where_that_is_exact(program: rammer.Program) -> None:
    y, z = program(x=[[1, 2.0, 3], [4, 5, 6]], s=np.float64(2), n=1, b=True)
    np.testing.assert_array_equal(y, Y)
    assert not z
    np.testing.assert_array_equal(program(**GIVEN | {"s": float("nan")})[0], np.full((2, 3), np.nan, F32))
    for name, value, seen in (
        ("s", 0.1, "0.1 is no float32"),
        ("s", 2**24 + 1, "16777217 is no float32"),
        ("s", 1e300, r"1e\+300 is no float32"),
        ("n", 1.0, "1.0 is no int64"),
        ("b", 1, "1 is no bool"),
        ("s", True, "True is no float32"),
        ("s", "2", "dtype"),
        ("x", [[1], [2, 3]], "not an array"),
    ):
        with pytest.raises(InputError, match=f"input '{name}': {seen}"):
            program(**GIVEN | {name: value})


def test_arrays_of_another_type_are_refused_with_the_conversion(program: rammer.Program) -> None:
    for dtype in (np.float64, np.int64, ml_dtypes.bfloat16):
        with pytest.raises(
            InputError, match=r"convert it with \.astype\('float32'\), a tensor with \.to\(torch\.float32\)"
        ):
            program(**GIVEN | {"x": np.ones((2, 3), dtype)})


def test_tensors_that_require_gradients(program: rammer.Program) -> None:
    torch = pytest.importorskip("torch", reason="needs the torch extra")
    x = torch.tensor(GIVEN["x"], requires_grad=True)
    np.testing.assert_array_equal(program(**GIVEN | {"x": x})[0], Y)


def test_ports_have_shape_and_dtype(program: rammer.Program) -> None:
    assert [(p.name, p.shape, p.dtype) for p in program.inputs[:2]] == [("x", (2, 3), "float32"), ("s", (), "float32")]


def test_dimensions_are_fixed_by_name(tmp_path: Path) -> None:
    with rammer.compile(scaled("rows"), "cpu", dims={"rows": 4}, device=2, tune_seconds=0) as made:
        assert made.inputs[0].shape == (4, 3)
    assert rammer.from_onnx(scaled("rows"), dims={"rows": 5}).types["x"].shape == (5, 3)
    for options, message in (
        ({"dims": {"row": 4}}, "dims= names 'row', which is no symbolic dimension(.|\n)*did you mean 'rows'"),
        ({"dims": {"rows": "many"}}, "dims= gives 'rows' 'many', not an extent"),
        ({"dims": {"rows": 4}, "shapes": {"x": (5, 3)}}, "extent 5 along axis 0, dims={'rows': …} says 4"),
        ({}, r"dims=\{'rows': 1\}"),
    ):
        with pytest.raises(ModelError, match=message):
            rammer.from_onnx(scaled("rows"), **options)  # type: ignore[arg-type]
    onnx.save(scaled("rows"), tmp_path / "m.onnx")
    done = CliRunner().invoke(main, ["run", str(tmp_path / "m.onnx"), "--dim", "rows=7"])
    assert done.exit_code == 0 and "7×3" in done.output
    refused = CliRunner().invoke(main, ["run", str(tmp_path / "m.onnx"), "--dim", "rows=x"])
    assert refused.exit_code == 2 and "batch=8" in refused.output


def test_programs_are_pickled_by_content(program: rammer.Program) -> None:
    """In another process too, which has no model."""
    data = pickle.dumps(program)
    with pickle.loads(data) as copy:
        np.testing.assert_array_equal(copy(**GIVEN)[0], Y)
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)([[1, 2, 3], [4, 5, 6]], 2, 1, True)[0].sum())"
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert float(done.stdout) == Y.sum()


def test_what_compiles_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class ExportedProgram:  # as torch.onnx.export returns one
        model_proto = scaled()

    with (
        caplog.at_level("INFO", logger="rammer"),
        rammer.compile(ExportedProgram(), "cpu", device=2, tune_seconds=0) as made,  # type: ignore[arg-type]
    ):
        np.testing.assert_array_equal(made(**GIVEN)[0], Y)
    assert "'cpu', " in caplog.text and "schedule" in caplog.text


def test_reprs_are_short() -> None:
    with rammer.compile(lstm_stack(2, 20, 64), "cpu", device=2, tune_seconds=0) as made:
        plan = made.plan
        things = [made, made.report(), plan, plan.graph, plan.memory, plan.programs[0], plan.kernels[0]]
        things += [plan.graph.operators[0], plan.kernels[0].operation, made.inputs[0]]
        for thing in things:
            assert len(repr(thing)) < 2000, type(thing)


def test_types_are_for_users_too() -> None:
    assert importlib.resources.files("rammer").joinpath("py.typed").is_file()


def test_scalars_of_numpy_count_as_arrays_of_their_type() -> None:
    """A scalar of float64 is converted as a Python number is; an array of rank 0 is not."""
    weights = numpy_helper.from_array(np.ones(3, F32), "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["w", "s"], ["y"])],
        "g",
        [helper.make_tensor_value_info("s", 1, [])],
        [helper.make_tensor_value_info("y", 1, [3])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with rammer.compile(model, "cpu", device=2, tune_seconds=0) as made:
        assert made(np.float64(0.5)).tolist() == [0.5] * 3
        with pytest.raises(InputError, match="float64"):
            made(np.array(0.5))


def test_symbolic_dimensions_are_kept_and_shown(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        network (float[batch, 3, time] x) => (float[batch, 3, all] y, float[n] z) {
          y = Neg (x)
          axes = Constant <value_ints = [1, 2]> ()
          z = ReduceSum <keepdims = 0> (x, axes)
        }"""
    model = onnx.parser.parse_model(text)
    graph = rammer.from_onnx(model, dims={"batch": 4}, shapes={"x": (4, 3, 7)})
    assert graph.symbols == {"x": ("batch", None, "time"), "y": ("batch", None, "all"), "z": ("n",)}
    assert "x: float32[batch=4×3×time=7]" in repr(graph)
    with rammer.compile(graph, "cpu", device=1, tune_seconds=0) as program:
        assert program.inputs[0].symbols == ("batch", None, "time") and program.inputs[0].shape == (4, 3, 7)
        assert str(program.outputs[1]) == "z: float32[n=4]"
        program.save(tmp_path / "p.rammer")
    with rammer.load(tmp_path / "p.rammer") as loaded:
        assert repr(loaded) == repr(program)
        assert "(x: float32[batch=4×3×time=7]) -> (y: float32[batch=4×3×all=7], z: float32[n=4])" in repr(loaded)
    shown = CliRunner().invoke(main, ["show", str(tmp_path / "p.rammer")])
    assert "x: float32[batch=4×3×time=7]" in shown.output.replace("\n", "")
