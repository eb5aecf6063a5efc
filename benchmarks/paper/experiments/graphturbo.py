"""Tables and figures of GraphTurbo (OSDI'23): what the paper prints, and plans of ours on its device's spec beside it.

A table's head is its first row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import geometric_mean, median

from benchmarks.graphturbo.device import CLUSTERS, NEAR_KIB, STCP920, memories
from benchmarks.graphturbo.networks import NETWORKS
from benchmarks.graphturbo.plans import BATCHES as OWN_BATCHES
from benchmarks.graphturbo.plans import BEST_BATCH, numbers, stages
from benchmarks.graphturbo.plans import SCOPES as OWN_SCOPES
from benchmarks.graphturbo.search import by_rules, searched
from benchmarks.paper.figure import Claim, Drawn, Figure, Job, Panel, Points, Source, Values

SPEC = STCP920.name
FULL_SIZE = "the bars have no numbers: this page has those of the text"
SOURCE = Source("simulated", f"{SPEC} ({STCP920.arch}, {STCP920.num_veus} vEUs, plans on paper)")

MODELS = {  # the paper's labels
    "A": "ResNet-50",
    "B": "BERT-128",
    "C": "BERT-256",
    "D": "BERT-384",
    "E": "BERT-512",
    "F": "DLRM",
    "G": "MobileNet-v2",
    "H": "Vision_Transformer",
    "I": "DenseNet",
    "J": "Conformer",
}
Table = Sequence[tuple[str, ...]]

BATCHES: Table = (
    ("approach", "batch size", "iterations", "batches per cluster", "sentences/s", "latency, ms"),
    ("TVM", "8", "1", "2", "138", "6.79"),
    ("TVM", "16", "1", "4", "512", "9.48"),
    ("TVM", "32", "2", "4", "512", "18.96"),
    ("TVM", "64", "4", "4", "512", "37.92"),
    ("GraphTurbo", "8", "1", "2", "138", "6.79"),
    ("GraphTurbo", "16", "1", "4", "512", "9.48"),
    ("GraphTurbo", "32", "1", "8", "4052", "7.67"),
    ("GraphTurbo", "64", "1", "16", "2716", "23.58"),
    ("GraphTurbo", "64", "2", "8", "4052", "15.34"),
    ("crafted code", "32", "1", "8", "4048", "7.62"),
)
SUMMARY: Table = (
    ("label", "model", "batch size", "batches per cluster, TVM", "GraphTurbo", "unit", "TVM's throughput"),
    ("A", MODELS["A"], "64", "2", "16", "images/s", "1064"),
    ("B", MODELS["B"], "32", "4", "8", "sentences/s", "512"),
    ("C", MODELS["C"], "16", "2", "4", "sentences/s", "412"),
    ("D", MODELS["D"], "8", "1", "2", "sentences/s", "36"),
    ("E", MODELS["E"], "8", "1", "2", "sentences/s", "324"),
    ("F", MODELS["F"], "1024", "64", "256", "queries/s", "131000"),
    ("G", MODELS["G"], "128", "2", "32", "images/s", "1416"),
    ("H", MODELS["H"], "32", "4", "8", "images/s", "40"),
    ("I", MODELS["I"], "32", "4", "8", "images/s", "456"),
    ("J", MODELS["J"], "12", "1", "3", "sentences/s", "184"),
)
_LEVELS, _WHO = ("DDR", "LLB", "L1"), ("TVM", "crafted", "GraphTurbo")
SCOPES: Table = (
    ("model", *(f"{level}, {who}" for level in _LEVELS for who in _WHO)),
    (MODELS["A"], "58", "1", "1", "0", "11", "11", "0", "291", "284"),
    (MODELS["B"], "242", "2", "1", "0", "0", "0", "0", "304", "305"),
    (MODELS["C"], "242", "2", "1", "0", "25", "110", "0", "401", "240"),
    (MODELS["D"], "515", "2", "1", "0", "49", "75", "0", "968", "967"),
    (MODELS["E"], "242", "2", "1", "0", "25", "76", "0", "474", "337"),
    (MODELS["F"], "76", "1", "0", "0", "0", "0", "0", "75", "76"),
    (MODELS["G"], "56", "1", "0", "0", "7", "3", "0", "619", "608"),
    (MODELS["H"], "214", "–", "24", "0", "–", "60", "0", "–", "340"),
    (MODELS["I"], "247", "–", "0", "0", "–", "3", "0", "–", "389"),
    (MODELS["J"], "1054", "–", "4", "0", "–", "813", "0", "–", "250"),
)
SECONDS: Table = (
    ("model", "TVM", "AStitch", "GraphTurbo"),
    *(
        (MODELS[label], *numbers)
        for label, *numbers in (
            ("A", "102", "66", "139"),
            ("B", "159", "128", "199"),
            ("C", "170", "136", "224"),
            ("D", "312", "290", "699"),
            ("E", "171", "143", "282"),
            ("F", "25", "22", "23"),
            ("G", "74", "57", "248"),
            ("H", "189", "146", "340"),
            ("I", "173", "129", "189"),
            ("J", "382", "238", "296"),
        )
    ),
)
ON_A100: Table = (
    ("batch size", "TVM, ms", "CUTLASS fusion, ms", "graph scheduling, ms", "over TVM", "over CUTLASS fusion"),
    ("64", "0.99", "0.84", "0.83", "1.19×", "1.01×"),
    ("128", "1.88", "1.62", "1.50", "1.25×", "1.08×"),
    ("256", "3.51", "3.04", "2.83", "1.24×", "1.07×"),
    ("512", "6.76", "5.83", "5.44", "1.24×", "1.07×"),
)
SPEEDUPS: Table = (
    ("GraphTurbo over", "on average"),
    ("TVM", "11.15×"),
    ("AStitch (falls behind TVM on ResNet-50 and MobileNet-v2)", "6.16×"),
    ("crafted code (ahead on BERT-512 and MobileNet-v2, behind on BERT-384; A to G alone)", "1.04×"),
)
PARTS: Table = (
    ("variant", "on average"),
    ("1: outputs of kernels in LLB", "not always faster than TVM"),
    ("2: in L1, over TVM", "3.67×"),
    ("3: sub-graphs cut into instances and ordered, over 2", "2.20×"),
    ("4: instructions scheduled across layers, over 3", "1.72×"),
)
USAGE: Table = (
    ("what", "the paper's text"),
    ("both units", "grow with the batch size"),
    ("BERT-128", "falls from 8 to 16 a cluster: tensors are spilled"),
)
STAGES: Table = (
    ("stage of ResNet-50", "the paper's text"),
    ("1", "as TVM"),
    ("2, 3 and 4", "above TVM"),
)


LABELS = {  # of our networks
    "ResNet-50": "A",
    "BERT-128": "B",
    "BERT-256": "C",
    "BERT-384 large": "D",
    "BERT-512": "E",
    "MobileNet-v2": "G",
    "DenseNet-121": "I",
}
ABSENT = (
    (
        ", ".join(MODELS[label] for label in MODELS if label not in LABELS.values()),
        "not modelled: the paper does not name its variants",
    ),
)
NO_VECTORS = ("VME", "estimated layers count multiply-adds of matrix units, not the work of vector units")
NO_OTHERS = ("crafted code", "we have none: plans by search are the best ones found")
ASSUMED = (
    "Nothing ran: bytes are those of simulated plans, and milliseconds follow from rates alone. The peak and the "
    f"rate of the shared memory are assumed, and the {NEAR_KIB} KiB for each core inferred (docs/graphturbo.md). "
    "Every core computes at its peak.",
    "TVM stands for layers one by one with results in main memory, at the same peak; the paper's TVM also "
    "computes more slowly. So we gain less over it at small batches, where weights take all the time either "
    "way.",
)
STAGED = "ResNet-50, sums apart"  # as the paper's Figure 3 counts layers


def _key(name: str, batch: int, kib: int = NEAR_KIB) -> str:
    return f"{SPEC} {name}:{batch} {kib} KiB"


def _plans(name: str, batch: int, kib: int) -> tuple[Source, Values]:
    return SOURCE, numbers(name, batch, kib)


def _stages() -> tuple[Source, Values]:
    return SOURCE, stages(STAGED, BEST_BATCH["ResNet-50"][1])


RUNS = 3


def _planning(name: str) -> tuple[Source, Values]:
    """Median seconds of planning at the paper's batch, by its rules and by search."""
    from benchmarks.compare.run import machine

    network, found = NETWORKS[name](BEST_BATCH[name][1]), {}
    for way, make in (("rules", by_rules), ("search", searched)):
        seconds = []
        for _ in range(RUNS):
            begin = time.perf_counter()
            make(network, memories())
            seconds.append(time.perf_counter() - begin)
        found[way] = float(f"{median(seconds):.3g}")
    return Source("measured", f"cpu: {machine()['cpu']}, one thread"), {"n": RUNS, "seconds": found}


