"""A file of named arrays behind a JSON header: the form of programs that devices walk as tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rammer.errors import ArtifactError
from rammer.ir.tensor import Array

ALIGNMENT = 64
_DAMAGE = (ValueError, KeyError, TypeError, IndexError, OverflowError, AttributeError, RecursionError)


def to_bytes(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> bytes:
    """The file: length of the header, the header as JSON, then every array at a multiple of 64 bytes."""
    arrays = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    listed = {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()}
    text = json.dumps({"arrays": listed, "header": dict(header)}, sort_keys=True).encode()
    parts = [len(text).to_bytes(8, "little"), text]
    size = 8 + len(text)
    for array in arrays.values():
        parts += [b"\0" * (-size % ALIGNMENT), array.tobytes()]
        size += -size % ALIGNMENT + array.nbytes
    return b"".join(parts)


def from_bytes(data: bytes, dtypes: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays of a file that has exactly these arrays. For use inside `damage_reported`."""
    size = int.from_bytes(data[:8], "little")
    text = json.loads(data[8 : 8 + size])
    at = 8 + size
    arrays: dict[str, Array] = {}
    for name, wanted in dtypes.items():
        dtype, shape = text["arrays"][name]
        if dtype != np.dtype(wanted).str:
            raise ValueError(f"{name} has type {dtype}")
        at += -at % ALIGNMENT
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += arrays[name].nbytes
    return dict(text["header"]), arrays


@contextmanager
def damage_reported() -> Iterator[None]:
    """Whatever reading and checking a file that somebody changed may raise becomes an ArtifactError."""
    try:
        yield
    except _DAMAGE as error:
        raise ArtifactError(f"the program's table is damaged: {error}", hint="compile the model again") from error
