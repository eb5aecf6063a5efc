"""The fuzzer itself: the same seeds give the same cases, each kind of fault is found, and found faults get small."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import erfc, pi, sqrt
from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
from onnx import checker
from rammer_testing.fuzz import FAMILIES, Case, Choices, Limits, Options, Sketch, Trial, alone, draw, worker
from rammer_testing.fuzz.__main__ import _Run, main
from rammer_testing.fuzz.families import windows
from rammer_testing.fuzz.families.declared import Lie
from rammer_testing.fuzz.oracle import (
    beyond_numbers,
    compare,
    consult,
    evaluator,
    longest_sum,
    oracles,
    rounding,
    rounds_once,
    spreads,
    sums_saturate,
    tolerance,
)
from rammer_testing.fuzz.shrink import shrink
from rammer_testing.fuzz.sketch import BFLOAT, DOUBLE, FLOAT, HALF, I32, NUMPY, U8, Unfit
from rammer_testing.fuzz.summary import Summary
from rammer_testing.fuzz.trial import CRASHED, HUNG, ILL, INTERNAL, REFUSED, RIGHT, WRONG, Verdict, internal
from rammer_testing.fuzz.worker import Pool

from rammer.errors import DeviceError, InputError, ModelError
from rammer.ir.tensor import Array
from rammer.runtime.program import Program
from rammer.vdevice.ctext.vectors import INFIX

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
CHOICES = Choices("interpreter", ("wavefront",), veus=(2,))
LIMITS = Limits(cpu_s=20.0, silence_s=60.0)
POLICIES = ("auto", "graphturbo", "list", "round_robin", "sequential", "stationary", "wavefront")


def small_case(name: str = "made:0") -> Case:
    """Three nodes, of which the second one is the one that tests break."""
    s = Sketch(name)
    x = s.node("Relu", s.input((5, 37)))
    y = s.node("Softmax", x, axis=1)
    model = s.model([s.node("Neg", y), s.node("Tanh", x)])
    return Case(name, model, s.inputs, Options("interpreter", "wavefront", veus=2))


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_names_are_equal_cases(family: str) -> None:
    for seed in range(3):
        first, second = (draw(f"{family}:{seed}", CHOICES) for _ in range(2))
        assert first.model.SerializeToString(deterministic=True) == second.model.SerializeToString(deterministic=True)
        assert first.options == second.options and first.ports == second.ports
        for name, value in first.inputs(0).items():
            assert np.array_equal(value, second.inputs(0)[name], equal_nan=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_cases_are_models_that_an_oracle_takes(family: str) -> None:
    for seed in range(4):
        case = draw(f"{family}:{seed}", CHOICES)
        checker.check_model(case.model)
        assert case.model.graph.node
        assert consult(case.model, case.inputs(0)) is not None, case.text()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_step_of_a_family_suits_some_of_its_models(family: str) -> None:
    steps = {step for _, step in FAMILIES[family].steps}
    for seed in range(60):
        sketch = Sketch(f"{family}:{seed}", opset=23)
        for step in [FAMILIES[family].start, *sorted(steps, key=lambda s: s.__qualname__)]:
            with suppress(Unfit), sketch.attempt():
                step(sketch)
                steps.discard(step)
    assert not steps


def broken(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Array], Mapping[str, Array]], object]) -> None:
    """Let programs do something else with their outputs."""
    run = Program.run

    def other(self: Program, inputs: Mapping[str, Array]) -> object:
        outputs = run(self, inputs)
        return change(outputs, inputs) or outputs

    monkeypatch.setattr(Program, "run", other)


def verdict_of(case: Case, limits: Limits = LIMITS) -> Verdict:
    return alone(lambda: Trial(case), limits)


def test_a_right_program_is_right() -> None:
    assert verdict_of(small_case()).outcome == RIGHT


def one_element(outputs: dict[str, Array], inputs: Mapping[str, Array]) -> None:
    for value in outputs.values():
        value.flat[7] += 1e-3


def test_one_wrong_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, one_element)
    found = verdict_of(small_case())
    assert (found.outcome, found.reason) == (WRONG, "another result, by the program")
    assert "1 of 185 elements" in found.detail and "[0, 7]" in found.detail


def test_state_that_leaks_from_run_to_run_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def leak(outputs: dict[str, Array], inputs: Mapping[str, Array]) -> None:
        runs.append(1)
        if len(runs) == 3:
            one_element(outputs, inputs)

    broken(monkeypatch, leak)
    found = verdict_of(small_case())
    assert (found.outcome, found.reason) == (WRONG, "the same inputs give something else after others")


def test_crashes_hangs_and_errors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    endings: dict[str, tuple[Callable[..., object], str, str]] = {
        "abort": (lambda *_: os.abort(), CRASHED, "SIGABRT"),
        "quit": (lambda *_: os._exit(3), CRASHED, "exit status 3"),
        "sleep": (lambda *_: time.sleep(60), HUNG, "no sign of life"),
        "divide": (lambda *_: 1 // 0, INTERNAL, "ZeroDivisionError in test_fuzz.py:<lambda>: integer division or"),
        "refuse": (lambda *_: refuse(), INTERNAL, "InputError: index out of range"),
    }
    for ending, outcome, reason in endings.values():
        with monkeypatch.context() as patch:
            broken(patch, ending)
            found = verdict_of(small_case(), Limits(cpu_s=20.0, silence_s=3.0 if outcome == HUNG else 60.0))
            assert found.outcome == outcome and found.reason.startswith(reason), found


def refuse() -> None:
    raise InputError("index out of range")


def test_a_crash_in_a_batch_is_the_fault_of_its_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"views:{n}" for n in range(6)]
    shapes = {v.shape for v in draw(names[3], CHOICES).inputs(0).values()}

    def die(outputs: dict[str, Array], inputs: Mapping[str, Array]) -> None:
        if {v.shape for v in inputs.values()} == shapes:
            os.abort()

    broken(monkeypatch, die)
    found = dict(Pool(CHOICES, LIMITS, jobs=2, batch=4).run(names, time.monotonic() + 60))
    assert {name for name, verdict in found.items() if verdict.outcome == CRASHED} == {names[3]}
    assert set(found) == set(names)


@pytest.mark.parametrize(("end", "outcome"), [(lambda: time.sleep(60), RIGHT), (os.abort, CRASHED)])
def test_a_case_that_was_silent_in_a_batch_counts_as_what_it_gives_alone(
    end: Callable[[], object], outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A machine without time for a child is not a fault; a crash is one, even if it happens once."""
    names = [f"views:{n}" for n in range(3)]
    met = tmp_path / "met"

    def die_once(outputs: dict[str, Array], inputs: Mapping[str, Array]) -> None:
        if not met.exists():
            met.touch()
            end()

    broken(monkeypatch, die_once)
    pool = Pool(CHOICES, Limits(cpu_s=20.0, silence_s=3.0), batch=3)
    found = dict(pool.run(names, time.monotonic() + 60))
    assert [found[name].outcome for name in names] == [outcome, RIGHT, RIGHT]
    assert [note.partition(":")[0] for note in pool.notes] == ["views"] * (outcome == RIGHT)