def _jobs(wanted: Iterable[tuple[str, int, int]]) -> Callable[[], Iterable[Job]]:
    keys = {_key(*one): one for one in wanted}
    return lambda: [Job(key, partial(_plans, *one)) for key, one in keys.items()]


MEANS = "Means here are geometric means of seven models; the paper's are of ten."
ALL = [(name, batch, NEAR_KIB) for name in LABELS for batch in OWN_BATCHES]
BEST = [(name, batch, NEAR_KIB) for name, both in BEST_BATCH.items() for batch in both]


def _ms(points: Points, name: str, batch: int, way: str, how: str = "ahead") -> float | None:
    """Milliseconds of a plan; layer by layer everything is in turn."""
    if (point := points.get(_key(name, batch))) is None:
        return None
    return float(point.values["ways"][way][f"{'in_turn' if way == 'layers' else how}_ms"])


def _rate(points: Points, name: str, batch: int, way: str, how: str = "ahead") -> float | None:
    """Images or sentences per second of all clusters."""
    ms = _ms(points, name, batch, way, how)
    return 1e3 * CLUSTERS * batch / ms if ms else None


def _said(value: float | None, digits: int = 0, unit: str = "") -> str:
    return "–" if value is None else f"{value:,.{digits}f}{unit}"


def _draw_batches(points: Points) -> Drawn:
    ways = {"layer by layer": ("layers", "ahead"), "rules, in turn": ("rules", "in_turn"),
            "rules, weights ahead": ("rules", "ahead"), "search, weights ahead": ("search", "ahead")}  # fmt: skip
    rows: list[tuple[str, ...]] = [
        ("batches per cluster", "paper: TVM", "paper: GraphTurbo", *(f"{way}, sentences/s (ms)" for way in ways))
    ]
    printed = {(row[0], row[3]): f"{row[4]} ({row[5]} ms)" for row in reversed(BATCHES[1:])}
    for batch in (2, 4, 8, 16):
        ours = [
            f"{_said(_rate(points, 'BERT-128', batch, *how))} ({_said(_ms(points, 'BERT-128', batch, *how), 2)})"
            for how in ways.values()
        ]
        papers = (printed.get((who, str(batch)), "–") for who in ("TVM", "GraphTurbo"))
        rows.append((str(batch), *papers, *ours))
    return Drawn(tables={"Ours beside the paper's": rows, "The paper's numbers": list(BATCHES)})


