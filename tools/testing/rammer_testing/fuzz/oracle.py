"""Compute a model's expected outputs by ONNX Runtime if installed, ONNX's evaluator, or rammer's NumPy semantics."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

import rammer
from rammer.ir.operator import ROperator
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.semantics.expected import expected
from rammer.ir.semantics.rounding import FACTOR_STEPS, OVERFLOW, Bounded, bounded
from rammer.ir.tensor import Array
from rammer.vdevice.cpu.host import host
from rammer_testing.fuzz.formulas import FORMULAS, HALVES
from rammer_testing.runtime import run_runtime

Outputs = dict[str, Array]
Oracle = Callable[[ModelProto, Mapping[str, Array]], Outputs]
Run = Callable[[Mapping[str, Array]], Outputs]
PERTURBED = 12  # runs of the oracle on inputs and constants that differ in their last digits
ROUNDS = 6  # of such runs, while some elements have not moved: of many thousand at a border, some rarely do
LARGE = 1 << 20  # elements of inputs and outputs; above it, a quarter of these runs is enough
NARROW_TIMES = 4.0  # of 16-bit types, whose tolerance is of so many roundings
LEAST_SQUARED = 2.0**-63  # the square of a smaller float32 is not a normal number
MOST_WINDOWS = 20_000  # elements of pools that ONNX's evaluator may compute, at about 0.2 ms each
SLACK = 8.0  # allowed error of an element, in multiples of its movement in perturbed runs
EPSILON: dict[int, float] = {
    TensorProto.DOUBLE: 2.0**-52,
    TensorProto.FLOAT: 2.0**-23,
    TensorProto.FLOAT16: 2.0**-10,
    TensorProto.BFLOAT16: 2.0**-7,
}
ROUNDED = {"fp32": 0.0, "tf32": 2.0**-10, "bf16": 2.0**-7}  # operands of products, by precision
_STASHED = (  # float32 inside, even of doubles: its numbers, or a constant
    *("LayerNormalization", "GroupNormalization", "RMSNormalization", "HardSwish", "Shrink", "Attention"),
)
_ONCE = (  # operators that round each element once: their 16-bit results are exact to the last bit
    *("Add", "Sub", "Mul", "Max", "Min", "Neg", "Abs", "Relu", "Sqrt", "Identity", "Cast", "Where", "Reshape", "Slice"),
    *("Transpose", "Concat", "Split", "Squeeze", "Unsqueeze", "Expand", "Gather", "Less", "Greater", "GreaterOrEqual"),
)
_BYTES = (  # products of bytes
    *("MatMulInteger", "QLinearMatMul", "QGemm", "ConvInteger", "QLinearConv"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
)
_WINDOWS = ("AveragePool", "MaxPool", "LpPool")
_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SHAPING = ("Resize",)  # numbers of which give the result's size; oracles compute positions in float32
_LEAST_SQUARED, _ZERO = "least number with a square", "flushed to zero"  # names of constants
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), *HALVES)


def onnxruntime(model: ModelProto, inputs: Mapping[str, Array]) -> Outputs:
    """Run the model in ONNX Runtime, operator by operator. Raises NotImplementedError where it is not exact."""
    if sums_saturate() and (inexact := [n.op_type for n in model.graph.node if n.op_type in _BYTES]):
        raise NotImplementedError(f"ONNX Runtime's {inexact[0]} on a CPU without VNNI: its sums of bytes saturate")
    return dict(zip((o.name for o in model.graph.output), run_runtime(model, inputs, plain=True), strict=True))


def sums_saturate() -> bool:
    """Check whether ONNX Runtime sums products of bytes in 16 bits on this CPU."""
    return host().machine == "x86_64" and not host().features & {"avx512_vnni", "avx_vnni"}


def evaluator(model: ModelProto, inputs: Mapping[str, Array]) -> Outputs:
    """Run ONNX's reference evaluator. Raises NotImplementedError where it deviates from the standard."""
    if deviating := [node.op_type for node in model.graph.node if _deviates(node)]:
        raise NotImplementedError(f"the evaluator's {deviating[0]}")
    pools = {v for node in model.graph.node if node.op_type in _WINDOWS for v in node.output}
    if pools:  # each element is a loop in Python
        typed = shape_inference.infer_shapes(model).graph
        shapes = {
            v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*typed.value_info, *typed.output)
        }
        if sum(int(np.prod(shapes.get(v, [0]))) for v in pools) > MOST_WINDOWS:
            raise NotImplementedError("the evaluator's pools of so many elements")
    found = ReferenceEvaluator(model, new_ops=FORMULAS).run(None, dict(inputs))
    return {o.name: np.asarray(v) for o, v in zip(model.graph.output, found, strict=True)}


