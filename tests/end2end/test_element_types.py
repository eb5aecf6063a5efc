"""Element types beyond the common ones: what NumPy and ml_dtypes say of them, by the interpreter and on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import rammer
from rammer.errors import DeviceError, InputError, TypeMismatch
from rammer.frontend.builder import GraphBuilder
from rammer.frontend.onnx.tensors import ELEMENT_TYPES
from rammer.ir.graph import Graph
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array, DType

UNSIGNED = (DType.U8, DType.U16, DType.U32, DType.U64)


def _interpreted(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    return evaluate_graph(graph, inputs)


def _on_cpu(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    with rammer.compile(graph, target="cpu", tune_seconds=0) as program:
        return program.run(inputs)


EXECUTORS: dict[str, Callable[[Graph, dict[str, Array]], dict[str, Array]]] = {
    "interpreter": _interpreted,
    "cpu": _on_cpu,
}
everywhere = pytest.mark.parametrize("execute", EXECUTORS.values(), ids=EXECUTORS)


def extremes(dtype: DType, count: int = 37) -> tuple[Array, Array]:
    """Two vectors of integers: ends of the range against each other, then any."""
    info = dtype.info
    middle = info.max // 2
    ends = np.array([info.min, info.min + 1, 2, 3, middle, middle + 1, info.max - 1, info.max], dtype.numpy)
    a, b = (x.ravel() for x in np.meshgrid(ends, ends))
    random = np.random.default_rng(0).integers(info.min, info.max, (2, count), dtype.numpy, endpoint=True)
    return np.concatenate([a, random[0]]), np.concatenate([b, random[1]])


@cache
def arithmetic(dtype: DType) -> Graph:
    """Every binary and unary operator of integers, a cast to every type, and moves of them."""
    builder = GraphBuilder()
    (extent,) = extremes(dtype)[0].shape
    a, b = (builder.input(name, (extent,), dtype) for name in "ab")
    for kind in ("add", "sub", "mul", "div", "mod", "fmod", "pow", "max", "min", "less", "greater_equal", "equal"):
        builder.output(builder.add(kind, a, b), kind)
    for kind in ("neg", "abs", "sign", "relu"):
        builder.output(builder.add(kind, a), kind)
    for target in (DType.F32, DType.F64, DType.F16, DType.BOOL, DType.I8, DType.I32, DType.I64, *UNSIGNED):
        builder.output(builder.add("cast", a, dtype=target), f"to {target}")
    rows = builder.add("reshape", a, shape=(1, extent))
    builder.output(builder.add("reduce", rows, fn="sum", axes=(1,), keepdims=False), "sum")
    builder.output(builder.add("reduce", rows, fn="max", axes=(1,), keepdims=False), "reduce max")
    builder.output(builder.add("arg_max", rows, axis=1, keepdims=False, select_last_index=False), "arg_max")
    product = builder.add("matmul", rows, builder.add("reshape", b, shape=(extent, 1)))
    builder.output(product, "matmul")
    builder.output(builder.add("concat", a, b, axis=0), "concat")
    return builder.build()


def by_numpy(a: Array, b: Array) -> dict[str, Array]:
    dtype = a.dtype
    zero = b == 0
    safe = np.where(zero, dtype.type(1), b)
    expected = {
        "add": a + b,
        "sub": a - b,
        "mul": a * b,
        "div": np.where(zero, 0, a // safe),
        "mod": np.where(zero, 0, a % safe),
        "fmod": np.where(zero, 0, a % safe),
        "pow": a**b,
        "max": np.maximum(a, b),
        "min": np.minimum(a, b),
        "less": a < b,
        "greater_equal": a >= b,
        "equal": a == b,
        "neg": -a,
        "abs": a,
        "sign": np.sign(a),
        "relu": a,
        "sum": a.sum(dtype=dtype)[None],
        "reduce max": a.max()[None],
        "arg_max": np.array([np.argmax(a)]),
        "matmul": (a * b).sum(dtype=dtype)[None, None],
        "concat": np.concatenate([a, b]),
    }
    truth = {"less", "greater_equal", "equal"}
    special = dict.fromkeys(truth, np.bool_) | {"arg_max": np.int64}
    return {name: np.asarray(value).astype(special.get(name, dtype)) for name, value in expected.items()}


@everywhere
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_unsigned_integers_wrap_and_compare_as_numpys(dtype: DType, execute: Callable[..., Any]) -> None:
    a, b = extremes(dtype)
    with np.errstate(all="ignore"):
        seen, wanted = execute(arithmetic(dtype), {"a": a, "b": b}), by_numpy(a, b)
        wanted |= {name: a.astype(seen[name].dtype) for name in seen if name.startswith("to ")}
    assert seen.keys() == wanted.keys()
    for name, value in wanted.items():
        assert seen[name].dtype == value.dtype, name
        np.testing.assert_array_equal(seen[name], value, err_msg=name)


@everywhere
@pytest.mark.parametrize("source", [DType.F32, DType.F64])
def test_large_floats_become_uint64(source: DType, execute: Callable[..., Any]) -> None:
    builder = GraphBuilder()
    x = builder.input("x", (5,), source)
    builder.output(builder.add("cast", x, dtype=DType.U64), "y")
    values: NDArray[Any] = np.array([0, 1.75, 2.0**63, 2.0**63 + 2.0**40, 2.0**64 - 2.0**41], source.numpy)
    seen = execute(builder.build(), {"x": values})["y"]
    assert seen.tolist() == [int(v) for v in values]


STORED = [d for d in DType if d.only_stored and not d.is_complex]
COMPLEX = (DType.C64, DType.C128)
FLOAT8 = [d for d in STORED if d.value.startswith("float8") and d is not DType.F8E8M0]
CODES = {dtype: code for code, dtype in ELEMENT_TYPES.items()}


@everywhere
@pytest.mark.parametrize("bits", [2, 4, 6, 8])
def test_bits_are_another_type(bits: int, execute: Callable[..., Any]) -> None:
    """Every pattern of narrow integers and floats, read as every type of their width."""
    kinds = [d for d in DType if d.bits == bits and d is not DType.BOOL]
    patterns = np.arange(1 << bits, dtype=np.uint8)
    builder, inputs = GraphBuilder(), {}
    for one in kinds:
        inputs[str(one)] = patterns.view(one.numpy)
        x = builder.input(str(one), patterns.shape, one)
        for other in kinds:
            builder.output(builder.add("bit_cast", x, dtype=other), f"{one} as {other}")
    for name, seen in execute(builder.build(), inputs).items():
        one, other = (DType(kind) for kind in name.split(" as "))
        read = [patterns.view(kind.numpy) for kind in (one, other)]
        kept = np.logical_and(*(x == x for x in read)) | (execute is _on_cpu)  # the interpreter has a single NaN
        assert seen.dtype == other.numpy
        np.testing.assert_array_equal((seen.view(np.uint8) & ((1 << bits) - 1))[kept], patterns[kept], err_msg=name)


@pytest.mark.parametrize(("one", "other"), [("FLOAT8E5M2", "INT8"), ("UINT4", "FLOAT4E2M1"), ("FLOAT8E8M0", "UINT8")])
def test_bits_of_narrow_numbers_are_imported(one: str, other: str) -> None:
    there, back = (ELEMENT_TYPES[getattr(TensorProto, name)] for name in (other, one))
    nodes = [helper.make_node("BitCast", ["x"], ["b"], to=CODES[there])]
    x = np.arange(16, dtype=np.uint8).view(back.numpy)
    seen = _on_cpu(rammer.from_onnx(model(nodes, {"x": x}, {"b": there})), {"x": x})["b"]
    np.testing.assert_array_equal(seen.view(np.uint8) % 16, np.arange(16))
    assert seen.dtype == there.numpy


def floats(values: Any) -> Array:
    return np.asarray(values, np.float32)


def model(nodes: list[NodeProto], inputs: dict[str, Array], outputs: dict[str, DType]) -> ModelProto:
    values = [helper.make_tensor_value_info(n, CODES[DType(x.dtype.name)], x.shape) for n, x in inputs.items()]
    results = [helper.make_tensor_value_info(name, CODES[dtype], None) for name, dtype in outputs.items()]
    graph = helper.make_graph(nodes, "types", values, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)], ir_version=14)


def check(made: ModelProto, inputs: dict[str, Array], execute: Callable[..., Any]) -> None:
    """Outputs are those of ONNX's reference, bit by bit but for NaN."""
    with np.errstate(all="ignore"):
        wanted = ReferenceEvaluator(made).run(None, inputs)
        seen = execute(rammer.from_onnx(made), inputs)
        for output, value in zip(made.graph.output, wanted, strict=True):
            assert seen[output.name].dtype == value.dtype, output.name
            found, value = (np.asarray(x, np.float64) for x in (seen[output.name], value))
            np.testing.assert_array_equal(found, value, err_msg=output.name)
            number = value == value
            np.testing.assert_array_equal(np.signbit(found[number]), np.signbit(value[number]), err_msg=output.name)


