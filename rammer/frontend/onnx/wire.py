"""Take the weights out of a serialized model before it is parsed, so that they are never copied.

Known as: zero-copy parsing. Protobuf copies every field that it parses, and again when Python reads it: for a model of
half a gigabyte, one second and one gigabyte. This reader understands only the fields that lead to weights; the rest
stays as it is. Source: protobuf's encoding guide, and onnx.proto for the numbers of fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

GRAPH = 7  # field of ModelProto
INITIALIZER = 5  # field of GraphProto
NAME, RAW_DATA = 8, 9  # fields of TensorProto
LARGE = 1 << 16  # bytes; smaller weights stay in the message
VARINT, BYTES, FIXED = 0, 2, {1: 8, 5: 4}  # wire types; FIXED has their sizes in bytes
MAX_VARINT = 10  # bytes


class _Unfamiliar(Exception):
    """A form that this reader leaves to protobuf's parser, which also reports errors."""


def take_weights(data: bytes) -> tuple[bytes, dict[str, memoryview]]:
    """Return the model without the large raw data of its initializers, and this data by name of the initializer.

    Anything unusual (broken, repeated or unnamed) stays in the model.
    """
    view = memoryview(data)
    try:
        graphs = [(tag, low, high) for field, tag, low, high in _fields(view, 0, len(view)) if field == GRAPH]
        if len(graphs) != 1:
            return data, {}
        (tag, low, high) = graphs[0]
        graph, weights = _take(view, low, high)
    except _Unfamiliar:
        return data, {}
    if not weights:
        return data, {}
    return b"".join((view[:tag], _sized(GRAPH, graph), view[high:])), weights


def _take(view: memoryview, low: int, high: int) -> tuple[bytes, dict[str, memoryview]]:
    """Return a graph's bytes without large raw data, and this data."""
    parts: list[bytes | memoryview] = []
    found: list[tuple[str, memoryview]] = []
    kept = low
    for field, tag, start, end in _fields(view, low, high):
        if field != INITIALIZER or end - start < LARGE:
            continue
        fields = list(_fields(view, start, end))
        names = [(a, b) for f, _, a, b in fields if f == NAME]
        data = [(t, a, b) for f, t, a, b in fields if f == RAW_DATA]
        if len(names) != 1 or len(data) != 1 or data[0][2] - data[0][1] < LARGE:
            continue
        (raw_tag, raw_start, raw_end) = data[0]
        found.append((_text(view[slice(*names[0])]), view[raw_start:raw_end]))
        tensor = b"".join((view[start:raw_tag], view[raw_end:end]))
        parts += (view[kept:tag], _sized(INITIALIZER, tensor))
        kept = end
    if any(count > 1 for count in Counter(name for name, _ in found).values()):
        raise _Unfamiliar
    return b"".join((*parts, view[kept:high])), dict(found)


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, first byte of tag, first byte of content, end) of every field that contains bytes."""
    while at < end:
        tag = at
        key, at = _varint(view, at, end)
        start = at
        kind = key & 7
        if kind == BYTES:
            size, start = _varint(view, at, end)
            at = start + size
        elif kind == VARINT:
            _, at = _varint(view, at, end)
        elif kind in FIXED:
            at += FIXED[kind]
        else:
            raise _Unfamiliar
        if at > end:
            raise _Unfamiliar
        if kind == BYTES:
            yield key >> 3, tag, start, at


def _text(content: memoryview) -> str:
    try:
        return str(content, "utf-8")
    except UnicodeDecodeError:
        raise _Unfamiliar from None


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    value = 0
    for n in range(min(MAX_VARINT, end - at)):
        byte = view[at + n]
        value |= (byte & 127) << 7 * n
        if byte < 128:
            return value, at + n + 1
    raise _Unfamiliar


def _sized(field: int, content: bytes) -> bytes:
    """Return a field of bytes, with its tag and size."""
    return b"".join((_encoded(field << 3 | BYTES), _encoded(len(content)), content))


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
