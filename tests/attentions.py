"""Attention as exporters write it: heads cut from rows or given, scaled or not, masks of several shapes."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from passes.pass_models import Net

from rammer.ir.graph import Graph


@dataclass(frozen=True)
class Attention:
    """Its sizes and form. `cut`: heads lie in rows; `steps`: keys are turned twice, with a reshape in between."""

    batch: int
    heads: int
    rows: int
    length: int
    width: int
    values: int
    cut: bool = True
    steps: bool = False
    scaled: bool = True
    mask: str = ""  # "length" or "all"

    def graph(self, *, shown: bool = False) -> Graph:
        """`shown`: the weights are an output, too."""
        b = Net(3)
        n, h, width = self.batch, self.heads, self.width
        if self.cut:
            q = b.add("transpose", b.input("q", (n, self.rows, h, width)), perm=(0, 2, 1, 3))
            k = b.input("k", (n, self.length, h, width))
            v = b.add("transpose", b.input("v", (n, self.length, h, self.values)), perm=(0, 2, 1, 3))
            if self.steps:
                k = b.add("reshape", b.add("transpose", k, perm=(0, 2, 1, 3)), shape=(n * h, self.length, width))
                k = b.add("reshape", b.add("transpose", k, perm=(0, 2, 1)), shape=(n, h, width, self.length))
            else:
                k = b.add("transpose", k, perm=(0, 2, 3, 1))
        else:
            q, k = b.input("q", (n, h, self.rows, width)), b.input("k", (n, h, width, self.length))
            v = b.input("v", (n, h, self.length, self.values))
        scores = b.add("matmul", q, k)
        if self.scaled:
            scores = b.add("mul", scores, b.constant(np.float32(self.width**-0.5)))
        if self.mask:
            shape = (1, 1, 1, self.length) if self.mask == "length" else (1, h, self.rows, self.length)
            scores = b.add("add", scores, b.input("mask", shape))
        weights = b.add("softmax", scores, axis=-1)
        mixed = b.add("matmul", weights, v)
        b.output(b.add("transpose", mixed, perm=(0, 2, 1, 3)) if self.cut else mixed, "y")
        if shown:
            b.output(weights, "weights")
        return b.build()


def drawn(seed: int) -> Attention:
    """A form and sizes by a seed."""
    r = random.Random(seed)
    n, steps = r.choice((1, 1, 3)), r.random() < 0.5
    sizes = (n, r.randint(1, 5), r.choice((2, 7, 16, 75, r.randint(2, 99))), r.choice((29, 64, 75, r.randint(2, 200))))
    widths = (r.choice((8, 16, 20, 64)), r.choice((16, 24, 64)))
    return Attention(
        *sizes,
        *widths,
        cut=r.random() < 0.7,
        steps=steps,
        scaled=r.random() < 0.7,
        mask=r.choice(("", "length", "all")),
    )