def awkward() -> Array:
    """Float32 of all sizes: whole numbers, ties of few digits, ends of ranges, infinities and NaN."""
    ties = np.arange(-40, 41) / 16
    sizes = np.ldexp(np.array([1.0, 1.0625, 1.25, 1.5, 1.75, 1.875]), np.arange(-30, 30)[:, None]).ravel()
    ends = [448, 463.9, 464, 465, 240, 247.9, 248, 57344, 61439, 61440, 65536, 1e30, np.inf, np.nan]
    numbers = np.concatenate([ties, sizes, -sizes, ends, np.negative(ends)])
    return np.asarray(numbers, np.float32)


@everywhere
def test_casts_to_floats_of_8_bits_and_fewer_saturate_as_told(execute: Callable[..., Any]) -> None:
    nodes: list[NodeProto] = []
    outputs: dict[str, DType] = {}
    targets = [d for d in STORED if d.is_float and d is not DType.F8E8M0]
    for dtype in targets:
        for saturate in (0, 1):
            name = f"{dtype.value} {saturate}"
            nodes.append(helper.make_node("Cast", ["x"], [name], to=CODES[dtype], saturate=saturate))
            outputs[name] = dtype
    check(model(nodes, {"x": awkward()}, outputs), {"x": awkward()}, execute)


