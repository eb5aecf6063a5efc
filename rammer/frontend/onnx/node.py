"""Define what an operator's handler sees (`Node`), and the table of handlers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from onnx import GraphProto, TensorProto

from rammer.errors import ModelError
from rammer.frontend.builder import GraphBuilder
from rammer.frontend.onnx.limits import Limits
from rammer.frontend.onnx.ports import Maps, TensorList, Text, Value
from rammer.frontend.onnx.text import codes_of, encode
from rammer.ir.tensor import Array, DType, Shape, TensorId, TensorType

Result: TypeAlias = "Value | Sequence[Value | None]"
Handler: TypeAlias = "Callable[[Node], Result]"

# (domain, operator) -> handlers by the opset that introduced the meaning they implement, newest first
HANDLERS: dict[tuple[str, str], list[tuple[int, Handler]]] = {}


def handles(*ops: str, since: int = 1, domain: str = "") -> Callable[[Handler], Handler]:
    """Register a function as the meaning of operators from opset `since` on."""

    def register(function: Handler) -> Handler:
        for op in ops:
            entries = HANDLERS.setdefault((domain, op), [])
            entries.append((since, function))
            entries.sort(key=lambda e: -e[0])
        return function

    return register


def handler_for(domain: str, op: str, opset: int) -> Handler | None:
    """Return the handler of an operator at an opset; None if there is none."""
    return next((f for since, f in HANDLERS.get((domain, op), ()) if since <= opset), None)


class NotConstant(ModelError):
    """An input that decides shapes is only known at run time. `inputs` are the graph inputs that it depends on.

    `at` is the first output of the failing node of the outermost graph. `cuts` is true if a session should run the
    model in parts because of it.
    """

    inputs: tuple[TensorId, ...] = ()
    at: str = ""
    cuts: bool = False
    counted: bool = False  # an operand has a bound, and its number of rows is an output


class Undecided(NotConstant):
    """Only run-time values decide how often a body runs, or which one."""


class StepLengths:
    """The recurrent nodes of a model: their numbers of steps, and inputs that say how many of these count, by label."""

    def __init__(self, builder: GraphBuilder, names: Mapping[str, str]) -> None:
        self._builder, self._names = builder, names
        self.steps: dict[str, int] = {}

    def of(self, label: str, steps: int) -> TensorId | None:
        """Return the number of a node's steps that count, an int64 scalar; None if all of the `steps` do."""
        self.steps[label] = steps if self.steps.get(label, steps) == steps else -1  # two nodes of one name
        name = self._names.get(label)
        return name if name is None or name in self._builder.types else self._builder.input(name, (), DType.I64)


class Subgraphs(Protocol):
    """A function that imports a subgraph in the scope of its node, with values for its inputs."""

    def __call__(self, graph: GraphProto, inputs: Sequence[Value | None]) -> tuple[Value | None, ...]: ...


