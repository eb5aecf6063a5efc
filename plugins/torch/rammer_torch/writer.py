"""Write ATen nodes as ONNX nodes for the ONNX importer. The model is never serialized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from onnx import NodeProto, TensorProto, helper
from torch import fx

from rammer.frontend.onnx.tensors import CODES
from rammer.ir.tensor import DTYPES, Array, DType

Operand: TypeAlias = Any  # a node of the graph, the name of a value, an array, a list of integers, or None
Names: TypeAlias = "str | tuple[str, ...]"
Handler: TypeAlias = "Callable[..., Names]"
AnyHandler = TypeVar("AnyHandler", bound=Handler)

OPSET = 22
DTYPE: dict[Any, DType] = {getattr(torch, d.value): d for d in DType if hasattr(torch, d.value) and not d.is_complex}
PLAIN = frozenset(t for t, d in DTYPE.items() if d.carrier is d.numpy)  # element types of NumPy itself

# "aten.add", or "aten.max.dim" for one overload -> its meaning, called with the schema's arguments in order
HANDLERS: dict[str, Handler] = {}


def handles(*ops: str, namespace: str = "aten") -> Callable[[AnyHandler], AnyHandler]:
    """Register a function as the meaning of operators. It takes the writer, and the arguments in the schema's order."""

    def register(function: AnyHandler) -> AnyHandler:
        HANDLERS.update((f"{namespace}.{op}", function) for op in ops)
        return function

    return register


def handler_for(target: Any) -> Handler | None:
    """Return the handler of an operator's overload, or of all its overloads; None if there is none."""
    name = str(target)
    return HANDLERS.get(name) or HANDLERS.get(name.rpartition(".")[0])


class Unsupported(Exception):
    """The reason why a node cannot be written."""


def to_array(tensor: Any) -> Array:
    """Return a host tensor as an array that shares its memory."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.dtype in PLAIN:
        return plain.numpy()  # type: ignore[no-any-return]
    dtype = DTYPE[plain.dtype]
    return np.asarray(plain.view(getattr(torch, f"int{8 * dtype.itemsize}")).numpy().view(dtype.numpy))


def to_tensor(array: Array) -> Any:
    """Return an array as a tensor that shares its memory."""
    dtype = DTYPES[array.dtype]
    if dtype.carrier is dtype.numpy:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{dtype.itemsize}")).view(getattr(torch, dtype.value))


def shape_of(node: fx.Node) -> list[int]:
    """Return the shape of a node's tensor."""
    return list(node.meta["val"].shape)


def require_tensor(value: Any) -> None:
    """Raise Unsupported unless the value is a strided host tensor of known shape and supported element type."""
    if not isinstance(value, torch.Tensor):
        raise Unsupported(f"takes or gives a {type(value).__name__}")
    if value.dtype not in DTYPE:
        raise Unsupported(f"element type {value.dtype}")
    if value.device.type != "cpu":
        raise Unsupported(f"lies on {value.device}")
    if value.layout is not torch.strided:
        raise Unsupported(f"layout {value.layout}")
    if not all(isinstance(extent, int) for extent in value.shape):
        raise Unsupported("a shape that is not known")


