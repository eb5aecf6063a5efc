"""Compute Fourier transforms by stages of small products. Complex numbers are pairs along the last axis.

Known as: FFT, mixed-radix (Cooley-Tukey) with Bluestein's algorithm for primes.
"""

from __future__ import annotations

from math import isqrt, prod

import numpy as np

from rammer.frontend.onnx.node import Node, handles
from rammer.frontend.onnx.tensors import element_type
from rammer.ir.tensor import Array, TensorId

SMALL = 64  # smaller transforms are one matrix product


@handles("DFT")
def dft(n: Node) -> TensorId:
    x, shape = n.tensor(0), n.shape()
    axis = n.axis(int(n.scalar(2, "axis")) if n.has(2) else n.attrs.get("axis", -2), len(shape))
    if len(shape) < 2 or axis == len(shape) - 1 or shape[-1] not in (1, 2):
        raise n.fail(f"{n.type(x)} along axis {axis} is no signal", hint="its last axis holds one number, or a pair")
    inverse, half = bool(n.attrs["inverse"]), bool(n.attrs["onesided"])
    length = 2 * (shape[axis] - 1) if inverse and half else shape[axis]
    length = int(n.scalar(1, "dft_length")) if n.has(1) else length
    if not 0 < length <= n.limits.fold_bytes // 64:
        raise n.fail(f"a transform of {length} points", hint="it needs one; raise Limits.fold_bytes if there are many")
    last = len(shape) - 2
    perm = [*(d for d in range(len(shape)) if d not in (axis, last + 1)), axis, last + 1]
    moved = n.transpose(n.cast(x, n.dtype().accumulator), perm)
    rows = n.type(moved).shape[:-2]
    given = n.reshape(moved, (prod(rows), shape[axis], shape[-1]))
    kept = length // 2 + 1
    if inverse and half:  # the missing half mirrors the given one
        given = _fitted(n, given, kept)
        mirrored = n.add("slice", given, starts=(0, length - kept, 0), steps=(1, -1, 1),
                         shape=(prod(rows), length - kept, shape[-1]))  # fmt: skip
        signs = n.like_array(np.array([1, -1][: shape[-1]]), given)
        given = n.concat([given, n.add("mul", mirrored, signs)], 1)
    found = _transform(n, _fitted(n, given, length), inverse)
    if inverse:
        found = n.add("mul", found, n.like(1 / length, found))
    if half:
        found = n.slice(found, (0, 0, 0), (prod(rows), length, 1) if inverse else (prod(rows), kept, 2))
    found = n.reshape(found, (*rows, *n.type(found).shape[1:]))
    return n.cast(n.transpose(found, [perm.index(d) for d in range(len(shape))]), n.dtype())


@handles("STFT")
def stft(n: Node) -> TensorId:
    """Transform windows of a signal, which one gather selects."""
    x, shape, step = n.tensor(0), n.shape(), int(n.scalar(1, "frame_step"))
    if len(shape) != 3 or shape[2] not in (1, 2):
        raise n.fail(f"{n.type(x)} is no signal", hint="it needs a batch, a length, and one number or a pair")
    length = int(n.scalar(3, "frame_length")) if n.has(3) else n.shape(2)[0] if n.has(2) else shape[1]
    if step < 1 or not 0 < length <= shape[1] or (n.has(2) and n.shape(2) != (length,)):
        raise n.fail(f"frames of {length} every {step} with {len(n.inputs)} inputs do not fit {n.type(x)}")
    count = (shape[1] - length) // step + 1
    if count * length * 8 > n.limits.fold_bytes:
        raise n.fail(f"{count} frames of {length}", hint="raise Limits.fold_bytes")
    places = np.arange(count)[:, None] * step + np.arange(length)
    frames = n.add("gather", n.cast(x, n.dtype().accumulator), n.constant(places), axis=1)
    if n.has(2):
        frames = n.add("mul", frames, n.reshape(n.cast(n.tensor(2), n.type(frames).dtype), (length, 1)))
    found = _transform(n, n.reshape(frames, (shape[0] * count, length, shape[2])), inverse=False)
    kept = length // 2 + 1 if n.attrs["onesided"] else length
    found = n.slice(found, (0, 0, 0), (shape[0] * count, kept, 2))
    return n.cast(n.reshape(found, (shape[0], count, kept, 2)), n.dtype())


