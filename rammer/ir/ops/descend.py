"""Take a step down decision trees, which lie in tables of nodes."""

from __future__ import annotations

from rammer.ir.expr import Const, Dynamic, Load, Scalar, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, float_only, listed, require
from rammer.ir.tensor import DType, TensorType


def _descend(
    x: TensorType, node: TensorType, feature: TensorType, split: TensorType, child: TensorType, *left: TensorType
) -> TensorExpr:
    """Build the node after each of `node` [rows, trees]: child[2 n + 1] where x[row, feature[n]] > split[n].

    Otherwise it is child[2 n]. Where that number is NaN, left[n] chooses child[2 n]; without `left` none does.
    """
    types = [x, node, feature, split, child, *left]
    given, nodes = f"descend: {listed(types)}", split.shape[0] if split.rank == 1 else 0
    float_only("descend", [x, split])
    require(node.dtype is feature.dtype is child.dtype is DType.I32, given, "nodes and features are int32")
    require(len(left) <= 1 and all(t.dtype is DType.BOOL for t in left), given, "left is bool")
    fit = nodes > 0 and all(t.shape == split.shape for t in (feature, *left))
    require(fit, given, "each node needs a feature and a split")
    require(x.rank == node.rank == 2 and node.shape[0] == x.shape[0] and child.shape == (2 * nodes,), given)
    row, tree = var("a0"), var("a1")
    place = Load("node", (row, tree))

    def of(table: str) -> Scalar:
        return Load(table, (Index(),), (Dynamic(0, place, nodes),))

    value = Load("x", (row, Index()), (Dynamic(1, of("feature"), x.shape[1]),))
    stays = call("less_equal", value, of("split"))
    if left:
        stays = call("or", stays, call("and", call("is_nan", value), of("left")))
    number = call(
        "where", stays, call("add", place, place), call("add", call("add", place, place), Const(1, DType.I32))
    )
    body = Load("child", (Index(),), (Dynamic(0, number, 2 * nodes),))
    axes = (("a0", node.shape[0]), ("a1", node.shape[1]))
    inputs = list(zip(("x", "node", "feature", "split", "child", "left"), types, strict=False))
    return expression("descend", inputs, [Stage("out", axes, body, dtype=DType.I32)])


DEFINITIONS = (OpDef("descend", _descend),)
