"""The paper's models (Table 1) as torch modules and ONNX files with seeded weights."""

from benchmarks.models.build import CATALOG, BuiltModel, build, find
from benchmarks.models.spec import ModelSpec, Recurrence, Scale

__all__ = ["CATALOG", "BuiltModel", "ModelSpec", "Recurrence", "Scale", "build", "find"]
