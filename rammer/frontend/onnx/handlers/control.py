"""Control flow that is decided at compile time."""

from __future__ import annotations

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import TensorId


@handles("If")
def if_(n: Node) -> tuple[TensorId, ...]:
    """Only the branch that is taken is imported."""
    return n.subgraph(n.attrs["then_branch" if n.scalar(0, "cond") else "else_branch"])
