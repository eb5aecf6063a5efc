"""Tables and figures of GraphTurbo (OSDI'23): what the paper prints. A table's head is its first row."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.paper.figure import Drawn, Figure

SPEC = "stcp920"
NO_CARD = "there is no such card here; a spec of it, and plans simulated on that, are not in this repository yet"
FULL_SIZE = "the bars are drawn without numbers: only what the text says of them is given here"

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


def _figure(name: str, caption: str, section: str, how: str, printed: Table, why: str = NO_CARD) -> Figure:
    """A page of what the paper prints, until there are jobs that make the same here."""
    return Figure(
        name=f"graphturbo-{name.lower().replace(' ', '')}",
        title=f"GraphTurbo, {name}",
        caption=caption,
        section=section,
        how=how,
        jobs=lambda: (),
        draw=lambda points: Drawn(tables={"The paper's numbers": list(printed)}),
        absent=(("ours", why),),
    )


FIGURES = (
    _figure(
        "Table 1",
        "Results of BERT-128 under different batch sizes.",
        "§5.1",
        f"To be simulated on spec {SPEC}: throughput and latency of layer-by-layer plans (TVM's column) and of policy "
        "`graphturbo`, by batches per cluster.",
        BATCHES,
    ),
    _figure(
        "Table 2",
        "Summary of the models.",
        "§5.2",
        f"To be simulated on spec {SPEC}: the batch per cluster with most throughput, layer by layer and under policy "
        "`graphturbo`. BERT-384 is read as BERT-large: of BERT-base it would be an eighth as fast as its neighbours.",
        SUMMARY,
    ),
    _figure(
        "Figure 14",
        "Speedups of throughput over TVM.",
        "§5.2",
        f"To be simulated on spec {SPEC} from Table 2's plans; AStitch as sub-graphs that are not cut into instances. "
        f"Of the paper's chart {FULL_SIZE}.",
        SPEEDUPS,
    ),
    _figure(
        "Figure 15",
        "Individual contributions of each optimization.",
        "§5.3",
        f"To be simulated on spec {SPEC}: outputs in LLB, in L1, instances ordered, and loads of weights ahead of "
        f"their layer. Of the paper's chart {FULL_SIZE}.",
        PARTS,
    ),
    _figure(
        "Table 3",
        "Comparison of buffer scopes.",
        "§5.4",
        f"To be counted from the plans on spec {SPEC}: how many tensors, or pieces of them, lie at each level.",
        SCOPES,
    ),
    _figure(
        "Figure 16",
        "Usage of VME/MME. x axis denotes batch sizes.",
        "§5.4",
        f"To be simulated on spec {SPEC}: shares of the run in which the vector and the matrix units work, of "
        f"ResNet-50 (FP16 and INT8, batches of 1 to 16) and BERT-128 (4 to 16). Of the paper's chart {FULL_SIZE}.",
        USAGE,
    ),
    _figure(
        "Figure 17",
        "Utilization VME (left) and MME (right) when executing the stages in Fig.3a. y axis is the utilization "
        "percentage.",
        "§5.4",
        f"To be simulated on spec {SPEC}: the same for each of ResNet-50's four stages. Of the paper's chart "
        f"{FULL_SIZE}.",
        STAGES,
    ),
    _figure(
        "Table 4",
        "Comparison of compilation overhead in seconds.",
        "§5.5",
        "Ours would be seconds of planning under policy `graphturbo` on this machine; kernels of that card are not "
        "compiled here.",
        SECONDS,
    ),
    _figure(
        "Table 5",
        "Execution time in milliseconds on A100 GPU.",
        "§5.6",
        "ResNet18-Tailor (and Figure 18, its orders of layers) is to be measured where there is an NVIDIA GPU.",
        ON_A100,
        "policy `graphturbo` was not measured on a GPU; on other GPUs than an A100 these times would not compare",
    ),
)