@handles("MelWeightMatrix")
def mel_weight_matrix(n: Node) -> TensorId:
    """Return triangular filters over frequencies, equally spaced on the mel scale."""
    names = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")
    bins, length, rate, low, high = (n.scalar(p, name) for p, name in enumerate(names))
    dtype = element_type(n.attrs["output_datatype"], "attribute 'output_datatype'", node=n.label, op=n.op)
    if min(bins, length, rate) < 1 or bins * (length // 2 + 1) * 8 > n.limits.fold_bytes or min(low, high) <= -700:
        raise n.fail(f"{bins} bins of {length} points at {rate} hertz from {low} to {high}")
    edges = 2595 * np.log10(1 + np.array([low, high]) / 700)
    mel = np.arange(bins + 2) * (edges[1] - edges[0]) / (bins + 2) + edges[0]
    points = np.floor((length + 1) * 700 * (10 ** (mel / 2595) - 1) / rate).astype(np.int64)
    lower, centre, upper = points[:-2], points[1:-1], points[2:]
    at = np.arange(length // 2 + 1)[:, None]
    if low > high or points.min() < 0 or centre.max() > at.max() or upper.max() > at.max() + 1:
        raise n.fail(f"frequencies from {low} to {high} do not fit {length} points at {rate} hertz")
    rise = np.where(lower == centre, at == centre, (at - lower) / np.maximum(centre - lower, 1))
    fall = (upper - at) / np.maximum(upper - centre, 1)
    weights = np.where((at >= lower) & (at <= centre), rise, 0.0)
    return n.constant(np.where((at >= centre) & (at < upper), fall, weights), dtype)


def _fitted(n: Node, x: TensorId, length: int) -> TensorId:
    """Return the first `length` numbers of a signal, padded with zeros."""
    rows, extent, pair = n.type(x).shape
    if extent >= length:
        return n.slice(x, (0, 0, 0), (rows, length, pair))
    return n.add("pad", x, pads=(0, 0, 0, 0, length - extent, 0), mode="constant", value=0.0)


def _transform(n: Node, x: TensorId, inverse: bool) -> TensorId:
    """Transform [rows, points, 1 or 2] to [rows, points, 2], without the inverse's factor.

    f · m points are transforms of f points, twiddle factors, and transforms of m points; a prime number is a
    convolution.
    """
    rows, length, pair = n.type(x).shape
    if length < SMALL:
        return n.reshape(_by_matrix(n, n.reshape(x, (rows, length * pair)), length, pair, inverse), (rows, length, 2))
    first = next(f for f in range(min(isqrt(length), SMALL - 1), 0, -1) if length % f == 0)
    if first == 1:
        return _by_convolution(n, x, inverse)
    rest = length // first
    columns = n.transpose(n.reshape(x, (rows, first, rest, pair)), (0, 2, 1, 3))
    parts = _by_matrix(n, n.reshape(columns, (rows * rest, first * pair)), first, pair, inverse)
    turns = _roots(np.arange(rest)[:, None] * np.arange(first), length, inverse)
    rotated = n.transpose(_rotated(n, n.reshape(parts, (rows, rest, first, 2)), turns), (0, 2, 1, 3))
    found = n.reshape(_transform(n, n.reshape(rotated, (rows * first, rest, 2)), inverse), (rows, first, rest, 2))
    return n.reshape(n.transpose(found, (0, 2, 1, 3)), (rows, length, 2))


def _roots(power: Array, length: int, inverse: bool) -> Array:
    """Return powers of the root of unity. The exponents are reduced as integers, so that angles are accurate."""
    return np.exp((2j if inverse else -2j) * np.pi * (power % length) / length)


def _by_matrix(n: Node, x: TensorId, length: int, pair: int, inverse: bool) -> TensorId:
    """Multiply [rows, length · pair] by the matrix of the transform, as one of real numbers."""
    roots = _roots(np.multiply.outer(np.arange(length), np.arange(length)), length, inverse)
    matrix = np.stack([np.stack([roots.real, roots.imag], -1), np.stack([-roots.imag, roots.real], -1)], 1)
    return n.product(x, n.like_array(matrix[:, :pair].reshape(length * pair, length * 2), x))


def _rotated(n: Node, x: TensorId, by: Array) -> TensorId:
    """Multiply pairs, or real numbers, by complex constants. Pairs need a second product with their parts swapped."""
    shape = n.type(x).shape
    straight = n.add("mul", x, n.like_array(np.stack([by.real, by.imag if shape[-1] == 1 else by.real], -1), x))
    if shape[-1] == 1:
        return straight
    last = len(shape) - 1
    crossed = n.add("slice", x, starts=(*(0,) * last, 1), steps=(*(1,) * last, -1), shape=shape)
    return n.add("add", straight, n.add("mul", crossed, n.like_array(np.stack([-by.imag, by.imag], -1), x)))


def _by_convolution(n: Node, x: TensorId, inverse: bool) -> TensorId:
    """Transform by Bluestein's algorithm: k n = (k² + n² - (k - n)²) / 2, a convolution of power-of-two length."""
    rows, length, _ = n.type(x).shape
    places = np.arange(length)
    chirp = _roots(places * places, 2 * length, inverse)
    size = 1 << (2 * length - 2).bit_length()
    kernel = np.zeros(size, complex)
    kernel[places], kernel[-places] = chirp.conj(), chirp.conj()
    spectrum = _rotated(n, _transform(n, _fitted(n, _rotated(n, x, chirp), size), False), np.fft.fft(kernel) / size)
    return _rotated(n, n.slice(_transform(n, spectrum, True), (0, 0, 0), (rows, length, 2)), chirp)
