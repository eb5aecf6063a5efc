"""What a model says of itself is not trusted: names are escaped, and declared shapes are compared with real ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from io import StringIO
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx_models import model, node
from rich.markup import escape

import rammer
from rammer.cli.console import Plain
from rammer.compiler import compilation
from rammer.errors import InputError, ModelError, ModelWarning, RammerError
from rammer.frontend.onnx import Source, load, tensors
from rammer.ir.tensor import DType

F32 = np.float32
W = np.ones((2, 3), F32)

STRINGS = {
    "graph.node[0].op_type": b"Relu",
    "graph.node[0].output[0]": b"outp",
    "graph.node[0].name": b"nnnn",
    "graph.node[0].attribute[0].name": b"attr",
    "graph.initializer[0].name": b"weig",
    "graph.input[0].type.tensor_type.shape.dim[0].dim_param": b"symb",
    "functions[0].name": b"func",
    "opset_import[0].domain": b"doma",
}


@pytest.mark.parametrize("place", STRINGS)
def test_a_string_that_is_not_utf8_is_refused_by_its_field(place: str) -> None:
    made = model([node("Relu", ["x"], ["outp"], name="nnnn", attr=1.0)], {"x": ("symb",)}, ["y"], {"weig": W})
    opsets = [helper.make_opsetid("", 21)]
    made.functions.append(
        helper.make_function("own", "func", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], opsets)
    )
    made.opset_import.insert(0, helper.make_opsetid("doma", 1))
    made.graph.doc_string = made.producer_name = "what only describes may be anything"
    data = made.SerializeToString().replace(b"anything", b"\xff" * 8)
    Source(data)  # descriptions that are not UTF-8
    with pytest.raises(ModelError, match=re.escape(place) + r" is not UTF-8: '\\xffxx\\xfe'"):
        load(data.replace(STRINGS[place], b"\xffxx\xfe"))


NAMES = {
    "escape": "\x1b[2J\x1b]0;title\x07",
    "zero": "a\0b",
    "line": "a\nhint: b",
    "long": "n" * 300_000,
    "words": "n " * 150_000,
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["operator", "node", "input", "attribute", "list", "domain", "function", "run"])
def test_names_are_escaped_and_shortened_in_errors(place: str, name: str) -> None:
    """A name comes from a model: it must not write on the terminal, begin lines, or fill the screen."""
    text = NAMES[name]
    made = {
        "operator": lambda: model([node(text)], {"x": (2,)}),
        "node": lambda: model([node("Concat", name=text)], {"x": (2,)}),
        "input": lambda: model([node("Relu", [text])], {"x": (2,)}),
        "attribute": lambda: model([node("Relu", **{text: 1})], {"x": (2,)}),
        "list": lambda: model([node("Relu", [text])], {text: ("int64", (2,))}, opset=13),
        "domain": lambda: model([node("Relu", domain=text)], {"x": (2,)}),
        "function": lambda: model([node(text, domain="own")], {"x": (2,)}, domains={"own": 1}),
        "run": lambda: model([node("Relu", [text])], {text: (2,)}),
    }[place]()
    with pytest.raises(RammerError) as caught:
        rammer.Session(made, "interpreter").run(None, {"y": W})
    shown = str(caught.value)
    assert all(c.isprintable() for c in shown.replace("\n", "")) and len(shown) < 40_000
    assert len(shown.splitlines()) <= 3  # what, its hint


def test_names_are_escaped_wherever_they_are_printed() -> None:
    name = "\x1b[31mred\x00\x07"
    made = model([node("Relu", [name], ["y"], name)], {name: ("float32", ("n" + name, 3))})
    with rammer.Session(made, "interpreter") as s:
        s.run(None, {name: W})
        texts = [repr(s), str(s.report())]
    with rammer.compile(made, "interpreter", shapes={name: (2, 3)}) as program:
        texts += [repr(program), str(program.report())]
    shown = StringIO()
    Plain(file=shown, force_terminal=True).print(escape(f"{name} {name}"), style="bold", highlight=False)
    assert shown.getvalue().startswith("\x1b[1m\\x1b[31mred\\x00")  # the style is ours
    for text in [*texts, shown.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")]:
        assert all(c.isprintable() or c == "\n" for c in text)


def test_a_compilation_beyond_memory_names_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(compilation, "optimize", fails)
    with pytest.raises(RammerError, match="memory ran out while compiling: passes"):
        rammer.compile(model([node("Relu")], {"x": (2,)}), "interpreter")


def test_a_tensor_beyond_memory_is_an_error_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an initializer and of an attribute: all are decoded in one place."""

    def fails(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(tensors, "_from_bytes", fails)
    value = numpy_helper.from_array(W, "w")
    for made in (
        model([node("Relu", ["w"])], {}, constants={"w": W}),
        model([node("Constant", [], value=value)], {}),
    ):
        with pytest.raises(ModelError, match=r"tensor 'w' of \[\d.*\] elements needs more memory"):
            load(made)


def declares(said: list[Any] | None, *, between: list[Any] | None = None, given: Sequence[Any] = (2, 3)) -> ModelProto:
    """A model that says this of its output, of a value between, and of its input."""
    made = model([node("Relu", ["x"], ["t"]), node("Neg", ["t"], ["y"])], {"x": tuple(given)})
    made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, said))
    made.graph.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, between))
    return made


