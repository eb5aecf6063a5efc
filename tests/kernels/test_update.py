"""Updates: what is written where data say, and proofs that see whatever is changed in one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_harness import SLOW_SPEC, operation
from rammer_testing.mutate.tiles import mutants
from simt_harness import SMALL

from rammer.errors import InputError, LoweringError, TypeMismatch
from rammer.ir.analysis.dependency import read_elements, written_elements
from rammer.ir.analysis.intervals import expand
from rammer.ir.index import Index
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import DType, TensorType
from rammer.ir.tile import For, Kind, Stmt, Store, TileProgram, rewrite_body, statements
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates

CACHE, NEW, AT = TensorType((3, 4, 16, 8)), TensorType((3, 4, 2, 8)), TensorType((3,), DType.I64)


def update(how: str = "linear", cache: TensorType = CACHE, new: TensorType = NEW) -> Operation:
    return operation("update", cache, new, AT, moves=(0, 1, -1, 3), how=how)


def test_rows_follow_on_the_first_place() -> None:
    random = np.random.default_rng(0)
    cache, new = (random.standard_normal(t.shape).astype("f") for t in (CACHE, NEW))
    for how, last in (("linear", 14), ("circular", 15)):
        wanted = cache.copy()
        for batch, at in enumerate((0, 5, last)):
            for n in range(2):
                wanted[batch, :, (at + n) % 16] = new[batch, :, n]
        inputs = {"data": cache, "updates": new, "places": np.array([0, 5, last])}
        np.testing.assert_array_equal(evaluate_expr(update(how).expr, inputs)[0], wanted)
    for at in (15, -1):
        with pytest.raises(InputError, match="is outside"):
            evaluate_expr(update().expr, {"data": cache, "updates": new, "places": np.array([0, 0, at])})


def test_an_update_without_elements_changes_nothing() -> None:
    scalar, none = TensorType(()), TensorType((0,))
    expr = operation("update", scalar, none, TensorType((), DType.I64), moves=(), how="elements").expr
    inputs = {"data": np.array(2, "f"), "updates": np.zeros(0, "f"), "places": np.array(1)}
    np.testing.assert_array_equal(evaluate_expr(expr, inputs)[0], 2)


@pytest.mark.parametrize(
    ("kinds", "attrs"),
    [
        ((CACHE, NEW, AT), {"moves": (0, 1, -1), "how": "linear"}),
        ((CACHE, NEW, AT), {"moves": (0, 0, -1, 3), "how": "linear"}),
        ((CACHE, NEW, AT), {"moves": (0, 1, -1, 7), "how": "linear"}),
        ((CACHE, NEW, AT), {"moves": (0, 1, -1, 3), "how": "somehow"}),
        ((CACHE, NEW, AT), {"moves": (0, 1, -1, 3), "how": "elements"}),
        ((CACHE, NEW, TensorType((3, 1), DType.I64)), {"moves": (0, 1, -2, 3), "how": "vectors"}),
        ((CACHE, NEW, TensorType((3,))), {"moves": (0, 1, -1, 3), "how": "linear"}),
        ((CACHE, NEW, AT), {"moves": (0, 1, -1, 3), "how": "linear", "combine": "sub"}),
        ((CACHE, TensorType((3, 5, 2, 8)), AT), {"moves": (0, 1, -1, 3), "how": "linear"}),
        ((CACHE, TensorType((3, 4, 2, 8), DType.F16), AT), {"moves": (0, 1, -1, 3), "how": "linear"}),
    ],
)
def test_operands_that_do_not_fit_are_refused(kinds: tuple[TensorType, ...], attrs: dict[str, object]) -> None:
    with pytest.raises(TypeMismatch, match="update"):
        operation("update", *kinds, **attrs)  # type: ignore[arg-type]


def test_what_an_rtask_touches() -> None:
    """Its own heads, wherever data may lead; of the cache it reads nothing."""
    large = update(cache=TensorType((3, 4, 16, 512)), new=TensorType((3, 4, 2, 512)))
    kernel = next(k for k in candidates(large, SLOW_SPEC) if k.num_rtasks > 1)
    written = written_elements(kernel, 0)
    assert not written.exact
    for rtask in range(kernel.num_rtasks):
        box = kernel.box(rtask)
        inside = np.zeros((3, 4, 16, 512), bool)
        inside[tuple(slice(*box[a]) for a in ("a0", "a1"))] = True
        np.testing.assert_array_equal(expand(written[rtask]), np.flatnonzero(inside))
        assert not len(read_elements(kernel, 0)[rtask])
        wanted = [n for n in range(3) if box["a0"][0] <= n < box["a0"][1]]
        np.testing.assert_array_equal(expand(read_elements(kernel, 2)[rtask]), wanted)


@pytest.mark.parametrize("spec", [SLOW_SPEC, SMALL], ids=["one thread", "many threads"])
@pytest.mark.parametrize("how", ["linear", "circular"])
def test_every_change_is_seen(spec: object, how: str) -> None:
    for kernel in candidates(update(how), spec):  # type: ignore[arg-type]
        assert not prove(kernel)
        changed = list(mutants(kernel, 500, 0))
        missed = [what for what, other in changed if not any(f.broken for f in prove(other))]
        assert not missed and len(changed) > 15, missed


def test_what_is_combined_is_proven() -> None:
    """In the order of the updates, by the expression's function, and in updates alone."""
    kinds, attrs = (CACHE, NEW, AT), {"moves": (0, 1, -1, 3), "how": "circular"}
    added = operation("update", *kinds, **attrs, combine="add")  # type: ignore[arg-type]
    random = np.random.default_rng(0)
    values = [random.standard_normal(t.shape).astype("f") for t in (CACHE, NEW)]
    inputs = dict(zip(("data", "updates", "places"), (*values, np.array([15, 2, 15])), strict=True))
    (found,) = evaluate_expr(added.expr, inputs)
    np.testing.assert_array_equal(found[0, :, 0], values[0][0, :, 0] + values[1][0, :, 1])
    for kernel in candidates(added, SLOW_SPEC):
        assert not prove(kernel) and isinstance(kernel.body, TileProgram)
        changed = list(mutants(kernel, 500, 0))
        missed = [what for what, other in changed if not any(f.broken for f in prove(other))]
        assert not missed and len(changed) > 15, missed
        for other in ("", "max"):
            body = rewrite_body(
                kernel.body.body, lambda s, to=other: replace(s, combine=to) if isinstance(s, Store) else s
            )
            findings = prove(replace(kernel, body=replace(kernel.body, body=body)))
            assert any(f.rule == "R210" and f.broken and "instead of add" in f.what for f in findings), findings
    (kernel, *_) = candidates(operation("relu", CACHE), SLOW_SPEC)
    assert isinstance(kernel.body, TileProgram)
    body = rewrite_body(kernel.body.body, lambda s: replace(s, combine="add") if isinstance(s, Store) else s)
    findings = prove(replace(kernel, body=replace(kernel.body, body=body)))
    assert any(f.rule == "R210" and f.broken and "is not an update" in f.what for f in findings), findings


