"""Packed constants unpack to the originals: what packs them is right, and whatever else lies there is found."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import View
from rammer.ir.tensor import Array, Digit, DType, Encoding, Layout, TensorType, pack
from rammer.vdevice.image.placement import arrange
from rammer.vdevice.proof import packed
from rammer.vdevice.proof.packed import difference, value_of

BLOCKS = Layout((Digit(1, 16), Digit(0), Digit(1, 1, 16)))
PAIRS = Layout((Digit(1, 16), Digit(0, 2), Digit(1, 1, 16), Digit(0, 1, 2)))
PARTS = Layout((Digit(1, 16), Digit(0, 32), Digit(0, 1, 32), Digit(1, 1, 16)), Encoding(DType.BF16, 3, 512))
IMAGES = Layout((Digit(0), Digit(1, 8), Digit(2), Digit(3), Digit(1, 1, 8)))
KINDS = [
    TensorType((75, 96), DType.F32),
    TensorType((75, 96), DType.F32, BLOCKS),
    TensorType((75, 90), DType.F32, BLOCKS),
    TensorType((75, 90), DType.I8, PAIRS),
    TensorType((75, 90), DType.F32, PARTS),
    TensorType((64, 96), DType.F32, PARTS),
    TensorType((3, 20, 5, 7), DType.F16, IMAGES),
    TensorType((3, 20, 5, 7), DType.BF16, IMAGES),
    TensorType((28, 3), DType.C128, Layout((Digit(1), Digit(0)))),
    TensorType((), DType.I64),
]


def values(kind: TensorType, rng: np.random.Generator) -> Array:
    numbers: Array = rng.integers(1, 100, size=kind.shape).astype(kind.dtype.numpy)
    return numbers


@pytest.mark.parametrize("chunk", [1 << 18, 64, 1])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_bit_is_compared(kind: TensorType, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written by the packer it is the constant; with one bit of it, or of its padding, changed it is not."""
    rng = np.random.default_rng(0)
    value = values(kind, rng)
    encoding = kind.layout.encoding if kind.layout else None
    stored = np.zeros(kind.nbytes, np.uint8)
    out = stored.view(encoding.dtype.numpy if encoding else kind.dtype.numpy)
    arrange(value, kind.layout, out.reshape(-1, encoding.parts, encoding.block) if encoding else out)
    monkeypatch.setattr(packed, "CHUNK", chunk)
    assert difference(kind, stored, value) == ""
    for at in rng.integers(kind.nbytes, size=12 if chunk > 1 else 3).tolist():
        other = stored.copy()
        other[at] ^= 1 << int(rng.integers(8))
        assert difference(kind, other, value) != "", at
    if value.size > 1:
        assert difference(kind, stored, np.roll(value, 1)) != ""


def test_large_constants_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither all elements nor none: a row that is wrong is found."""
    kind, value = KINDS[2], np.arange(75 * 90, dtype=np.float32).reshape(75, 90)
    stored = np.zeros(kind.nbytes, np.uint8)
    arrange(value, kind.layout, stored.view(np.float32))
    monkeypatch.setattr(packed, "MOST_BYTES", 1000)
    monkeypatch.setattr(packed, "SAMPLES", 2000)
    assert difference(kind, stored, value) == ""
    wrong = value.copy()
    wrong[17] += 1
    assert difference(kind, stored, wrong) != ""


def test_views_have_their_elements() -> None:
    """A view of a constant in blocks is what lies from its first element on."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder("views")
    x = builder.input("x", (5, 7))
    whole = builder.constant(rng.standard_normal((64, 40), np.float32))
    builder.output(builder.add("probe_sum", x, x))
    graph = builder.build()
    types = {**graph.types, whole: TensorType((64, 40), DType.F32, BLOCKS)}
    part = TensorType((64, 16), DType.F32, BLOCKS)
    types["part"] = part
    value = rng.standard_normal((64, 40)).astype(np.float32)
    graph = replace(graph, types=types, constants={whole: value}, views={"part": View(whole, 16 * 64)})
    np.testing.assert_array_equal(value_of(graph, "part"), value[:, 16:32])
    flat = pack(value, BLOCKS).reshape(-1)
    stored = flat[16 * 64 :][: prod(part.physical_shape)].view(np.uint8)
    assert difference(part, stored, value_of(graph, "part")) == ""
