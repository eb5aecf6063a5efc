"""The paper's models (Table 1) as torch modules and ONNX files with seeded weights."""

from benchmarks.models.build import CATALOG, build, find
from benchmarks.models.spec import ModelSpec, Recurrence, Scale
from benchmarks.store import BuiltModel

__all__ = ["CATALOG", "BuiltModel", "ModelSpec", "Recurrence", "Scale", "build", "find"]