@dataclass(slots=True, eq=False)
class Node:
    """A node being imported: operands, decoded attributes (with the schema's defaults), and the builder.

    Missing optional inputs are None. `outputs` has one flag per declared output: true if it has a name in the model.
    """

    op: str
    label: str
    opset: int
    inputs: tuple[Value | None, ...]
    outputs: tuple[bool, ...]
    attrs: dict[str, Any]
    builder: GraphBuilder
    limits: Limits
    decode: Callable[[Any], Array]
    subgraph: Subgraphs
    lengths: StepLengths
    words: dict[int, str]

    def fail(self, what: str, hint: str = "") -> ModelError:
        """Return an error that names this node."""
        return ModelError(what, node=self.label, op=self.op, hint=hint)

    # operands

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None

    def wants(self, position: int) -> bool:
        """Check whether output `position` has a name in the model."""
        return position < len(self.outputs) and self.outputs[position]

    def tensor(self, position: int) -> TensorId:
        return self.only_tensor(self.inputs[position] if position < len(self.inputs) else None, f"input {position}")

    def only_tensor(self, value: Value | None, what: str) -> TensorId:
        """Return the value if it is a tensor; strings are their codes. Raises ModelError for any other value."""
        match value:
            case str():
                return value
            case Text(tensor):
                return tensor
            case Maps():
                raise self.fail(f"{what} is a list of maps, and no tensor")
        raise self.fail(f"{what} is {'missing' if value is None else 'a sequence, and no tensor'}")

    def sequence(self, position: int) -> TensorList:
        """Return an operand that is a sequence. Raises ModelError for any other."""
        value = self.inputs[position] if position < len(self.inputs) else None
        if not isinstance(value, TensorList):
            raise self.fail(f"input {position} is {'missing' if value is None else 'a tensor, and no sequence'}")
        return value

    def present(self) -> list[TensorId]:
        """Return all operands that are given."""
        return [self.only_tensor(t, "an input") for t in self.inputs if t is not None]

    def type(self, tensor: TensorId) -> TensorType:
        return self.builder.types[tensor]

    def shape(self, position: int = 0) -> Shape:
        return self.type(self.tensor(position)).shape

    def dtype(self, position: int = 0) -> DType:
        return self.type(self.tensor(position)).dtype

    def value(self, position: int, what: str) -> Array:
        """Return the value of an input that must be known at compile time."""
        return self.known(self.tensor(position), f"input {position} ({what})")

    def known(self, tensor: TensorId, what: str, raises: Callable[..., NotConstant] = NotConstant) -> Array:
        """Return the value of a tensor that must be known at compile time.

        Raises NotConstant, or the class `raises`.
        """
        value = self.builder.value(tensor)
        if value is None:
            sources = self.builder.sources(tensor)
            named = ", ".join(f"{name!r}: …" for name in sources[:5])
            why = "shapes are fixed at compile time" if raises is NotConstant else "rammer.Session runs it at run time"
            error = raises(
                f"{what} is not known at compile time",
                node=self.label,
                op=self.op,
                hint=f"{why}; if the values never change, pass constants={{{named}}}",
            )
            error.inputs = sources
            raise error
        return value

    def optional(self, position: int) -> TensorId | None:
        """Return an input; None if it is missing."""
        return self.tensor(position) if self.has(position) else None

    def ints(self, position: int, what: str) -> tuple[int, ...]:
        """Return the integers of a constant input of rank 0 or 1."""
        value = self.value(position, what)
        if value.dtype.kind not in "iu" or value.ndim > 1 or value.size > self.limits.attribute_length:
            raise self.fail(f"input {position} ({what}) is {value.dtype}{list(value.shape)}, not a list of integers")
        return tuple(int(v) for v in value.ravel())

    def listed(self, position: int, name: str) -> tuple[int, ...] | None:
        """Return the integers of an input, or of the attribute that older opsets have instead; None without either."""
        return self.ints(position, name) if self.has(position) else self.attrs.get(name)

    def scalar(self, position: int, what: str) -> Any:
        """Return the Python number in a constant input of one element."""
        value = self.value(position, what)
        if value.size != 1:
            raise self.fail(f"input {position} ({what}) has {value.size} elements instead of one")
        return value.ravel()[0].item() if value.dtype.kind != "V" else float(value.ravel()[0])

    def axis(self, axis: int, rank: int) -> int:
        """Return a dimension number, counted from the front."""
        if not -rank <= axis < rank:
            raise self.fail(f"axis {axis} does not exist in a tensor of rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Return distinct dimension numbers, counted from the front, in the given order."""
        found = tuple(self.axis(a, rank) for a in axes)
        if len(set(found)) != len(found):
            raise self.fail(f"axes {list(axes)} name a dimension twice")
        return found

    # making operators

    def add(self, kind: str, *inputs: TensorId, **attrs: Hashable) -> TensorId:
        """Apply an operator with one output, and return it."""
        (result,) = self.add_all(kind, *inputs, **attrs)
        return result

    def add_all(self, kind: str, *inputs: TensorId, **attrs: Hashable) -> tuple[TensorId, ...]:
        """Apply an operator, and return all its outputs."""
        results = self.builder.add(kind, *inputs, name=self.label, **attrs)
        return results if isinstance(results, tuple) else (results,)

    def constant(self, value: Any, dtype: DType | None = None) -> TensorId:
        return self.builder.constant(np.asarray(value, dtype.numpy if dtype else None))

    def text(self, texts: str | Sequence[str]) -> Text:
        """Return a constant string, or a list of them."""
        return Text(self.constant(encode(texts, self.words)))

    def literal(self, tensor: TensorProto) -> Value:
        """Return the constant that a message holds."""
        if tensor.data_type == TensorProto.STRING:
            return Text(self.constant(codes_of(tensor, self.words)))
        return self.constant(self.decode(tensor))

    def like(self, value: float, tensor: TensorId) -> TensorId:
        """Return a scalar constant of the element type of `tensor`."""
        return self.constant(value, self.type(tensor).dtype)

    def like_array(self, values: Array, tensor: TensorId) -> TensorId:
        """Return a constant of the element type of `tensor`."""
        return self.constant(values, self.type(tensor).dtype)

    def product(self, a: TensorId, b: TensorId, *, trans_b: bool = False) -> TensorId:
        return self.add("matmul", a, b, trans_a=False, trans_b=trans_b)

    def reshape(self, tensor: TensorId, shape: Sequence[int]) -> TensorId:
        """Return the tensor in another shape; itself if it already has it."""
        wanted = tuple(shape)
        return tensor if self.type(tensor).shape == wanted else self.add("reshape", tensor, shape=wanted)

    def transpose(self, tensor: TensorId, perm: Sequence[int]) -> TensorId:
        wanted = tuple(perm)
        return tensor if wanted == tuple(range(len(wanted))) else self.add("transpose", tensor, perm=wanted)

    def expand(self, tensor: TensorId, shape: Sequence[int]) -> TensorId:
        wanted = tuple(shape)
        return tensor if self.type(tensor).shape == wanted else self.add("expand", tensor, shape=wanted)

    def cast(self, tensor: TensorId, dtype: DType) -> TensorId:
        return tensor if self.type(tensor).dtype is dtype else self.add("cast", tensor, dtype=dtype)

    def slice(self, tensor: TensorId, starts: Sequence[int], shape: Sequence[int]) -> TensorId:
        """Slice a box of the tensor with step 1."""
        if self.type(tensor).shape == tuple(shape):
            return tensor
        return self.add("slice", tensor, starts=tuple(starts), steps=(1,) * len(starts), shape=tuple(shape))

    def cut(self, tensor: TensorId, axis: int, start: int, count: int) -> TensorId:
        """Return `count` places of the tensor along an axis."""
        shape = self.type(tensor).shape
        starts = [start if d == axis else 0 for d in range(len(shape))]
        return self.slice(tensor, starts, (*shape[:axis], count, *shape[axis + 1 :]))

    def pick(self, tensor: TensorId, axis: int, place: int) -> TensorId:
        """Return one place of the tensor along an axis, without that axis."""
        shape = self.type(tensor).shape
        return self.reshape(self.cut(tensor, axis, place, 1), (*shape[:axis], *shape[axis + 1 :]))

    def concat(self, tensors: Sequence[TensorId], axis: int) -> TensorId:
        return tensors[0] if len(tensors) == 1 else self.add("concat", *tensors, axis=axis)

    def stack(self, tensors: Sequence[TensorId], axis: int) -> TensorId:
        """Stack the tensors along a new dimension."""
        shaped = [(t, self.type(t).shape) for t in tensors]
        return self.concat([self.reshape(t, (*s[:axis], 1, *s[axis:])) for t, s in shaped], axis)

    def reduce(self, tensor: TensorId, fn: str, axes: Sequence[int], keepdims: bool = True) -> TensorId:
        return self.add("reduce", tensor, fn=fn, axes=tuple(axes), keepdims=keepdims)