def best_batch(points: Points, name: str, way: str) -> int | None:
    """The batch of a cluster with most throughput; of those within a hundredth of it the smallest."""
    rates = {batch: rate for batch in OWN_BATCHES if (rate := _rate(points, name, batch, way)) is not None}
    return min(b for b, rate in rates.items() if rate >= 0.99 * max(rates.values())) if rates else None


def _draw_summary(points: Points) -> Drawn:
    rows: list[tuple[str, ...]] = [
        ("model", "paper: TVM", "paper: GraphTurbo", "layer by layer", "rules", "search", "rules: per second")
    ]
    for name, (tvm, turbo) in BEST_BATCH.items():
        best = {way: best_batch(points, name, way) for way in ("layers", "rules", "search")}
        rate = _rate(points, name, best["rules"], "rules") if best["rules"] else None
        rows.append((name, str(tvm), str(turbo), *(str(b or "–") for b in best.values()), _said(rate)))
    return Drawn(tables={"Best batches of a cluster, ours": rows, "The paper's numbers": list(SUMMARY)})


def _gain(points: Points, name: str, way: str, how: str = "ahead") -> float | None:
    """Throughput at the paper's batch over layers one by one at TVM's."""
    tvm, turbo = BEST_BATCH[name]
    base, rate = _rate(points, name, tvm, "layers"), _rate(points, name, turbo, way, how)
    return rate / base if rate and base else None


