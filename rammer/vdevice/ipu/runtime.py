"""Run a built program in this process: call the host program's C functions through ctypes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rammer.errors import DeviceError, InputError, closed
from rammer.files import temporary_folder
from rammer.ir.tensor import Array, NamedArrays
from rammer.vdevice.base import Image
from rammer.vdevice.ipu.codegen.build import DEVICES, EMULATOR, HARDWARE, TABLES, fingerprint
from rammer.vdevice.ipu.codegen.narrow import on_tile, to_tile
from rammer.vdevice.supersteps import Superstep, SuperstepProfile

ERROR_BYTES = 4096
BAD_INDEX = 2


class IpuExecutable:
    """A loaded program. `profile()` returns the cost of the last run."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._device = made_for(image)
        self.forks = self._device == EMULATOR
        self._handle = None
        try:
            with temporary_folder("ipu", DeviceError) as folder:  # read when the program is created, and not later
                self._create(self._device, folder)
        except BaseException:
            self.close()
            raise

    def _create(self, device: str, folder: Path) -> None:
        for name, data in self._image.files.items():
            (folder / name).write_bytes(data)
        self._library = _library(folder / "host.so")
        codelets = "codelets.cpp" if device == EMULATOR else "codelets.gp"
        paths = [str(folder / name).encode() for name in (TABLES, codelets)]
        kind = b"hardware" if device == HARDWARE else b"model"
        said = ctypes.create_string_buffer(ERROR_BYTES)
        self._handle = self._library.rammer_create(*paths, kind, said, ERROR_BYTES)
        if not self._handle:
            raise DeviceError(f"Poplar refused the program: {_text(said)}")
        weights = sorted(self._image.weights.items(), key=lambda item: int(item[0][1:]))  # w0, w1, … as in the tables
        arrays = [array for _, array in weights]
        self._check(self._library.rammer_set_weights(self._handle, *_pointers(arrays), said, ERROR_BYTES), said)

    @property
    def source_bytes(self) -> int:
        """Return the bytes of the emitted C++ and tables."""
        return sum(len(data) for name, data in self._image.files.items() if name.endswith((".cpp", ".txt")))

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        """Return outputs by name. Raises DeviceError if Poplar fails, InputError for an index out of range."""
        if not self._handle:
            raise closed()
        given = [to_tile(inputs[p.name], p.type.dtype, f"input {p.name!r}") for p in self._image.inputs]
        got = [np.empty(p.type.shape, on_tile(p.type.dtype).numpy) for p in self._image.outputs]
        error = ctypes.create_string_buffer(ERROR_BYTES)
        status = self._library.rammer_run(self._handle, *_pointers(given), *_pointers(got), error, ERROR_BYTES)
        self._check(status, error)
        return {p.name: a.astype(p.type.dtype.numpy, copy=False) for p, a in zip(self._image.outputs, got, strict=True)}

    def profile(self) -> SuperstepProfile:
        """Return cycles of the last run. Raises DeviceError on a device whose profile is only text."""
        text = self.profile_text()
        if self._device != EMULATOR:
            raise DeviceError("only the emulator's profile can be read", hint="profile_text() is Poplar's own summary")
        return parse_profile(text)

    def profile_text(self) -> str:
        """Return Poplar's summary of the last run."""
        size = self._library.rammer_profile(self._handle, ctypes.create_string_buffer(1), 1)
        buffer = ctypes.create_string_buffer(size + 1)
        self._library.rammer_profile(self._handle, buffer, size + 1)
        return _text(buffer)

    def close(self) -> None:
        """Free the program; later runs are errors."""
        if self._handle:
            self._library.rammer_destroy(self._handle)
            self._handle = None

    def _check(self, status: int, error: ctypes.Array[ctypes.c_char]) -> None:
        if status == BAD_INDEX:
            raise InputError("an index in the data is out of range", hint="check the inputs that are used as indices")
        if status:
            raise DeviceError(f"the IPU program failed: {_text(error)}")


def made_for(image: Image) -> str:
    """Return the device that an image was built for. Raises ArtifactError for another version or backend."""
    for device in DEVICES:
        if image.fingerprint.startswith(fingerprint(device, "")):
            return device
    raise image.of_other_release(fingerprint("…", "…"))


def _text(buffer: ctypes.Array[ctypes.c_char]) -> str:
    return buffer.value.decode(errors="replace")


def _library(path: Path) -> Any:
    """Load the host program's functions. Raises DeviceError."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceError(f"cannot load the IPU program: {error}") from error
    many, sizes = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_ulong)
    tail: list[Any] = [ctypes.c_char_p, ctypes.c_uint]
    library.rammer_create.argtypes = [ctypes.c_char_p] * 3 + tail
    library.rammer_create.restype = ctypes.c_void_p
    library.rammer_set_weights.argtypes = [ctypes.c_void_p, many, sizes, *tail]
    library.rammer_run.argtypes = [ctypes.c_void_p, many, sizes, many, sizes, *tail]
    library.rammer_profile.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_ulong]
    library.rammer_profile.restype = ctypes.c_ulong
    library.rammer_destroy.argtypes = [ctypes.c_void_p]
    library.rammer_destroy.restype = None
    return library


def _pointers(arrays: Sequence[Array]) -> tuple[Any, Any]:
    count = max(len(arrays), 1)
    pointers = (ctypes.c_void_p * count)(*(a.ctypes.data for a in arrays))
    return pointers, (ctypes.c_ulong * count)(*(a.nbytes for a in arrays))


def parse_profile(text: str) -> SuperstepProfile:
    """Parse the emulator's profile. Raises DeviceError for another text."""
    totals: dict[str, int] = {}
    steps = []
    for line in text.splitlines():
        if match := re.fullmatch(r'step "((?:[^"\\]|\\.)*)" ([\d ]+)', line):
            steps.append(Superstep(match.group(1), *map(int, match.group(2).split())))
        elif match := re.fullmatch(r"(\w+) (\d+)", line):
            totals[match.group(1)] = int(match.group(2))
        else:
            raise DeviceError(f"not a profile of the emulator: {line[:80]!r}")
    return SuperstepProfile(totals, tuple(steps))
