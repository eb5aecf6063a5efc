"""Random chains of what only moves: slices of slices across axes, which others read, reshaped, turned and joined."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from pass_models import SPEC, random_inputs

import rammer
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Shape, TensorId
from rammer.passes import optimize

SHAPES: tuple[Shape, ...] = ((1, 57, 96), (2, 28, 3, 40), (75, 32), (1, 48, 6, 6), (3, 1, 96))


class Chains:
    """Draws a graph whose operators mostly move; what is moved is computed on, too, in the middle and at the end."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.b = GraphBuilder("moved")
        self.shape = SHAPES[seed % len(SHAPES)]

    def graph(self, steps: int = 7) -> Graph:
        pool = [self.b.input("x", self.shape)]
        if self.rng.random() < 0.5:  # else the memory is the caller's
            pool.append(self.b.add("sigmoid", pool[0]))
        for _ in range(steps):
            pool.append(self.step(pool[int(self.rng.integers(max(0, len(pool) - 3), len(pool)))]))
        for n, tensor in enumerate(self.rng.permutation(pool[2:])[:3]):
            tensor = str(tensor)
            self.b.output(tensor if self.rng.random() < 0.5 else self.b.add("tanh", tensor), f"y{n}")
        return self.b.build()

    def step(self, x: TensorId) -> TensorId:
        how = self.rng.choice(["slice", "slice", "slice", "split", "reshape", "transpose", "concat", "rotate", "neg"])
        found: TensorId = getattr(self, how)(x)
        return found

    def cut(self, x: TensorId, axis: int, start: int, count: int, step: int = 1) -> TensorId:
        kind = self.b.types[x]
        values: dict[str, Any] = {
            "starts": tuple(start if d == axis else 0 for d in range(kind.rank)),
            "steps": tuple(step if d == axis else 1 for d in range(kind.rank)),
            "shape": tuple(count if d == axis else e for d, e in enumerate(kind.shape)),
        }
        found: TensorId = self.b.add("slice", x, **values)
        return found

    def slice(self, x: TensorId) -> TensorId:
        shape = self.b.types[x].shape
        axis = int(self.rng.integers(len(shape)))
        start = int(self.rng.choice([0, shape[axis] // 2, self.rng.integers(shape[axis])]))
        count = int(self.rng.integers(1, shape[axis] - start + 1))
        if self.rng.random() < 0.2:
            return self.cut(x, axis, start, -(-count // 2), 2)
        if self.rng.random() < 0.1:
            return self.cut(x, axis, start, min(count, start + 1), -1)
        return self.cut(x, axis, start, count)

    def split(self, x: TensorId) -> TensorId:
        """Of all parts one, and another one beside it."""
        shape = self.b.types[x].shape
        axis = int(np.argmax(shape))
        half = shape[axis] // 2
        parts = [self.cut(x, axis, n * half, half) for n in range(2)] if half else [x, x]
        return self.b.add("add", *parts) if self.rng.random() < 0.5 else parts[int(self.rng.integers(2))]

    def rotate(self, x: TensorId) -> TensorId:
        """A rotary embedding of a part of the last axis, the rest of which passes."""
        last, axis = self.b.types[x].shape[-1], self.b.types[x].rank - 1
        if last < 4:
            return self.neg(x)
        part = 2 * int(self.rng.integers(1, last // 2 + 1))
        turned = self.cut(x, axis, 0, part)
        low, high = (self.cut(turned, axis, n * part // 2, part // 2) for n in range(2))
        angle = self.b.constant(self.rng.standard_normal(part).astype(np.float32))
        turned = self.b.add("mul", self.b.add("concat", self.b.add("neg", high), low, axis=axis), angle)
        rest = [self.cut(x, axis, part, last - part)] if part < last else []
        return self.b.add("concat", turned, *rest, axis=axis)

    def reshape(self, x: TensorId) -> TensorId:
        shape = list(self.b.types[x].shape)
        n = int(self.rng.integers(len(shape)))
        divisors = [d for d in range(1, shape[n] + 1) if shape[n] % d == 0]
        d = int(self.rng.choice(divisors))
        new = [*shape[:n], d, shape[n] // d, *shape[n + 1 :]] if len(shape) < 5 else [*shape[:3], prod(shape[3:])]
        return self.b.add("reshape", x, shape=tuple(new))

    def transpose(self, x: TensorId) -> TensorId:
        return self.b.add("transpose", x, perm=tuple(map(int, self.rng.permutation(self.b.types[x].rank))))

    def concat(self, x: TensorId) -> TensorId:
        axis = int(self.rng.integers(self.b.types[x].rank))
        other = x if self.rng.random() < 0.5 else self.b.add("neg", x)
        return x if self.b.types[x].size > 1 << 15 else self.b.add("concat", x, other, axis=axis)

    def neg(self, x: TensorId) -> TensorId:
        return self.b.add("neg", x)


@pytest.mark.parametrize("seed", range(48))
def test_random_moves_keep_their_meaning(seed: int) -> None:
    """In memory, as plans lay tensors, and not only as expressions."""
    graph = Chains(seed).graph()
    inputs = random_inputs(graph)
    wanted = evaluate_graph(graph, inputs)
    with rammer.compile(graph, "interpreter") as program:
        found = program.run(inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("seed", range(0, 400, 7))
def test_what_a_pass_fuses_has_no_kind_of_an_operator_with_attributes(seed: int) -> None:
    """A search for a kind finds the attributes that this kind has."""
    for op in optimize(Chains(seed).graph(12), SPEC).operators:
        if op.kind in OPS and op.kind not in ("copy", "convert"):
            made = Operations(OPS).define(op.kind, op.operation.inputs, op.operation.attrs)
            assert made.expr.outputs[0][1].shape == op.operation.outputs[0].shape
