"""Simplify tile programs: decide conditions, and split loops where one changes (tails, halos, concatenations).

Known as: constant folding, loop splitting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import assert_never

from rammer.ir.expr import Call, Cast, Const, ConstantTable, Iota, Load, Range, Scalar, Select, loads, mapped, nodes
from rammer.ir.index import Bounds, Div, Index, Mod, bounds, simplify, substitute, variables
from rammer.ir.tile import Alloc, Apply, Body, For, If, Kind, Operand, Prefetch, Stmt, Store, Sync, meets, statements

MAX_PIECES = 8  # a loop that would fall into more pieces keeps its guard


class _Lane(tuple[int, int]):
    """Bounds of a vector's lane. The variable stays in indices even if it has one value, to show what moves with it."""


def simplify_body(body: Body, env: Bounds) -> Body:
    """Decide conditions by interval arithmetic, split loops where one changes, drop statements without effect.

    Guards of tails and guards that differ inside a register block are split off; uniform guards stay. A factor that
    padding makes zero removes its product, as if the padding had never been read.
    """
    return tuple(s for stmt in body for s in _simplify(stmt, env))


def simplify_index(index: Index, env: Bounds) -> Index:
    """Simplify an index: fix variables of one value, and recombine digits: 7 * (x // 7) + x % 7 = x."""
    index = simplify(_fixed(index, env), env)
    atoms = [a for a, _ in index.terms if not isinstance(a, str)]
    return _recombine(index, env) if len(atoms) > 1 else index


def _fixed(index: Index, env: Bounds) -> Index:
    """Replace variables that have only one value by it."""
    const, kept = index.const, []
    for term in index.terms:
        atom, coef = term
        if not isinstance(atom, str):
            still = {n: Index(env[n][0]) for n in variables(atom.arg) if n in env and env[n][0] == env[n][1]}
            if still:
                return _fixed(substitute(index, still), env)
            kept.append(term)
        elif (span := env.get(atom)) is not None and span[0] == span[1] and not isinstance(span, _Lane):
            const += coef * span[0]
        else:
            kept.append(term)
    return index if len(kept) == len(index.terms) else Index(const, tuple(kept))


def _recombine(index: Index, env: Bounds) -> Index:
    terms = dict(index.terms)
    for low, c in index.terms:
        if not isinstance(low, Mod):
            continue
        for high, d in index.terms:
            if d != c * low.by or isinstance(high, str) or high == low:
                continue
            if (joined := _join(high, low, env)) is not None:
                del terms[low], terms[high]
                return _recombine(Index(index.const, tuple(terms.items())) + joined * c, env)
    return index


def _join(high: Div | Mod, low: Mod, env: Bounds) -> Index | None:
    """Return by * high + low as one index if they are neighbouring digits of one number, else None."""
    if isinstance(high, Div):
        return low.arg if high == Div(low.arg, low.by) else None
    whole = low.arg // low.by
    return low.arg % (low.by * high.by) if high.arg == whole or high.arg == simplify(whole, env) else None


def _simplify(stmt: Stmt, env: Bounds) -> Body:
    match stmt:
        case Store(buffer, index, value, dynamic):
            index, value = simplify_index(index, env), simplify_scalar(value, env)
            dynamic = tuple(replace(d, value=simplify_scalar(d.value, env)) for d in dynamic)
            same = value == Load(buffer, (index,), dynamic) and not stmt.combine
            return () if same else (replace(stmt, index=index, value=value, dynamic=dynamic),)
        case If(where, then):
            open_ = undecided(where, env)
            then = simplify_body(then, env) if open_ is not None else ()
            return ((If(open_, then),) if open_ else then) if then else ()
        case Alloc(buffer, body):
            body = simplify_body(body, env)
            return (Alloc(buffer, body),) if _touches_others(body, {buffer.name}) else ()
        case For():
            return _partition(stmt, env)
        case Apply(_, operands):
            inside = {**env, **{axis: (0, extent - 1) for axis, extent in stmt.sizes.items()}}
            read = tuple(_simplify_operand(operand, inside) for operand in operands)
            meanwhile = stmt.meanwhile
            if meanwhile is not None:
                steps = {**env, meanwhile.var: (meanwhile.start, meanwhile.stop - 1)}
                meanwhile = replace(meanwhile, body=simplify_body(meanwhile.body, steps))
            return (replace(stmt, operands=read, meanwhile=meanwhile),)
        case Prefetch(_, index):
            return (replace(stmt, index=simplify_index(index, env)),)
        case Sync():
            return (stmt,)
        case _:
            assert_never(stmt)


