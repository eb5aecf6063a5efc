"""Exchange arrays of an AMD GPU with other packages by DLPack, without a library. Source: dlpack.h, version 0.8."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

ROCM = 10  # kDLROCM
NAME = b"dltensor"
KINDS = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex", 6: "bool"}
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # of NumPy's kinds


class Tensor(ctypes.Structure):
    """`DLTensor`."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("number", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )

    @property
    def dtype(self) -> str:
        """Return NumPy's name of the element type. Raises BufferError for a type that NumPy lacks."""
        if self.kind not in KINDS or self.lanes != 1:
            raise BufferError(f"DLPack type {self.kind} of {self.bits} bits, {self.lanes} lanes")
        return KINDS[self.kind] + ("" if KINDS[self.kind] == "bool" else str(self.bits))


class Managed(ctypes.Structure):
    """`DLManagedTensor`."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_lent: dict[int, tuple[Any, ...]] = {}  # address of a Managed -> objects that live until its consumer is done


def borrow(capsule: Any) -> Tensor:
    """Return the tensor of a capsule. It is valid as long as the capsule lives."""
    tensor: Tensor = Managed.from_address(_pointer(id(capsule), NAME)).tensor
    return tensor


def lend(address: int, number: int, dtype: Any, shape: Sequence[int], owner: Any, device_type: int = ROCM) -> Any:
    """Return a capsule of contiguous memory. `owner` lives until the consumer is done."""
    extents = (ctypes.c_int64 * len(shape))(*shape)
    managed = Managed()
    managed.tensor = Tensor(
        *(address, device_type, number, len(shape), CODES[dtype.kind], 8 * dtype.itemsize, 1, extents, None, 0)
    )
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    at = ctypes.addressof(managed)
    _lent[at] = managed, extents, owner
    return _capsule(at, NAME, ctypes.cast(_drop, ctypes.c_void_p))


def _forget(managed: int) -> None:
    del _lent[managed]


def _forget_unread(capsule: int) -> None:
    """Release an unread capsule that is destroyed. A consumer renames a capsule that it reads."""
    if _is_valid(capsule, NAME):
        _forget(_pointer(capsule, NAME))


_delete, _drop = (ctypes.CFUNCTYPE(None, ctypes.c_void_p)(f) for f in (_forget, _forget_unread))
for _callback in (_delete, _drop):  # consumers may call them after this module is unloaded
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_callback))