@everywhere
def test_casts_to_powers_of_two_round_as_told(execute: Callable[..., Any]) -> None:
    """Of numbers that are in range; what others become is the standard's table."""
    x = awkward()
    inside = x[(x >= 2.0**-29) & (x < 2.0**29)]
    edges = np.ldexp(floats([1.0, 1.25, 1.5, 1.75]), [[-127], [-126], [126]]).ravel().astype(np.float32)
    edges = edges[edges > 2.0**-127]  # which the reference rounds up to the next one
    inputs = {"x": np.concatenate([inside, edges])}
    nodes: list[NodeProto] = []
    outputs: dict[str, DType] = {}
    for mode in ("up", "down", "nearest"):
        for saturate in (0, 1):
            name = f"{mode} {saturate}"
            attributes: dict[str, Any] = {"to": CODES[DType.F8E8M0], "saturate": saturate, "round_mode": mode}
            nodes.append(helper.make_node("Cast", ["x"], [name], **attributes))
            outputs[name] = DType.F8E8M0
    made = model(nodes, inputs, outputs)
    check(made, inputs, execute)
    ends = np.zeros_like(inputs["x"])
    ends[:7] = [0, np.nan, np.inf, 1.75 * 2.0**127, 2.0**-140, 2.0**-127, -1]
    seen = execute(rammer.from_onnx(made), {"x": ends})
    least, most = 2.0**-127, 2.0**127
    tables = {"up 1": [least, np.nan, most, most, least, least, np.nan]}
    tables["nearest 0"] = [np.nan, np.nan, np.nan, np.nan, np.nan, least, np.nan]
    for name, table in tables.items():
        np.testing.assert_array_equal(seen[name][:7].astype(np.float64), table, err_msg=name)


@everywhere
def test_integers_of_few_bits_wrap_and_are_read_by_their_low_bits(execute: Callable[..., Any]) -> None:
    x = np.arange(-300, 300, dtype=np.int32)
    inputs: dict[str, Array] = {"x": x}
    nodes: list[NodeProto] = []
    outputs: dict[str, DType] = {}
    for dtype in (DType.I2, DType.I4, DType.U2, DType.U4):
        inputs[dtype.value] = np.arange(256, dtype=np.uint8).view(dtype.numpy)  # high bits are anything
        for source in ("x", dtype.value):
            for target in (DType.I8, DType.F32, DType.I64, DType.BOOL, DType.F16):
                inner, name = f"{source} {dtype} {target} inner", f"{source} {dtype} {target}"
                nodes.append(helper.make_node("Cast", [source], [inner], to=CODES[dtype]))
                nodes.append(helper.make_node("Cast", [inner], [name], to=CODES[target]))
                outputs[name] = target
    check(model(nodes, inputs, outputs), inputs, execute)


