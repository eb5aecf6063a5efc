"""Implement `rammer compile`, `run`, `check` and `bench`, for a model or a saved program."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

import rammer
from rammer import files
from rammer.cli.console import out
from rammer.cli.options import (
    compile_options,
    how_to_compile,
    is_saved,
    model_argument,
    open_program,
    pairs,
    paths_of,
    refuse_options,
    together_option,
)
from rammer.cli.running import COLUMNS, run_once
from rammer.compiler.progress import progress_bar
from rammer.errors import InputError
from rammer.runtime import measure
from rammer.runtime.program import Program
from rammer.scheduler.policy_options import split_policies
from rammer.tools import tables

POLICIES = "sequential,wavefront"  # default of `bench`


@click.command("compile")
@model_argument
@click.option("-o", "--output", required=True, help="The file to write.")
@click.option("--state", multiple=True, callback=pairs, help="An output that is an input of the next run: OUT=IN.")
@together_option
@compile_options
@click.pass_obj
def compile_command(
    verbose: int, /, model: str | dict[str, str], output: str, state: dict[str, str], **options: Any
) -> None:
    """Compile MODEL (ONNX) into a file that runs without the compiler.

    Several models, NAME=MODEL, become one program with ports NAME.PORT.
    """
    files.check_new(output, sources=paths_of(model))
    arches = (options.pop("arch") or "").split(",")
    how = how_to_compile({**options, "state": state})
    with progress_bar() as show, ExitStack() as stack:
        programs = [
            stack.enter_context(rammer.compile(model, how=how, arch=arch or None, progress=show))
            for arch in dict.fromkeys(arches)
        ]
        if len(programs) == 1:
            programs[0].save(output, progress=show)
        else:
            programs.sort(key=lambda p: (p.plan.spec.peak_gflops, len(p.plan.spec.instructions)), reverse=True)
            rammer.save_together(programs, output)
        for program in programs:
            out.print(escape(str(program.report())), highlight=False)
    out.print(f"wrote {escape(output)} ({Path(output).stat().st_size / 1e6:.1f} MB)", highlight=False)


@click.command()
@model_argument
@click.option("--input", "given", multiple=True, callback=pairs, help="An input from a .npy file: NAME=FILE.")
@click.option("--save", "folder", help="Write every output as FOLDER/<number>.npy.")
@click.option("--seed", default=0, help="Seed of the random inputs.  [default: 0]")
@compile_options
@click.pass_obj
def run(
    verbose: int, /, model: str | dict[str, str], given: dict[str, str], folder: str | None, seed: int, **options: Any
) -> None:
    """Run MODEL (ONNX or a compiled program) once and describe its outputs."""
    table = Table(*COLUMNS)
    for row in run_once(paths_of(model), lambda: open_program(model, **options), given, folder, seed, verbose):
        table.add_row(*map(escape, row))
    out.print(table)


@click.command("check")
@click.argument("model")
@click.option("--every", is_flag=True, help="Compare every operator, also where the outputs agree.")
@click.option("--seed", default=0, help="Seed of the random inputs.  [default: 0]")
@compile_options
@click.pass_obj
def check_command(verbose: int, /, model: str, every: bool, seed: int, **options: Any) -> None:
    """Compile MODEL (ONNX), compare its outputs with a reference, and name the operator that differs."""
    from rammer.compiler.checking import check_model, require_agreement

    with progress_bar() as show:
        rows = check_model(model, how_to_compile(options), every=every, seed=seed, progress=show)
    table = Table("tensor", "", "against", "")
    for row in rows:
        table.add_row(escape(row.tensor), row.found, escape(row.reference), escape(row.differs) or "agrees")
    out.print(table)
    require_agreement(rows)


@click.command()
@model_argument
@click.option("--policies", help=f"Policies to compare.  [default: {POLICIES}]")
@click.option(
    "--seconds", default=2.0, show_default=True, help="Time to measure runs, and again to measure their parts."
)
@click.option("--operators", default=15, show_default=True, help="Rows of the table of operators.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@compile_options
@click.pass_obj
def bench(
    verbose: int,
    /,
    model: str | dict[str, str],
    policies: str | None,
    seconds: float,
    operators: int,
    as_json: bool,
    policy: str | None,
    **options: Any,
) -> None:
    """Time MODEL under several policies, interleaved, and list its most expensive operators.

    A compiled program is timed as it is: under the policy that it was compiled with.
    """
    names = [policy] if policy else split_policies(POLICIES if policies is None else policies)
    if not names:
        raise InputError(f"--policies {policies!r} names no policy", hint=f"for example --policies {POLICIES}")
    programs: dict[str, Program] = {}
    try:
        if is_saved(model):
            refuse_options(model, policies=policies)
            program = open_program(model, policy=policy, **options)
            names = [program.report().policy]
            programs[names[0]] = program
        else:
            for name in names:
                programs[name] = open_program(model, policy=name, **options)
        samples = measure.interleaved(programs, seconds)
        measure.profile(programs, seconds)
        if as_json:
            data = {n: {**samples[n].summary(), "report": programs[n].report().to_json()} for n in names}
            click.echo(json.dumps(data, indent=1))
            return
        out.print(tables.policy_table(programs, samples))
        out.print(tables.operator_table(programs[names[-1]], operators))
    finally:
        for program in programs.values():
            program.close()