def _deviates(node: NodeProto) -> bool:
    """Return whether ONNX's evaluator (1.23) deviates from the standard for this node.

    It ignores sequence lengths, leaves elements out of LpPool's last windows, ends Loops
    without a condition early, and resizes to one element at another position. Operators with wrong formulas are in
    FORMULAS.
    """
    given = {a.name: a.s.decode() if a.s else a.i for a in node.attribute}
    match node.op_type:
        case "LSTM" | "GRU" | "RNN":
            return len(node.input) > 4 and bool(node.input[4])
        case "Loop":
            return not node.input[1]
        case "LpPool":
            return bool(given.get("ceil_mode"))
        case "Resize":
            return given.get("coordinate_transformation_mode") == "pytorch_half_pixel"
    return False


def interpreter(model: ModelProto, inputs: Mapping[str, Array]) -> Outputs:
    """Evaluate rammer's tensor expressions before any pass. Only the importer is shared with the compiler."""
    return evaluate_graph(rammer.from_onnx(model), inputs)


def warm() -> None:
    """Load the modules that each child process would load otherwise: the oracles, and the reader of models."""
    if importlib.util.find_spec("onnxruntime"):
        importlib.import_module("onnxruntime")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "warm", [x], [y])
    rammer.from_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def oracles(model: ModelProto) -> dict[str, Oracle]:
    """Return the oracles by name, the most independent one first.

    ONNX Runtime omits roundings between 16-bit stages. Where each of them counts, ONNX's evaluator comes first.
    """
    runtime: dict[str, Oracle] = {"onnxruntime": onnxruntime} if importlib.util.find_spec("onnxruntime") else {}
    standard: dict[str, Oracle] = {"evaluator": evaluator}
    return {**(standard | runtime if rounds_once(model) else runtime | standard), "interpreter": interpreter}


def consult(model: ModelProto, inputs: Mapping[str, Array], names: Sequence[str] = ()) -> tuple[str, Outputs] | None:
    """Return the name and outputs of the first oracle that can evaluate the model; None if none can."""
    for name, oracle in oracles(model).items():
        if not names or name in names:
            try:
                with np.errstate(all="ignore"):
                    outputs = oracle(model, inputs)
                if _as_declared(model, outputs):
                    return name, outputs
            except Exception:  # oracles lack operators and types, and raise exceptions of any type
                continue
    return None


def _as_declared(model: ModelProto, outputs: Outputs) -> bool:
    """Return whether outputs have the types and sizes that ONNX's inference gives.

    The evaluator omits some windows of pools, and returns ReduceSumSquare of int32 as int64.
    """
    types = {v.name: v.type.tensor_type for v in model.graph.output}
    return all(
        value.dtype == helper.tensor_dtype_to_np_dtype(types[n].elem_type)
        and (not types[n].HasField("shape") or tuple(d.dim_value for d in types[n].shape.dim) == value.shape)
        for n, value in outputs.items()
    )


