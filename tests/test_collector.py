"""Memory while something is compiled: the garbage collector runs seldom, and after it all is as before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import rammer
from rammer.compiler import compilation
from rammer.compiler.gcpause import YOUNG, seldom
from rammer.frontend.builder import GraphBuilder
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer_viz.demo import lstm_stack


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_it_runs_seldom_inside_and_as_before_after() -> None:
    gc.set_threshold(700, 9, 8)
    with seldom():
        assert gc.get_threshold() == (YOUNG, 9, 8)
        with pytest.raises(ZeroDivisionError), seldom():
            _ = 1 / 0
        assert gc.get_threshold() == (YOUNG, 9, 8)
    assert gc.get_threshold() == (700, 9, 8)


@pytest.mark.parametrize("usual", [0, 3 * YOUNG])
def test_who_has_it_run_less_is_left_alone(usual: int) -> None:
    gc.set_threshold(usual, 5, 5)
    with seldom():
        assert gc.get_threshold() == (usual, 5, 5)
    assert gc.get_threshold() == (usual, 5, 5)


def test_two_at_once_end_in_any_order() -> None:
    gc.set_threshold(700, 10, 10)
    first, second = seldom(), seldom()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (YOUNG, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_a_compilation_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    optimize = compilation.optimize

    def watched(*args: object, **options: object) -> object:
        seen.append(gc.get_threshold()[0])
        return optimize(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(compilation, "optimize", watched)
    gc.set_threshold(700, 10, 10)
    builder = GraphBuilder("absolute")
    builder.output(builder.add("abs", builder.input("x", (4,))), "y")
    rammer.compile(builder.build(), "cpu").close()
    assert seen == [YOUNG] and gc.get_threshold() == (700, 10, 10)


def test_what_was_found_of_kernels_goes_with_the_compilation() -> None:
    """Nothing keeps the rKernels and operations of a program that was closed."""

    def alive() -> int:
        gc.collect()
        return sum(type(o) in (RKernel, Operation) for o in gc.get_objects())

    before = alive()
    model = lstm_stack(1, 2, 16)
    for _ in range(2):
        with rammer.compile(model, "cpu", device=2, tune_seconds=0) as program:
            assert alive() > before and program.plan.kernels
            del program
        assert alive() <= before