@everywhere
@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I16, DType.I32])
def test_floats_become_integers(dtype: DType, execute: Callable[..., Any]) -> None:
    """They wrap as int64 does, or are clipped: in whole vectors and the rest of a row, beyond int32, and infinite."""
    ends = [0.9, -0.9, 127.7, 128, -129, 255, 256.5, 300, -40_000, 70_000, -(2**31)]
    ends += [2**31, 2**31 + 256, 2.0**40, -3e9] if dtype.bits == 8 else []  # undefined in larger types
    x = np.stack([np.roll(np.resize(np.array(ends, np.float32), 77), n) for n in range(len(ends))])
    low, high = (float(dtype.info.min), float(dtype.info.max)) if dtype is not DType.I32 else (-1e9, 1e9)
    builder = GraphBuilder()
    given = builder.input("x", x.shape)
    builder.output(builder.add("cast", given, dtype=dtype), "wrapped")
    builder.output(builder.add("cast", builder.add("clip", given, low=low, high=high), dtype=dtype), "clipped")
    graph = builder.build()
    np.testing.assert_array_equal(execute(graph, {"x": x})["wrapped"], x.astype(np.int64).astype(dtype.numpy))
    x[x == 70_000], x[x == -40_000] = np.inf, -np.inf
    np.testing.assert_array_equal(execute(graph, {"x": x})["clipped"], np.clip(x, low, high).astype(dtype.numpy))


@everywhere
def test_quantisation_to_every_type(execute: Callable[..., Any]) -> None:
    """To and from each, with one scale, one for each channel, and one for each block."""
    random = np.random.default_rng(0)
    x = (random.standard_normal((5, 6, 7)) * 20).astype(np.float32)
    scales = {"one": floats(0.75), "axis": floats([0.5, 0.25, 1, 2, 0.125, 3])}
    scales["block"] = random.choice(floats([0.5, 1.5, 0.3]), (5, 2, 7))
    inputs: dict[str, Array] = {"x": x} | scales
    nodes: list[NodeProto] = []
    outputs: dict[str, DType] = {}
    for dtype in (DType.I8, DType.U8, DType.I16, DType.U16, *(d for d in STORED if d is not DType.F8E8M0)):
        for name, scale in scales.items():
            attributes: dict[str, Any] = {"axis": 1, **({"block_size": 3} if name == "block" else {})}
            zero = f"zero {dtype} {name}"
            inputs[zero] = np.full(scale.shape, 0 if dtype.is_float else 1).astype(dtype.numpy)
            small, large = f"q {dtype} {name}", f"d {dtype} {name}"
            nodes.append(helper.make_node("QuantizeLinear", ["x", name, zero], [small], **attributes))
            nodes.append(helper.make_node("DequantizeLinear", [small, name, zero], [large], **attributes))
            outputs |= {small: dtype, large: DType.F32}
        told = f"told {dtype}"
        nodes.append(helper.make_node("QuantizeLinear", ["x", "one"], [told], output_dtype=CODES[dtype]))
        outputs[told] = dtype
    check(model(nodes, inputs, outputs), inputs, execute)


@everywhere
@pytest.mark.parametrize("dtype", [DType.I4, DType.U2, DType.F8E4M3FN, DType.F4E2M1])
def test_a_product_with_weights_of_few_bits(dtype: DType, execute: Callable[..., Any]) -> None:
    """Weights that come at run time, dequantised by blocks; what is summed is exact in float32."""
    random = np.random.default_rng(0)
    inputs: dict[str, Array] = {"x": random.integers(-8, 9, (5, 66)).astype(np.float32)}
    inputs["w"] = random.integers(0 if dtype is DType.U2 else -2, 2, (66, 47)).astype(np.float32).astype(dtype.numpy)
    inputs["s"] = random.choice(floats([0.5, 2, 4]), (3, 47))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=22),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    check(model(nodes, inputs, {"y": DType.F32}), inputs, execute)


class Lent:
    """An array of another package, which lends it by DLPack."""

    def __init__(self, array: Array) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def test_ports_take_numpy_and_dlpack_and_refuse_other_types() -> None:
    builder = GraphBuilder()
    for dtype in (DType.U32, DType.U64, DType.I4, DType.F8E5M2):
        builder.output(builder.add("cast", builder.input(f"x {dtype}", (7,), dtype), dtype=DType.F64), f"y {dtype}")
    inputs: dict[str, Any] = {
        "x uint32": Lent(np.arange(7, dtype=np.uint32)),
        "x uint64": Lent(np.arange(7, dtype="u8")),
    }
    inputs |= {f"x {d}": np.arange(7).astype(d.numpy) for d in (DType.I4, DType.F8E5M2)}
    with rammer.compile(builder.build(), "cpu", tune_seconds=0) as program:
        for value in program.run(inputs).values():
            np.testing.assert_array_equal(value, np.arange(7))
        with pytest.raises(InputError, match="dtype uint8, the program takes float8_e5m2"):
            program.run(inputs | {"x float8_e5m2": np.arange(7, dtype=np.uint8)})
        with pytest.raises(InputError, match="dtype int32, the program takes uint32"):
            program.run(inputs | {"x uint32": Lent(np.arange(7, dtype=np.int32))})


