"""Import shifts and BitCast."""

from __future__ import annotations

from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import DType, TensorId

_SHIFTS = {"LEFT": "shift_left", "RIGHT": "shift_right"}


@handles("BitShift")
def bit_shift(n: Node) -> TensorId:
    kind = _SHIFTS.get(n.attrs["direction"])
    if kind is None:
        raise n.fail(f"direction is {n.attrs['direction']!r}", hint="LEFT or RIGHT")
    return n.add(kind, n.tensor(0), n.tensor(1))


@handles("BitCast")
def bit_cast(n: Node) -> TensorId:
    """Reinterpret bits as another type. Between integers of one width that is a cast, which wraps."""
    x, source = n.tensor(0), n.dtype()
    target = element_type(n.attrs["to"], "attribute 'to'", node=n.label, op=n.op)
    if source.bits != target.bits:
        raise n.fail(f"{source.value} has other bits than {target.value}", hint="both need the same width")
    if source.part.is_float or target.part.is_float:
        return x if source is target else n.add("bit_cast", x, dtype=target)
    if target is DType.BOOL and source is not DType.BOOL:
        raise n.fail("a bool has no other bits than those of 0 and 1", hint="use Cast")
    return n.cast(x, target)
