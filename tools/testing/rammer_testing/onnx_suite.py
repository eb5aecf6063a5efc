"""Run the whole of onnx.backend.test: `python -m rammer.testing.onnx_suite --jobs 2`.

Cases run in worker processes, each within a time limit, so that a crash is one case's outcome. A case passes by the
suite's own tolerances, differs from its values as DIFFERENCES of `onnx_cases.py` says and why, is refused by a
RammerError, has a wrong result, fails by another exception, crashes, or takes too long.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rammer_testing import model_folder
from rammer_testing.children import run
from rammer_testing.errors import EXCESS, Errors, Result
from rammer_testing.onnx_cases import KINDS, NAMES, element_type, operators, run_case

OUTCOMES = ("passes", "differs", "refused", "wrong", "error", "crash", "timeout")
FINE = OUTCOMES[:3]


def sample(names: Sequence[str]) -> list[str]:
    """Return, per operator and element type of the first input, the first case that has only this operator."""
    alone = [name for name in names if KINDS[name] == "node" and len(operators(name)) == 1]
    return list({(operators(name), element_type(name)): name for name in reversed(alone)}.values())


def counts(results: Sequence[Result]) -> dict[str, Counter[str]]:
    """Count outcomes by kind."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        table[KINDS[result.name]][result.outcome] += 1
    return table


def by_operator(results: Sequence[Result]) -> dict[str, Counter[str]]:
    """Count outcomes by operator; a case counts for every operator in it."""
    table: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for op in operators(result.name) or ("(whole networks)",):
            table[op][result.outcome] += 1
    return dict(sorted(table.items()))


def failures_text(results: Sequence[Result]) -> str:
    """Return every case that does not pass, with its reason, as text for `read_failures`."""
    lines = [
        "# Cases of onnx.backend.test that do not pass on the CPU; written by rammer.testing.onnx_suite --write.\n"
    ]
    lines += [f"{r.name}: {r.outcome}: {r.reason}\n" for r in sorted(results, key=lambda r: r.name) if r.reason]
    return "".join(lines)


def read_failures(path: Path) -> dict[str, str]:
    """Read name -> outcome and reason."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


def _print_table(head: str, table: dict[str, Counter[str]], outcomes: Sequence[str] = OUTCOMES) -> None:
    print(f"{head:40}" + "".join(f"{outcome:>13}" for outcome in outcomes))
    for name, row in table.items():
        print(f"{name:40}" + "".join(f"{row[outcome] or '-':>13}" for outcome in outcomes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 1 if a case was wrong, crashed, failed otherwise or took too long."""
    parser = argparse.ArgumentParser(prog="python -m rammer.testing.onnx_suite", description=__doc__)
    parser.add_argument("--models", type=Path, help="run all models below this folder instead: see `model_folder.py`")
    parser.add_argument("--only", default="", help="cases whose name has this regular expression in it")
    parser.add_argument("--operator", help="cases of this operator alone: Add, com.microsoft.FusedMatMul")
    parser.add_argument("--type", help="cases whose first input has this element type: float16")
    parser.add_argument("--sample", action="store_true", help="one case for each operator alone and element type")
    parser.add_argument("--device", default="CPU", help="a vDevice and its device: cuda:emulator:2")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, default=120, help="time limit of a case")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--write", type=Path, help="write the cases that do not pass here, with reasons")
    parser.add_argument("--verbose", action="store_true", help="print every result when it is there")
    parser.add_argument("--all", action="store_true", help="list operators of which all cases pass, too")
    given = parser.parse_args(arguments)
    os.environ.setdefault("RAMMER_TUNE_SECONDS", "0")  # results matter, not times
    if given.models:
        return _run_folder(given)
    names = [name for name in NAMES if re.search(given.only, name)]
    if given.operator:
        names = [name for name in names if operators(name) == (given.operator,)]
    if given.type:
        names = [name for name in names if element_type(name) == given.type]
    if given.sample:
        names = sample(names)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ONNX_HOME"] = folder  # BackendTest writes made-up inputs of whole networks there
        show = _show_all if given.verbose else _show_bad
        results = run(run_case, names, device=given.device, jobs=given.jobs, seconds=given.seconds, show=show)
    _print_table("kind", counts(results))
    print(f"{sum(r.outcome == 'passes' for r in results)} of {len(results)} pass\n")
    both = [r for r in results if r.errors and r.others]
    excessive = [r for r in both if r.is_excessive]
    print(f"{len(excessive)} of {len(both)} have errors over {EXCESS} times ONNX Runtime's")
    for r in excessive:
        print(f"  {r.name}: {_shown(r.errors)}, ONNX Runtime {_shown(r.others)}")
    table = by_operator(results)
    _print_table("operator", {op: row for op, row in table.items() if given.all or set(row) != {"passes"}})
    if given.json:
        rows = [{**asdict(r), "operators": operators(r.name), "type": element_type(r.name)} for r in results]
        data = {"device": given.device, "kinds": counts(results), "operators": table, "results": rows}
        given.json.write_text(json.dumps(data, indent=1))
    if given.write:
        given.write.write_text(failures_text(results))
    return int(any(r.outcome not in FINE for r in results))


def _shown(errors: Errors | None) -> str:
    return f"{errors.ulp:g} ULP, {errors.relative:.1e}" if errors else "none"


def _run_folder(given: argparse.Namespace) -> int:
    """Run the models of a folder, and print counts by family."""
    names = [name for name in model_folder.models_of(given.models) if re.search(given.only, name)]
    show = _show_all if given.verbose else _show_bad
    results = run(model_folder.run_model, names, device=given.device, jobs=given.jobs, seconds=given.seconds, show=show)
    table = model_folder.counts(results, given.models)
    _print_table("family", table, model_folder.OUTCOMES)
    right = sum(row["right"] + row["random"] for row in table.values())
    print(f"{right} of {len(results)} are right")
    if given.json:
        rows = [{**asdict(r), "family": model_folder.family(r.name, given.models)} for r in results]
        given.json.write_text(json.dumps({"device": given.device, "families": table, "results": rows}, indent=1))
    return int(any(r.outcome not in model_folder.FINE for r in results))


def _show_all(result: Result) -> None:
    print(f"{result.name}: {result.outcome}{': ' * bool(result.reason)}{result.reason}", flush=True)


def _show_bad(result: Result) -> None:
    if result.outcome not in ("passes", "refused", "right", "random"):  # what differs is named
        _show_all(result)


if __name__ == "__main__":
    sys.exit(main())