@everywhere
def test_elements_that_are_only_stored_are_moved(execute: Callable[..., Any]) -> None:
    builder, inputs, wanted = GraphBuilder(), {}, {}
    for dtype in STORED:
        x = np.arange(6 * 35, dtype=np.uint8).reshape(6, 35).astype(np.float32) % 7 - (
            3 if dtype.value[0] != "u" else 0
        )
        x = inputs[f"x {dtype}"] = np.abs(x).astype(dtype.numpy) if dtype is DType.F8E8M0 else x.astype(dtype.numpy)
        a = builder.input(f"x {dtype}", x.shape, dtype)
        constant = builder.constant(x[:2])
        moved = builder.add(
            "concat", builder.add("transpose", a, perm=(1, 0)), builder.add("transpose", constant, perm=(1, 0)), axis=1
        )
        builder.output(builder.add("pad", moved, pads=(1, 2, 3, 0), mode="constant", value=1.0), f"y {dtype}")
        both = np.concatenate([x, x[:2]]).T.astype(np.float64)
        wanted[f"y {dtype}"] = np.pad(both, ((1, 3), (2, 0)), constant_values=1)
    seen = execute(builder.build(), inputs)
    for name, value in wanted.items():
        assert seen[name].dtype.name == name[2:]
        np.testing.assert_array_equal(seen[name].astype(np.float64), value, err_msg=name)


@pytest.mark.parametrize("dtype", [*STORED, *COMPLEX])
@pytest.mark.parametrize("kind", ["add", "max", "equal", "matmul"])
def test_there_is_no_arithmetic_of_types_that_are_only_stored(kind: str, dtype: DType) -> None:
    builder = GraphBuilder()
    a, b = (builder.input(name, (3, 3), dtype) for name in "ab")
    with pytest.raises(TypeMismatch, match=f"{kind}: {dtype.value} is only stored and converted"):
        builder.add(kind, a, b)


@pytest.mark.parametrize(
    ("target", "options"),
    [("cuda", {"device": "emulator:3"}), ("rocm", {"device": "emulator:3"}), ("ipu", {"arch": "gc200:16"})],
    ids=["cuda", "rocm", "ipu"],
)
@pytest.mark.slow
def test_other_vdevices_convert_alike(target: str, options: dict[str, str]) -> None:
    builder, inputs = GraphBuilder(), {}
    random = np.random.default_rng(0)
    types = [*STORED, *(d for d in UNSIGNED if (target, d) != ("ipu", DType.U64))]
    for dtype in types:
        numbers = random.standard_normal((3, 37)).astype(np.float32) * 10
        inputs[f"f {dtype}"] = f = np.abs(numbers) if dtype.value.startswith("u") or dtype is DType.F8E8M0 else numbers
        inputs[f"x {dtype}"] = f.astype(dtype.numpy)
        x, y = builder.input(f"x {dtype}", (3, 37), dtype), builder.input(f"f {dtype}", (3, 37))
        builder.output(builder.add("cast", x, dtype=DType.F32), f"from {dtype}")
        builder.output(builder.add("cast", y, dtype=dtype), f"to {dtype}")
        builder.output(builder.add("pad", x, pads=(1, 0, 0, 2), mode="constant", value=1), f"moved {dtype}")
    graph = builder.build()
    chosen: dict[str, Any] = {"device": "emulator", **options}
    with rammer.compile(graph, target, policy="sequential", tune_seconds=0, **chosen) as program:
        seen = program.run(inputs)
    for name, value in evaluate_graph(graph, inputs).items():
        np.testing.assert_array_equal(seen[name].astype(np.float64), value.astype(np.float64), err_msg=name)


def test_an_ipu_refuses_integers_that_it_has_no_type_for() -> None:
    builder = GraphBuilder()
    builder.output(builder.add("neg", builder.input("x", (3,), DType.U64)), "y")
    with pytest.raises(DeviceError, match="an IPU has no type for uint64"):
        rammer.compile(builder.build(), "ipu", device="emulator", arch="gc200:16")