def _step(points: Points, name: str, way: str, how: str) -> float | None:
    """Times faster than layers one by one, at the same batch."""
    batch = BEST_BATCH[name][1]
    base, ms = _ms(points, name, batch, "layers"), _ms(points, name, batch, way, how)
    return base / ms if base and ms else None


Found = Callable[[Points, str, str, str], float | None]


def _mean(points: Points, number: Found, way: str, how: str) -> float | None:
    each = [v for name in BEST_BATCH if (v := number(points, name, way, how)) is not None]
    return geometric_mean(each) if len(each) == len(BEST_BATCH) else None


def _bars(points: Points, number: Found, series: Mapping[str, tuple[str, str]], title: str) -> Panel:
    rows = {label: tuple(number(points, name, *how) for name in BEST_BATCH) for label, how in series.items()}
    return Panel(title, "times faster", "bars", tuple(BEST_BATCH), rows, log=True)


SPEEDUP = {
    "sub-graphs not cut": ("near", "in_turn"),
    "rules": ("rules", "ahead"),
    "search": ("search", "ahead"),
}
ADDED = {
    "1: in LLB": ("shared", "in_turn"),
    "2: in L1": ("near", "in_turn"),
    "3: instances": ("rules", "in_turn"),
    "4: weights ahead": ("rules", "ahead"),
    "4, by search": ("search", "ahead"),
}


def _draw_speedups(points: Points) -> Drawn:
    panel = _bars(points, _gain, SPEEDUP, f"Throughput over layer by layer, simulated on spec {SPEC}")
    return Drawn((panel,), {"The paper's numbers": list(SPEEDUPS)})


def _draw_parts(points: Points) -> Drawn:
    panel = _bars(points, _step, ADDED, f"Over layer by layer at the same batch, simulated on spec {SPEC}")
    return Drawn((panel,), {"The paper's numbers": list(PARTS)})


def _claim(what: str, paper: str, number: Found, fast: tuple[str, str], slow: tuple[str, str] | None = None) -> Claim:
    def ours(points: Points) -> str | None:
        mean, below = _mean(points, number, *fast), _mean(points, number, *slow) if slow else 1.0
        return f"{mean / below:.2f}×" if mean and below else None

    return Claim(what, paper, ours)


def _draw_scopes(points: Points) -> Drawn:
    head = ("model", "batch", "KiB of a core", "paper: DDR / LLB / L1", "rules", "search", "concats, copies")
    rows: list[tuple[str, ...]] = [head]
    for name, (batch, kib, paper) in OWN_SCOPES.items():
        if point := points.get(_key(name, batch, kib)):
            v = point.values
            ours = (" / ".join(map(str, v["ways"][way]["scopes"])) for way in ("rules", "search"))
            rows.append(
                (name, str(batch), str(kib), " / ".join(map(str, paper)), *ours, f"{v['concats']}, {v['copies']}")
            )
    return Drawn(tables={"Ours beside the paper's": rows, "The paper's numbers": list(SCOPES)})


def _usage(points: Points, name: str, batch: int, way: str) -> float | None:
    """Percent of a run in which the matrix units compute."""
    point, ms = points.get(_key(name, batch)), _ms(points, name, batch, way)
    return min(100.0, 100 * point.values["computing_ms"] / ms) if point and ms else None


USED = [("BERT-128", batch, NEAR_KIB) for batch in (4, 8, 16)] + [
    ("ResNet-50", batch, NEAR_KIB) for batch in (1, 2, 4, 8, 16)
]


def _draw_usage(points: Points) -> Drawn:
    groups = tuple(f"{name}, {batch}" for name, batch, _ in USED)
    rows = {
        label: tuple(_usage(points, name, batch, way) for name, batch, _ in USED)
        for label, way in (("layer by layer", "layers"), ("rules", "rules"), ("search", "search"))
    }
    panel = Panel(f"MME, simulated on spec {SPEC}", "% of the run", "bars", groups, rows)
    return Drawn((panel,), {"The paper's text": list(USAGE)})


