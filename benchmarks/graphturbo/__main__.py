"""Print GraphTurbo's tables next to ours, simulated for the STCP920's spec: `python -m benchmarks.graphturbo`.

Nothing is measured: bytes are those of simulated plans, and times follow from the spec's rates. Some rates are assumed.
"""

from __future__ import annotations

from statistics import geometric_mean

import click
from rich.console import Console
from rich.table import Table

from benchmarks.graphturbo.device import CLUSTERS, NEAR_KIB, memories, times
from benchmarks.graphturbo.networks import CASES, NETWORKS
from benchmarks.graphturbo.plans import BATCHES, BEST_BATCH, SCOPES, copies, timeline, timeline_bound, ways
from benchmarks.graphturbo.plans import scopes as places
from benchmarks.graphturbo.search import Paper, by_rules, searched
from benchmarks.graphturbo.trace import chrome_trace
from rammer import files
from rammer.errors import RammerError

THROUGHPUT = {2: 138, 4: 512, 8: 4052, 16: 2716}  # Table 1: BERT-128, sentences/s by the batch of a cluster
out = Console(width=160)


def table(title: str, *columns: str) -> Table:
    return Table(*columns, title=f"{title} (simulated)", title_justify="left")


def megabytes(plan: Paper) -> str:
    moved = plan.moved
    return f"{moved.main / 1e6:.1f} + {moved.weights / 1e6:.1f} ({moved.shared / 1e6:.1f})"


def cuts(plan: Paper) -> str:
    factors = [split.factor if split else 1 for split in plan.splits]
    return f"{plan.order}: {', '.join(map(str, factors[:6]))}{', …' if len(factors) > 6 else ''}"


def against_the_bound() -> Table:
    """The facts' cases."""
    found = table(
        "MB over DDR, tensors + weights (over LLB)", "model", "batch", "KiB", "least", "rules", "search", "cuts"
    )
    for name, batch, kib in CASES:
        network, room = NETWORKS[name](batch), memories(kib)
        rules, search = by_rules(network, room), searched(network, room)
        least = f"{network.least_bytes / 1e6:.1f}"
        found.add_row(name, str(batch), str(kib), least, megabytes(rules), megabytes(search), cuts(search))
    return found


def best_batches() -> Table:
    """Return Table 2: one cluster, with the batch that moves the fewest bytes of DDR per image."""
    found = table(
        "Table 2: the best batch of a cluster", "model", "paper", "rules", "search", "MB an image by batch, search"
    )
    for name, (_, paper) in BEST_BATCH.items():
        each: dict[str, dict[int, float]] = {"rules": {}, "search": {}}
        for batch in BATCHES:
            network = NETWORKS[name](batch)
            for how, plan in (("rules", by_rules(network, memories())), ("search", searched(network, memories()))):
                each[how][batch] = (plan.moved.main + plan.moved.weights) / batch / 1e6
        best = [str(min(by, key=lambda n: round(by[n], 1))) for by in each.values()]
        found.add_row(name, str(paper), *best, ", ".join(f"{mb:.1f}" for mb in each["search"].values()))
    return found


def scopes() -> Table:
    """Return Table 3: memories of results. Algorithm 4 adds `moves`; the paper seems to count them as results."""
    found = table("Table 3: tensors in DDR / LLB / L1", "model", "batch", "KiB", "paper", "rules", "concats", "moves")
    for name, (batch, kib, paper) in SCOPES.items():
        network = NETWORKS[name](batch)
        plan = by_rules(network, memories(kib))
        concats, moves = copies(network, plan)
        said = ", ".join(f"{n} {kind}" for kind, n in moves.items())
        paper_said, mine = (" / ".join(map(str, counts)) for counts in (paper, places(plan)))
        found.add_row(name, str(batch), str(kib), paper_said, mine, str(concats), said)
    return found


def throughput() -> Table:
    """Return Table 1 and Figures 15 and 16: BERT-128 by batch, on four clusters."""
    found = table(
        "Table 1: BERT-128, sentences/s",
        "batch of a cluster",
        "paper",
        "in turn",
        "ahead",
        "computing, of the time ahead",
    )
    for batch, paper in THROUGHPUT.items():
        network = NETWORKS["BERT-128"](batch)
        took = times(network, by_rules(network, memories()).moved)
        rates = (f"{1e3 * CLUSTERS * batch / ms:.0f}" for ms in (took.in_turn, took.ahead))
        found.add_row(str(batch), str(paper), *rates, f"{took.computing / took.ahead:.0%}")
    return found


def contributions() -> Table:
    """Return Figures 14 and 15: results in shared memory, in local memory, in instances, and with weights prefetched.

    The paper gives means of ten models.
    """
    found = table(
        "Figures 14, 15: times faster than layer by layer",
        "model",
        "batch",
        "in LLB",
        "in L1",
        "instances",
        "ahead",
        "search",
    )
    each: list[list[float]] = []
    for name, (_, batch) in BEST_BATCH.items():
        network = NETWORKS[name](batch)
        took = {way: times(network, plan.moved) for way, plan in ways(network, memories()).items()}
        turns = [took[way].in_turn for way in ("shared", "near", "rules")]
        each.append([took["layers"].in_turn / ms for ms in (*turns, took["rules"].ahead, took["search"].ahead)])
        found.add_row(name, str(batch), *(f"{rate:.2f}" for rate in each[-1]))
    found.add_row("geometric mean", "", *(f"{rate:.2f}" for rate in map(geometric_mean, zip(*each, strict=True))))
    found.add_row("paper", "", "", "3.67", "2.20 × that", "1.72 × that", "")
    return found


def when() -> Table:
    """Return milliseconds by the time of loads and stores: on demand, one step ahead, searched; and a lower bound."""
    found = table(
        "When to load and store: ms", "model", "batch", "plan", "in turn", "a step ahead", "searched", "bound"
    )
    for name, (_, batch) in BEST_BATCH.items():
        network, room = NETWORKS[name](batch), memories()
        for way, plan in ways(network, room, ("rules", "search")).items():
            took = times(network, plan.moved)
            found.add_row(
                name,
                str(batch),
                way,
                f"{took.in_turn:.2f}",
                f"{timeline(network, plan, room, ahead=1).end:.2f}",
                f"{timeline(network, plan, room).end:.2f}",
                f"{timeline_bound(network, plan):.2f}",
            )
    return found


@click.command()
@click.option(
    "--trace", type=click.Path(), help="Write the timeline of a network's searched plan as Chrome trace JSON."
)
@click.option("--network", type=click.Choice(list(NETWORKS)), default="ResNet-50", help="Of the trace.")
@click.option("--batch", type=click.IntRange(1, 64), default=16, help="Of the trace.")
def main(trace: str | None, network: str, batch: int) -> None:
    """Print all tables, or write a trace."""
    if trace:
        try:
            files.write(trace, chrome_trace(network, batch))
        except RammerError as error:
            raise click.ClickException(str(error)) from error
        return
    out.print(f"One of four clusters of an STCP920, {NEAR_KIB} KiB near each core (inferred). Nothing was measured.\n")
    for make in (against_the_bound, best_batches, scopes, throughput, contributions, when):
        out.print(make())


if __name__ == "__main__":
    main()
