"""Figures 1, 2, 14 and 16: how much of a device is used, and what scheduling costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from statistics import fmean

from benchmarks.paper.experiments import measured, simulated
from benchmarks.paper.experiments.planner import BEYOND, NAMES, RAMMER, RAMMER_BASE
from benchmarks.paper.experiments.simulated import MODELS, title
from benchmarks.paper.figure import Claim, Drawn, Figure, Panel, Points

SPEC = "v100"
SIX = tuple(f"{model}:1" for model in MODELS)
OWN = (RAMMER_BASE, RAMMER, BEYOND)
TF = (
    (
        "TensorFlow",
        "its time between kernels cannot be simulated; RammerBase replaces the two layers, with launches of 3 "
        "µs by the spec, and no run-time cost between them",
    ),
)

Number = Callable[[Points, str, str], float | None]  # of a model under a policy


def _in_kernels(points: Points, model: str, policy: str) -> float | None:
    """Percent of the vEUs' time inside rTasks, launches left out, as nvprof's SM efficiency."""
    busy = simulated.number(points, SPEC, model, policy, "busy")
    ms = simulated.number(points, SPEC, model, policy)
    launch_ms = simulated.number(points, SPEC, model, policy, "launch_ms")
    return None if busy is None or not ms or launch_ms is None else 100 * busy * ms / (ms - launch_ms)


def _overhead(points: Points, model: str, policy: str) -> float | None:
    share = simulated.number(points, SPEC, model, policy, "overhead")
    return None if share is None else 100 * share


def _ms(points: Points, model: str, policy: str) -> float | None:
    return simulated.number(points, SPEC, model, policy)


def _kernel_ms(points: Points, model: str, policy: str) -> float | None:
    ms, launch_ms = _ms(points, model, policy), simulated.number(points, SPEC, model, policy, "launch_ms")
    return None if ms is None or launch_ms is None else ms - launch_ms


def _mean(points: Points, number: Number, policy: str, models: Sequence[str]) -> float | None:
    found = [v for m in models if (v := number(points, m, policy)) is not None]
    return fmean(found) if len(found) == len(models) else None


def _gain(number: Number, more: str, less: str) -> Callable[[Points], str | None]:
    """The mean over models of one policy's number over another's, and the largest."""

    def found(points: Points) -> str | None:
        each = {m: (number(points, m, more), number(points, m, less)) for m in SIX}
        return simulated.spread({m: a / b for m, (a, b) in each.items() if a is not None and b})

    return found


def _by_batch(
    points: Points, numbers: Mapping[str, Number], batches: Sequence[int]
) -> dict[str, tuple[float | None, ...]]:
    return {
        f"{name}, BS {batch}" if name else f"BS {batch}": tuple(
            number(points, f"{model}:{batch}", RAMMER_BASE) for model in MODELS
        )
        for batch in batches
        for name, number in numbers.items()
    }


BATCHES = (1, 4, 16)
ALL = tuple(f"{model}:{batch}" for model in MODELS for batch in BATCHES)


def _average(number: Number, batch: int) -> Callable[[Points], str | None]:
    def found(points: Points) -> str | None:
        mean = _mean(points, number, RAMMER_BASE, [f"{model}:{batch}" for model in MODELS])
        return None if mean is None else f"{mean:.0f}%"

    return found


FIGURE_1 = Figure(
    name="figure1",
    title="Figure 1",
    caption="The average GPU utilization on different DNN model with different batch size (BS).",
    section="§2",
    how="The share of the vEUs' time in rTasks while kernels run, when every operator has the whole device "
    "(RammerBase: two layers, instead of TensorFlow).",
    jobs=lambda: simulated.jobs(SPEC, ALL, (RAMMER_BASE,)),
    draw=lambda points: Drawn(
        (
            Panel(
                f"RammerBase, simulated on spec {SPEC}",
                "utilisation (%)",
                "bars",
                tuple(MODELS.values()),
                _by_batch(points, {"": _in_kernels}, BATCHES),
            ),
        )
    ),
    claims=(
        Claim(
            "Seq2Seq, BS 1",
            "2%",
            lambda p: None if (v := _in_kernels(p, "seq2seq_unrolled:1", RAMMER_BASE)) is None else f"{v:.0f}%",
        ),
        Claim("average over the models, BS 16", "40%", _average(_in_kernels, 16)),
    ),
    differs=(
        "RammerBase fuses operators and has rKernels made for these shapes; TensorFlow has neither.",
        "A vEU is busy while an rTask runs on it: SM efficiency counts warps, this counts blocks.",
    ),
    absent=TF,
    results="models",
)

FIGURE_2 = Figure(
    name="figure2",
    title="Figure 2",
    caption="The average kernel time and end-to-end execution time on different DNN model with different batch size "
    "(BS).",
    section="§2",
    how="RammerBase instead of TensorFlow: the time outside kernels is the time of all launches.",
    jobs=lambda: simulated.jobs(SPEC, ALL, (RAMMER_BASE,)),
    draw=lambda points: Drawn(
        (
            Panel(
                f"RammerBase, simulated on spec {SPEC}",
                "time (ms)",
                "bars",
                tuple(MODELS.values()),
                _by_batch(points, {"kernels": _kernel_ms, "end to end": _ms}, (1, 16)),
                log=True,
            ),
        )
    ),
    claims=(
        Claim("average overhead, BS 1", "55%", _average(_overhead, 1)),
        Claim("overhead, BS 16", "16% to 55%", _average(_overhead, 16)),
    ),
    differs=("Only launches are overhead here; TensorFlow's executor, copies and context switches are not simulated.",),
    absent=TF,
    results="models",
)


def _measured_share(points: Points, policy: str, name: str) -> tuple[float | None, ...]:
    peer = {RAMMER_BASE: "rammer-sequential", BEYOND: "rammer"}.get(policy, "")
    found = (measured.number(points, "cpu", model, peer, name) for model in SIX)
    return tuple(None if v is None else 100 * v for v in found)


def _panels(points: Points, title_: str, number: Number, cpu: str, flip: bool) -> list[Panel]:
    groups = tuple(map(title, SIX))
    rows = {NAMES[p]: tuple(number(points, m, p) for m in SIX) for p in OWN}
    panels = [Panel(f"{title_}, simulated on spec {SPEC}", "%", "bars", groups, rows)]
    own = {NAMES[p]: _measured_share(points, p, cpu) for p in (RAMMER_BASE, BEYOND)}
    if any(v is not None for row in own.values() for v in row):
        shown = {n: tuple(None if v is None else 100 - v if flip else v for v in row) for n, row in own.items()}
        panels.append(Panel(f"{title_}, measured on the CPU", "%", "bars", groups, shown))
    return panels


FIGURE_14 = Figure(
    name="figure14",
    title="Figure 14",
    caption="Comparison of GPU utilization.",
    section="§5.2.2",
    how="On the spec: the share of the vEUs' time in rTasks while kernels run. On the CPU: the same, by clocks in the "
    "running program, of the whole run.",
    jobs=lambda: chain(simulated.jobs(SPEC, SIX, OWN), measured.jobs(SIX, gpu=False, compilers=False)),
    draw=lambda points: Drawn(tuple(_panels(points, "Utilisation", _in_kernels, "overhead", flip=True))),
    claims=(
        Claim("Rammer over RammerBase, v100", "1.61× on average, up to 2.39×", _gain(_in_kernels, RAMMER, RAMMER_BASE)),
    ),
    differs=(
        "RammerBase takes the rKernel that is fastest alone, often one that is cut for all vEUs: they are "
        "busy, with more work in sum than under Rammer, whose rTasks are larger and fewer. So utilisation "
        "gains less than time does.",
        "A vEU is busy while an rTask runs on it, whether it computes or waits for memory.",
    ),
    absent=(*TF, ("TF-TRT", "TensorRT needs an NVIDIA GPU")),
    results="models",
)


def _scheduling(points: Points) -> Drawn:
    groups = tuple(map(title, SIX))
    times = {NAMES[p]: tuple(_ms(points, m, p) for m in SIX) for p in OWN}
    panel = Panel(f"Execution time, simulated on spec {SPEC}", "ms", "bars", groups, times, log=True)
    return Drawn((panel, *_panels(points, "Overhead", _overhead, "scheduling", flip=False)))


def _overhead_ms(policy: str) -> Callable[[Points], str | None]:
    def found(points: Points) -> str | None:
        each = [(_overhead(points, m, policy), _ms(points, m, policy)) for m in SIX]
        made = [(share, share * ms / 100) for share, ms in each if share is not None and ms is not None]
        if len(made) < len(SIX):
            return None
        return f"{fmean(s for s, _ in made):.2f}%, {fmean(ms for _, ms in made):.3f} ms"

    return found


FIGURE_16 = Figure(
    name="figure16",
    title="Figure 16",
    caption="GPU scheduling overhead on different models.",
    section="§5.2.3",
    how="On the spec: the share of launches and barriers in all vEUs' time. On the CPU: the share of the run in "
    "which no vEU is inside an rTask.",
    jobs=FIGURE_14.jobs,
    draw=_scheduling,
    claims=(
        Claim("RammerBase, v100", "18.43%, 2.27 ms", _overhead_ms(RAMMER_BASE)),
        Claim("Rammer, v100", "0.37 ms", _overhead_ms(RAMMER)),
    ),
    differs=(
        "A launch costs 3 µs and a barrier 1 µs by the spec; neither was measured.",
        "Runs are shorter than the paper's, so the time outside kernels weighs more.",
    ),
    absent=(*TF, ("TF-TRT", "TensorRT needs an NVIDIA GPU")),
    results="models",
)
