"""Load machine code into this process."""

from __future__ import annotations

import _ctypes
import ctypes
import sys
import weakref
from typing import Any

from rammer import files
from rammer.errors import DeviceError


class Library:
    """A shared object loaded from bytes."""

    def __init__(self, data: bytes) -> None:
        _load_libm()
        with files.temporary_folder("code", DeviceError) as folder:  # mode 0700; the name is unique
            path = folder / "code.so"
            path.write_bytes(data)
            try:
                self._library = ctypes.CDLL(str(path))
            except OSError as error:
                raise DeviceError(
                    f"machine code cannot be loaded: {error}",
                    hint="is the folder for temporary files mounted noexec? TMPDIR names another one",
                ) from error
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """Return a function of the library that releases the GIL while it runs. It keeps the library loaded."""
        found: Any = self._library[name]
        found.restype, found.argtypes, found.library = result, arguments, self
        return found

    def address(self, name: str) -> int:
        """Return the address of a symbol. Raises AttributeError."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0


def _load_libm() -> None:
    """Load libm if Python lacks its functions: kernels take them from the process."""
    if sys.platform == "linux" and not hasattr(ctypes.CDLL(None), "expf"):
        ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)
