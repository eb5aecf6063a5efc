"""Match a stage as a sum of products in which some axes move one operand only, as in a matrix product."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, prod

from rammer.ir.analysis.simplify import scalar_conditions
from rammer.ir.expr import Call, Cast, Load, Scalar, Select, Stage, loads
from rammer.ir.index import Div, Index, simplify, substitute, var, variables
from rammer.kernels.lanes import accesses, instructions, lane_axis, stored
from rammer.kernels.problem import KernelProblem

SHARING = 4  # rows that share a vector of weights, to compare lane axes: register blocks have about as many
SUMS = 0.75  # of the registers, for sums: the others hold operands
COPY_ROWS = 16  # uses of a weight that pay for copying it


@dataclass(frozen=True)
class Product:
    """A stage that sums x * w. `lane` moves only w, `row` only x."""

    stage: Stage
    lane: str
    row: str | None
    x: Load
    w: Load
    group: int  # lanes that share x: a vector must not cross a multiple of it
    row_group: int = 1  # rows that share w
    lane_permute: bool = False  # a vector holds several narrow groups: each lane picks its x from a vector of channels

    @property
    def is_matrix(self) -> bool:
        """Check whether all rows meet all lanes, in sums along one axis: a product of two matrices."""
        axes = dict(self.stage.axes)
        whole = (self.group, self.row_group) == (axes[self.lane], axes.get(self.row or ""))
        return whole and not self.lane_permute and len(self.stage.reduce) == 1


def product(problem: KernelProblem, stage: Stage) -> Product | None:
    """Return the stage as a product that suits register blocks, or None."""
    if stage.combine != "sum" or not stage.reduce or not isinstance(stage.body, Call) or stage.body.fn != "mul":
        return None
    return _best(problem, stage, *map(_factor, stage.body.args))


def distance(problem: KernelProblem, stage: Stage) -> Product | None:
    """Return a sum of squared differences like a product: it reads the same, and suits the same blocks; or None."""
    match stage.body:
        case Call("mul", (Call("sub", (a, b)) as left, right)) if (
            left == right and stage.combine == "sum" and stage.reduce
        ):
            return _best(problem, stage, _factor(a), _factor(b))
    return None


def _best(problem: KernelProblem, stage: Stage, a: Load | None, b: Load | None) -> Product | None:
    best: tuple[tuple[bool, float], Product] | None = None
    for x, w in ((a, b), (b, a)) if a and b else ():
        for axis, extent in stage.axes:
            found = _with_lane(problem, stage, x, w, axis, extent)
            if found is not None:
                # Copied weights took 1.8 times as long as packed ones, for 4 % fewer vectors.
                cost = accesses(problem, stage, w, axis) > 1, _instructions(problem, found)
                if best is None or cost < best[0]:
                    best = cost, found
    return best[1] if best else None


def _factor(value: Scalar) -> Load | None:
    """Return the only load of a factor, inside of padding and conversions; None if there are several."""
    match value:
        case Load(_, _, ()):
            return value
        case Cast(arg, _):
            return _factor(arg)
        case Select(_, then, other) if not list(loads(other)):
            return _factor(then)
    inside = [ld for ld, _ in loads(value)]
    spread = [ld for ld in inside if not ld.dynamic]
    return spread[0] if len(inside) == 1 == len(spread) else None


def _with_lane(problem: KernelProblem, stage: Stage, x: Load, w: Load, axis: str, extent: int) -> Product | None:
    if not any(ix == var(axis) for ix in w.index):
        return None
    group = shared(stage, x, axis)
    mixed = _mixed(problem, x, axis, group)
    if mixed:
        group = problem.lanes
    if group % problem.lanes and group < extent:
        return None
    if any(axis in variables(r.index) for r in scalar_conditions(stage.body)):
        return None
    groups = {a: shared(stage, w, a) for a, e in stage.axes if a != axis and e > 1 and a in axes_of(x)}
    rows = [(a, g) for a, g in groups.items() if g > 1]
    row, size = max(reversed(rows), key=lambda item: (min(item[1], SHARING), item == rows[-1])) if rows else (None, 1)
    return Product(stage, axis, row, x, w, group, size, mixed)


def _mixed(problem: KernelProblem, x: Load, axis: str, group: int) -> bool:
    """Check whether lanes of several groups read one vector of blocked channels, each the channels of its own group."""
    layout = dict(problem.expr.inputs)[x.tensor].layout if x.tensor in dict(problem.expr.inputs) else None
    if layout is None or not 1 < group < problem.lanes or problem.lanes % group or x.dynamic:
        return False
    inner = layout.digits[-1]
    own = Div(var(axis), group)
    return (
        (inner.div, inner.mod) == (1, problem.lanes)
        and dict(x.index[inner.dim].terms).get(own) == group
        and not any(axis in variables(ix) for d, ix in enumerate(x.index) if d != inner.dim)
    )


def shared(stage: Stage, load: Load, axis: str) -> int:
    """Return how many neighbours along `axis` read the same element: its extent, a group's size (o // 64), or 1."""
    extents = {**dict(stage.axes), **dict(stage.reduce)}
    extent = extents[axis]
    if axis not in axes_of(load):
        return extent
    for size in sorted({by for ix in load.index for by in _groups(ix, axis)}):
        inside = {axis: var("_g") * size + var("_l")}
        env = {a: (0, e - 1) for a, e in extents.items()} | {"_g": (0, -(-extent // size) - 1), "_l": (0, size - 1)}
        places = [simplify(substitute(ix, inside), env) for ix in load.index]
        if extent % size == 0 and not any("_l" in variables(ix) for ix in places):
            return size
    return 1


def _groups(index: Index, axis: str) -> Iterator[int]:
    """Yield the divisors of an axis anywhere in an index."""
    for atom, _ in index.terms:
        if not isinstance(atom, str):
            yield from [atom.by] if isinstance(atom, Div) and atom.arg == var(axis) else _groups(atom.arg, axis)


def _instructions(problem: KernelProblem, p: Product) -> float:
    """Return the instructions per multiply-add, in a block of up to two vectors and of rows that share weights."""
    rows = min(p.row_group, SHARING)
    weights = accesses(problem, p.stage, p.w, p.lane)
    if weights > 1 and copyable(problem, p):
        weights = 1 + (weights + 1) / COPY_ROWS  # a copy is loaded, stored, and loaded
    stores = stored(problem, p.stage, p.lane) / prod(e for _, e in p.stage.reduce)
    extent = dict(p.stage.axes)[p.lane]
    vectors = -(-extent // problem.lanes)
    return (1 + weights / rows + 1 / min(vectors, 2) + stores) * vectors / extent


def pays(problem: KernelProblem, p: Product) -> bool:
    """Check whether register blocks issue no more instructions than a nest of single vectors along the best axis."""
    lane = lane_axis(problem, p.stage)
    return _instructions(problem, p) <= (instructions(problem, p.stage, lane) if lane else inf)


def copyable(problem: KernelProblem, p: Product) -> bool:
    """Check whether enough rows use weights made at run time to pay for a copy with adjacent lanes."""
    rows = prod(e for a, e in p.stage.axes if a not in (p.lane, p.row) and a not in axes_of(p.w)) * p.row_group
    return rows >= COPY_ROWS and any(n == p.w.tensor for n, _ in problem.expr.inputs)


def terms(p: Product) -> int:
    """Return the number of terms of a sum."""
    return prod(e for _, e in p.stage.reduce)


def axes_of(load: Load) -> set[str]:
    return {n for ix in load.index for n in variables(ix)}
