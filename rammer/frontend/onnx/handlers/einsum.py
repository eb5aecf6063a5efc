"""Import Einsum as transposes and matrix products."""

from __future__ import annotations

import re
from math import prod

from rammer.frontend.onnx.node import Node, handles
from rammer.ir.tensor import TensorId


@handles("Einsum")
def einsum(n: Node) -> TensorId:
    operands, wanted = _parse(n)
    tensor, labels = _plain(n, n.tensor(0), operands[0])
    for position in range(1, len(operands)):
        later = set(wanted).union(*operands[position + 1 :])
        tensor, labels = _pair(n, (tensor, labels), _plain(n, n.tensor(position), operands[position]), later)
    tensor, labels = _drop(n, tensor, labels, set(wanted))
    return n.transpose(tensor, [labels.index(label) for label in wanted])


def _parse(n: Node) -> tuple[list[str], str]:
    """Return the labels of each operand and of the result. An ellipsis becomes labels from outside the alphabet."""
    equation = n.attrs["equation"].replace(" ", "")
    if not re.fullmatch(r"[a-zA-Z.,]*(->[a-zA-Z.]*)?", equation):
        raise n.fail(f"equation {equation[:80]!r} is malformed")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(n.present()) or any(t.replace("...", "", 1).count(".") for t in (*terms, right)):
        raise n.fail(f"equation {equation[:80]!r} does not fit {len(n.present())} operands")
    hidden = [len(n.shape(p)) - len(t.replace("...", "")) if "..." in t else 0 for p, t in enumerate(terms)]
    spare = [chr(0x100 + k) for k in range(max(hidden, default=0))]  # letters that an equation cannot contain
    if any(h < 0 for h in hidden):
        raise n.fail(f"equation {equation[:80]!r} has more labels than an operand has dimensions")
    operands = [t.replace("...", "".join(spare[len(spare) - h :])) for t, h in zip(terms, hidden, strict=True)]
    if not arrow:
        once = sorted(c for c in set("".join(operands)) - set(spare) if sum(t.count(c) for t in operands) == 1)
        right = "..." * bool(spare) + "".join(once)
    result = right.replace("...", "".join(spare))
    if len(set(result)) != len(result) or not set(result) <= set("".join(operands)):
        raise n.fail(f"equation {equation[:80]!r} has a result that its operands do not give")
    for position, labels in enumerate(operands):
        if len(labels) != len(n.shape(position)):
            raise n.fail(f"equation {equation[:80]!r} does not fit operand {position}, {n.type(n.tensor(position))}")
    return operands, result


def _plain(n: Node, x: TensorId, labels: str) -> tuple[TensorId, str]:
    """Take diagonals until no label is repeated."""
    while (twice := next((c for c in labels if labels.count(c) > 1), None)) is not None:
        first = labels.index(twice)
        second = labels.index(twice, first + 1)
        rest = [d for d in range(len(labels)) if d not in (first, second)]
        shape = n.type(x).shape
        extent = shape[first]
        if shape[second] != extent:
            raise n.fail(f"label {twice!r} stands for {extent} and {shape[second]}")
        kept = tuple(shape[d] for d in rest)
        x = n.reshape(n.transpose(x, [*rest, first, second]), (*kept, extent * extent))
        steps = (*(1,) * len(kept), extent + 1)
        x = n.add("slice", x, starts=(0,) * len(steps), steps=steps, shape=(*kept, extent))
        labels = "".join(labels[d] for d in rest) + twice
    return x, labels


def _drop(n: Node, x: TensorId, labels: str, needed: set[str]) -> tuple[TensorId, str]:
    """Sum over labels that are not needed."""
    gone = [d for d, label in enumerate(labels) if label not in needed]
    if not gone:
        return x, labels
    return n.reduce(x, "sum", gone, keepdims=False), "".join(c for c in labels if c in needed)


def _pair(n: Node, left: tuple[TensorId, str], right: tuple[TensorId, str], later: set[str]) -> tuple[TensorId, str]:
    """Multiply two operands. Sum over labels that neither the result nor a later operand has."""
    a, a_labels = _drop(n, *left, needed=later | set(right[1]))
    b, b_labels = _drop(n, *right, needed=later | set(left[1]))
    extents: dict[str, int] = {}
    for tensor, labels in ((a, a_labels), (b, b_labels)):
        for label, extent in zip(labels, n.type(tensor).shape, strict=True):
            known = extents.setdefault(label, extent)
            if extent != known and 1 not in (extent, known):
                raise n.fail(f"label {label!r} stands for {known} and {extent}")
            extents[label] = max(extent, known) if 0 not in (extent, known) else 0
    a, b = (n.expand(t, [extents[c] for c in labels]) for t, labels in ((a, a_labels), (b, b_labels)))
    both = [c for c in a_labels if c in b_labels]
    batch, inner = [c for c in both if c in later], [c for c in both if c not in later]
    rows, columns = [c for c in a_labels if c not in both], [c for c in b_labels if c not in both]

    def arranged(tensor: TensorId, labels: str, *groups: list[str]) -> TensorId:
        order = [labels.index(c) for c in (*batch, *groups[0], *groups[1])]
        shape = [extents[c] for c in batch] + [prod(extents[c] for c in g) for g in groups]
        return n.reshape(n.transpose(tensor, order), shape)

    labels = "".join((*batch, *rows, *columns))
    shape = [extents[c] for c in labels]
    if not (rows or columns or inner):
        orders = ([text.index(c) for c in batch] for text in (a_labels, b_labels))
        return n.add("mul", *(n.transpose(t, o) for t, o in zip((a, b), orders, strict=True))), labels
    product = n.product(arranged(a, a_labels, rows, inner), arranged(b, b_labels, inner, columns))
    return n.reshape(product, shape), labels
