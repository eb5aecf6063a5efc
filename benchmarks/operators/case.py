"""Define a form of an operator: a model of one node at several sizes and types, with drawn operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from onnx import ModelProto, helper, numpy_helper

from rammer.ir.tensor import Array

Shape: TypeAlias = tuple[int, ...]
Draw: TypeAlias = Callable[[np.random.Generator, Shape, np.dtype[Any]], Array]

SIZES = ("step", "layer", "map", "odd")
ROWS: tuple[Shape, ...] = ((1, 384), (48, 1024), (1024, 2048), (75, 333))
IMAGES: tuple[Shape, ...] = ((1, 8, 7, 7), (1, 32, 40, 40), (1, 64, 160, 160), (1, 19, 43, 37))
SEQUENCES: tuple[Shape, ...] = ((4, 1, 96), (24, 1, 256), (64, 8, 512), (28, 3, 75))  # steps, batch, features
HEADS: tuple[Shape, ...] = ((1, 2, 8, 16), (1, 8, 64, 64), (2, 16, 256, 64), (3, 5, 28, 40))
SQUARES: tuple[Shape, ...] = ((8, 32), (128, 384), (1024, 1024), (75, 333))
CACHES: tuple[Shape, ...] = ((1, 2, 16, 16), (1, 4, 256, 64), (1, 8, 2048, 128), (3, 5, 75, 40))  # of keys
KINDS = {name: np.dtype(name) for name in ("float32", "float16", "int8", "uint8", "int32", "int64", "bool")}
KINDS["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
FLOAT, HALVES, NUMBERS = ("float32",), ("float32", "float16"), ("float32", "float16", "int32", "int64")
ALL = (*NUMBERS, "int8", "bool")
MICROSOFT = "com.microsoft"


@dataclass(frozen=True, slots=True)
class Given:
    """An operand: an array drawn for the first operand's shape and type. Those that are `fixed` are initializers."""

    draw: Draw
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A form of an operator: the first word of its name, up to a comma.

    Attributes that are functions get the first operand's shape, as `macs` does, which counts multiply-adds. Without it
    the floor is the bytes of inputs and outputs.
    """

    name: str
    shapes: tuple[Shape, ...]
    operands: tuple[Given, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[str, ...] = FLOAT
    outputs: int = 1
    macs: Callable[[Shape], int] | None = None
    domain: str = ""
    opset: int = 20

    @property
    def op(self) -> str:
        """The operator."""
        return self.name.partition(",")[0]

    def made(self, size: str, dtype: str) -> tuple[ModelProto, dict[str, Array]]:
        """Return the model at a size and type, and its inputs. An empty initializer stands for a missing operand."""
        rng, shape, kind = np.random.default_rng(7), self.shapes[SIZES.index(size)], KINDS[dtype]
        arrays = [np.asarray(given.draw(rng, shape, kind)) for given in self.operands]
        names = [f"x{n}" if a.size else "" for n, a in enumerate(arrays)]
        outputs = [f"y{n}" for n in range(self.outputs)]
        attrs = {name: value(shape) if callable(value) else value for name, value in self.attrs.items()}
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **attrs)
        given = [(n, a, g.fixed) for n, a, g in zip(names, arrays, self.operands, strict=True) if n]
        graph = helper.make_graph(
            [node],
            self.op,
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a, f in given
                if not f
            ],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(a, n) for n, a, fixed in given if fixed],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10), {n: a for n, a, f in given if not f}


def drawn(rng: np.random.Generator, shape: Shape, kind: np.dtype[Any]) -> Array:
    """Return normal numbers, integers from -100 or 1 to 99, or truth values."""
    if kind.kind == "b":
        return rng.random(shape) < 0.5
    if kind.kind in "iu":
        return rng.integers(1 if kind.kind == "u" else -100, 100, shape).astype(kind)
    return rng.standard_normal(shape, np.float32).astype(kind)


def positive(rng: np.random.Generator, shape: Shape, kind: np.dtype[Any]) -> Array:
    """Return numbers from 1 on: for logarithms, roots and divisors."""
    return (np.abs(drawn(rng, shape, np.dtype(np.float32))) + 1).astype(kind)


def unit(rng: np.random.Generator, shape: Shape, kind: np.dtype[Any]) -> Array:
    """Return numbers from -1 to 1."""
    return rng.uniform(-1, 1, shape).astype(kind)


X, POSITIVE, UNIT, NONE = Given(drawn), Given(positive), Given(unit), Given(lambda r, s, k: np.zeros(0, k), True)


def of(shape: Callable[[Shape], Shape], fixed: bool = False, kind: str = "", scale: bool = False) -> Given:
    """Return an operand whose shape follows from the first one's. `scale`: so that sums over it have unit variance."""

    def draw(rng: np.random.Generator, s: Shape, k: np.dtype[Any]) -> Array:
        array = drawn(rng, shape(s), KINDS[kind] if kind else k)
        return (array / max(1.0, float(np.sqrt(prod(shape(s)[1:]))))).astype(array.dtype) if scale else array

    return Given(draw, fixed)


def fixed(value: Callable[[Shape], Any], kind: str = "int64") -> Given:
    """Return a constant operand that follows from the first one's shape; without a kind, of the first one's type."""
    return Given(lambda rng, s, k: np.asarray(value(s), KINDS[kind] if kind else k), True)


def picked(shape: Callable[[Shape], Shape], below: Callable[[Shape], int], kind: str = "int64") -> Given:
    """Return random indices below a bound."""
    return Given(lambda rng, s, k: rng.integers(0, below(s), shape(s)).astype(kind))


def typed(kind: str, shape: Callable[[Shape], Shape] = lambda s: s) -> Given:
    """Return numbers of a type of their own."""
    return of(shape, kind=kind)


def forms(
    names: str, shapes: tuple[Shape, ...], *operands: Given, types: tuple[str, ...] = FLOAT, **more: Any
) -> list[Case]:
    """Return a case for each name of a list separated by `;`: of the fields of a case, and of attributes."""
    own = {key: more.pop(key) for key in ("outputs", "macs", "domain", "opset") if key in more}
    return [Case(name.strip(), shapes, operands, more, types, **own) for name in names.split(";")]


def rest(s: Shape) -> Shape:
    """Return a shape with one row, of which operands are expanded."""
    return (1, *s[1:])


def channels(s: Shape) -> Shape:
    """Return the shape of a bias: one number for each channel, or column."""
    return (s[1],)


def pixels(s: Shape) -> int:
    """Return the number of pixels of all images."""
    return s[0] * s[2] * s[3]


def conv_weights(k: int) -> Given:
    """Return constant weights of k x k windows, with as many results as channels."""
    return of(lambda s: (s[1], s[1], k, k), True, scale=True)


def number(value: float | Callable[[Shape], float], kind: str = "float32") -> Given:
    """Return a constant number, or one that follows from the first operand's shape."""
    return fixed(value if callable(value) else lambda s: value, kind)


def width(s: Shape) -> int:
    """Return the number of columns."""
    return s[1]
