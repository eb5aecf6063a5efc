"""rammer: compile a neural network into a static plan of tile-sized tasks, placed and ordered ahead of time."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rammer.compiler import compile, devices, from_torch, load, load_program, save_together
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
from rammer.program import Program
from rammer.state import Stream
from rammer.vdevice.base import Availability, Executable, Image, Port, VDevice, VDeviceEntry

if TYPE_CHECKING:
    from rammer.given import SessionPort
    from rammer.inference_session import IOBinding, ModelMetadata, OrtValue
    from rammer.session import Session
    from rammer.session_report import SessionReport

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "Availability",
    "BarrierRTask",
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

_LATER = {  # what a compilation needs none of is imported when it is asked for
    "IOBinding": "rammer.inference_session",
    "ModelMetadata": "rammer.inference_session",
    "OrtValue": "rammer.inference_session",
    "Session": "rammer.session",
    "SessionPort": "rammer.given",
    "SessionReport": "rammer.session_report",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found
