"""Store named arrays after a JSON header in one file: the format of tables that devices walk."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from rammer.errors import ArtifactError
from rammer.ir.tensor import Array

ALIGNMENT = 64
INT32, INT64 = {"dtype": "<i4"}, {"dtype": "<i8"}  # metadata of fields that are arrays in the file

_DAMAGE = (ValueError, KeyError, TypeError, IndexError, OverflowError, AttributeError, RecursionError)


def rows_of(dtype: dict[str, str], columns: int) -> dict[str, Any]:
    """Return the metadata of a field that is an array of rows."""
    return {**dtype, "columns": columns}


@dataclass(frozen=True)
class TableFile(ABC):
    """A header, and arrays: a subclass declares them as fields, with their types as metadata."""

    header: Mapping[str, Any]

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError for a table that no device can walk safely."""

    @classmethod
    def _dtypes(cls) -> dict[str, str]:
        return {f.name: f.metadata["dtype"] for f in fields(cls) if f.metadata}

    def to_bytes(self) -> bytes:
        """Return the file: length of the header, the header as JSON, then each array at a multiple of 64 bytes."""
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in self._dtypes()}
        listed = {name: [a.dtype.str, list(a.shape)] for name, a in arrays.items()}
        text = json.dumps({"arrays": listed, "header": dict(self.header)}, sort_keys=True).encode()
        parts = [len(text).to_bytes(8, "little"), text]
        size = 8 + len(text)
        for array in arrays.values():
            parts += [b"\0" * (-size % ALIGNMENT), array.tobytes()]
            size += -size % ALIGNMENT + array.nbytes
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read and check a file. Raises ArtifactError for any damage or manipulation."""
        try:
            size = int.from_bytes(data[:8], "little")
            text = json.loads(data[8 : 8 + size])
            at = 8 + size
            arrays: dict[str, Array] = {}
            columns = {f.name: f.metadata.get("columns") for f in fields(cls) if f.metadata}
            for name, wanted in cls._dtypes().items():
                dtype, shape = text["arrays"][name]
                if shape[1:] != ([columns[name]] if columns[name] else []):
                    raise ValueError(f"{name} has shape {shape}")
                if dtype != np.dtype(wanted).str:
                    raise ValueError(f"{name} has type {dtype}")
                at += -at % ALIGNMENT
                count = int(np.prod(shape, dtype=np.int64))
                arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
                at += arrays[name].nbytes
            table = cls(dict(text["header"]), **arrays)
            table.check()
        except _DAMAGE as error:
            raise ArtifactError(f"the program's table is damaged: {error}") from error
        return table
