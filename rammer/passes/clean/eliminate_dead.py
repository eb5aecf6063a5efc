"""Drop operators that no graph output needs. Known as: dead code elimination."""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.passes.editor import Editor


def eliminate_dead(graph: Graph) -> Graph:
    """Keep the operators that the outputs depend on."""
    editor = Editor(graph)
    for n in set(editor.operators).difference(editor.order()):
        editor.remove(n)
    return editor.finish()