class Writer:
    """Nodes and constants of an ONNX model under construction.

    `known` has the tensors of nodes whose values never change: they become constants that share their memory.
    """

    def __init__(self, known: Mapping[fx.Node, Any]) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.weights: dict[str, memoryview] = {}
        self._known = known
        self._names: dict[fx.Node, Names] = {}
        self._number = 0
        self._node: fx.Node | None = None

    def write(self, node: fx.Node) -> None:
        """Write one call. Raises Unsupported."""
        handler = handler_for(node.target)
        if handler is None:
            raise Unsupported("no meaning here")
        for source in node.all_input_nodes:
            require_tensor(source.meta.get("val"))
        results = node.meta.get("val")
        for value in results if isinstance(results, tuple | list) else (results,):
            if value is not None:
                require_tensor(value)
        self._node = node
        self._names[node] = handler(self, *_arguments(node))

    def call(self, node: fx.Node, name: str) -> None:
        """Name a value that is an input of the graph."""
        self._names[node] = name

    def take(self, node: fx.Node, source: fx.Node, position: int) -> None:
        """Name one result of a node with several, which is a node of its own in torch."""
        names = self._names[source]
        self._names[node] = names[position]

    def name(self, node: fx.Node) -> str:
        """Return the name of a node's value."""
        if node in self._known and node not in self._names:
            self._names[node] = self.constant(to_array(self._known[node]), node.name)
        found = self._names.get(node, node.name)
        assert isinstance(found, str)
        return found

    def value(self, operand: Operand) -> Any:
        """Return the tensor of a node whose value never changes, or None."""
        return self._known.get(operand) if isinstance(operand, fx.Node) else None

    # queries of handlers

    @property
    def operator(self) -> Any:
        """The torch operator that is being written."""
        assert self._node is not None
        return self._node.target

    @property
    def target(self) -> str:
        """Name of the operator, without namespace and overload."""
        return str(self.operator).split(".")[1]

    @property
    def out(self) -> Any:
        """The node's first result, as a tensor without data."""
        assert self._node is not None
        value = self._node.meta["val"]
        return value[0] if isinstance(value, tuple | list) else value

    def used(self, position: int) -> bool:
        """Check whether any node uses this result."""
        assert self._node is not None
        return any(user.args[1] == position for user in self._node.users)

    def only(self, *positions: int) -> None:
        """Raise Unsupported if any other result is used."""
        assert self._node is not None
        if others := [p for p in range(len(self._node.meta["val"])) if p not in positions and self.used(p)]:
            raise Unsupported(f"result {others[0]} is used")

    # output of handlers

    def __call__(self, op: str, *operands: Operand, **attributes: Any) -> str:
        """Write a node with one output, and return its name. Attributes that are None are left out."""
        return self.many(op, 1, *operands, **attributes)[0]

    def many(self, op: str, outputs: int, *operands: Operand, **attributes: Any) -> tuple[str, ...]:
        """Write a node, and return the names of its outputs."""
        assert self._node is not None
        names = tuple(self._fresh() for _ in range(outputs))
        given = {key: value for key, value in attributes.items() if value is not None}
        inputs = [self._operand(operand) for operand in operands]
        while inputs and not inputs[-1]:
            inputs.pop()
        self.nodes.append(helper.make_node(op, inputs, names, name=self._node.name, **given))
        return names

    def constant(self, array: Array, name: str = "") -> str:
        """Add a constant, and return its name. It shares the array's memory if that is contiguous."""
        dtype = DTYPES[array.dtype]
        name = f"{name or 'constant'}:{len(self.initializers)}"
        proto = TensorProto(name=name, data_type=CODES[dtype], dims=array.shape)
        self.weights[name] = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        self.initializers.append(proto)
        return name

    def number(self, value: float, dtype: Any) -> str:
        """Add a scalar of torch's element type."""
        return self.constant(np.asarray(value, DTYPE[dtype].numpy))

    def cast(self, operand: Operand, dtype: Any) -> str:
        """Return a node's value, or a number, in torch's element type."""
        if not isinstance(operand, fx.Node):
            return self.number(operand, dtype)
        same = operand.meta["val"].dtype is dtype
        return self.name(operand) if same else self.to(operand, dtype)

    def to(self, operand: Operand, dtype: Any) -> str:
        return self("Cast", operand, to=CODES[DTYPE[dtype]])

    def reshape(self, operand: Operand, shape: Sequence[int]) -> str:
        if 0 in shape:
            return self("Expand", self.number(0, self.out.dtype), list(shape))
        return self("Reshape", operand, list(shape))

    def slice(self, operand: Operand, axis: int, start: int, end: int, step: int = 1) -> str:
        return self("Slice", operand, [start], [end], [axis], [step])

    def moved(self, operand: fx.Node, move: Callable[[Any], Any]) -> str:
        """Gather the elements in the order in which torch's own function `move` puts them."""
        shape = operand.meta["val"].shape
        places = move(torch.arange(prod(shape)).view(shape))
        return self("Gather", self("Reshape", operand, [-1]), places.numpy(), axis=0)

    def _operand(self, operand: Operand) -> str:
        match operand:
            case None:
                return ""
            case str():
                return operand
            case fx.Node():
                return self.name(operand)
            case np.ndarray():
                return self.constant(operand)
            case list() | tuple():
                return self.constant(np.asarray(operand, np.int64))
        raise Unsupported(f"an operand is a {type(operand).__name__}")

    def _fresh(self) -> str:
        assert self._node is not None
        self._number += 1
        return f"{self._node.name}:{self._number}"


def _arguments(node: fx.Node) -> list[Any]:
    """Return every argument in the order of the schema, with its defaults."""
    arguments = list(node.args)
    for argument in node.target._schema.arguments[len(node.args) :]:
        arguments.append(node.kwargs.get(argument.name, argument.default_value))
    return arguments
