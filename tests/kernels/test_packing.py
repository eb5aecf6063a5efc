"""Packings said for unmerged tensors put every element where the merged packing puts it."""

from __future__ import annotations

from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rammer.ir.tensor import Digit, Layout, pack
from rammer.kernels.packing import unmerged


@st.composite
def packings(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...], tuple[int, ...]]:
    """A layout of a merged shape, that shape, and the shape before its dimensions were merged."""
    extents = st.lists(st.sampled_from((1, 2, 3, 4, 6, 8)), min_size=1, max_size=3)
    groups = draw(st.lists(extents, min_size=1, max_size=3))
    shape = tuple(extent for group in groups for extent in group)
    merged = tuple(prod(group) for group in groups)
    outer: list[Digit] = []
    inner: list[Digit] = []
    for dim in draw(st.permutations(range(len(merged)))):
        block = draw(st.sampled_from((1, 2, 3, 4, 8, 12, 16)))
        outer.append(Digit(dim, block) if block > 1 else Digit(dim))
        if block > 1:
            part = draw(st.sampled_from([d for d in (1, 2, 4) if block % d == 0]))
            inner += [Digit(dim, part, block // part)] if part < block else []
            inner += [Digit(dim, 1, part)] if part > 1 else []
    return Layout((*outer, *inner)), merged, shape


@settings(max_examples=400)
@given(packings())
def test_unmerged_packing_is_the_merged_one(case: tuple[Layout, tuple[int, ...], tuple[int, ...]]) -> None:
    layout, merged, shape = case
    array = np.arange(1, prod(shape) + 1).reshape(shape)
    own = unmerged(layout, merged, shape)
    if own is not None:
        np.testing.assert_array_equal(pack(array, own).ravel(), pack(array.reshape(merged), layout).ravel())


def test_whole_blocks_have_digits_of_their_own() -> None:
    panels = Layout((Digit(1, 32), Digit(0), Digit(1, 1, 32)))
    own = unmerged(panels, (512, 1024), (512, 2, 512))
    assert own == Layout((Digit(1), Digit(2, 32), Digit(0), Digit(2, 1, 32)))
    assert unmerged(panels, (29, 75), (1, 29, 75)) == Layout((Digit(2, 32), Digit(1), Digit(2, 1, 32)))


def test_blocks_across_the_seam_have_none() -> None:
    assert unmerged(Layout((Digit(0, 48), Digit(0, 1, 48))), (1024,), (2, 512)) is None
