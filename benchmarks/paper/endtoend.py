"""Figures 11, 12, 13, 19 and 20: how long whole models take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain

from benchmarks.paper import measured, simulated
from benchmarks.paper.figure import Claim, Drawn, Figure, Panel, Points
from benchmarks.paper.planner import BEYOND, NAMES, RAMMER, RAMMER_BASE, RAMMER_BASE_K
from benchmarks.paper.simulated import MODELS, RECURRENT, ratios, spread, title

NO_PEERS = (
    "TensorFlow, TF-XLA, TVM and TensorRT on that device",
    "other compilers cannot be simulated; they are measured where the device is, and on the CPU against today's peers",
)
BELIEVED = "Simulated times are those of our generated kernels as the spec believes them: not the paper's kernels."
LARGE = {"resnext101": "ResNeXt-101", "nasnet_imagenet": "NASNet"}


def _draw(points: Points, spec: str, models: Sequence[str], policies: Sequence[str], targets: Sequence[str]) -> Drawn:
    groups = tuple(LARGE.get(m) or title(m) for m in models)
    rows = {NAMES[p]: tuple(simulated.number(points, spec, m, p) for m in models) for p in policies}
    panels = [Panel(f"Simulated on spec {spec}", "execution time (ms)", "bars", groups, rows, log=True)]
    tables: dict[str, list[tuple[str, ...]]] = {f"Milliseconds, simulated on spec {spec}": _table(groups, rows)}
    for target in targets:
        peers = measured.GPU_PEERS if target == "cuda" else measured.PEERS
        if any(f"{target} {m}" in points for m in models):
            rows = {name: tuple(measured.number(points, target, m, p) for m in models) for p, name in peers.items()}
            panels.append(Panel(f"Measured, {target}", "median time (ms)", "bars", groups, rows, log=True))
            tables[f"Milliseconds, measured, {target} (medians)"] = _table(groups, rows)
            if failed := measured.failures(points, target, models):
                tables[f"Peers that failed, {target}"] = [("what",), *((what,) for what in failed)]
    return Drawn(tuple(panels), tables)


def _table(groups: Sequence[str], rows: dict[str, tuple[float | None, ...]]) -> list[tuple[str, ...]]:
    shown = [(name, *("–" if v is None else f"{v:.3f}" for v in row)) for name, row in rows.items()]
    return [("", *groups), *shown]


def _best_peer(points: Points, models: Sequence[str]) -> str | None:
    """Of each model the fastest peer over rammer, by median, on the CPU."""
    found = {}
    for model in models:
        times = {p: ms for p in measured.PEERS if (ms := measured.number(points, "cpu", model, p)) is not None}
        others = [ms for peer, ms in times.items() if not peer.startswith("rammer")]
        if "rammer" in times and others:
            found[model] = min(others) / times["rammer"]
    return spread(found)


def _figure(
    number: int,
    caption: str,
    section: str,
    how: str,
    spec: str,
    models: Sequence[str],
    *,
    policies: Sequence[str] = (RAMMER_BASE, RAMMER, BEYOND),
    targets: Sequence[str] = (),
    claims: Sequence[Claim] = (),
    differs: Sequence[str] = (),
    absent: Sequence[tuple[str, str]] = (NO_PEERS,),
) -> Figure:
    def gain(slow: str, fast: str, points: Points) -> str | None:
        return spread(ratios(points, spec, models, slow, fast))

    beyond = Claim(f"beyond the paper over RammerBase, {spec}", "–", partial(gain, RAMMER_BASE, BEYOND))
    peers = Claim("Rammer over the best peer of each model, cpu", "–", lambda points: _best_peer(points, models))
    base = Claim(
        "Rammer over RammerBase, cpu",
        "–",
        lambda points: spread(
            {
                m: slow / fast
                for m in models
                if (slow := measured.number(points, "cpu", m, "rammer-sequential"))
                and (fast := measured.number(points, "cpu", m, "rammer"))
            }
        ),
    )
    return Figure(
        name=f"figure{number}",
        title=f"Figure {number}",
        caption=caption,
        section=section,
        how=how,
        jobs=lambda: chain(
            simulated.jobs(spec, models, policies), measured.jobs(models, "cuda" in targets) if targets else ()
        ),
        draw=lambda points: _draw(points, spec, models, policies, targets),
        claims=(*claims, beyond, *((base, peers) if targets else ())),
        differs=(BELIEVED, *differs),
        absent=tuple(absent),
        results="models",
    )


def _over_base(spec: str, models: Sequence[str], paper: str) -> Claim:
    return Claim(
        f"Rammer over RammerBase, {spec}",
        paper,
        lambda points: spread(ratios(points, spec, models, RAMMER_BASE, RAMMER)),
    )


SIX = tuple(f"{model}:1" for model in MODELS)
BATCHED = tuple(f"{model}:{batch}" for model in ("resnext29", "lstm_tc_unrolled") for batch in (4, 16))
IMAGENET = tuple(f"{model}:1" for model in LARGE)
THREE = tuple(f"{model}:1" for model in RECURRENT)

FIGURE_11 = _figure(
    11,
    "End-to-end model inference time with batch size of 1 on NVIDIA V100 GPU.",
    "§5.2.1",
    "The six models, unrolled as the paper's artifact unrolls them.",
    "v100",
    SIX,
    targets=("cpu", "cuda"),
    claims=(_over_base("v100", SIX, "2.59× on average, up to 6.29×"),),
)
FIGURE_12 = _figure(
    12,
    "End-to-end model inference time with different batch sizes (BS).",
    "§5.2.1",
    "ResNeXt and LSTM-TC with batches of 4 and 16.",
    "v100",
    BATCHED,
    targets=("cpu", "cuda"),
    claims=(_over_base("v100", BATCHED, "not in the text"),),
)
FIGURE_13 = _figure(
    13,
    "End-to-end model inference time with the batch size of 1 on the ImageNet dataset (image size: 224×224).",
    "§5.2.1",
    "ResNeXt-101 (64x4d) and NASNet (4 @ 1056).",
    "v100",
    IMAGENET,
    targets=("cpu", "cuda"),
    claims=(_over_base("v100", IMAGENET, "not in the text"),),
)
FIGURE_19 = _figure(
    19,
    "End-to-end model inference time with batch size of 1 on AMD MI50 GPU.",
    "§5.3.1",
    "The six models; RammerBaseK is RammerBase with the rKernels that Rammer selects.",
    "mi50",
    SIX,
    policies=(RAMMER_BASE, RAMMER_BASE_K, RAMMER, BEYOND),
    claims=(
        _over_base("mi50", SIX, "2.19× on average, up to 4.12×"),
        Claim(
            "RammerBase over RammerBaseK, ResNeXt, mi50",
            "3.02×",
            lambda points: spread(ratios(points, "mi50", ["resnext29:1"], RAMMER_BASE_K, RAMMER_BASE)),
        ),
    ),
)
FIGURE_20 = _figure(
    20,
    "End-to-end model inference time with batch size of 1 on Graphcore IPU.",
    "§5.3.2",
    "The three recurrent models on the spec of a GC2.",
    "gc2",
    THREE,
    claims=(_over_base("gc2", THREE, "up to 5.37×"),),
    differs=(
        "The models have all their layers here: the paper cut them to 4, so that they fit one IPU. The timeline does "
        "not ask whether they fit.",
    ),
    absent=(),
)
FIGURES = (FIGURE_11, FIGURE_12, FIGURE_13)
OTHER_DEVICES = (FIGURE_19, FIGURE_20)
