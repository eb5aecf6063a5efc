"""The paper's models (Table 1) and those of today as torch modules and ONNX files with seeded weights."""

from benchmarks.models.build import CATALOG, PAPER, TODAY, build, find
from benchmarks.models.spec import ModelSpec
from benchmarks.store import BuiltModel, Scale

__all__ = ["CATALOG", "PAPER", "TODAY", "BuiltModel", "ModelSpec", "Scale", "build", "find"]