def test_a_copy_before_an_update_is_proven() -> None:
    """It covers the data, each element in its place, before the first update."""
    kinds = TensorType((6, 37)), TensorType((6, 5)), TensorType((6, 5), DType.I64)
    scatter = operation("scatter", *kinds, moves=(0, -1), how="elements")
    for kernel in candidates(scatter, SLOW_SPEC):
        assert not prove(kernel)
        changed = list(mutants(kernel, 500, 0))
        missed = [what for what, other in changed if not any(f.broken for f in prove(other))]
        assert not missed and len(changed) > 15, missed
        program = kernel.body
        assert isinstance(program, TileProgram)

        def late(stmt: Stmt) -> Stmt:
            return replace(stmt, body=stmt.body[::-1]) if isinstance(stmt, For) and stmt.kind is Kind.TASK else stmt

        turned = rewrite_body(program.body, late) if kernel.num_rtasks > 1 else program.body[::-1]
        findings = prove(replace(kernel, body=replace(program, body=turned)))
        assert any(f.rule == "R210" and f.broken and "after some were updated" in f.what for f in findings), findings
    with pytest.raises(LoweringError, match="threads do not copy"):
        candidates(scatter, SMALL)


def test_other_data_and_another_order_are_seen() -> None:
    rows = operation(
        "update", TensorType((9, 8)), TensorType((4, 8)), TensorType((4, 1), DType.I64), moves=(-1, 1), how="vectors"
    )
    (kernel,) = candidates(rows, SLOW_SPEC)
    program = kernel.body
    assert isinstance(program, TileProgram) and not prove(kernel)
    (store,) = (s for s in statements(program.body) if isinstance(s, Store))
    (moved,) = store.dynamic
    backwards = {"a00": Index(3, (("a00", -1),))}

    def reversed_rows(index: Index) -> Index:
        return index - Index(0, (("a00", index.coef("a00")),)) + backwards["a00"] * index.coef("a00")

    from_the_end = replace(
        store,
        value=replace(store.value, index=(reversed_rows(store.value.index[0]),)),
        dynamic=(replace(moved, value=replace(moved.value, index=(reversed_rows(moved.value.index[0]),))),),
    )
    for other, what in (
        (from_the_end, "in another order"),
        (replace(store, dynamic=()), "lets 0 numbers say"),
        (replace(store, dynamic=(replace(moved, value=replace(moved.value, tensor="updates")),)), "another place"),
        (replace(store, value=replace(store.value, tensor="data")), "no"),
    ):
        body = rewrite_body(program.body, lambda s, other=other: other if s == store else s)
        findings = prove(replace(kernel, body=replace(program, body=body)))
        assert any(f.rule in ("R204", "R210") and f.broken and what in f.what for f in findings), findings


