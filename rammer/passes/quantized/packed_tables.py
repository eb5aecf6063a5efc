"""Keep tables of sub-byte integers packed when rows are gathered from them: only the gathered rows are unpacked."""

from __future__ import annotations

import numpy as np

from rammer.ir.graph import Graph
from rammer.ir.operator import ROperator
from rammer.ir.tensor import Array, DType, TensorId
from rammer.passes.editor import Editor, apply_pattern


def packed_tables(graph: Graph) -> Graph:
    """Gather bytes that hold several integers each, and unpack the gathered ones."""
    packed: dict[TensorId, TensorId] = {}

    def pattern(editor: Editor, _: int, op: ROperator) -> TensorId | None:
        if not _is_packable(editor, op):
            return None
        table, axis = op.inputs[0], op.operation.keywords.get("axis", 0)
        kind = editor.types[table]
        if table not in packed:
            packed[table] = editor.constant(pack_bits(editor.constants[table], kind.dtype.bits), table)
        rows = editor.define(op.name, "gather", packed[table], op.inputs[1], axis=axis)
        return editor.define(op.name, "unpack_bits", rows, dtype=kind.dtype, extent=kind.shape[-1])

    return apply_pattern(graph, pattern, "gather")


def _is_packable(editor: Editor, op: ROperator) -> bool:
    """Check whether a gather takes whole rows of a constant of integers with less than 8 bits."""
    table, axis = op.inputs[0], op.operation.keywords.get("axis", 0)
    kind = editor.types[table]
    narrow = kind.dtype.bits < 8 and not kind.dtype.is_float and kind.dtype is not DType.BOOL
    return table in editor.constants and narrow and axis % kind.rank < kind.rank - 1


def pack_bits(values: Array, bits: int) -> Array:
    """Pack integers of `bits` bits into bytes along the last dimension, as `unpack_bits` reads them."""
    per = 8 // bits
    packed = np.zeros((*values.shape[:-1], -(-values.shape[-1] // per)), np.uint8)
    for n in range(per):
        part = values[..., n::per].astype(np.int8).view(np.uint8) & np.uint8((1 << bits) - 1)
        packed[..., : part.shape[-1]] |= part << np.uint8(bits * n)
    return packed