def test_a_pause_of_the_machine_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour between two looks at a child counts as two seconds."""
    clock = [0.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: clock[0])
    child = worker.Child(lambda say: time.sleep(60), Limits(silence_s=5.0))
    looks = []
    for _ in range(3):
        clock[0] += 3600.0
        looks.append(child.has_hung())
    assert looks == [False, False, True] and child.end() == worker.SILENCE


def test_what_is_found_gets_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a dozen nodes, the one that fails is left, with few elements, and plain options."""

    def fail(outputs: dict[str, Array], inputs: Mapping[str, Array]) -> None:
        if any(v.ndim == 2 and v.shape[1] > 2 for v in inputs.values()):
            raise ArithmeticError("too wide")

    broken(monkeypatch, fail)
    s = Sketch("made:1")
    x = s.input((24, 40))
    for op in ("Relu", "Tanh", "Abs", "Sigmoid", "Neg"):
        x = s.node(op, x)
    y = s.node("MatMul", x, s.weights(40, 96))
    y = s.node("Reshape", s.node("Add", y, s.weights(96)), s.constant([24, 2, 48]))
    model = s.model([*s.multi("Split", y, outputs=2, axis=1, num_outputs=2), s.node("Softmax", x)])
    options = Options("interpreter", "list", veus=4, cache=1 << 20, times="drawn", verify=2)
    case = Case("made:1", model, s.inputs, options)
    verdict = verdict_of(case)
    smaller, same = shrink(case, verdict, LIMITS, 60.0)
    assert (same.outcome, same.reason) == (verdict.outcome, verdict.reason) == (INTERNAL, same.reason)
    assert len(smaller.model.graph.node) == 1
    assert [p.shape for p in smaller.ports.values()] == [(1, 3)]
    assert smaller.options == Options("interpreter", "wavefront", veus=1)


