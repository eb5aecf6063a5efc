"""Define families of models: a start, the steps taken from there, and their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rammer_testing.fuzz.families import (
    attention,
    control,
    elementwise,
    indexing,
    nonfinite,
    normalization,
    products,
    quantized,
    recurrent,
    rounded,
    scalars,
    views,
    windows,
)
from rammer_testing.fuzz.sketch import Sketch

Step = Callable[[Sketch], None]
Steps = tuple[tuple[int, Step], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model. `steps` are weighted; `size` bounds their number. `lies`: it declares wrong shapes."""

    start: Step
    steps: Steps
    size: tuple[int, int] = (1, 12)
    lies: bool = False


# Operators between those of any family.
GLUE: Steps = (
    *((2, elementwise.unary), (2, elementwise.binary), (1, elementwise.cast), (2, views.reshape), (1, views.unsqueeze)),
    *((2, views.transpose), (2, views.split), (2, views.concat), (1, views.cut), (1, normalization.reduce)),
    *((1, normalization.softmax), (1, products.matmul)),
)


def _mixed(steps: Steps, times: int = 2) -> Steps:
    return (*((weight * times, step) for weight, step in steps), *GLUE)


_ALL: Steps = (
    *products.STEPS,
    *normalization.STEPS,
    *views.STEPS,
    *elementwise.STEPS,
    *indexing.STEPS,
    *((2, step) for step in (windows.conv, windows.pool, windows.resize, recurrent.layer, attention.attend)),
    *quantized.STEPS,
)

FAMILIES: dict[str, Family] = {
    "views": Family(views.start, _mixed(views.STEPS)),
    "products": Family(products.start, _mixed(products.STEPS, 4)),
    "recurrent": Family(recurrent.start, _mixed(recurrent.STEPS, 6), recurrent.SIZE),
    "normalization": Family(normalization.start, _mixed(normalization.STEPS, 4), normalization.SIZE),
    "convolution": Family(windows.start, _mixed(windows.CONVOLUTION, 6), windows.SIZE),
    "pooling": Family(windows.start, _mixed(windows.POOLING, 6), windows.SIZE),
    "attention": Family(attention.start, _mixed(attention.STEPS, 8), attention.SIZE),
    "elementwise": Family(elementwise.start, _mixed(elementwise.STEPS, 3)),
    "quantized": Family(quantized.start, _mixed(quantized.STEPS, 6), quantized.SIZE),
    "indexing": Family(indexing.start, _mixed(indexing.STEPS, 4), indexing.SIZE),
    "control": Family(control.start, _mixed(control.STEPS, 8), control.SIZE),
    "mixed": Family(elementwise.start, _ALL),
    "rounded": Family(rounded.start, rounded.STEPS, rounded.SIZE),
    "readers": Family(normalization.tokens, _mixed(normalization.READERS, 6), normalization.SIZE),
    "slices": Family(views.start, views.SLICES),
    "columns": Family(quantized.rows, _mixed(quantized.COLUMNS, 6), quantized.SIZE),
    "zeros": Family(quantized.given_bytes, quantized.ZEROS, quantized.SIZE),
    "scalars": Family(scalars.start, _mixed(scalars.STEPS, 4)),
    "nonfinite": Family(nonfinite.start, nonfinite.STEPS, nonfinite.SIZE),
    "declared": Family(elementwise.start, _ALL, lies=True),
}
