"""Make the values that a session returns from the tensors that a program computes: lists, strings, dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rammer.frontend.onnx.ports import Place


def gathered(place: Place, found: Mapping[str, Any], words: Callable[[], Mapping[int, str]] = dict) -> Any:
    """Return an output: an array, a list of arrays or of dictionaries, or None. `words` gives strings by code."""
    if place is None or isinstance(place, str):
        return None if place is None else found[place]
    if isinstance(place, tuple):
        return [found[name] for name in place]
    # onnx is imported by now
    from rammer.frontend.onnx.ports import Maps
    from rammer.frontend.onnx.text import decode

    values = found[place.tensor]
    if isinstance(place, Maps):
        return [dict(zip(place.keys, row, strict=True)) for row in values.tolist()]
    return decode(values, words())


def cut_counted(found: dict[str, Any], counts: Mapping[str, tuple[int, str]]) -> dict[str, Any]:
    """Cut outputs with a bound behind the number of places that another one gives. Long ones are not copied."""
    for name, (axis, count) in counts.items():
        whole = found[name]
        cut = whole[(slice(None),) * axis + (slice(int(found.pop(count))),)]
        found[name] = cut if cut.flags.c_contiguous and cut.size >= whole.size // 4 else cut.copy()
    return found


def tensors_of(place: Place) -> tuple[str, ...]:
    """Return the names of an output's tensors in a graph."""
    if place is None or isinstance(place, str):
        return () if place is None else (place,)
    return place if isinstance(place, tuple) else (place.tensor,)
