"""Complex numbers in every operator of the standard that takes them, against ONNX's reference, at odd sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, defs, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import CODES, model, node

import rammer
from rammer.cli.commands import main
from rammer.errors import DeviceError, InputError, ModelError
from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array

TYPES = ("complex64", "complex128")
TOLERANCE = 5e-6  # of both: GridSample's places and Resize's scales are float32
REFUSED = {"Gradient", "RandomNormalLike", "RandomUniformLike"}  # of any type


class Nodes:
    """A model that grows by a node at a time: inputs and constants of it, and what its outputs should be."""

    def __init__(self, dtype: str, opset: int = 28) -> None:
        self.dtype, self.opset, self.random = dtype, opset, np.random.default_rng(0)
        self.nodes: list[NodeProto] = []
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.expected: dict[str, Array] = {}  # outputs that the reference does not compute
        self.outputs: list[str] = []

    def z(self, *shape: int, known: bool = False) -> str:
        """Complex numbers, a few of them equal."""
        parts = self.random.standard_normal((2, *shape)).round(1)
        value = (parts[0] + 1j * parts[1]).astype(self.dtype)
        return self.known(value) if known else self.given(value)

    def given(self, value: Any) -> str:
        return self._kept(self.inputs, value, "x")

    def known(self, value: Any, dtype: Any = None) -> str:
        return self._kept(self.constants, np.asarray(value, dtype), "c")

    def _kept(self, into: dict[str, Array], value: Any, letter: str) -> str:
        name = f"{letter}{len(into)}"
        into[name] = np.asarray(value)
        return name

    def add(self, op: str, *operands: str, count: int = 1, out: bool = True, **attrs: Any) -> str:
        """A node; its first output."""
        results = [f"{op}{len(self.nodes)}_{n}" for n in range(count)]
        self.nodes.append(node(op, operands, results, name=results[0], **attrs))
        self.outputs += results if out else []
        return results[0]

    def by_parts(self, op: str, *operands: str, **attrs: Any) -> Array:
        """A node of which the reference computes the real parts only."""
        name, x = self.add(op, *operands, **attrs), self.inputs[operands[0]]
        alone = model(self.nodes[-1:], {operands[0]: ("float64", x.shape)}, [name], self.constants, opset=self.opset)
        real, imag = (ReferenceEvaluator(alone).run(None, {operands[0]: part})[0] for part in (x.real, x.imag))
        self.expected[name] = np.empty(real.shape, self.dtype)
        self.expected[name].real, self.expected[name].imag = real, imag
        return self.expected[name]

    def model(self, but: Collection[str] = ()) -> ModelProto:
        """Without the nodes of some outputs."""
        inputs = {name: (x.dtype.name, x.shape) for name, x in self.inputs.items()}
        nodes = [n for n in self.nodes if n.output[0] not in but]
        outputs = [name for name in self.outputs if name not in but]
        return model(nodes, inputs, outputs, self.constants, opset=self.opset)

    def wanted(self) -> dict[str, Array]:
        made = self.model(self.expected)
        found = ReferenceEvaluator(made).run(None, self.inputs) if made.graph.node else []
        return dict(zip((o.name for o in made.graph.output), found, strict=True)) | self.expected


def body(*nodes: NodeProto, inputs: str = "", outputs: str = "") -> GraphProto:
    """A sub-graph whose inputs and outputs have types that are inferred."""
    values = [[helper.make_empty_tensor_value_info(name) for name in names.split()] for names in (inputs, outputs)]
    return helper.make_graph(list(nodes), "body", *values)


def moved(m: Nodes) -> None:
    """What only moves elements."""
    x, rows = m.z(3, 5, 7), m.z(5, 3)
    image = m.z(1, 12, 3, 5)
    m.add("CenterCropPad", x, m.known([4, 3]), axes=[0, 2])
    m.add("Compress", x, m.known([True, False, True]), axis=1)
    m.add("Concat", rows, m.z(5, 2), m.z(5, 1, known=True), axis=1)
    m.add("Constant", value=numpy_helper.from_array(np.array([1 - 2j, 3j], m.dtype)))
    m.add("DepthToSpace", image, blocksize=2)
    m.add("SpaceToDepth", m.z(1, 3, 4, 6), blocksize=2, mode="CRD")
    m.add("Expand", rows, m.known([2, 5, 3]))
    m.add("Flatten", x, axis=2)
    m.add("Gather", x, m.given(np.array([2, -1, 0, 0])), axis=1)
    m.add("GatherElements", x, m.given(m.random.integers(-7, 7, (3, 5, 2))), axis=2)
    m.add("GatherND", x, m.given(np.array([[0, 4], [2, -1]])))
    m.add("Identity", x)
    m.add("NonZero", m.known([[0, 1j, 0], [1, 0, 2]], m.dtype))
    m.add("OneHot", m.given(np.array([[0, 3, -1]])), m.known(4), m.z(2), axis=1)
    m.expected[m.add("OptionalGetElement", m.add("Optional", x, out=False))] = m.inputs[x]
    m.add("OptionalHasElement", x)
    m.add("Pad", rows, m.known([1, 0, 2, 3]), m.known(1 - 2j, m.dtype))
    m.add("Pad", rows, m.known([1, 0, 2, 1]), mode="reflect")
    m.add("Reshape", x, m.known([7, -1]))
    m.add("ReverseSequence", x, m.given(np.array([2, 3, 1, 0, 3])), time_axis=0, batch_axis=1)
    m.add("ReverseSequence", m.z(4, 3), m.given(np.array([2, 3, 0, 1])), time_axis=1, batch_axis=0)
    m.add("Shape", x)
    m.add("Size", x)
    m.add("Slice", x, m.known([-1]), m.known([-99]), m.known([2]), m.known([-3]))
    m.add("Split", x, m.known([3, 4]), axis=2, count=2)
    m.add("Squeeze", m.z(1, 3, 1), m.known([0]))
    m.add("TensorScatter", m.z(2, 5, 3), m.z(2, 2, 3), m.given(np.array([3, 0])), axis=1)
    m.add("Tile", rows, m.known([2, 3]))
    m.add("Transpose", x, perm=[2, 0, 1])
    m.add("Trilu", m.z(2, 5, 7), m.known(1), upper=0)
    m.add("Unique", m.known([2 + 1j, 1j, 2 - 1j, 1j, 2 + 1j], m.dtype), count=4)
    m.add("Unsqueeze", rows, m.known([0, -1]))
    m.add("Where", m.given(m.random.random((5, 1)) < 0.5), rows, m.known(2j, m.dtype))


def computed(m: Nodes) -> None:
    """What combines elements, or their bits."""
    image, grid = m.z(2, 3, 5, 7), m.given((m.random.random((2, 4, 3, 2)) * 2.6 - 1.3).astype(np.float32))
    for mode in ("nearest", "linear", "cubic"):
        for padding in ("zeros", "border", "reflection"):
            if (mode, padding) != ("cubic", "border"):  # ONNX's evaluator keeps points at the border, and not each tap
                m.add("GridSample", image, grid, mode=mode, padding_mode=padding)
        m.by_parts("Resize", image, "", m.known([1, 1, 1.7, 2.3], np.float32), mode=mode)
    sizes, crop = m.known([1, 3, 4, 4]), m.known([0, 0, -0.2, 0.1, 1, 1, 1.3, 0.8], np.float32)
    m.by_parts("Resize", m.z(1, 3, 9, 7), "", "", sizes, mode="linear", antialias=1)
    m.by_parts("Resize", image, "", "", m.known([5, 3]), mode="cubic", axes=[1, 0])
    to = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    m.by_parts("Resize", m.z(1, 3, 5, 7), crop, "", m.known([1, 3, 9, 8]), **to)
    m.add("Col2Im", m.z(2, 18, 16), m.known([6, 5]), m.known([3, 2]))
    m.add("Col2Im", m.z(1, 8, 6), m.known([5, 3]), m.known([2, 2]), pads=[1, 0, 0, 1], dilations=[2, 1], strides=[2, 1])
    at = np.array([[0, 2, 2, 6, 1], [1, 1, 1, 1, 1], [0, 1, 2, 3, 4]])
    for reduction in ("none", "add", "mul", "max", "min"):
        for index in (m.given, m.known):  # searched for, and gathered
            x, few = m.z(3, 7), m.z(3, 7)
            m.add("ScatterElements", x, index(at), m.z(3, 5), axis=1, reduction=reduction)
            m.add("ScatterND", few, index(np.array([[1], [2], [1]])), m.z(3, 7), reduction=reduction)


def bits(m: Nodes) -> None:
    x = m.z(3, 37)
    for to in (CODES[m.dtype], TensorProto.DOUBLE, TensorProto.INT64, TensorProto.UINT64):
        if m.dtype == "complex64" or to == CODES[m.dtype]:
            m.add("BitCast", m.add("BitCast", x, to=to), to=CODES[m.dtype])


def sequences(m: Nodes) -> None:
    first, second = m.z(3, 5), m.z(3, 5)
    both = m.add("SequenceConstruct", first, second, out=False)
    m.add("SequenceAt", both, m.known(1))
    m.add("SequenceLength", m.add("SequenceErase", both, m.known(0), out=False))
    started = m.add("SequenceEmpty", out=False, dtype=CODES[m.dtype])
    m.add("ConcatFromSequence", m.add("SequenceInsert", started, first, out=False), axis=1)
    each = body(node("Transpose", ["e"], ["t"]), inputs="e", outputs="t")
    m.add("ConcatFromSequence", m.add("SequenceMap", both, out=False, body=each), axis=0)
    m.add("SequenceAt", m.add("SplitToSequence", first, m.known(2), axis=1, out=False), m.known(-1))


def bodies(m: Nodes) -> None:
    x, y = m.z(3, 5), m.z(3, 5)
    branches = [body(node("Identity", [name], ["chosen"]), outputs="chosen") for name in (x, y)]
    m.add("If", m.known(False), then_branch=branches[0], else_branch=branches[1])
    turn, state = node("Transpose", ["s"], ["turned"], perm=[1, 0]), m.z(5, 5)
    looped = body(turn, node("Identity", ["c"], ["on"]), inputs="i c s", outputs="on turned")
    m.add("Loop", m.known(3), m.known(True), state, body=looped)
    scanned = body(turn, node("Concat", ["row", "row"], ["twice"], axis=0), inputs="s row", outputs="turned twice")
    m.add("Scan", state, m.z(3, 2), body=scanned, num_scan_inputs=1, count=2)


def old(m: Nodes) -> None:
    """Operators that later opsets call otherwise."""
    image, new = m.z(1, 2, 3, 5), Nodes(m.dtype)
    for mode, nearest in (("nearest", {"nearest_mode": "floor"}), ("linear", {})):
        same = new.given(m.inputs[image]), "", new.known([1, 1, 2, 3], np.float32)
        wanted = new.by_parts("Resize", *same, mode=mode, coordinate_transformation_mode="asymmetric", **nearest)
        m.expected[m.add("Upsample", image, m.known([1, 1, 2, 3], np.float32), mode=mode)] = wanted
    at = np.array([[1, 0, 2, 1, 0], [2, 2, 0, 0, 1]])
    x, updates = m.z(3, 5), m.z(2, 5)
    wanted = m.expected[m.add("Scatter", x, m.given(at), updates, axis=0)] = m.inputs[x].copy()
    np.put_along_axis(wanted, at, m.inputs[updates], 0)


FAMILIES: dict[str, tuple[Callable[[Nodes], None], int]] = {
    family.__name__: (family, 9 if family is old else 28) for family in (moved, computed, bits, sequences, bodies, old)
}
families = pytest.mark.parametrize("family", FAMILIES)
types = pytest.mark.parametrize("dtype", TYPES)


def made(family: str, dtype: str) -> Nodes:
    make, opset = FAMILIES[family]
    nodes = Nodes(dtype, opset)
    make(nodes)
    return nodes


def agree(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    for name, value in wanted.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_allclose(found[name], value, TOLERANCE, TOLERANCE, err_msg=name)


@types
@families
def test_operators_of_complex_numbers(family: str, dtype: str) -> None:
    nodes = made(family, dtype)
    graph, wanted = load(nodes.model()), nodes.wanted()
    agree(evaluate_graph(graph, nodes.inputs), wanted)
    with rammer.compile(graph, "cpu", device=2, tune_seconds=0) as program:
        agree(program.run(nodes.inputs), wanted)


@types
@families
@pytest.mark.parametrize("target", ["cuda", "rocm"])
@pytest.mark.slow
def test_operators_of_complex_numbers_on_gpus(family: str, dtype: str, target: str) -> None:
    nodes = made(family, dtype)
    options: dict[str, Any] = {"device": "emulator:3", "policy": "sequential", "tune_seconds": 0}
    with rammer.compile(load(nodes.model()), target, **options) as program:
        agree(program.run(nodes.inputs), nodes.wanted())


def test_no_operator_is_forgotten() -> None:
    """Every operator of the standard with a complex operand or result is in a model above, or refused for all types."""
    newest: dict[str, Any] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.since_version > getattr(newest.get(schema.name), "since_version", 0):
            newest[schema.name] = schema
    admit = {
        name
        for name, schema in newest.items()
        if any("complex" in kind for port in (*schema.inputs, *schema.outputs) for kind in port.types)
    }
    tested = {n.op_type for family in FAMILIES for n in made(family, "complex64").nodes}
    assert admit - tested == REFUSED
    for op in REFUSED:
        domain = "ai.onnx.preview.training" if op == "Gradient" else ""
        one = model([node(op, domain=domain)], {"x": ("complex64", (3,))}, domains={domain: 1} if domain else {})
        with pytest.raises(ModelError, match=rf"unsupported operator: \S*{op}|random complex64"):
            load(one)


def test_infinite_and_missing_numbers_stay_in_their_part() -> None:
    nodes = Nodes("complex64")
    values = [complex(np.inf, 1), complex(1, -np.inf), complex(np.nan, 2), complex(-0.0, -0.0), 3 - 4j]
    least = np.array([complex(0, np.nan), 2j, 2, 1 + 1j, 1 + 1j], "complex64")
    x, updates, places = nodes.given(np.array(values, "complex64")), nodes.given(least), np.arange(5) // 2 * 2
    nodes.add("BitCast", x, to=TensorProto.INT64)
    nodes.expected[nodes.add("Resize", x, "", nodes.known([2], np.float32))] = np.repeat(nodes.inputs[x], 2)
    for reduction, ufunc in (("max", np.maximum), ("min", np.minimum), ("add", np.add)):
        name = nodes.add("ScatterElements", x, nodes.known(places), updates, reduction=reduction)
        wanted = nodes.expected[name] = nodes.inputs[x].copy()
        ufunc.at(wanted, places, least)
    for name, found in evaluate_graph(load(nodes.model()), nodes.inputs).items():
        np.testing.assert_array_equal(found, nodes.wanted()[name], err_msg=name)


@types
def test_complex_numbers_are_saved_and_refused_for_others(dtype: str, tmp_path: Path) -> None:
    nodes = made("bodies", dtype)
    with rammer.compile(nodes.model(), "cpu", device=2, tune_seconds=0) as program:
        program.save(tmp_path / "p.rammer")
    with rammer.load(tmp_path / "p.rammer") as program:
        agree(program.run(nodes.inputs), nodes.wanted())
        with pytest.raises(InputError, match=f"dtype float32, the program takes {dtype}"):
            program.run({name: x.real.astype(np.float32) for name, x in nodes.inputs.items()})
    for to in (TensorProto.FLOAT, TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        cast = model([node("Cast", to=to)], {"x": (dtype, (3,))})
        with pytest.raises(ModelError, match=f"Cast.*{dtype}"):
            load(cast)
    with pytest.raises(DeviceError, match=f"an IPU has no type for {dtype}"):
        rammer.compile(nodes.model(), "ipu", device="emulator", arch="gc200:16", tune_seconds=0)


def test_the_command_line_describes_how_large_complex_numbers_are(tmp_path: Path) -> None:
    onnx.save(model([node("Transpose")], {"x": ("complex64", (3, 5))}), tmp_path / "m.onnx")
    arguments = ["run", str(tmp_path / "m.onnx"), "--save", str(tmp_path)]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    saved = np.load(tmp_path / "0.npy")
    assert result.exit_code == 0 and "|complex64|" in result.output and f"{np.abs(saved).max():.6g}" in result.output
    assert saved.imag.any() and saved.real.any()