@pytest.mark.parametrize("how", ["compile", "session"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (declares([7, 3]), r"'y' is declared with shape \[7, 3\] but is float32\[2×3\]"),
        (declares([]), r"'y' is declared with shape \[\] but is float32"),
        (declares(None, between=[2, 3, 1]), r"'t' is declared with shape \[2, 3, 1\] but is"),
        (declares([-1, 3], between=["?", "unk__7"]), ""),
        (declares([2, 3], given=[-1, 3]), ""),
        (declares([2, 3], given=["?", "?"]), ""),
        (declares(["n", "n"], given=["unk__1", "unk__1"]), ""),
        (declares(["n", "n"], given=["", None]), ""),
    ],
)
def test_what_is_computed_decides_and_not_what_is_declared(made: ModelProto, said: str, how: str) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3), F32)
    with pytest.warns(ModelWarning, match=said) if said else nullcontext():
        if how == "compile":
            found = rammer.compile(made, "interpreter", shapes={"x": (2, 3)}).run({"x": x})["y"]
        else:
            (found,) = rammer.Session(made, "interpreter").run(None, {"x": x})
    assert np.array_equal(found, -np.maximum(x, 0))


SPARSE = helper.make_sparse_tensor(
    numpy_helper.from_array(np.array([2, 3], F32), "s"), numpy_helper.from_array(np.array([1, 4]), "i"), [6]
)
PLACES = numpy_helper.from_array(np.array([[0, 1], [1, 4]]), "i")
SPARSE_MATRIX = helper.make_sparse_tensor(SPARSE.values, PLACES, [2, 6])


def as_they_are() -> Iterator[tuple[str, ModelProto, str]]:
    """Files that ONNX Runtime runs: what is odd about each, and what is said about it."""
    wide = {"x": (2, 6)}
    made = model([], wide, ("x",))
    yield "an output that is an input, and no nodes", made, "'x' is an input and an output"
    yield "an output that is an input", model([node("Relu")], wide, ("y", "x")), "'x' is an input and an output"
    made = model([node("Relu")], wide)
    made.graph.output.append(made.graph.output[0])
    yield "an output named twice", made, ""
    for name, sparse in (("sparse", SPARSE), ("sparse with places of two numbers", SPARSE_MATRIX)):
        made = model([node("Add", ["x", "s"])], wide)
        made.graph.sparse_initializer.append(sparse)
        yield name, made, ""
    yield (
        "a sparse constant",
        model([node("Constant", [], ["s"], sparse_value=SPARSE), node("Add", ["x", "s"])], wide),
        "",
    )
    made = model([node("Add", ["x", "w"])], wide, constants={"w": np.ones(6, F32)})
    made.graph.initializer.append(numpy_helper.from_array(np.full(6, 2, F32), "w"))
    yield "two initializers of one name", made, "'w' names several initializers: the last one counts"
    statistics = {name: np.full(6, k + 1, F32) for k, name in enumerate("abcd")}
    training = node("BatchNormalization", ["x", *"abcd"], ["y", "mean", "var", "saved_mean", "saved_var"])
    yield "outputs that nobody reads", model([training], wide, ("y", "mean"), statistics, opset=8), ""
    made = model([node("Binarizer", domain="ai.onnx.ml")], wide)
    yield "a domain that is not imported", made, ""
    made = model([node("LayerNormalization", ["x", "w"], axis=-1)], wide, constants={"w": np.ones(6, F32)}, opset=13)
    yield "an operator before its opset, as ONNX Runtime's optimizer writes it", made, ""


