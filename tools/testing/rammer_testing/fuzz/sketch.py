"""Build an ONNX model step by step: typed by ONNX's inference, bounded in work, all choices from one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, defs, helper, numpy_helper
from onnx.shape_inference import infer_node_outputs

from rammer.ir.tensor import Array, Shape

MAX_ELEMENTS = 1 << 22  # of one tensor
MAX_RANK = 6
FLOAT, DOUBLE, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16
I8, U8, I16, I32, I64 = (
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.INT16,
    TensorProto.INT32,
    TensorProto.INT64,
)
U16, U32, U64 = TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64
BOOL = TensorProto.BOOL
UNSIGNED = (U8, U16, U32, U64)
FLOATS, INTS = (FLOAT, DOUBLE, HALF, BFLOAT), (I8, I16, I32, I64, *UNSIGNED)
NUMPY: dict[int, Any] = {
    code: np.dtype(ml_dtypes.bfloat16) if code == BFLOAT else helper.tensor_dtype_to_np_dtype(code)
    for code in (*FLOATS, *INTS, BOOL)
}
CONTRIB = "com.microsoft"
SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e10, -1e10, 1e25, -1e25)
_LIKE_INPUT = ("GroupNormalization", "MeanVarianceNormalization")  # functions that ONNX does not type


class Unfit(Exception):
    """Raised for a step that cannot be taken: no value suits it, or it would cost too much."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input: element type, shape, and the range its elements are drawn from (integers: both ends included).

    `special`: the share of floats that are zero, infinite, NaN, or beyond any integer.
    """

    dtype: int
    shape: Shape
    low: float = -2.0
    high: float = 2.0
    special: float = 0.0

    def draw(self, random: np.random.Generator) -> Array:
        """Return an array of random elements."""
        if self.dtype == BOOL:
            return random.integers(0, 2, self.shape).astype(bool)
        if self.dtype in INTS:
            return random.integers(int(self.low), int(self.high) + 1, self.shape).astype(NUMPY[self.dtype])
        found = random.uniform(self.low, self.high, self.shape)
        if self.special:
            found = np.where(random.random(self.shape) < self.special, random.choice(SPECIAL, self.shape), found)
        with np.errstate(over="ignore"):  # float16 ends at 65504
            return np.asarray(found).astype(NUMPY[self.dtype])


@dataclass(frozen=True, slots=True)
class Kind:
    """Element type and shape of a value."""

    dtype: int
    shape: Shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)


class Sketch:
    """The nodes, inputs and constants so far. `budget` bounds multiply-adds and element moves of the whole model.

    `undefined`: integers by the floats that they were cast from. Where such a float does not fit the integer type, any
    number is correct, so no later step reads them.
    """

    def __init__(self, seed: str, opset: int = 21) -> None:
        self.random = Random(seed)
        self.numpy = np.random.default_rng(self.random.randrange(1 << 62))
        self.opset = opset
        self.budget = 10 ** self.random.uniform(5.5, 8.0)
        self.kinds: dict[str, Kind] = {}
        self.inputs: dict[str, Port] = {}
        self.constants: dict[str, Array] = {}
        self.nodes: list[NodeProto] = []
        self.undefined: dict[str, str] = {}
        self._names = 0

    # queries

    def shape(self, value: str) -> Shape:
        return self.kinds[value].shape

    def dtype(self, value: str) -> int:
        return self.kinds[value].dtype

    def rank(self, value: str) -> int:
        return self.kinds[value].rank

    def pick(self, suits: Callable[[Kind], bool] = lambda _: True) -> str:
        """Return a value that is not a constant, preferably a recent one. Raises Unfit."""
        skipped = {*self.constants, *self.undefined}
        known = [v for v, kind in self.kinds.items() if v not in skipped and kind.size and suits(kind)]
        if not known:
            raise Unfit
        return self.random.choice(known[-1:] if self.random.random() < 0.5 else known[-5:])

    def floats(self, *ranks: int) -> str:
        """Return a value of floats, of one of these ranks if any are given. Raises Unfit."""
        return self.pick(lambda k: k.dtype in FLOATS and (not ranks or k.rank in ranks))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    # additions

    def input(
        self, shape: Sequence[int], dtype: int = FLOAT, low: float = -2.0, high: float = 2.0, special: float = 0.0
    ) -> str:
        """Add an input of the model."""
        self._affordable(shape)
        name = self._name("x")
        self.inputs[name] = Port(dtype, tuple(shape), low, high, special)
        self.kinds[name] = Kind(dtype, tuple(shape))
        return name

    def constant(self, value: Any, dtype: int | None = None) -> str:
        """Add a constant; Python's numbers become int64 or float32."""
        array = np.asarray(value)
        if dtype is None and array.dtype in (np.float64, np.int32) and not isinstance(value, np.ndarray):
            dtype = FLOAT if array.dtype == np.float64 else I64
        array = array if dtype is None else array.astype(NUMPY[dtype])
        self._affordable(array.shape)
        name = self._name("c")
        self.constants[name] = array
        self.kinds[name] = Kind(next(c for c, d in NUMPY.items() if d == array.dtype), array.shape)
        return name

    def weights(self, *shape: int, terms: int = 0, dtype: int = FLOAT) -> str:
        """Add constant floats such that a sum of `terms` products (the first extent, if 0) stays of order 1."""
        self._affordable(shape)
        scale = (terms or (shape[0] if shape else 1)) ** -0.5
        return self.constant(self.numpy.standard_normal(shape) * scale, dtype)

    def operand(self, *shape: int, dtype: int = FLOAT, terms: int = 0) -> str:
        """Return floats of this shape: mostly a constant, sometimes a new input."""
        if self.chance(0.25):
            return self.input(shape, dtype, -1, 1)
        return self.weights(*shape, terms=terms or 1, dtype=dtype)

    def node(self, op: str, *inputs: str, outputs: int = 1, work: float = 0, **attrs: Any) -> str:
        """Add a node, and return its first output. See `multi`."""
        return self.multi(op, *inputs, outputs=outputs, work=work, **attrs)[0]

    def multi(self, op: str, *inputs: str, outputs: int = 1, work: float = 0, **attrs: Any) -> tuple[str, ...]:
        """Add a node, and return its outputs, typed by ONNX. `work`: multiply-adds.

        Raises Unfit if the node is not valid, or too costly.
        """
        names = tuple(self._name("t") for _ in range(outputs))
        given = {k: v for k, v in attrs.items() if v is not None}
        node = helper.make_node(op, list(inputs), list(names), name=f"n{len(self.nodes)}", **given)
        types = {v: self._proto(v) for v in inputs if v}
        data = {
            v: numpy_helper.from_array(self.constants[v], v)
            for v in inputs
            if v in self.constants and _small(self.kinds[v])
        }
        try:
            schema = defs.get_schema(op, self.opset, "")
            found = infer_node_outputs(
                schema, node, types, data, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10
            )
        except Exception as error:  # ONNX raises exceptions of any type for an invalid node
            raise Unfit from error
        if op in _LIKE_INPUT:
            found = {names[0]: types[inputs[0]]}
        kinds = [_kind(found.get(name)) for name in names]
        for kind in kinds:
            self._affordable(kind.shape)
        moved = sum(k.size for k in kinds) + sum(self.kinds[v].size for v in inputs if v)
        self.spend(work + moved)
        self.nodes.append(node)
        self.kinds.update(zip(names, kinds, strict=True))
        return names

    def trust(
        self, op: str, inputs: Sequence[str], outputs: Sequence[tuple[int, Shape]], **attrs: Any
    ) -> tuple[str, ...]:
        """Add a node that ONNX cannot type alone: it holds graphs or has its own domain. Raises Unfit.

        `outputs` are element types and shapes.
        """
        for _, shape in outputs:
            self._affordable(shape)
        names = tuple(self._name("t") for _ in outputs)
        self.nodes.append(helper.make_node(op, list(inputs), list(names), name=f"n{len(self.nodes)}", **attrs))
        self.kinds.update((n, Kind(*kind)) for n, kind in zip(names, outputs, strict=True))
        return names

    def spend(self, work: float) -> None:
        """Reduce the budget. Raises Unfit if it is too small."""
        if work > self.budget:
            raise Unfit
        self.budget -= work

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Undo what was added in the block if it raises Unfit."""
        before = (self.budget, len(self.nodes), dict(self.kinds), dict(self.inputs), dict(self.constants))
        undefined = dict(self.undefined)
        try:
            yield
        except Unfit:
            self.budget, count, self.kinds, self.inputs, self.constants = before
            self.undefined = undefined
            del self.nodes[count:]
            raise

    def model(self, outputs: Sequence[str]) -> ModelProto:
        """Return the model with these outputs, without unused nodes, inputs and constants."""
        nodes, needed = [], set(outputs)
        for node in reversed(self.nodes):
            if needed & set(node.output):
                nodes.append(node)
                needed |= names_read(node)
        graph = helper.make_graph(
            nodes[::-1],
            "fuzz",
            [helper.make_tensor_value_info(n, p.dtype, p.shape) for n, p in self.inputs.items() if n in needed],
            [helper.make_tensor_value_info(n, self.dtype(n), self.shape(n)) for n in outputs],
            [numpy_helper.from_array(value, n) for n, value in self.constants.items() if n in needed],
        )
        versions = {"": self.opset, **{node.domain: 1 for node in nodes if node.domain}}
        opsets = [helper.make_opsetid(*version) for version in versions.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def leaves(self) -> list[str]:
        """Return the results of nodes that no node reads."""
        read = {name for node in self.nodes for name in names_read(node)}
        return [name for node in self.nodes for name in node.output if name not in read]

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _affordable(self, shape: Sequence[int]) -> None:
        if len(shape) > MAX_RANK or not 0 < prod(shape) <= min(MAX_ELEMENTS, self.budget) or any(e < 1 for e in shape):
            raise Unfit

    def _proto(self, value: str) -> TypeProto:
        kind = self.kinds[value]
        return helper.make_tensor_type_proto(kind.dtype, kind.shape)


def names_read(node: NodeProto) -> set[str]:
    """Return the values that a node reads, those of its subgraphs included."""
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= names_read(inner)
        names |= {value.name for value in attribute.g.output}
    return names


def _small(kind: Kind) -> bool:
    """Return whether a constant may determine a shape."""
    return kind.dtype in (I64, I32, FLOAT) and kind.size <= 64


def _kind(proto: TypeProto | None) -> Kind:
    """Return a completely known type. Raises Unfit."""
    if proto is None or not proto.tensor_type.HasField("shape") or proto.tensor_type.elem_type not in NUMPY:
        raise Unfit
    dims = proto.tensor_type.shape.dim
    if not all(d.HasField("dim_value") for d in dims):
        raise Unfit
    return Kind(proto.tensor_type.elem_type, tuple(d.dim_value for d in dims))