def _draw_stages(points: Points) -> Drawn:
    if (point := points.get(f"{SPEC} stages")) is None:
        return Drawn(tables={"The paper's text": list(STAGES)})
    v = point.values
    groups = tuple(f"stage {n}: {layers} layers" for n, layers in enumerate(v["groups"], 1))
    computing = v["computing_ms"]
    rows = {
        "layer by layer": tuple(100 * c / (c + m) for c, m in zip(computing, v["layers"], strict=True)),
        "rules": tuple(100 * min(1.0, c / m) for c, m in zip(computing, v["rules"], strict=True)),
    }
    panel = Panel(f"MME, simulated on spec {SPEC}", "% of the stage's time", "bars", groups, rows)
    head = ("stage", "layers", "instances", "computing, ms", "moving layer by layer, ms", "moving by rules, ms")
    each = zip(v["groups"], v["instances"], computing, v["layers"], v["rules"], strict=True)
    table = [head, *((str(n), str(a), str(b), *(f"{ms:.3f}" for ms in c)) for n, (a, b, *c) in enumerate(each, 1))]
    return Drawn((panel,), {"Stages": table, "The paper's text": list(STAGES)})


def _draw_seconds(points: Points) -> Drawn:
    rows: list[tuple[str, ...]] = [("model", "batch of a cluster", "rules, s", "search, s")]
    for name, (_, batch) in BEST_BATCH.items():
        if point := points.get(f"cpu planning {name}"):
            seconds = point.values["seconds"]
            rows.append((name, str(batch), f"{seconds['rules']:.3g}", f"{seconds['search']:.3g}"))
    ours = {"Planning, ours": rows} if len(rows) > 1 else {}
    return Drawn(tables={**ours, "The paper's numbers": list(SECONDS)})


def _figure(
    name: str,
    caption: str,
    section: str,
    how: str,
    jobs: Callable[[], Iterable[Job]],
    draw: Callable[[Points], Drawn],
    claims: Sequence[Claim] = (),
    differs: Sequence[str] = ASSUMED,
    absent: Sequence[tuple[str, str]] = ABSENT,
) -> Figure:
    slug = f"graphturbo-{name.lower().replace(' ', '')}"
    title = f"GraphTurbo, {name}"
    return Figure(
        slug, title, caption, section, how, jobs, draw, tuple(claims), tuple(differs), tuple(absent), "graphturbo"
    )