def test_rounding_is_no_fault_and_unsteady_models_are_told() -> None:
    """A difference of large numbers moves by itself; the same difference elsewhere is a fault."""
    s = Sketch("made:2")
    x = s.input((4, 300), low=1.0, high=2.0)
    large = s.node("Add", x, s.constant(np.full(300, 1e7, np.float32)))
    steady = s.model([s.node("Neg", x)])
    unsteady = s.model([s.node("Sub", large, s.constant(np.full(300, 1e7, np.float32)))])
    for model, outcome in ((steady, WRONG), (unsteady, ILL)):
        case = Case("made:2", model, s.inputs, Options("interpreter", "wavefront", veus=1))
        wanted = consult(model, case.inputs(0))
        assert wanted is not None
        off = {name: value + np.float32(1.0) for name, value in wanted[1].items()}
        assert Trial(case)._judge(0, off).outcome == outcome


@pytest.mark.parametrize(("moves", "outcome"), [(True, ILL), (False, WRONG)])
def test_a_program_that_moves_as_far_as_it_is_off_is_no_fault(moves: bool, outcome: str) -> None:
    """The place of the largest of sums that are zero but for rounding is another one for each who sums."""
    s = Sketch("made:3")
    model = s.model([s.node("Neg", s.input((4, 300), low=1.0, high=2.0))])
    case = Case("made:3", model, s.inputs, Options("interpreter", "wavefront", veus=1))
    inputs = case.inputs(0)
    wanted = consult(model, inputs)
    assert wanted is not None
    off = {name: value + np.float32(1.0) for name, value in wanted[1].items()}

    def ours(near: Mapping[str, Array]) -> dict[str, Array]:
        """As far off as before; or the oracle's result once its inputs have other last digits."""
        return wanted[1] if moves and any((near[n] != v).any() for n, v in inputs.items()) else off

    assert Trial(case)._judge(0, off, ours).outcome == outcome


@pytest.mark.parametrize(("factor", "outcome"), [(1e8, ILL), (1.0, RIGHT)])
def test_rounding_that_no_perturbation_shows_is_no_fault(factor: float, outcome: str) -> None:
    """For any x near -6, 1 + erf(x / √2) is 0 in float32, 2e-9 in float64, and 6e-8 by an erf whose last digit is off.

    Oracles disagree, and the bound of rounding is larger than the difference. What is beyond the bound is a fault.
    """
    s = Sketch("made:9")
    x = s.input((4, 300), low=-7.0, high=-6.0)
    y = s.node("Mul", s.node("Gelu", x), s.constant(factor))
    case = Case("made:9", s.model([y]), s.inputs, Options("interpreter", "wavefront", veus=1))
    value = case.inputs(0)[x]
    off = value / 2 * np.float32(2.0**-24) * np.float32(factor)
    assert Trial(case)._judge(0, {y: off}).outcome == outcome
    assert Trial(case)._judge(0, {y: 1000 * off}).outcome == WRONG


