"""Inject bugs along the whole way from graph to run, and print where each is stopped; 1 if one is silent and wrong."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rammer.errors import RammerError, did_you_mean
from rammer_testing.mutate import BUGS
from rammer_testing.mutate.bug import NONE, Bug
from rammer_testing.mutate.networks import NETWORKS, network
from rammer_testing.mutate.trial import TARGETS, UNREACHED, USUAL, Outcome, Reference, attempt, reference

Row = list[tuple[str, Outcome]]


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("python -m rammer.testing.mutate", description=__doc__)
    found.add_argument("bugs", nargs="*", metavar="TEXT", help="bugs whose stage or name has it; all by default")
    networks = f"may be repeated: {', '.join(NETWORKS)}; by default those that suit the target"
    found.add_argument("--network", action="append", metavar="NAME", help=networks)
    found.add_argument("--target", action="append", metavar="NAME", help=f"may be repeated: {', '.join(TARGETS)}")
    found.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once (default: one a core)")
    found.add_argument("--sound", action="store_true", help="inject nothing: count what is refused of sound programs")
    found.add_argument("--details", action="store_true", help="print what was said of each network")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; return 1 if a bug gave wrong numbers, a crash or a hang."""
    given = parser().parse_args(arguments)
    try:
        for known, names in ((NETWORKS, given.network), (TARGETS, given.target)):
            for name in names or ():
                if name not in known:
                    raise RammerError(f"no {name!r}", hint=did_you_mean(name, known) or ", ".join(known))
        bugs = [b for b in BUGS if not given.bugs or any(text in f"{b.stage}: {b.name}" for text in given.bugs)]
        bugs = [NONE] if given.sound else bugs
        pairs = [(t, n) for t in given.target or TARGETS for n in given.network or USUAL[t]]
        return _run(bugs, pairs, given.jobs, given.details)
    except RammerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(bugs: Sequence[Bug], pairs: Sequence[tuple[str, str]], jobs: int, details: bool) -> int:
    failed = 0
    print("| stage | bug | stopped by (networks) | not reached |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="rammer-mutate-") as folder:
        made = {(t, n): reference(network(n), t, Path(folder, t)) for t, n in pairs}
        with ThreadPoolExecutor(jobs) as pool:
            for bug, row in zip(bugs, pool.map(lambda b: _row(b, made, Path(folder)), bugs), strict=True):
                print(_line(bug, row), flush=True)
                wrong = [(where, o) for where, o in row if o.wrong]
                failed += bool(wrong)
                for where, outcome in row if details else wrong:
                    print(f"  {where}: {outcome.what}: {outcome.detail[:400]}", file=sys.stderr)
    print(f"\n{len(bugs)} bugs, {failed} of them gave wrong numbers, a crash or a hang")
    return int(failed > 0)


def _row(bug: Bug, made: dict[tuple[str, str], Reference], cache: Path) -> Row:
    """Return the outcome of a bug for each network that it can reach."""
    pairs = [(t, n) for t, n in made if t in bug.targets]
    return [(f"{n} on {t}", attempt(bug, made[t, n], t, cache / t)) for t, n in pairs]


def _line(bug: Bug, row: Row) -> str:
    counts = Counter(outcome.what for _, outcome in row)
    missed = counts.pop(UNREACHED, 0)
    return f"| {bug.stage} | {bug.name} | {', '.join(_counted(counts))} | {missed or ''} |"


def _counted(counts: Counter[str]) -> Iterator[str]:
    for what, count in counts.most_common():
        yield f"{what} ({count})"


if __name__ == "__main__":
    sys.exit(main())