def rounds_once(model: ModelProto) -> bool:
    """Return whether the model computes in 16 bits, and rounds each element of every such stage once.

    Then two correct results differ as little as float32 ones, except for elements where a last digit flips a rounding.
    """
    if not _named(model) & {*_NARROW}:
        return False
    graph = shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info, *graph.output)}
    types |= {t.name: t.data_type for t in graph.initializer}
    narrow = [n for n in model.graph.node if any(types.get(v) in _NARROW for v in (*n.input, *n.output))]
    return any(n.op_type != "Cast" for n in narrow) and all(n.op_type in _ONCE for n in narrow)


def _named(model: ModelProto) -> set[int]:
    """Return the element types that occur in a model's inputs, outputs, constants and casts."""
    types = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    types |= {tensor.data_type for tensor in model.graph.initializer}
    return types | {
        a.i for node in model.graph.node if node.op_type == "Cast" for a in node.attribute if a.name == "to"
    }


def tolerance(model: ModelProto, terms: int, precision: str = "fp32") -> float:
    """Return the error that rounding alone may cause, relative to the largest element.

    It follows from the narrowest float type and the length of sums.
    """
    types = _named(model)
    if any(node.op_type in _STASHED for node in model.graph.node):
        types.add(TensorProto.FLOAT)
    if rounds_once(model):
        types = types.difference(_NARROW) | {TensorProto.FLOAT}
    epsilon = max((EPSILON[t] for t in types if t in EPSILON), default=EPSILON[TensorProto.FLOAT])
    epsilon = max(epsilon, ROUNDED[precision])
    return epsilon * (64 + 8 * sqrt(terms)) if epsilon < 1e-4 else epsilon * (8 + len(model.graph.node))


def longest_sum(model: ModelProto) -> int:
    """Return an upper bound of the products that one element of any node sums."""
    if all(node.op_type in _ONCE for node in model.graph.node):
        return 1
    shapes = [tuple(t.dims) for t in model.graph.initializer]
    shapes += [tuple(d.dim_value for d in v.type.tensor_type.shape.dim) for v in model.graph.input]
    return max((int(np.prod(sorted(shape)[-3:])) for shape in shapes), default=1)


@dataclass(frozen=True, slots=True)
class Difference:
    """The wrong elements of an output: their number, largest error relative to the largest element, first position."""

    output: str
    count: int
    size: int
    relative: float
    place: tuple[int, ...]
    found: Any
    wanted: Any

    def __str__(self) -> str:
        share = f"{self.count} of {self.size} elements"
        return (
            f"{self.output}: {share}, off by {self.relative:.2g} of the largest, "
            f"first at {list(self.place)}: {self.found} for {self.wanted}"
        )


def compare(found: Array, wanted: Array, name: str, allowed: float, spread: Array | None = None) -> Difference | None:
    """Return the elements that differ by more than `allowed` of the largest one plus their `spread`; None if none."""
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        text = [f"{a.dtype}{list(a.shape)}" for a in (found, wanted)]
        return Difference(name, wanted.size, wanted.size, np.inf, (), *text)
    with np.errstate(all="ignore"):
        if wanted.dtype in _FLOATS:
            wide_found, wide = found.astype(np.float64), wanted.astype(np.float64)
            finite = np.isfinite(wide)
            scale = float(np.abs(wide[finite]).max(initial=0.0)) or 1.0
            off = np.where(finite, np.abs(wide_found - wide), 0.0)
            off = np.where(finite & ~np.isfinite(wide_found), np.inf, off)
            limit = np.full(wide.shape, allowed * scale)
        else:
            off = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
            scale, limit = float(np.abs(wanted.astype(np.float64)).max(initial=1.0)), np.zeros(wanted.shape)
        if spread is not None:
            limit = limit + spread
        bad = off > limit
    if not bad.any():
        return None
    place = np.unravel_index(int(bad.argmax()), wanted.shape)
    relative = float(off[bad].max() / scale)
    return Difference(
        name, int(bad.sum()), wanted.size, relative, tuple(map(int, place)), found[place].item(), wanted[place].item()
    )


