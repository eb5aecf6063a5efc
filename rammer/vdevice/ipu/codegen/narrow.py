"""Narrow element types for a tile: 64-bit types are held and computed in 32 bits, the widest that the machine has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rammer.errors import DeviceError
from rammer.ir.expr import Cast, Const, Scalar, mapped
from rammer.ir.tensor import Array, DType
from rammer.ir.tile import Alloc, Buffer, Stmt, Store, TileProgram, rewrite_body
from rammer.vdevice.ctext.minifloats import MINIFLOATS

NARROWED = {DType.F64: DType.F32, DType.I64: DType.I32}
INT32 = np.iinfo(np.int32)
LARGEST = float(np.finfo(np.float32).max)

# element type -> (type in a codelet, poplar::Type)
_POPLAR = {
    DType.F32: ("float", "FLOAT"),
    DType.F16: ("half", "HALF"),
    DType.BF16: ("unsigned short", "UNSIGNED_SHORT"),
    DType.I32: ("int", "INT"),
    DType.I16: ("short", "SHORT"),
    DType.I8: ("signed char", "SIGNED_CHAR"),
    DType.U8: ("unsigned char", "UNSIGNED_CHAR"),
    DType.U16: ("unsigned short", "UNSIGNED_SHORT"),
    DType.U32: ("unsigned int", "UNSIGNED_INT"),
    DType.BOOL: ("unsigned char", "UNSIGNED_CHAR"),
    **dict.fromkeys((DType.I2, DType.I4), ("signed char", "SIGNED_CHAR")),
    **dict.fromkeys((DType.U2, DType.U4, *MINIFLOATS), ("unsigned char", "UNSIGNED_CHAR")),
}


def poplar(dtype: DType) -> tuple[str, str]:
    """Return an element type in a codelet, and as a poplar::Type. Raises DeviceError if the tile lacks the type."""
    if dtype not in _POPLAR:
        raise DeviceError(f"an IPU has no type for {dtype.value}", hint="cast to one of at most 32 bits")
    return _POPLAR[dtype]


def on_tile(dtype: DType) -> DType:
    """Return the type that holds elements of `dtype` on a tile."""
    return NARROWED.get(dtype, dtype)


def to_tile(array: Array, dtype: DType, what: str) -> Array:
    """Convert values to a tile's type, float64 rounded to float32. Raises DeviceError for values beyond 32 bits."""
    if dtype is DType.I64 and array.size and (array.min() < INT32.min or array.max() > INT32.max):
        raise DeviceError(f"{what} holds an integer of more than 32 bits", hint="an IPU has no wider integers")
    if dtype is DType.F64 and bool((np.isfinite(array) & (np.abs(array) > LARGEST)).any()):
        raise DeviceError(f"{what} holds a number beyond float32's {LARGEST:.3g}", hint="an IPU has no wider numbers")
    return np.ascontiguousarray(array, on_tile(dtype).numpy)


def narrow(program: TileProgram) -> TileProgram:
    """Return the tile program with narrowed types."""
    return replace(
        program,
        arguments=tuple(map(_buffer, program.arguments)),
        scratch=tuple(map(_buffer, program.scratch)),
        body=rewrite_body(program.body, _statement),
    )


def _buffer(buffer: Buffer) -> Buffer:
    return replace(buffer, dtype=on_tile(buffer.dtype))


def _statement(stmt: Stmt) -> Stmt:
    match stmt:
        case Store():
            return replace(stmt, value=_scalar(stmt.value))
        case Alloc():
            return replace(stmt, buffer=_buffer(stmt.buffer))
    return stmt


def _scalar(value: Scalar) -> Scalar:
    match value:
        case Const(v, DType.I64):
            return Const(min(max(int(v), INT32.min), INT32.max), DType.I32)
        case Const(v, DType.F64):
            return Const(v, DType.F32)
        case Cast(_, dtype, True) if dtype in NARROWED:
            raise DeviceError(f"the bits of a {dtype.value} are wanted", hint="an IPU has no wider types than 32 bits")
        case Cast(arg, dtype):
            return replace(value, arg=_scalar(arg), dtype=on_tile(dtype))
    return mapped(value, _scalar)
