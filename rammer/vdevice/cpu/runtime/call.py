"""Call small programs through a C function of CPython's own kind, made from `rammer_call` of call.c.

Known as: native extension call, vectorcall. It cuts the overhead of a call, besides the run itself, to a third.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from rammer.ir.tensor import Array
from rammer.vdevice.image.arena import PortBinding
from rammer.vdevice.toolchain.library import Library

Port: TypeAlias = tuple[str, Array]  # a name, and the array in the program's memory
Pair: TypeAlias = tuple[Array, Array]  # where a copy goes, and what is copied

_POINTER, _I64 = ctypes.c_void_p, ctypes.c_int64
_NO_ARGUMENTS, _ONE_ARGUMENT = 4, 8  # METH_NOARGS, METH_O
_FUNCTIONS = (  # of `python` in call.c, in its order
    "PyDict_GetItem",
    "PyDict_Size",
    "PyDict_New",
    "PyDict_SetItem",
    "PyObject_CallNoArgs",
    "PyLong_FromLong",
    "Py_IncRef",
    "Py_DecRef",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
_HEAD = object.__basicsize__  # PyObject_HEAD: ends with the type; an array's own members follow
_PLACES = (_HEAD - 8, _HEAD, _HEAD + 8, _HEAD + 16, _HEAD + 40, _HEAD + 48)  # PyArrayObject_fields


def _struct(symbol: str, /, **fields: Any) -> Any:
    """Return the type of a struct of call.c."""
    return type(symbol, (ctypes.Structure,), {"_fields_": [*fields.items()]})


_POINTERS, _PLACE_NUMBERS = _POINTER * len(_FUNCTIONS), _I64 * len(_PLACES)
_Python = _struct(
    "python", functions=_POINTERS, none=_POINTER, dict_type=_POINTER, array_type=_POINTER, places=_PLACE_NUMBERS
)
_Arguments = _struct("arguments", count=_I64, at=_POINTER, offset=_POINTER)
_PORT = {"name": _POINTER, "dtype": _POINTER, "place": _POINTER, "nbytes": _I64, "rank": _I64, "shape": _POINTER}
_Given = _struct("given", **_PORT, direct=_Arguments)
_Output = _struct("made", name=_POINTER, make=_POINTER, array=_POINTER, direct=_Arguments)
_Copy = _struct("copy", to=_POINTER, source=_POINTER, nbytes=_I64)
_PARTS = dict.fromkeys(("inputs", "outputs", "copies", "args"), _POINTER)
_Call = _struct("call", python=_POINTER, pool=_POINTER, table=_POINTER, num_inputs=_I64, num_outputs=_I64, **_PARTS)
_Method = _struct("PyMethodDef", name=ctypes.c_char_p, function=_POINTER, flags=ctypes.c_int, doc=ctypes.c_char_p)


class _Function:
    """A function of call.c as a Python callable, with the objects that it refers to."""

    def __init__(self, library: Library, symbol: str, flags: int, struct: ctypes.Structure, *kept: object) -> None:
        self._method = _Method(symbol.encode(), library.address(symbol), flags, None)
        self._kept = (library, struct, *kept)
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype, make.argtypes = ctypes.py_object, (_POINTER, ctypes.py_object, _POINTER)
        library.function("rammer_set_address_in", None, _POINTER)(_address("PyLong_AsVoidPtr"))
        self.function: Callable[..., Any] = make(ctypes.addressof(self._method), ctypes.addressof(struct), None)


class DirectCall(_Function):
    """A call of a program: `function(inputs)` copies or points at inputs, runs, and returns a dict of outputs.

    Ports in `direct` stay where their arrays are: `args` is pointed at them, and outputs among them are made by
    `makers`. Others are copied. A failed run gives an int code. `function` returns None if `inputs` is not a dict of
    aligned, C-contiguous NumPy arrays of exactly the ports' types. Call it from one thread at a time and keep this
    object alive meanwhile. `pool` holds the address of the pool to run on.
    """

    def __init__(
        self,
        library: Library,
        pool: ctypes.c_void_p,
        table: int,
        args: Array,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        direct: Mapping[str, PortBinding],
        makers: Mapping[str, Callable[[], Array]],
    ) -> None:
        kinds = [array.dtype for _, array in inputs]
        shapes = [np.array(array.shape, np.int64) for _, array in inputs]
        makes = [makers.get(name, array.copy) for name, array in outputs]
        places = {name: (np.ascontiguousarray(b.args), np.ascontiguousarray(b.offsets)) for name, b in direct.items()}
        found = {name: _Arguments(len(at), at.ctypes.data, by.ctypes.data) for name, (at, by) in places.items()}
        copied = _Arguments(0, None, None)
        nbytes = [0 if name in found else array.nbytes for name, array in inputs]  # 0: unused ones are not copied
        ports = zip(inputs, kinds, nbytes, shapes, strict=True)
        given = (_Given * len(inputs))(
            *(
                _Given(id(n), id(t), a.ctypes.data, b, a.ndim, s.ctypes.data, found.get(n, copied))
                for (n, a), t, b, s in ports
            )
        )
        made = (_Output * len(outputs))(
            *(_Output(id(n), id(make), None, found.get(n, copied)) for (n, _), make in zip(outputs, makes, strict=True))
        )
        counts, at = (len(inputs), len(outputs)), (ctypes.addressof(given), ctypes.addressof(made))
        struct = _Call(ctypes.addressof(_python()), ctypes.addressof(pool), table, *counts, *at, None, args.ctypes.data)
        kept = (pool, args, given, made, kinds, shapes, makes, places, inputs, outputs)
        super().__init__(library, "rammer_call", _ONE_ARGUMENT, struct, kept)


class BoundCall(_Function):
    """A call on fixed arrays: `function()` returns None, or an int code of a failure.

    `read` and `written` are pairs (to, from) of equal size, C-contiguous. Otherwise as `Call`.
    """

    def __init__(
        self, library: Library, pool: ctypes.c_void_p, table: int, read: Sequence[Pair], written: Sequence[Pair]
    ) -> None:
        pairs = [*read, *written]
        copies = (_Copy * len(pairs))(*(_Copy(a.ctypes.data, b.ctypes.data, b.nbytes) for a, b in pairs))
        counts = len(read), len(written)
        python, at = ctypes.addressof(_python()), ctypes.addressof(copies)
        struct = _Call(python, ctypes.addressof(pool), table, *counts, None, None, at, None)
        super().__init__(library, "rammer_call_bound", _NO_ARGUMENTS, struct, (pool, copies, pairs))


def is_possible(arrays: Iterable[Array]) -> bool:
    """Return whether call.c can read these arrays: contiguous, native, and of a known CPython and NumPy layout.

    Otherwise (PyPy, a Python without a global lock, another NumPy layout) calls go through Python step by step.
    """
    return _layout_is_known() and all(array.flags.c_contiguous and array.dtype.isnative for array in arrays)


def address_of(array: Array) -> int:
    """Return where an array's numbers are, a tenth of a microsecond after the call; NumPy's own ways take one."""
    return _POINTER.from_address(id(array) + _PLACES[1]).value or 0 if _layout_is_known() else array.ctypes.data


@lru_cache(maxsize=1)
def _layout_is_known() -> bool:
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    transposed = array.T
    kind, data, rank, shape, dtype, flags = (id(array) + place for place in _PLACES)
    return (
        _POINTER.from_address(kind).value == id(np.ndarray)
        and _POINTER.from_address(data).value == array.ctypes.data
        and ctypes.c_int.from_address(rank).value == array.ndim
        and tuple((_I64 * 2).from_address(_POINTER.from_address(shape).value or 0)) == array.shape
        and _POINTER.from_address(dtype).value == id(array.dtype)
        and ctypes.c_int.from_address(flags).value & 1 == 1
        and ctypes.c_int.from_address(id(transposed) + _PLACES[-1]).value & 1 == 0
    )


@lru_cache(maxsize=1)
def _python() -> Any:
    functions = (_POINTER * len(_FUNCTIONS))(*map(_address, _FUNCTIONS))
    return _Python(functions, id(None), id(dict), id(np.ndarray), (_I64 * len(_PLACES))(*_PLACES))


def _address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), _POINTER).value or 0
