"""A stand-in for hip-python where it is not installed: its calls, with version 10's arguments, on the same stub of
AMD's library.
"""

from __future__ import annotations

import ctypes
import struct
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

FIRST = {  # what a function gives back through its first argument
    **dict.fromkeys(("hipGetDeviceCount", "hipDeviceGetAttribute"), ctypes.c_int),
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor": ctypes.c_int,
    "hipEventElapsedTime": ctypes.c_float,
    **dict.fromkeys(("hipMalloc", "hipExtMallocWithFlags"), ctypes.c_void_p),
    **dict.fromkeys(("hipModuleLoadData", "hipModuleGetFunction"), ctypes.c_void_p),
    **dict.fromkeys(("hipStreamCreateWithFlags", "hipEventCreate", "hipGraphInstantiateWithFlags"), ctypes.c_void_p),
}
LAST = {"hipStreamEndCapture": ctypes.c_void_p}
STRUCTS = {  # fields: where they begin, and their format
    "hipGetDeviceProperties": {
        "name": (0, "256s"),
        "gcnArchName": (1160, "256s"),
        "totalGlobalMem": (288, "Q"),
        "clockRate": (348, "i"),
        "multiProcessorCount": (388, "i"),
        "memoryClockRate": (608, "i"),
        "memoryBusWidth": (612, "i"),
        "l2CacheSize": (616, "i"),
        "cooperativeLaunch": (688, "i"),
    },
    "hipPointerGetAttributes": {"device": (4, "i")},
}
SYMBOLS = {"hipGetDeviceProperties": "hipGetDevicePropertiesR0600"}


class hipError_t(IntEnum):
    """Those that the tests cause."""

    hipSuccess = 0
    hipErrorInvalidValue = 1
    hipErrorOutOfMemory = 2
    hipErrorNotInitialized = 3
    hipErrorNoDevice = 100
    hipErrorInvalidDevice = 101
    hipErrorInvalidImage = 200
    hipErrorNoBinaryForGpu = 209
    hipErrorNotFound = 500
    hipErrorLaunchFailure = 719
    hipErrorCooperativeLaunchTooLarge = 720
    hipErrorStreamCaptureUnsupported = 900


class FakeHip:
    """The module `hip.hip`."""

    hipError_t = hipError_t
    hipMemcpyKind = SimpleNamespace(hipMemcpyHostToDevice=1, hipMemcpyDeviceToHost=2, hipMemcpyDeviceToDevice=3)
    hipStreamCaptureMode = SimpleNamespace(hipStreamCaptureModeRelaxed=2)
    hipDeviceAttribute_t = SimpleNamespace(hipDeviceAttributeWallClockRate=10017)

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, SYMBOLS.get(name, name))

        def call(*arguments: Any) -> tuple[Any, ...]:
            given = [a if isinstance(a, bytes | ctypes.Array) else ctypes.c_void_p(a) for a in arguments]
            if fields := STRUCTS.get(name):
                block = ctypes.create_string_buffer(1472)
                error = function(block, *given)
                values = {n: struct.unpack_from(f, block.raw, at)[0] for n, (at, f) in fields.items()}
                names = {n: v.partition(b"\0")[0].decode() for n, v in values.items() if isinstance(v, bytes)}
                return hipError_t(error), SimpleNamespace(**{**values, **names})
            if kind := FIRST.get(name) or LAST.get(name):
                cell = kind()
                place = ctypes.byref(cell)
                error = function(*((place, *given) if name in FIRST else (*given, place)))
                return hipError_t(error), cell.value
            return (hipError_t(function(*given)),)

        return call
