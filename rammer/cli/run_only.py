"""Implement the command line of an install that only runs saved programs: without compiler, click and rich."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence

import rammer
from rammer.cli.running import COLUMNS, pair, run_once, took
from rammer.errors import RammerError, installing, message, not_installed
from rammer.runtime.artifact import is_archive
from rammer.runtime.program import Program

COMMANDS = "bench cache check compile completion convert demo doctor explain export kernels new-plugin show"
ELSEWHERE = tuple(COMMANDS.split())
WHOLE = f"{', '.join(ELSEWHERE[:-1])} and {ELSEWHERE[-1]} need the compiler: {installing()}."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    if given.absent:
        print(f"error: no `rammer {given.absent}` here: this install only runs saved programs", file=sys.stderr)
        print(f"  hint: {WHOLE}", file=sys.stderr)
        return 1
    if rest:
        parser.error(f"unknown: {' '.join(rest)}")
    if not given.run:
        parser.print_help()
        return 0
    warnings.showwarning = lambda text, *_, **__: print(f"warning: {message(str(text))}", file=sys.stderr)
    try:
        _run(given)
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except RammerError as error:
        if given.verbose > 1:
            raise
        print("\n  ".join([f"error: {error}", *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    about = "Runs programs that rammer has compiled. This install has one command, `run`."
    parser = argparse.ArgumentParser(prog="rammer", description=about, epilog=WHOLE)
    parser.add_argument("-v", "--verbose", action="count", default=0, help="say more: -v the report, -vv tracebacks")
    parser.add_argument("--version", action="version", version=f"rammer, version {rammer.__version__} (run-only)")
    parser.set_defaults(run=False, absent="")
    commands = parser.add_subparsers(metavar="COMMAND")
    run = commands.add_parser("run", help="run a compiled program once and describe its outputs")
    run.add_argument("program", help="a file that `rammer compile` or Program.save has written")
    run.add_argument("--input", action="append", type=pair, default=[], metavar="NAME=FILE", help="from a .npy file")
    run.add_argument("--save", metavar="FOLDER", help="write every output as FOLDER/<number>.npy")
    run.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default: 0)")
    run.add_argument("--device", help="which device of the target; for cpu the number of vEUs")
    run.add_argument("--threads", type=int, help="number of vEUs on a CPU, the same as --device")
    run.set_defaults(run=True)
    for name in ELSEWHERE:
        commands.add_parser(name, add_help=False).set_defaults(absent=name)
    return parser


def _run(given: argparse.Namespace) -> None:
    if not is_archive(given.program) and not given.program.endswith(".rammer"):
        raise not_installed("compiling a model")

    def opens() -> Program:
        return rammer.load(given.program, device=given.device, threads=given.threads)

    found, seconds = run_once([given.program], opens, dict(given.input), given.save, given.seed, given.verbose)
    rows = [COLUMNS, *found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(message("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()))
    print(took(seconds, found))
