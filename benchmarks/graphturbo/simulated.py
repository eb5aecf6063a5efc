"""Describe networks for simulation: which boxes of tensors are read, bytes of weights, and work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from rammer.ir.analysis.parts import Box, full_box
from rammer.scheduler.graphturbo.network import Layer, Network, Read

Span = tuple[int, int]


class ReadWindow(NamedTuple):
    """The places of an axis that place p of its reader's axis reads: `extent` of them from p · stride - before."""

    stride: int = 1
    extent: int = 1
    before: int = 0

    def read(self, span: Span, size: int) -> Span:
        """Return what is read for places [low, high), clipped to an axis of `size`."""
        low, high = span[0] * self.stride - self.before, (span[1] - 1) * self.stride - self.before + self.extent
        return max(0, min(low, size)), max(0, min(high, size))


@dataclass(frozen=True, slots=True)
class BoxRead(Read):
    """A read with `windows`: how far it reaches along each axis. Without them, equal fractions of axes correspond."""

    windows: tuple[ReadWindow, ...] = ()

    def box(self, wanted: Box, shape: Sequence[int], read: Sequence[int]) -> Box:
        """Return the box of a source (of shape `read`) that a box of the reader (of `shape`) reads; may be empty."""
        found = []
        for at, (axis, size) in enumerate(zip(self.axes, read, strict=True)):
            if axis is None:
                found.append((0, size))
            elif self.windows:
                found.append(self.windows[at].read(wanted[axis], size))
            else:
                (low, high), extent = wanted[axis], shape[axis]
                found.append((low * size // extent, -(-high * size // extent)))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class SimulatedLayer(Layer):
    """A layer with the bytes of its `weights`, and the work of the whole layer in millions of operations."""

    reads: tuple[BoxRead, ...]
    weights: int = 0
    mflop: float = 0.0

    @property
    def whole(self) -> Box:
        return full_box(self.shape)


@dataclass(frozen=True)
class SimulatedNetwork(Network):
    """A network of such layers, and the shapes of its inputs."""

    layers: tuple[SimulatedLayer, ...]
    shapes: tuple[tuple[int, ...], ...] = ()

    def shape(self, source: int) -> tuple[int, ...]:
        """Return the extents of a layer's result, or of an input."""
        return self.layers[source].shape if source >= 0 else self.shapes[~source]

    def nbytes_of(self, source: int, box: Box) -> int:
        """Return the bytes of a box of it, with padding distributed evenly."""
        return round(self.nbytes(source) * self.share(source, box))

    def share(self, source: int, box: Box) -> float:
        """Return the fraction of its elements that a box has."""
        whole = prod(self.shape(source))
        return prod(high - low for low, high in box) / whole if whole else 0.0

    @property
    def least_bytes(self) -> int:
        """Lower bound of main memory traffic in bytes: weights once, and the network's inputs and results."""
        return sum(self.inputs) + sum(n.weights + n.nbytes * n.is_result for n in self.layers)