def test_a_bound_of_rounding_excuses_nothing_that_oracles_agree_on() -> None:
    """Gelu of -1e6 is 0 for all oracles, and was -0.06 by an erf that ended just above -1: a fault inside the bound."""
    s = Sketch("made:10")
    x = s.input((28, 96), low=-1e6, high=-1e5)
    y = s.node("Gelu", x)
    case = Case("made:10", s.model([y]), s.inputs, Options("interpreter", "wavefront", veus=1))
    inputs = case.inputs(0)
    off = inputs[x] / 2 * np.float32(2.0**-23)
    assert (np.abs(off) < rounding(case.model, inputs)[y]).all()
    assert Trial(case)._judge(0, {y: off}).outcome == WRONG


def test_comparison_is_exact_for_integers_and_sees_types_shapes_and_nan() -> None:
    ones = np.ones((2, 3), np.float32)
    assert compare(ones, ones * np.float32(1 + 1e-6), "y", 1e-5) is None
    assert compare(ones, ones * np.float32(1 + 1e-4), "y", 1e-5)
    assert compare(np.ones(3, np.int64), np.array([1, 1, 2]), "y", 1e9)
    assert compare(ones, ones.reshape(3, 2), "y", 1.0) and compare(ones, ones.astype(np.float64), "y", 1.0)
    assert compare(np.full((2, 3), np.nan, np.float32), ones, "y", 1.0)
    assert compare(ones, np.full((2, 3), np.inf, np.float32), "y", 1.0) is None
    assert beyond_numbers(ones, np.full((2, 3), np.inf, np.float32)) and not beyond_numbers(ones, ones)
    half = draw("elementwise:0", CHOICES).model
    assert tolerance(half, 10_000) >= tolerance(half, 1) > 0


def test_the_summary_counts_by_family_and_by_reason() -> None:
    summary = Summary()
    assert summary.add("views:0", Verdict(RIGHT)) and not summary.failed
    assert summary.add("views:1", Verdict(CRASHED, "SIGSEGV")) and not summary.add(
        "views:2", Verdict(CRASHED, "SIGSEGV")
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in str(summary).splitlines()]
    assert summary.failed and ["crashed", "2", "views:1", "SIGSEGV", ""] in rows
    assert ["views", "3", "1", "0", "0", "0", "0", "2", "0", "0"] in rows


def test_one_fault_is_one_cause_whatever_it_is_met_in() -> None:
    """Kernels, element types, shapes and names differ from case to case; the operator that is refused counts."""
    text = "exp+{0} f32[{1}]: no rKernel for x86-64-{2} is right: exp+{0}_a{1}_t2: R203 written: elements of out_{3}"
    causes = {
        internal(DeviceError(text.format(op, n, arch, n % 7))).reason
        for op, n, arch in (("neg", 30, "avx2"), ("neg+mul", 57, "sse4"))
    }
    assert causes == {"no rKernel is right: R203 written: elements of …"}


def test_a_case_of_each_family_is_right() -> None:
    """On the CPU, as the command runs them."""
    names = [f"{family}:2" for family in FAMILIES]
    pool = Pool(Choices("cpu", POLICIES), LIMITS)
    found = dict(pool.run(names, time.monotonic() + 60))
    assert set(found) == set(names)
    assert not [f"{name}: {verdict}" for name, verdict in found.items() if verdict.failed]


def test_the_command_tells_of_failures_by_its_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["views:1", "--target", "interpreter", "--policy", "sequential", "--device", "2"]
    table = tmp_path / "table.md"
    assert main(words) == 0
    broken(monkeypatch, one_element)
    assert main([*words, "--no-shrink", "--table", str(table)]) == 1
    assert "views:1: wrong: another result" in capsys.readouterr().out
    assert "| wrong   |     1 | views:1 | another result" in table.read_text()
    assert main(["--family", "vews"]) == 2 and "did you mean 'views'" in capsys.readouterr().err