def _simplify_operand(operand: Operand, env: Bounds) -> Operand:
    where = undecided(operand.where, env)
    if where is None:  # nothing is read
        where = tuple(Range(simplify_index(r.index, env), r.low, r.high) for r in operand.where)
    return replace(operand, at=simplify_index(operand.at, env), where=where)


def _touches_others(body: Body, own: set[str]) -> bool:
    """Return whether a body changes anything but registers that live inside it."""
    for stmt in body:
        match stmt:
            case Store(buffer) if buffer in own:
                continue
            case Prefetch():
                continue
            case Alloc(buffer, inner):
                if _touches_others(inner, {*own, buffer.name}):
                    return True
            case For(body=inner) | If(then=inner):
                if _touches_others(inner, own):
                    return True
            case _:
                return True
    return False


def undecided(where: tuple[Range, ...], env: Bounds) -> tuple[Range, ...] | None:
    """Return the conditions that the bounds do not prove; None if one of them is always false."""
    left = []
    for r in where:
        index = simplify_index(r.index, env)
        low, high = bounds(index, env)
        if high < r.low or low >= r.high:
            return None
        if low < r.low or high >= r.high:
            left.append(_coarse(Range(index, r.low, r.high), env))
    return tuple(left)


def _coarse(r: Range, env: Bounds) -> Range:
    """Return an equal condition without the digits that cannot decide it: 16a + b < 32 is 16a < 32 if 0 <= b < 16.

    So lanes of a vector share a condition whose limits are multiples of a vector.
    """
    low, high = bounds(r.index, env)
    for size in sorted({abs(c) for _, c in r.index.terms}, reverse=True):
        fine = Index(r.index.const % size, tuple(t for t in r.index.terms if t[1] % size))
        least, most = bounds(fine, env)
        if fine.terms and least >= 0 and most < size:
            first = r.low if low < r.low else r.low // size * size  # a limit that always holds may be any further one
            last = r.high if high >= r.high else -(-r.high // size) * size
            if first % size == 0 == last % size:
                return Range(r.index - fine, first, last)
    return r


def simplify_scalar(value: Scalar, env: Bounds) -> Scalar:
    """Simplify the indices and decide the conditions inside a scalar."""
    match value:
        case Load(tensor, index, dynamic):
            places = Load(tensor, tuple(simplify_index(i, env) for i in index), dynamic)
            return mapped(places, lambda part: simplify_scalar(part, env)) if dynamic else places
        case Iota(index):
            return Iota(simplify_index(index, env))
        case ConstantTable(values, index):
            index = simplify_index(index, env)
            return ConstantTable(values, index) if index.terms else Const(values[index.const])
        case Cast(arg):
            return replace(value, arg=simplify_scalar(arg, env))
        case Select(where, then, other):
            open_ = undecided(where, env)
            if not open_:
                return simplify_scalar(other if open_ is None else then, env)
            return Select(open_, simplify_scalar(then, env), simplify_scalar(other, env))
        case Call(fn, args):
            new = tuple(simplify_scalar(a, env) for a in args)
            decided = any(isinstance(b, Const) and not isinstance(a, Const) for a, b in zip(args, new, strict=True))
            return _padding(Call(fn, new)) if decided else Call(fn, new)
    return value


def _padding(call: Call) -> Scalar:
    """Fold what padding or a table has decided: x*0 = 0, x*1 = x, x+0 = x, max(x, -inf) = x."""
    match call.fn, call.args:
        case "mul", (Const(0) as zero, _) | (_, Const(0) as zero):
            return zero
        case "mul", (Const(1), x) | (x, Const(1)):
            return x
        case "add", (x, Const(0)) | (Const(0), x):
            return x
        case "max", (x, Const(v)) | (Const(v), x) if v == float("-inf"):
            return x
        case "min", (x, Const(v)) | (Const(v), x) if v == float("inf"):
            return x
    return call


def _partition(loop: For, env: Bounds) -> Body:
    """Split a loop at every point where one of its conditions changes between open and decided."""
    if loop.stop - loop.start == 1:
        return simplify_body(loop.body, {**env, loop.var: (loop.start, loop.start)})
    if loop.stop <= loop.start:
        return ()
    inner = {**env, loop.var: (loop.start, loop.stop - 1)}
    cuts = {loop.start, loop.stop}
    lanes = {loop.var} if loop.kind in (Kind.VECTOR, Kind.UNROLLED) else set()
    inside = statements(loop.body) if loop.kind is Kind.SERIAL else ()
    vectors = {s.var for s in inside if isinstance(s, For) and s.kind is Kind.VECTOR}
    single: set[int] = set()  # steps that differ in which lanes are outside
    for r in _conditions(loop.body, inner, lanes):
        if r.index.coef(loop.var):
            found = list(_cuts(r, loop.var, inner))
            cuts |= {c for c in found if loop.start < c < loop.stop}
            if {v for v in variables(r.index) if inner[v][0] < inner[v][1]} - {loop.var} <= vectors:
                open_ = (range(*sorted(turn)) for turn in (found[:2], found[2:]))
                single |= {c for turn in open_ for c in turn if loop.start < c < loop.stop}
    cuts |= single if len(cuts | single) <= MAX_PIECES else set()
    parallel = loop.kind in (Kind.THREAD, Kind.TASK)
    picks = loop.kind is Kind.UNROLLED and _picks(loop.body, loop.var)
    if picks or (loop.kind in (Kind.SERIAL, Kind.UNROLLED) and _looks_up(loop.body, loop.var)):
        steps = range(loop.start, loop.stop)
        return tuple(s for n in steps for s in simplify_body(loop.body, {**env, loop.var: (n, n)}))
    whole = len(cuts) > MAX_PIECES or loop.kind is Kind.THREAD or (parallel and any(map(meets, statements(loop.body))))
    points = [loop.start, loop.stop] if whole else sorted(cuts)
    pieces: list[Stmt] = []
    for low, high in pairwise(points):
        if parallel:
            body = simplify_body(loop.body, {**env, loop.var: (low, high - 1)})
            here = Range(Index(0, ((loop.var, 1),)), low, high)
            pieces += [If((here,), body)] if len(points) > 2 and body else body
        elif high - low == 1 and loop.kind is not Kind.VECTOR:
            pieces += simplify_body(loop.body, {**env, loop.var: (low, low)})
        else:
            span = (low, high - 1)
            first = loop.kind is Kind.VECTOR and not low
            if body := simplify_body(loop.body, {**env, loop.var: _Lane(span) if first else span}):
                pieces.append(replace(loop, start=low, stop=high, body=body))
    return (replace(loop, body=tuple(pieces)),) if parallel else tuple(pieces)


def _cuts(r: Range, name: str, env: Bounds) -> Iterator[int]:
    a = r.index.coef(name)
    low, high = bounds(r.index - Index(0, ((name, a),)), env)
    for limit in (r.low, r.high):  # a*name + rest crosses `limit` between these two values of name
        for rest in (low, high):
            yield -((rest - limit) // a) if a > 0 else (limit - 1 - rest) // a + 1


def _conditions(body: Body, env: dict[str, tuple[int, int]], lanes: set[str]) -> Iterator[Range]:
    """Yield conditions worth splitting for; add the bounds of inner loops to `env`. Outer variables stay ranges."""
    for stmt in body:
        match stmt:
            case For():
                env[stmt.var] = (stmt.start, stmt.stop - 1)
                inner = lanes | {stmt.var} if stmt.kind in (Kind.VECTOR, Kind.UNROLLED) else lanes
                yield from _conditions(stmt.body, env, inner)
            case If(where, then):
                inside = bool(then) and isinstance(then[0], For | Alloc)  # around loops a branch costs next to nothing
                yield from (r for r in where if not inside or variables(r.index) & lanes)
                yield from _conditions(then, env, lanes)
            case Alloc(_, inside):
                yield from _conditions(inside, env, lanes)
            case Store(_, _, value):
                yield from (r for r in scalar_conditions(value) if variables(r.index) & lanes)


def scalar_conditions(value: Scalar) -> Iterator[Range]:
    """Yield every condition inside a scalar."""
    return (r for part in nodes(value) if isinstance(part, Select) for r in part.where)


def _looks_up(body: Body, name: str) -> bool:
    """Return whether a table's index depends on a variable."""
    values = (part for s in statements(body) if isinstance(s, Store) for part in nodes(s.value))
    return any(isinstance(part, ConstantTable) and name in variables(part.index) for part in values)


def _picks(body: Body, name: str) -> bool:
    """Return whether a variable decides which elements of a vector the lanes pick: x[16*i + 4*(lane // 4) + name]."""
    for s in statements(body):
        match s:
            case For(lane, _, count, Kind.VECTOR, stores):
                inner = [
                    s for s in statements(stores) if isinstance(s, Store)
                ]  # maybe under a guard of the last vector
                indices = [ix for s in inner for ld, _ in loads(s.value) for ix in ld.index]
                for ix in indices:
                    mixed = [a for a, _ in ix.terms if not isinstance(a, str) and lane in variables(a.arg)]
                    if mixed and (ix.coef(name) % count or any(name in variables(a.arg) for a in mixed)):
                        return True
    return False