def test_a_place_that_is_none_is_left_out() -> None:
    for dtype in (DType.I64, DType.I32):
        at = TensorType((3, 1, 1, 1), dtype)
        chosen = operation("update", CACHE, TensorType((3, 4, 1, 8)), at, moves=(0, 1, -1, 3), how="chosen")
        new = np.ones((3, 4, 1, 8), "f")
        inputs = {
            "data": np.zeros(CACHE.shape, "f"),
            "updates": new,
            "places": np.array([-1, 3, 16]).reshape(3, 1, 1, 1),
        }
        (found,) = evaluate_expr(chosen.expr, inputs)
        assert np.argwhere(found[:, 0, :, 0]).tolist() == [[1, 3]]
        for kernel in candidates(chosen, SLOW_SPEC):
            assert not prove(kernel)


def test_threads_never_share_a_place() -> None:
    """Rows that may have one place are stored one after another, by every thread that has part of them."""
    rows = operation(
        "update", TensorType((9, 64)), TensorType((4, 64)), TensorType((4, 1), DType.I64), moves=(-1, 1), how="vectors"
    )
    for kernel in candidates(rows, SMALL):
        assert not prove(kernel) and isinstance(kernel.body, TileProgram)
        assert kernel.num_threads > 1

        def side_by_side(s: object) -> object:
            return replace(s, kind=Kind.THREAD, stride=8) if getattr(s, "var", "") == "a00" else s  # type: ignore[type-var]

        body = rewrite_body(kernel.body.body, side_by_side)  # type: ignore[arg-type]
        other = replace(kernel, body=replace(kernel.body, body=body, num_threads=4 * kernel.num_threads))
        assert any(f.broken for f in prove(other))


def test_statements_share_an_rtask_but_no_place() -> None:
    """Where points do not divide by threads the remainder is a store of its own; it may not take over a row."""
    rows = operation(
        "update", TensorType((9, 75)), TensorType((4, 75)), TensorType((4, 1), DType.I64), moves=(-1, 1), how="vectors"
    )
    (kernel,) = candidates(rows, SMALL)
    assert not prove(kernel) and isinstance(kernel.body, TileProgram)
    assert sum(isinstance(s, Store) for s in statements(kernel.body.body)) == 2
    changed = list(mutants(kernel, 500, 0))
    missed = {what for what, other in changed if not any(f.broken for f in prove(other))}
    same = {what for what, _ in changed if what.startswith(("low of Range(index=Index(const=64", "lin2 ends earlier"))}
    assert missed <= same and len(changed) > 30, missed - same  # threads from 75 on do nothing, whatever these say
    (serial,) = candidates(rows, SLOW_SPEC)
    assert isinstance(serial.body, TileProgram)
    (loop,) = serial.body.body
    assert isinstance(loop, For)
    last_first = (replace(loop, start=2), replace(loop, stop=2))
    findings = prove(replace(serial, body=replace(serial.body, body=last_first)))
    assert any("by several statements" in f.what and f.broken for f in findings), findings