def test_the_table_is_there_when_a_run_is_cut_off(tmp_path: Path) -> None:
    run = _Run(tmp_path / "table.md", every=2)
    for seed in range(3):
        run.add(f"views:{seed}", Verdict(CRASHED, "a | b"))
    assert "| views  |     2 |" in (tmp_path / "table.md").read_text()
    assert "a \\| b" in str(run) and [*tmp_path.iterdir()] == [tmp_path / "table.md"]


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the C text, behind all proofs: a difference is a sum."""
    s = Sketch("made:4")
    model = s.model([s.node("Sub", s.input((28, 96)), s.weights(96, terms=1))])
    case = Case("made:4", model, s.inputs, Options("cpu", "wavefront", veus=2))
    assert verdict_of(case).outcome == RIGHT
    monkeypatch.setitem(INFIX, "sub", "+")
    found = verdict_of(case)
    assert (found.outcome, found.reason) == (WRONG, "another result, by the program")


@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
def test_a_stage_of_16_bits_that_is_not_rounded_is_found(dtype: int) -> None:
    s = Sketch("made:5")
    x, factor = s.input((28, 96)), s.constant(s.numpy.uniform(0.5, 1.5, 96), dtype)
    y = s.node("Cast", s.node("Mul", s.node("Cast", x, to=dtype), factor), to=FLOAT)
    case = Case("made:5", s.model([y]), s.inputs, Options("interpreter", "wavefront", veus=1))
    narrow, inputs = NUMPY[dtype], case.inputs(0)
    product = inputs[x].astype(narrow).astype(np.float32) * s.constants[factor].astype(np.float32)
    assert rounds_once(case.model) and next(iter(oracles(case.model))) == "evaluator"
    assert Trial(case)._judge(0, {y: product.astype(narrow).astype(np.float32)}).outcome == RIGHT
    assert Trial(case)._judge(0, {y: product}).outcome == WRONG


def test_without_onnx_runtime_the_standard_is_asked_before_our_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_case().model
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert [*oracles(model)] == ["evaluator", "interpreter"]
    said = consult(model, small_case().inputs(0))
    assert said is not None and said[0] == "evaluator"


def test_formulas_say_what_onnx_runtime_says() -> None:
    """Of quantised operators, which share no text with the importer; a result right between two steps may be either."""
    if sums_saturate():
        pytest.skip("ONNX Runtime's products of bytes are not exact on this CPU")
    onnxruntime, compared = oracles(small_case().model)["onnxruntime"], 0
    for seed in range(40):
        case = draw(f"zeros:{seed}", CHOICES)
        inputs = case.inputs(0)
        try:
            wanted = onnxruntime(case.model, inputs)
        except Exception:  # it has not every combination of types
            continue
        compared += 1
        for name, value in evaluator(case.model, inputs).items():
            off = np.abs(value.astype(np.float64) - wanted[name].astype(np.float64))
            limit = 1.0 if value.dtype.kind in "iu" else 1e-5 * max(float(np.abs(value).max()), 1.0)
            assert off.max() <= limit and (off > limit / 2).mean() < 0.01, case.text()
    assert compared > 10


def test_an_oracle_of_another_type_than_declared_is_none() -> None:
    """ONNX's evaluator sums squares of int32 as int64."""
    s = Sketch("made:12")
    model = s.model([s.node("ReduceSumSquare", s.input((5, 37), I32, -9, 9))])
    inputs = {name: port.draw(s.numpy) for name, port in s.inputs.items()}
    assert consult(model, inputs, ("evaluator",)) is None
    said = consult(model, inputs, ("interpreter",))
    assert said is not None and [v.dtype for v in said[1].values()] == [np.int32]


def test_formulas_of_doubles_are_of_doubles() -> None:
    """ONNX's evaluator computes Erf, and so Gelu, in float32, and LRN over as many channels as there are images."""
    s = Sketch("made:11")
    x, image = s.input((5, 37), DOUBLE, -7.0, 7.0), s.input((2, 7, 5, 3), DOUBLE)
    erf, gelu, smooth = s.node("Erf", x), s.node("Gelu", x), s.node("Gelu", x, approximate="tanh")
    norm = s.node("LRN", image, size=4, alpha=0.25, beta=0.75, bias=1.5)
    sizes = s.node("LpNormalization", x, axis=0, p=1)
    model = s.model([erf, gelu, smooth, norm, sizes])
    inputs = {name: port.draw(s.numpy) for name, port in s.inputs.items()}
    a, b = inputs[x], inputs[image]
    around = [np.sum(b[:, max(c - 1, 0) : c + 3] ** 2, 1) for c in range(7)]  # ⌊3/2⌋ channels before, ⌈3/2⌉ after
    wanted = {
        erf: 1 - np.vectorize(erfc)(a),
        gelu: a / 2 * np.vectorize(erfc)(-a / sqrt(2)),
        smooth: a / (1 + np.exp(-2 * sqrt(2 / pi) * (a + 0.044715 * a**3))),
        sizes: a / np.abs(a).sum(0),
        norm: b / (1.5 + 0.25 / 4 * np.stack(around, 1)) ** 0.75,
    }
    for name, value in evaluator(model, inputs).items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-12, atol=1e-14)