def beyond_numbers(found: Array, wanted: Array) -> bool:
    """Return whether NaN or infinities are at other positions or differ; `compare` skips them."""
    if wanted.dtype not in _FLOATS:
        return False
    wide_found, wide = found.astype(np.float64), wanted.astype(np.float64)
    return not np.array_equal(wide_found[~np.isfinite(wide)], wide[~np.isfinite(wide)], equal_nan=True)


def spreads(
    model: ModelProto, inputs: Mapping[str, Array], oracle: str, precision: str = "fp32"
) -> Iterator[dict[str, Array]]:
    """Yield how far outputs may be off: SLACK times the movement of the oracle's own when it rounds differently.

    Inputs, constants and results of nodes are multiplied by numbers close to 1, with more noise in every round.
    """
    said = consult(model, inputs, (oracle,))
    assert said is not None
    wanted = said[1]
    moved = {name: np.zeros(value.shape) for name, value in wanted.items()}
    random, coarse, once = np.random.default_rng(0), ROUNDED[precision], rounds_once(model)
    stashed = frozenset(v for node in model.graph.node if node.op_type in _STASHED for v in node.input)
    size = sum(value.size for value in (*inputs.values(), *wanted.values()))
    runs = PERTURBED if size < LARGE else PERTURBED // 4
    for run in range(ROUNDS * runs):
        noise = _Noise(random, coarse, 2.0 ** (run // runs), once, flush=bool(run % 2), stashed=stashed)
        perturbed = {name: noise.perturbed(value, name) for name, value in inputs.items()}
        said = consult(_noisy(model, noise), perturbed, (oracle,))
        for name, value in said[1].items() if said else ():
            moved[name] = _farther(moved[name], value, wanted[name])
        if run % runs == runs - 1:
            yield moved


def spread(
    run: Run, inputs: Mapping[str, Array], found: Mapping[str, Array], precision: str = "fp32", once: bool = False
) -> dict[str, Array]:
    """Return SLACK times how far a program's outputs move when its inputs are off by one rounding, two, or more."""
    moved = {name: np.zeros(value.shape) for name, value in found.items()}
    random = np.random.default_rng(0)
    for attempt in range(2 * PERTURBED):
        noise = _Noise(random, ROUNDED[precision], 2.0 ** (attempt // (PERTURBED // 2)), once)
        for name, value in run({n: noise.perturbed(v) for n, v in inputs.items()}).items():
            moved[name] = _farther(moved[name], value, found[name])
    return moved


def rounding(model: ModelProto, inputs: Mapping[str, Array], precision: str = "fp32") -> dict[str, Array]:
    """Return how far rounding may move each element of the outputs, computed through the imported graph.

    Perturbed runs miss elements that they leave in place: 1 + erf(x) stays 0 for any x close to -6, and is 6e-8 in
    another order of the same operations. An element without a bound gets 0.0, which excuses no difference.
    """

    def local(n: int, op: ROperator, given: Mapping[str, Array]) -> list[Bounded]:
        return bounded(op.operation.expr, given, factor_step=FACTOR_STEPS.get(precision, 0.0))

    found = expected(rammer.from_onnx(model), inputs, local)
    return {name: np.where(meant.error < OVERFLOW, meant.error, 0.0) for name, meant in found.items()}


def _farther(moved: Array, value: Array, wanted: Array) -> Array:
    with np.errstate(all="ignore"):
        step = np.abs(value.astype(np.float64) - wanted.astype(np.float64))
    return np.asarray(np.maximum(moved, SLACK * np.nan_to_num(step, nan=np.inf, posinf=np.inf)))


@dataclass(frozen=True, slots=True)
class _Noise:
    """Random factors that differ from 1 by one or two roundings, or `times` as much; 1 for integers.

    `coarse`: relative rounding step of float32. `once`: 16-bit numbers are exact to the last bit, as in `rounds_once`.
    `flush`: numbers whose squares are below the normal ones become zero, as devices compute such squares.
    `stashed`: tensors whose readers compute in float32, even of doubles.
    """

    random: np.random.Generator
    coarse: float = 0.0
    times: float = 1.0
    once: bool = False
    flush: bool = False
    stashed: frozenset[str] = frozenset()

    def factors(self, dtype: Any, shape: Sequence[int], coarse: float = 0.0) -> Array:
        epsilon = next((e for code, e in EPSILON.items() if helper.tensor_dtype_to_np_dtype(code) == dtype), 0.0)
        epsilon = max(epsilon, coarse, self.coarse if dtype == np.float32 else 0.0) if epsilon else 0.0
        if self.once and dtype in HALVES:
            epsilon = 0.0
        epsilon *= self.times if epsilon < 1e-4 else min(self.times, NARROW_TIMES)
        return np.asarray(1 + epsilon * self.random.choice((-2.0, -1.0, 1.0, 2.0), shape)).astype(dtype)

    def perturbed(self, value: Array, name: str = "") -> Array:
        return np.asarray(value * self.factors(value.dtype, value.shape, self.inside(name)))

    def inside(self, name: str) -> float:
        """Return the rounding step of the float32 inside a tensor's readers; 0.0 if there is none."""
        return EPSILON[TensorProto.FLOAT] if name in self.stashed else 0.0


def _noisy(model: ModelProto, noise: _Noise) -> ModelProto:
    """Return the model with perturbed constants, and a perturbing Mul behind each node's float results."""
    found = ModelProto()
    found.CopyFrom(model)
    shaping = {name for node in model.graph.node if node.op_type in _SHAPING for name in node.input[1:]}
    for tensor in found.graph.initializer:
        if tensor.name not in shaping:
            constant = noise.perturbed(numpy_helper.to_array(tensor), tensor.name)
            tensor.CopyFrom(numpy_helper.from_array(constant, tensor.name))
    typed = shape_inference.infer_shapes(model, data_prop=True).graph
    types = {v.name: v.type.tensor_type for v in (*typed.value_info, *typed.output)}
    del found.graph.node[:]
    for node in model.graph.node:
        found.graph.node.append(node)
        kept = found.graph.node[-1]
        for n, name in enumerate(node.output):
            kind = types.get(name)
            if kind is None or kind.elem_type not in EPSILON or not kind.HasField("shape"):
                continue
            shape = [d.dim_value for d in kind.shape.dim]
            place = EPSILON[TensorProto.FLOAT] * max(shape, default=1) if node.op_type == "Resize" else 0.0
            coarse = max(place, noise.inside(name))
            factor = noise.factors(helper.tensor_dtype_to_np_dtype(kind.elem_type), shape, coarse)
            found.graph.initializer.append(numpy_helper.from_array(factor, f"{name} off by"))
            kept.output[n] = f"{name} exact"
            moved = f"{name} moved" if (flush := noise.flush and kind.elem_type == TensorProto.FLOAT) else name
            found.graph.node.append(helper.make_node("Mul", [f"{name} exact", f"{name} off by"], [moved]))
            found.graph.node.extend(_flushed(moved, name) if flush else ())
    if noise.flush:
        for known, value in ((_LEAST_SQUARED, LEAST_SQUARED), (_ZERO, 0.0)):
            found.graph.initializer.append(numpy_helper.from_array(np.asarray(value, np.float32), known))
    return found


def _flushed(name: str, result: str) -> list[NodeProto]:
    """Return nodes that replace small numbers of a float32 tensor by zero. NaN stays."""
    size, small = f"{result} size", f"{result} small"
    return [
        helper.make_node("Abs", [name], [size]),
        helper.make_node("Less", [size, _LEAST_SQUARED], [small]),
        helper.make_node("Where", [small, _ZERO, name], [result]),
    ]
