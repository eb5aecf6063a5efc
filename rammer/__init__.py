"""Compile neural networks into static plans of tile-sized tasks, placed and ordered ahead of time.

Names are imported when they are first used: a machine that only runs saved programs never loads the compiler.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rammer import moved

if TYPE_CHECKING:
    from rammer.compiler import Compilation, CompileOptions, compile, from_torch, load
    from rammer.errors import (
        ArtifactError,
        DeviceError,
        FallbackWarning,
        InputError,
        LoweringError,
        ModelError,
        ModelWarning,
        PluginError,
        PolicyError,
        RammerError,
        ScheduleError,
        ToolchainError,
        TypeMismatch,
        UnsuitableError,
        VerificationError,
    )
    from rammer.hookspecs import hookimpl
    from rammer.ir.device import Execution, MemoryLevel, SyncModel, VDeviceSpec
    from rammer.ir.graph import Graph
    from rammer.ir.kernel import ForeignSource, RKernel
    from rammer.ir.operator import OpDef, Operation, ROperator
    from rammer.ir.plan import ExecutionPlan
    from rammer.ir.program import BarrierRTask, Position, RProgram, RProgramBuilder, RTask, TaskUid
    from rammer.ir.tensor import DType, Layout, TensorType
    from rammer.plugins import PluginRegistry
    from rammer.runtime.load import devices, load_program, save_together
    from rammer.runtime.program import Program
    from rammer.runtime.state import Stream
    from rammer.session import Session
    from rammer.session.inputs import SessionPort
    from rammer.session.onnxruntime import IOBinding, ModelMetadata, OrtValue
    from rammer.session.report import SessionReport
    from rammer.vdevice.base import Availability, Executable, Image, Port, VDevice, VDeviceEntry

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "Availability",
    "BarrierRTask",
    "Compilation",
    "CompileOptions",
    "DType",
    "DeviceError",
    "Executable",
    "Execution",
    "ExecutionPlan",
    "FallbackWarning",
    "ForeignSource",
    "Graph",
    "IOBinding",
    "Image",
    "InputError",
    "Layout",
    "LoweringError",
    "MemoryLevel",
    "ModelError",
    "ModelMetadata",
    "ModelWarning",
    "OpDef",
    "Operation",
    "OrtValue",
    "PluginError",
    "PluginRegistry",
    "PolicyError",
    "Port",
    "Position",
    "Program",
    "RKernel",
    "ROperator",
    "RProgram",
    "RProgramBuilder",
    "RTask",
    "RammerError",
    "ScheduleError",
    "Session",
    "SessionPort",
    "SessionReport",
    "Stream",
    "SyncModel",
    "TaskUid",
    "TensorType",
    "ToolchainError",
    "TypeMismatch",
    "UnsuitableError",
    "VDevice",
    "VDeviceEntry",
    "VDeviceSpec",
    "VerificationError",
    "compile",
    "devices",
    "from_torch",
    "hookimpl",
    "load",
    "load_program",
    "save_together",
]

_HOMES = {  # the names of each module
    "rammer.compiler": (
        "Compilation",
        "CompileOptions",
        "compile",
        "from_torch",
        "load",
    ),
    "rammer.errors": (
        "ArtifactError",
        "DeviceError",
        "FallbackWarning",
        "InputError",
        "LoweringError",
        "ModelError",
        "ModelWarning",
        "PluginError",
        "PolicyError",
        "RammerError",
        "ScheduleError",
        "ToolchainError",
        "TypeMismatch",
        "UnsuitableError",
        "VerificationError",
    ),
    "rammer.session.inputs": ("SessionPort",),
    "rammer.hookspecs": ("hookimpl",),
    "rammer.session.onnxruntime": (
        "IOBinding",
        "ModelMetadata",
        "OrtValue",
    ),
    "rammer.ir.device": (
        "Execution",
        "MemoryLevel",
        "SyncModel",
        "VDeviceSpec",
    ),
    "rammer.ir.graph": ("Graph",),
    "rammer.ir.kernel": (
        "ForeignSource",
        "RKernel",
    ),
    "rammer.ir.operator": (
        "OpDef",
        "Operation",
        "ROperator",
    ),
    "rammer.ir.plan": ("ExecutionPlan",),
    "rammer.ir.program": (
        "BarrierRTask",
        "Position",
        "RProgram",
        "RProgramBuilder",
        "RTask",
        "TaskUid",
    ),
    "rammer.ir.tensor": (
        "DType",
        "Layout",
        "TensorType",
    ),
    "rammer.plugins": ("PluginRegistry",),
    "rammer.runtime.program": ("Program",),
    "rammer.runtime.load": (
        "devices",
        "load_program",
        "save_together",
    ),
    "rammer.session": ("Session",),
    "rammer.session.report": ("SessionReport",),
    "rammer.runtime.state": ("Stream",),
    "rammer.vdevice.base": (
        "Availability",
        "Executable",
        "Image",
        "Port",
        "VDevice",
        "VDeviceEntry",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

moved.install(moved.moved())


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, on first use."""
    if name in _MODULES:
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found
    if name.startswith("_") or not name.isidentifier() or find_spec(f"rammer.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"rammer.{name}")


def __dir__() -> list[str]:
    """Return public names, imported or not."""
    return sorted({*globals(), *__all__})
