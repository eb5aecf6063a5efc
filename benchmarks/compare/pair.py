"""Compare saved programs of one model in one process, in turns, for example of two precisions. Commits: `before.py`.

python -m benchmarks.compare.pair [--seconds 8] MODEL=BEFORE.rammer,AFTER.rammer…
"""

from __future__ import annotations

from pathlib import Path

import click

import rammer
from benchmarks.compare.policies import in_turn
from benchmarks.models import catalog


@click.command()
@click.argument("pairs", nargs=-1, required=True)
@click.option("--seconds", default=8.0, show_default=True, help="Per pair.")
def main(pairs: tuple[str, ...], seconds: float) -> None:
    """Compare the programs of PAIRS; a model is named as in the other benchmarks, NAME:4 for batch 4."""
    for pair in pairs:
        model, _, files = pair.partition("=")
        paths = files.split(",")
        if len(paths) != 2:
            raise click.UsageError(f"{pair!r}: write MODEL=BEFORE.rammer,AFTER.rammer")
        inputs = catalog.named(model).built.inputs
        programs = [rammer.load(path) for path in paths]
        click.echo(f"{model}: {in_turn(programs, inputs, [str(Path(p)) for p in paths], seconds)}")
        for program in programs:
            program.close()


if __name__ == "__main__":
    main()
