"""The paper's models (Table 1), today's and some of GraphTurbo's: torch modules and ONNX files with seeded weights."""

from benchmarks.models.build import CATALOG, GRAPHTURBO, PAPER, TODAY, build, find
from benchmarks.models.spec import ModelSpec
from benchmarks.models.store import BuiltModel, Scale

__all__ = ["CATALOG", "GRAPHTURBO", "PAPER", "TODAY", "BuiltModel", "ModelSpec", "Scale", "build", "find"]