FIGURES = (
    _figure(
        "Table 1",
        "Results of BERT-128 under different batch sizes.",
        "§5.1",
        f"Four clusters of spec {SPEC}, each with a batch of its own. Layer by layer is TVM's column; plans by the "
        "paper's rules, computing and moving in turn or with weights that come during the layer before (§4.4); and "
        "plans that are searched.",
        _jobs(("BERT-128", batch, NEAR_KIB) for batch in (2, 4, 8, 16)),
        _draw_batches,
        differs=(
            *ASSUMED,
            "At 16 a cluster the paper's tensors are spilled, and throughput falls by a third; with 1280 KiB "
            "for each core ours fit, and it stays.",
        ),
        absent=(NO_OTHERS,),
    ),
    _figure(
        "Table 2",
        "Summary of the models.",
        "§5.2",
        f"The batch of a cluster with most throughput on spec {SPEC}, of 1, 2, 4 … 32; of those within 1 % of it the "
        "smallest. BERT-384 is read as BERT-large: of BERT-base it would be an eighth as fast as its neighbours.",
        _jobs(ALL),
        _draw_summary,
        differs=(
            *ASSUMED,
            "With prefetched weights, a plan reaches its peak as soon as computing takes longer than moving: "
            "larger batches then gain nothing, and the smallest one is chosen. Layer by layer, every batch "
            "takes its share of the main memory's rate, so the largest wins.",
        ),
    ),
    _figure(
        "Figure 14",
        "Speedups of throughput over TVM.",
        "§5.2",
        "Throughput with the paper's batches (Table 2), over layer by layer with TVM's. Sub-graphs with local "
        f"results and without cuts replace AStitch. Of the paper's chart {FULL_SIZE}.",
        _jobs(BEST),
        _draw_speedups,
        claims=(
            _claim("GraphTurbo over TVM (here: rules over layer by layer)", "11.15×", _gain, ("rules", "ahead")),
            _claim("search over layer by layer", "–", _gain, ("search", "ahead")),
            _claim(
                "GraphTurbo over AStitch (here: over sub-graphs not cut)",
                "6.16×",
                _gain,
                ("rules", "ahead"),
                ("near", "in_turn"),
            ),
        ),
        differs=(*ASSUMED, MEANS),
        absent=(*ABSENT, NO_OTHERS),
    ),
    _figure(
        "Figure 15",
        "Individual contributions of each optimization.",
        "§5.3",
        "Layers with results in the shared memory, in local memory, sub-graphs cut into instances and ordered, and "
        f"prefetched weights; over layer by layer at the paper's batch. Of the paper's chart {FULL_SIZE}.",
        _jobs((name, batch, NEAR_KIB) for name, (_, batch) in BEST_BATCH.items()),
        _draw_parts,
        claims=(
            _claim("1: outputs of kernels in LLB, over TVM", "not always faster", _step, ADDED["1: in LLB"]),
            _claim("2: in L1, over TVM", "3.67×", _step, ADDED["2: in L1"]),
            _claim("3: instances, over 2", "2.20×", _step, ADDED["3: instances"], ADDED["2: in L1"]),
            _claim("4: weights ahead, over 3", "1.72×", _step, ADDED["4: weights ahead"], ADDED["3: instances"]),
            _claim("all, by search", "–", _step, ADDED["4, by search"]),
        ),
        differs=(*ASSUMED, MEANS),
    ),
    _figure(
        "Table 3",
        "Comparison of buffer scopes.",
        "§5.4",
        f"How many results of layers, or pieces of them, lie at each level in plans on spec {SPEC}; and what binding "
        "instances to cores adds (Algorithm 4). BERT-384 is read as BERT-large.",
        _jobs((name, batch, kib) for name, (batch, kib, _) in OWN_SCOPES.items()),
        _draw_scopes,
        differs=(
            "The paper's BERTs have more layers, and its numbers seem to count copies and redistributions, "
            "which is our last column.",
            "Two models match the paper's choice of levels with 1024 KiB for each core, the others with 1280.",
        ),
    ),
    _figure(
        "Figure 16",
        "Usage of VME/MME. x axis denotes batch sizes.",
        "§5.4",
        "The share of a run in which the matrix units compute, all at their peak; numbers of two bytes. Of the paper's "
        f"chart {FULL_SIZE}.",
        _jobs(USED),
        _draw_usage,
        absent=(
            NO_VECTORS,
            ("ResNet-50 in INT8", "the rate of the matrix units for one-byte numbers is unknown"),
        ),
    ),
    _figure(
        "Figure 17",
        "Utilization VME (left) and MME (right) when executing the stages in Fig.3a. y axis is the utilization "
        "percentage.",
        "§5.4",
        "The four stages that the paper's rules make of ResNet-50 with a batch of 16 (sums as layers of their own), "
        f"and the same layers one by one. Of the paper's chart {FULL_SIZE}.",
        lambda: [Job(f"{SPEC} stages", _stages)],
        _draw_stages,
        differs=(
            *ASSUMED,
            "The paper sees no gain in the first stage. Here units reach their peak for every shape, so "
            "layers one by one wait for memory, most of all for that stage's large images.",
        ),
        absent=(NO_VECTORS,),
    ),
    _figure(
        "Table 4",
        "Comparison of compilation overhead in seconds.",
        "§5.5",
        f"Seconds of planning alone, in Python, with the paper's batches on spec {SPEC}: kernels of that card are not "
        "compiled here, which is most of the paper's seconds.",
        lambda: [Job(f"cpu planning {name}", partial(_planning, name), target="cpu") for name in BEST_BATCH],
        _draw_seconds,
        differs=("Our planning compiles and tunes no kernels; the paper's seconds are of whole compilations.",),
        absent=(*ABSENT, ("TVM, AStitch", "neither compiles for that card here")),
    ),
    _figure(
        "Table 5",
        "Execution time in milliseconds on A100 GPU.",
        "§5.6",
        "ResNet18-Tailor (and Figure 18, its orders of layers) is to be measured where there is an NVIDIA GPU.",
        lambda: (),
        lambda points: Drawn(tables={"The paper's numbers": list(ON_A100)}),
        differs=(),
        absent=(
            (
                "ours",
                "times of another GPU than an A100 would not compare",
            ),
        ),
    ),
)
