"""The paper's models (Table 1) as torch modules and ONNX files with seeded weights."""

from benchmarks.models.build import CATALOG, build, find
from benchmarks.models.spec import ModelSpec
from benchmarks.store import BuiltModel, Scale

__all__ = ["CATALOG", "BuiltModel", "ModelSpec", "Scale", "build", "find"]