def test_sums_of_16_bit_numbers_are_rounded_once() -> None:
    """ONNX's evaluator rounds after each term: a sum of 3000 numbers in bfloat16 stops at a tenth of its value."""
    s = Sketch("made:14")
    x, axes = s.input((3, 3000), BFLOAT, 0.5, 1.0), s.constant([1])
    total, squares, mean = (s.node(op, x, axes, keepdims=1) for op in ("ReduceSum", "ReduceSumSquare", "ReduceMean"))
    so_far, share = s.node("CumSum", x, s.constant(1)), s.node("Softmax", x)
    inputs = {x: s.inputs[x].draw(s.numpy)}
    a = inputs[x].astype(np.float64)
    wanted = {
        total: a.sum(1, keepdims=True),
        squares: (a * a).sum(1, keepdims=True),
        mean: a.mean(1, keepdims=True),
        so_far: a.cumsum(1),
        share: np.exp(a) / np.exp(a).sum(1, keepdims=True),
    }
    found = evaluator(s.model([*wanted]), inputs)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].astype(np.float64), value, rtol=2.0**-8)


def test_doubles_that_an_oracle_computes_in_float32_move_by_its_steps() -> None:
    """Of a variance of 3e-5 around 1, float32 leaves three digits."""
    s = Sketch("made:15")
    x, ones = s.input((1, 3, 2, 84), DOUBLE, 0.99, 1.01), s.constant(np.ones(3))
    y = s.node("GroupNormalization", x, ones, s.constant(np.zeros(3)), num_groups=3)
    model, inputs = s.model([y]), {x: s.inputs[x].draw(s.numpy)}
    away = inputs[x] - inputs[x].mean((2, 3), keepdims=True)
    exact = away / np.sqrt((away**2).mean((2, 3), keepdims=True) + 1e-5)
    wanted, allowed = evaluator(model, inputs)[y], tolerance(model, longest_sum(model))
    *_, moved = spreads(model, inputs, "evaluator")
    assert compare(exact, wanted, y, allowed) and not compare(exact, wanted, y, allowed, moved[y])
    assert compare(exact + 0.2, wanted, y, allowed, moved[y])


def test_indices_of_elements_may_be_fewer_along_other_axes() -> None:
    s = Sketch("made:13")
    x = s.input((5, 7), DOUBLE)
    y = s.node("GatherElements", x, s.constant(np.array([[1, 2, -1], [0, 3, 2]])), axis=0)
    inputs = {x: s.inputs[x].draw(s.numpy)}
    wanted = [[inputs[x][n, c] for c, n in enumerate(row)] for row in ((1, 2, -1), (0, 3, 2))]
    assert np.array_equal(evaluator(s.model([y]), inputs)[y], wanted)


