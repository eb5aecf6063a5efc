"""Import sequences and optional values at compile time: at run time there are only tensors.

An optional value is the value itself, or None.
"""

from __future__ import annotations

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.ports import TensorList, Value
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import DType, TensorId


@handles("SequenceConstruct")
def construct(n: Node) -> TensorList:
    tensors = n.present()
    return TensorList(tuple(tensors), n.type(tensors[0]).dtype)


@handles("SequenceEmpty")
def empty(n: Node) -> TensorList:
    code = n.attrs["dtype"]
    return TensorList((), DType.F32 if code is None else element_type(code, "dtype", node=n.label, op=n.op))


@handles("SequenceAt")
def at(n: Node) -> TensorId:
    tensors = n.sequence(0).tensors
    return tensors[_position(n, 1, len(tensors))]


@handles("SequenceInsert")
def insert(n: Node) -> TensorList:
    """Insert before the element at a position, or at the end."""
    into, tensor = n.sequence(0), n.tensor(1)
    dtype = n.type(tensor).dtype
    if into.dtype not in (None, dtype):
        raise n.fail(f"a {dtype.value} tensor is inserted into a sequence of {into.dtype}")
    number = len(into.tensors)
    place = _position(n, 2, number, past_end=True) if n.has(2) else number
    return TensorList((*into.tensors[:place], tensor, *into.tensors[place:]), dtype)


@handles("SequenceErase")
def erase(n: Node) -> TensorList:
    """Remove the element at a position, or the last one."""
    from_ = n.sequence(0)
    place = _position(n, 1, len(from_.tensors)) if n.has(1) else len(from_.tensors) - 1
    if place < 0:
        raise n.fail("the sequence has no element that could be erased")
    return TensorList((*from_.tensors[:place], *from_.tensors[place + 1 :]), from_.dtype)


@handles("SequenceLength")
def length(n: Node) -> TensorId:
    return n.constant(len(n.sequence(0).tensors), DType.I64)


@handles("SplitToSequence")
def split(n: Node) -> TensorList:
    """Split into pieces of given lengths. A scalar is the length of all but the last; by default each length is 1."""
    tensor, shape = n.tensor(0), n.shape()
    axis = n.axis(n.attrs["axis"], len(shape))
    if not n.has(1):
        lengths: tuple[int, ...] = (1,) * shape[axis]
    elif len(n.shape(1)):
        lengths = n.ints(1, "split")
    else:
        (step,) = n.ints(1, "split")
        if step < 1:
            raise n.fail(f"split is {step}, and must be positive")
        lengths = tuple(min(step, shape[axis] - start) for start in range(0, shape[axis], step))
    if min(lengths, default=0) < 0 or sum(lengths) != shape[axis]:
        raise n.fail(f"pieces of {list(lengths)[:20]} elements do not make up the {shape[axis]} of dimension {axis}")
    ends = np.cumsum(lengths)
    keeps = n.has(1) or n.attrs["keepdims"]
    pieces = []
    for end, extent in zip(ends, lengths, strict=True):
        piece = n.cut(tensor, axis, int(end) - extent, extent)
        pieces.append(piece if keeps else n.reshape(piece, [e for d, e in enumerate(shape) if d != axis]))
    return TensorList(tuple(pieces), n.dtype())


@handles("ConcatFromSequence")
def concat(n: Node) -> TensorId:
    tensors, new = n.sequence(0).tensors, n.attrs["new_axis"]
    if not tensors:
        raise n.fail("the sequence is empty")
    rank = n.type(tensors[0]).rank
    axis = n.axis(n.attrs["axis"], rank + 1 if new else rank)
    return n.stack(tensors, axis) if new else n.concat(tensors, axis)


@handles("SequenceMap")
def map_(n: Node) -> list[Value | None]:
    """Import one copy of the body per element. Inputs that are tensors are the same for all of them."""
    number = len(n.sequence(0).tensors)
    columns: list[list[TensorId]] = [[] for _ in n.outputs]
    for place in range(number):
        given: list[Value | None] = []
        for position, value in enumerate(n.inputs):
            if isinstance(value, TensorList):
                if len(value.tensors) != number:
                    raise n.fail(f"input {position} has {len(value.tensors)} elements, input 0 has {number}")
                value = value.tensors[place]
            given.append(value)
        results = n.subgraph(n.attrs["body"], given)
        if len(results) != len(columns):
            raise n.fail(f"the body has {len(results)} results instead of {len(columns)}")
        for column, result in zip(columns, results, strict=True):
            column.append(n.only_tensor(result, "a result of the body"))
    return [TensorList(tuple(c), n.type(c[0]).dtype if c else None) for c in columns]


@handles("Identity", "Optional")
def same(n: Node) -> list[Value | None]:
    return [n.inputs[0] if n.has(0) else None]


@handles("OptionalGetElement")
def get_element(n: Node) -> list[Value | None]:
    if not n.has(0):
        raise n.fail("the optional value is missing")
    return [n.inputs[0]]


@handles("OptionalHasElement")
def has_element(n: Node) -> TensorId:
    return n.constant(n.has(0), DType.BOOL)


def _position(n: Node, operand: int, number: int, *, past_end: bool = False) -> int:
    """Return a position in a sequence of `number` elements, counted from the front."""
    place = int(n.scalar(operand, "position"))
    if not -number <= place < number + past_end:
        raise n.fail(f"position {place} does not exist in a sequence of {number} elements")
    return place + number if place < 0 else place
