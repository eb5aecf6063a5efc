"""Take a step down decision trees, which lie in a table of nodes."""

from __future__ import annotations

from rammer.ir.expr import Const, Dynamic, Load, Scalar, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, float_only, listed, require
from rammer.ir.tensor import DType, TensorType

LINKS = ("first", "second", "feature", "left")  # numbers of a node: `left` says whether NaN takes the first successor


def _descend(
    x: TensorType, node: TensorType, links: TensorType, split: TensorType, *, missing: bool = False
) -> TensorExpr:
    """Build the node after each of `node` [rows, trees]: the first successor where x[row, feature] <= split.

    With `missing`, a node's last number says whether a NaN takes the first one, too; else it takes the second. The
    numbers of a node lie side by side, in one cache line.
    """
    types = [x, node, links, split]
    given, nodes = f"descend: {listed(types)}", split.shape[0] if split.rank == 1 else 0
    float_only("descend", [x, split])
    require(node.dtype is links.dtype is DType.I32, given, "nodes and their links are int32")
    require(nodes > 0 and links.shape == (nodes, len(LINKS)), given, "each node needs 4 links and a split")
    require(x.rank == node.rank == 2 and node.shape[0] == x.shape[0], given, "x and node have as many rows")
    row, tree = var("a0"), var("a1")
    at = (Dynamic(0, Load("node", (row, tree)), nodes),)
    feature, left = (Load("links", (Index(), Index(k)), at) for k in map(LINKS.index, LINKS[2:]))
    value = Load("x", (row, Index()), (Dynamic(1, feature, x.shape[1]),))
    stays: Scalar = call("less_equal", value, Load("split", (Index(),), at))
    if missing:
        is_left = call("equal", left, Const(1, DType.I32))
        stays = call("or", stays, call("and", call("is_nan", value), is_left))
    step = call("where", stays, Const(0, DType.I32), Const(1, DType.I32))
    following = Load("links", (Index(), Index()), (*at, Dynamic(1, step, len(LINKS))))
    axes = (("a0", node.shape[0]), ("a1", node.shape[1]))
    inputs = list(zip(("x", "node", "links", "split"), types, strict=True))
    return expression("descend", inputs, [Stage("out", axes, following, dtype=DType.I32)])


DEFINITIONS = (OpDef("descend", _descend),)