@pytest.mark.parametrize("size", [1, 3, 4, 6, 9])
@pytest.mark.parametrize("shape", [(2, 7, 5, 3), (1, 5, 11), (3, 2)])
def test_lrn_of_doubles_divides_in_double_precision(size: int, shape: tuple[int, ...]) -> None:
    """Attributes arrive as np.float32, whose quotient by a number is one as well: 1e-8 of the result is lost."""
    s = Sketch("made:12")
    alpha, beta, bias = (float(np.float32(value)) for value in (0.7, 0.6, 1.1))
    x = s.input(shape, DOUBLE)
    y = s.node("LRN", x, size=size, alpha=alpha, beta=beta, bias=bias)
    inputs = {name: port.draw(s.numpy) for name, port in s.inputs.items()}
    wanted = np.empty(shape)
    for c in range(shape[1]):  # ⌊(size - 1)/2⌋ channels before, ⌈(size - 1)/2⌉ after
        around = inputs[x][:, max(c - (size - 1) // 2, 0) : c + size // 2 + 1]
        wanted[:, c] = inputs[x][:, c] / (bias + alpha / size * np.sum(around**2, 1)) ** beta
    np.testing.assert_allclose(evaluator(s.model([y]), inputs)[y], wanted, rtol=1e-13)


def test_a_vector_of_zero_points_belongs_to_rows_on_the_left_and_to_columns_on_the_right() -> None:
    """As many rows as columns and terms: any other axis would do for shapes."""
    s = Sketch("made:8")
    x, w = s.input((7, 7), U8, 0, 255), s.numpy.integers(-127, 128, (7, 7)).astype(np.int8)
    rows, columns = np.arange(7, dtype=np.uint8), np.arange(-3, 4, dtype=np.int8)
    y = s.node("MatMulInteger", x, s.constant(w), s.constant(rows), s.constant(columns))
    inputs = {x: s.inputs[x].draw(s.numpy)}
    wanted = (inputs[x].astype(int) - rows[:, None].astype(int)) @ (w.astype(int) - columns.astype(int))
    assert np.array_equal(evaluator(s.model([y]), inputs)[y], wanted)


def test_what_is_declared_may_be_false_and_runs_elsewhere() -> None:
    """A case's oracles see the model without lies; ONNX's evaluator gives the same with them."""
    told = 0
    for seed in range(8):
        case = draw(f"declared:{seed}", CHOICES)
        said = consult(case.model, case.inputs(0), ("evaluator",))
        again = consult(case.given, case.inputs(0), ("evaluator",))
        told += len(case.lies)
        assert case.given != case.model or not case.lies
        if said and again:
            for name, value in said[1].items():
                assert np.array_equal(value, again[1][name], equal_nan=value.dtype.kind == "f")
    assert told >= 8


def test_a_refusal_for_what_is_declared_is_a_fault() -> None:
    s = Sketch("made:6")
    y = s.node("Relu", s.node("Neg", s.input((5, 37))))
    lies = (Lie(y, FLOAT, (5, "?")), Lie("t2", FLOAT, None))
    case = Case("made:6", s.model([y]), s.inputs, Options("interpreter", "wavefront", veus=1), lies)
    trial = Trial(case)

    def refuse() -> Verdict:
        raise ModelError("Relu 'n1': 't3' is declared with shape [5, 7] but is float32[5×37]")

    found = trial._guarded(refuse)
    assert found == Verdict(INTERNAL, "refused for shapes that are declared: … is declared with shape … but is T…", ANY)
    honest = Trial(replace(case, lies=()))._guarded(refuse)
    assert honest is not None and honest.outcome == REFUSED


def test_integers_of_what_does_not_fit_are_not_compared() -> None:
    s = Sketch("made:7")
    x = s.input((4, 50), special=0.3)
    y = s.node("Cast", x, to=I32)
    s.undefined[y] = x
    case = Case("made:7", s.model([y]), s.inputs, Options("interpreter", "wavefront", veus=1), undefined=s.undefined)
    value = case.inputs(0)[x]
    fits = np.isfinite(value) & (np.abs(value) < 2.0**31)
    assert 0 < fits.sum() < value.size
    other = {y: np.where(fits, value, 7).astype(np.int32)}
    assert Trial(case)._judge(0, other).outcome == RIGHT
    other[y][fits] += 1
    assert Trial(case)._judge(0, other).outcome == WRONG


def test_where_oracles_disagree_nothing_is_drawn() -> None:
    """30 to 2 elements by a float scale of 1/15: the place 7 comes out a little less, and windows that cut an image."""
    attrs = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "floor"}
    assert windows._between(30, 2, attrs) and not windows._between(32, 2, attrs)
    cut = {"strides": [3], "kernel_shape": [1]}
    assert windows._cuts((9,), cut) and not windows._cuts((10,), cut)
