"""Bound the cost of an untrusted model. Checked before anything is allocated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds on a model. Exceeding one raises a ModelError that names it."""

    file_bytes: int = 4 << 30  # the .onnx file itself
    external_bytes: int = 32 << 30  # all external data together
    nodes: int = 1_000_000  # nodes after inlining of functions
    operators: int = 500_000  # operators after lowering (a recurrent layer has several per time step)
    steps: int = 10_000  # steps of a Loop or Scan that one program unrolls
    tensor_bytes: int = 8 << 30  # any single tensor
    fold_bytes: int = 64 << 20  # memory of all constant folding
    depth: int = 32  # nesting of functions and subgraphs
    rank: int = 16  # dimensions of a tensor
    attribute_length: int = 1 << 20  # elements of a list attribute
