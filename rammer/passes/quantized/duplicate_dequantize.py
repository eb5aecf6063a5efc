"""Duplicate dequantisation per reader, which then loads bytes: a quarter of the bytes of float32.

Known as: rematerialisation.
"""

from __future__ import annotations

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import DType
from rammer.passes.editor import Editor


def duplicate_dequantize(graph: Graph) -> Graph:
    """Let each reader of (bytes - zero) * scale compute that for itself, if zero and scale are constants."""
    editor = Editor(graph)
    for op in graph.operators:
        chain = _chain(editor, op) if op.kind == "mul" else []
        for reader in list(editor.readers.get(op.outputs[0], ()))[1:] if chain else ():
            editor.redirect_readers(op.outputs[0], editor.repeated(chain, chain[0].inputs[0]), [reader])
    return editor.finish()


def _chain(editor: Editor, op: ROperator) -> list[ROperator]:
    """Return the operators from bytes to the dequantised numbers of `op`; none if it does not compute such numbers."""
    found = [op]
    while not (found[0].kind == "cast" and found[0].operation.inputs[0].dtype in (DType.U8, DType.I8)):
        maker = editor.maker(found[0].inputs[0])
        constant = all(t in editor.constants for t in found[0].inputs[1:])
        if maker is None or not constant or maker.kind not in ("cast", "sub"):
            return []
        found.insert(0, maker)
    return found
