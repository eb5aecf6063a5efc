"""Implement `rammer compile`, `run` and `check`, for a model or a saved program."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

import rammer
from rammer import files
from rammer.cli.console import json_option, out, print_json, wrote
from rammer.cli.options import (
    compile_options,
    compiled,
    how_to_compile,
    model_argument,
    open_program,
    pairs,
    paths_of,
    together_option,
)
from rammer.cli.running import COLUMNS, run_once, took
from rammer.compiler.progress import progress_bar
from rammer.runtime.program import best_first


@click.command("compile")
@model_argument
@click.option("-o", "--output", help="The file to write.  [default: MODEL.rammer, in this folder]")
@click.option("--state", multiple=True, callback=pairs, help="An output that is an input of the next run: OUT=IN.")
@together_option
@json_option
@compile_options
def compile_command(
    model: str | dict[str, str], output: str | None, state: dict[str, str], as_json: bool, **options: Any
) -> None:
    """Compile MODEL (ONNX) to a file that runs without a compiler.

    Several models, NAME=MODEL, become one program with ports NAME.PORT.
    """
    output = output or f"{Path(model).stem if isinstance(model, str) else '_'.join(model)}.rammer"
    files.check_new(output, sources=paths_of(model))
    with compiled(model, state=state, **options) as (programs, show):
        if len(programs) == 1:
            programs[0].save(output, progress=show)
        else:
            rammer.save_together(best_first(programs), output)
        reports = [program.report() for program in programs]
    if as_json:
        print_json({"file": output, "bytes": Path(output).stat().st_size, "reports": [r.to_json() for r in reports]})
        return
    for report in reports:
        out.print(escape(str(report)), highlight=False)
    wrote(output)


@click.command()
@model_argument
@click.option("--input", "given", multiple=True, callback=pairs, help="An input from a .npy file: NAME=FILE.")
@click.option("--save", "folder", help="Write every output as FOLDER/<number>.npy.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the random inputs.  [default: 0]")
@json_option
@compile_options
def run(
    model: str | dict[str, str], given: dict[str, str], folder: str | None, seed: int, as_json: bool, **options: Any
) -> None:
    """Run MODEL once and describe its outputs.

    It is an ONNX file, or a compiled program.
    """
    verbose = click.get_current_context().obj
    rows, seconds = run_once(paths_of(model), lambda: open_program(model, **options), given, folder, seed, verbose)
    if as_json:
        outputs = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        print_json({"seconds": seconds, "outputs": outputs})
        return
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)
    out.print(took(seconds, rows), highlight=False)


@click.command("check")
@click.argument("model")
@click.option("--every", is_flag=True, help="Compare every operator, also where the outputs agree.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of the random inputs.  [default: 0]")
@json_option
@compile_options
def check_command(model: str, every: bool, seed: int, as_json: bool, **options: Any) -> None:
    """Compare the outputs of MODEL (ONNX) with references.

    Names the operator that differs.
    """
    from rammer.compiler.checking import check_model, require_agreement

    with progress_bar() as show:
        rows = check_model(model, how_to_compile(options), every=every, seed=seed, progress=show)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        table = Table("tensor", "", "against", "largest error", "allowed", "")
        for row in rows:
            errors = (f"{row.error:.2g}", f"{row.allowed:.2g}") if row.compared else ("", "")
            verdict = escape(row.differs) or ("agrees" if row.compared else "")
            table.add_row(escape(row.tensor), row.found, escape(row.reference), *errors, verdict)
        out.print(table)
    require_agreement(rows)
