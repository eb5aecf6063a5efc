"""Figures 11, 12, 13, 19 and 20: how long whole models take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from benchmarks.paper.experiments import measured, simulated
from benchmarks.paper.experiments.planner import BEYOND, NAMES, RAMMER, RAMMER_BASE, RAMMER_BASE_K
from benchmarks.paper.experiments.simulated import LARGE, MODELS, RECURRENT, ratios, spread, title
from benchmarks.paper.figure import Claim, Drawn, Figure, Panel, Points

NO_PEERS = (
    "TensorFlow, TF-XLA, TVM and TensorRT on that device",
    "other compilers cannot be simulated; on the CPU, today's peers replace them: PyTorch for TensorFlow, JAX "
    "for TF-XLA (the same compiler), IREE for TVM, ONNX Runtime for TensorRT. benchmarks/README.md says why "
    "TVM itself is not measured",
)
STAND_INS = {"TF": "torch", "TF-XLA": "jax", "TVM": "iree", "TF-TRT": "onnxruntime"}  # of today, on the CPU
NO_NUMBERS: Mapping[str, str | Mapping[str, str]] = {}
TWO_CORES = (
    "The CPU has two vEUs instead of the paper's eighty: running operators side by side gains less, and "
    "operators one by one cost barriers, not launches. A framework's operators come from vendors' libraries, "
    "which are tuned for it."
)
BELIEVED = "Simulated times are estimates of our generated kernels by the spec, not of the paper's kernels."
REFETCHED = (
    "Plans are chosen by prices that count evicted weights; the times here do not. So LSTM-TC at a batch of "
    "16, whose weights are three times the V100's L2, is slower beyond the paper than as printed (11.7 and "
    "9.7 ms), while the prices of the choice are 28.5 and 30.2 ms."
)


def _draw(points: Points, spec: str, models: Sequence[str], policies: Sequence[str], targets: Sequence[str]) -> Drawn:
    groups = tuple(map(title, models))
    rows = {NAMES[p]: tuple(simulated.number(points, spec, m, p) for m in models) for p in policies}
    panels = [Panel(f"Simulated on spec {spec}", "execution time (ms)", "bars", groups, rows, log=True)]
    tables: dict[str, list[tuple[str, ...]]] = {f"Milliseconds, simulated on spec {spec}": _table(groups, rows)}
    for target in targets:
        peers = measured.GPU_PEERS if target == "cuda" else measured.PEERS
        if any(key.startswith(f"{target} ") for key in points):
            rows = {name: tuple(measured.number(points, target, m, p) for m in models) for p, name in peers.items()}
            panels.append(Panel(f"Measured, {target}", "median time (ms)", "bars", groups, rows, log=True))
            tables[f"Milliseconds, measured, {target} (medians)"] = _table(groups, rows)
            if failed := measured.failures(points, target, models):
                tables[f"Peers that failed, {target}"] = [("what",), *((what,) for what in failed)]
    return Drawn(tuple(panels), tables)


def _table(groups: Sequence[str], rows: dict[str, tuple[float | None, ...]]) -> list[tuple[str, ...]]:
    shown = [(name, *("–" if v is None else f"{v:.3f}" for v in row)) for name, row in rows.items()]
    return [("", *groups), *shown]


OTHERS = tuple(peer for peer in measured.PEERS if not peer.startswith("rammer"))


def _over(peers: Sequence[str], models: Sequence[str]) -> Callable[[Points], str | None]:
    """Of each model the fastest of some peers over rammer, by medians on the CPU."""

    def found(points: Points) -> str | None:
        each = {}
        for model in models:
            ratios = [r for peer in peers if (r := measured.times_rammers(points, model, peer)) is not None]
            if ratios:
                each[model] = min(ratios)
        of = "" if len(each) == len(models) else f", {len(each)} of {len(models)} models"
        return f"{text}{of}" if (text := spread(each)) else None

    return found


def _by_model(
    texts: str | Mapping[str, str], peer: str, models: Sequence[str]
) -> Iterator[tuple[str, str, Callable[[Points], str | None]]]:
    """Yield what to add to a claim's name, the paper's text, and ours: for all models, or for each that is printed."""
    if isinstance(texts, str):
        yield "", texts, _over((peer,), models)
    else:
        yield from ((f", {title(model)}", text, _over((peer,), (model,))) for model, text in texts.items())


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
    peers: Mapping[str, str | Mapping[str, str]] = NO_NUMBERS,
    differs: Sequence[str] = (),
    absent: Sequence[tuple[str, str]] = (NO_PEERS,),
) -> Figure:
    def gain(slow: str, fast: str, points: Points) -> str | None:
        return spread(ratios(points, spec, models, slow, fast))

    beyond = Claim(f"beyond the paper over RammerBase, {spec}", "–", partial(gain, RAMMER_BASE, BEYOND))
    on_cpu = [
        Claim(f"Rammer over {name} (here: {measured.PEERS[STAND_INS[name]]}, CPU){of}", text, found)
        for name, texts in peers.items()
        for of, text, found in _by_model(texts, STAND_INS[name], models)
    ]
    on_cpu += [
        Claim("Rammer over RammerBase, CPU", "–", _over(("rammer-sequential",), models)),
        Claim("Rammer over the best peer of each model, CPU", "–", _over(OTHERS, models)),
    ]
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
        claims=(*claims, beyond, *(on_cpu if targets else ())),
        differs=(BELIEVED, *differs, *((TWO_CORES,) if targets else ())),
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
THREE = tuple(f"{model}:1:four" for model in RECURRENT)

FIGURE_11 = _figure(
    11,
    "End-to-end model inference time with batch size of 1 on NVIDIA V100 GPU.",
    "§5.2.1",
    "The six models, unrolled as the paper's artifact unrolls them.",
    "v100",
    SIX,
    targets=("cpu", "cuda"),
    claims=(_over_base("v100", SIX, "2.59× on average, up to 6.29×"),),
    peers={
        "TF": "14.29× on average, up to 33.94× (LSTM-TC)",
        "TF-XLA": "11.25× on average, up to 20.12×",
        "TVM": "3.48× on average, up to 6.46×",
        "TF-TRT": "2.18× on average, up to 3.09×",
    },
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
    differs=(REFETCHED,),
    peers={
        "TF": {"resnext29:16": "2.25×", "lstm_tc_unrolled:16": "20.08×"},
        "TVM": {"resnext29:16": "1.25×", "lstm_tc_unrolled:16": "9.0×"},
        "TF-TRT": {"resnext29:16": "slower", "lstm_tc_unrolled:16": "faster"},
    },
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
    peers={
        "TF": dict(zip(IMAGENET, ("18.91×", "6.99×"), strict=True)),
        "TVM": dict(zip(IMAGENET, ("4.96×", "1.33×"), strict=True)),
        "TF-TRT": dict(zip(IMAGENET, ("2.06×", "2.34×"), strict=True)),
    },
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
    "The three recurrent models on the spec of a GC2, with 4 layers each, as the paper has them (of Seq2Seq 4 in the "
    "encoder and 4 in the decoder).",
    "gc2",
    THREE,
    claims=(_over_base("gc2", THREE, "up to 5.37×"),),
    absent=(),
)
FIGURES = (FIGURE_11, FIGURE_12, FIGURE_13)
OTHER_DEVICES = (FIGURE_19, FIGURE_20)
