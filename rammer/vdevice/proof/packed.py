"""Prove that packed constants unpack to the originals, bit for bit, by the definition of a layout.

`rammer.ir.tensor.Layout` defines at which physical index a logical element lies. Each dimension adds its own part to
that index, so indices are sums of one short array per dimension. This module shares no code with packing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.tensor import Array, Numbers, TensorId, TensorType

MOST_BYTES = 64 << 20  # of a constant that is compared completely
SAMPLES = 1 << 20  # elements that are compared of a larger one
CHUNK = 1 << 18  # elements that are compared together


def difference(kind: TensorType, stored: Array, value: Array) -> str:
    """Return the difference between a constant's bytes, in a type with its layout, and its value; "" if they agree."""
    encoding = kind.layout.encoding if kind.layout else None
    held = kind.dtype.carrier if encoding is None else encoding.dtype.carrier
    flat = stored[: kind.nbytes].view(held)
    if value.shape != kind.shape or value.dtype != kind.dtype.numpy:
        return f"the constant is {value.dtype}{list(value.shape)}, and {kind} is read"
    if kind.layout is None and kind.nbytes <= MOST_BYTES:
        wrong = flat.view(np.uint8) != np.ascontiguousarray(value).reshape(-1).view(np.uint8)  # a NaN equals itself
        return f"element {np.argmax(wrong) // flat.itemsize} in memory is not the constant's" if wrong.any() else ""
    steps, filled = places(kind), 0
    count = np.count_nonzero if len(flat) > kind.size * (encoding.parts if encoding else 1) else lambda _: 0  # padding
    for index, at in _points(kind.shape, steps, sampled=kind.nbytes > MOST_BYTES):
        wanted = np.ascontiguousarray(value[index])
        if encoding is None:
            same = flat[at].tobytes() == wanted.tobytes()
            filled += int(count(wanted.view(kind.dtype.carrier)))
            found: Array = flat[at]
        else:
            left, same = wanted.astype(np.float32), True
            for part in range(encoding.parts):
                found = flat[(at // encoding.block * encoding.parts + part) * encoding.block + at % encoding.block]
                rounded = left.astype(encoding.dtype.numpy)
                same &= found.tobytes() == rounded.tobytes()
                filled += int(count(rounded.view(held)))
                left = left - rounded.astype(np.float32)
        if not same:
            return f"elements near {_name(index)} are not the constant's"
    if kind.nbytes <= MOST_BYTES and not (kind.layout and kind.layout.pitched) and filled != count(flat):
        return "its padding holds something"
    return ""


def places(kind: TensorType) -> list[Numbers]:
    """Return for each dimension what each of its indices adds to an element's physical index."""
    if kind.layout is None:
        return [np.arange(e) * prod(kind.shape[d + 1 :]) for d, e in enumerate(kind.shape)]
    found = [np.zeros(extent, np.int64) for extent in kind.shape]
    step = 1
    for digit in reversed(kind.layout.digits):
        extent = digit.mod or -(-kind.shape[digit.dim] // digit.div)
        index = np.arange(kind.shape[digit.dim]) // digit.div
        step = digit.pitch or step
        found[digit.dim] += (index % digit.mod if digit.mod else index) * step
        step *= extent
    return found


def value_of(graph: Graph, tensor: TensorId) -> Array:
    """Return the elements of a constant, or of a view of one."""
    root, offset = graph.storage(tensor)
    value = graph.constants[root]
    if root == tensor:
        return value
    whole, kind = graph.types[root], graph.types[tensor]
    memory = np.zeros(whole.span, value.dtype)
    memory[_all(places(whole), whole.shape)] = value
    return memory[offset + _all(places(kind), kind.shape)]


def _all(steps: list[Numbers], shape: tuple[int, ...]) -> Numbers:
    total = np.zeros(shape, np.int64)
    for dim, step in enumerate(steps):
        total += step.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return total


def _points(
    shape: tuple[int, ...], steps: list[Numbers], *, sampled: bool
) -> Iterator[tuple[tuple[slice | Numbers, ...], Numbers]]:
    """Yield indices of elements, in chunks, with their physical indices: all of them, or seeded samples."""
    if not prod(shape):
        return
    if sampled:
        rng = np.random.default_rng(0)
        chosen = tuple(rng.integers(extent, size=SAMPLES) for extent in shape)
        yield chosen, np.sum([step[at] for step, at in zip(steps, chosen, strict=True)], axis=0)
        return
    cut, inner = len(shape), 1  # chunks have all of the dimensions from `cut` on
    while cut and inner * shape[cut - 1] <= CHUNK:
        cut -= 1
        inner *= shape[cut]
    rows = max(1, CHUNK // inner)
    inside = _all(steps[cut:], shape[cut:])
    outer = shape[: cut - 1] if cut else ()
    spans = [slice(n, n + rows) for n in range(0, shape[cut - 1], rows)] if cut else [slice(0)]
    for at in product(*map(range, outer)):
        base = sum(int(steps[dim][n]) for dim, n in enumerate(at))
        for span in spans:
            if not cut:
                yield (), inside
                continue
            more = steps[cut - 1][span].reshape(-1, *(1,) * inside.ndim)
            yield (*(slice(n, n + 1) for n in at), span), base + more + inside


def _name(index: tuple[slice | Numbers, ...]) -> str:
    first = [str(i.start if isinstance(i, slice) else int(i[0])) for i in index]
    return f"[{', '.join([*first, '…'])}]"