@pytest.mark.parametrize(("made", "said"), [pytest.param(m, said, id=what) for what, m, said in as_they_are()])
def test_files_run_as_they_are(made: ModelProto, said: str) -> None:
    x = np.random.default_rng(1).standard_normal((2, 6), F32)
    made.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    wanted = onnxruntime.InferenceSession(made.SerializeToString(), options).run(None, {"x": x})
    with pytest.warns(ModelWarning, match=said) if said else nullcontext():
        found = rammer.Session(made, "interpreter").run(None, {"x": x})
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if "an output" in said:  # a program has one name for each tensor
        with pytest.warns(ModelWarning, match=said), rammer.compile(made, "interpreter") as program:
            assert np.array_equal(program.run({"x": x})["x#1"], x)


def test_types_of_a_newer_opset_are_taken() -> None:
    made = model([node("Add", ["x", "x"])], {"x": ("int8", (3,))}, opset=7)
    with pytest.warns(ModelWarning, match="of Add is int8, which opset 7 has not"):
        assert load(made).types["y"].dtype is DType.I8
    with pytest.raises(ModelError, match="opset 7 does not allow"):  # nor does any newer one
        load(model([node("And", ["x", "x"])], {"x": ("int8", (3,))}, opset=7))


def test_an_output_that_is_not_computed_is_refused_where_it_is_read() -> None:
    norm = node("BatchNormalization", ["x", *"abcd"], ["t", "mean"], name="bn", is_test=1)
    nodes = [norm, node("Neg", ["mean"])]
    statistics = {name: np.ones(6, F32) for name in "abcd"}
    for outputs in (("y",), ("mean",)):
        made = model(nodes[: 2 if outputs == ("y",) else 1], {"x": (2, 6)}, outputs, statistics, opset=6)
        with pytest.raises(ModelError, match="'mean' is an output of 'bn', of which only 1 are supported"):
            load(made)


@pytest.mark.parametrize(
    ("places", "shape", "message"),
    [
        ([1, 6], [6], "has indices outside of"),
        ([-1, 2], [6], "has indices outside of"),
        ([1], [6], "of 2 values"),
        ([1, 2], [-6], "has dimensions"),
        ([1, 2], [1 << 40], "bytes"),
    ],
)
def test_damaged_sparse_tensors_are_refused(places: list[int], shape: list[int], message: str) -> None:
    made = model([node("Add", ["x", "s"])], {"x": (2, 6)})
    sparse = made.graph.sparse_initializer.add(dims=shape)
    sparse.values.CopyFrom(SPARSE.values)
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array(places)))
    with pytest.raises(ModelError, match=message):
        load(made)


def test_a_declared_input_binds_its_caller() -> None:
    """Shapes of inputs are no claims about what is computed; negative extents but -1 mean nothing."""
    with pytest.raises(InputError, match="axis 1 is 4"):
        rammer.Session(declares(None, given=[-1, 3]), "interpreter").run(None, {"x": np.zeros((2, 4), F32)})
    with pytest.raises(InputError, match=r"axis 1 is 4, .* where 'n' is 2"):
        rammer.Session(declares(None, given=["n", "n"]), "interpreter").run(None, {"x": np.zeros((2, 4), F32)})
    with pytest.raises(ModelError, match="input 'x' has extent -2"):
        load(declares(None, given=[-2, 3]))
