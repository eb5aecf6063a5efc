"""Implement `rammer show`: print a plan as text, and draw it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import numpy as np
from rich.markup import escape

import rammer_viz as viz
from rammer import files
from rammer.cli.console import json_option, out, print_json, wrote
from rammer.cli.options import (
    compile_options,
    how_to_compile,
    is_saved,
    model_argument,
    open_program,
    paths_of,
    refuse_options,
)
from rammer.compiler import Compilation
from rammer.compiler.progress import progress_bar
from rammer.errors import ArtifactError, DeviceError
from rammer.ir.listing import print_rkernels
from rammer.ir.plan import ExecutionPlan
from rammer.ir.text import print_plan
from rammer.runtime.program import Program
from rammer.scheduler.timeline import Timeline
from rammer.vdevice.supersteps import CountsSupersteps, SuperstepProfile
from rammer_viz import tables
from rammer_viz.shared import MEASURED

FORMS: dict[str, tuple[str, Callable[[Timeline, ExecutionPlan], str]]] = {  # of files, by option
    "svg": ("Write the timeline as SVG.", viz.svg),
    "html": ("Write the timeline as one self-contained page.", viz.html),
    "memory": ("Write where tensors and pieces of them lie over time as SVG.", viz.memory_svg),
    "trace": ("Write the timeline as Chrome trace JSON (for Perfetto).", viz.chrome_trace),
    "plan": ("Write the rPrograms in their textual form.", lambda _, plan: print_plan(plan)),
    "rkernels": (
        "Write expression, schedule and tile program of every rKernel in the plan.",
        lambda _, plan: print_rkernels(plan),
    ),
}


def _forms(command: Any) -> Any:
    """Add an option for each form to a command."""
    for form, (what, _) in reversed(FORMS.items()):
        command = click.option(f"--{form}", help=what)(command)
    return command


@click.command()
@model_argument
@_forms
@click.option("--supersteps", help="Run once, and write estimated cycles by superstep as Chrome trace JSON (ipu).")
@json_option
@click.option("--beside", help="Draw the plan of this policy beside it, in --html; or measured times: measured.")
@click.option("--width", type=int, help="Columns of the text chart.  [default: the terminal's]")
@compile_options
@click.pass_obj
def show(
    verbose: int,
    /,
    model: str | dict[str, str],
    supersteps: str | None,
    beside: str | None,
    width: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the plan of MODEL as a chart of text, SVG, HTML or trace.

    MODEL is an ONNX file. A compiled program keeps only the names of its rKernels.
    """
    asked = {form: file for form in FORMS if (file := options.pop(form))}
    for file in (*asked.values(), *filter(None, [supersteps])):
        files.check_new(file, sources=paths_of(model))
    with open_program(model, **options) as program:
        if program.is_loaded and (absent := [form for form in ("rkernels", "memory") if form in asked]):
            raise ArtifactError(
                f"{model} is a compiled program and keeps no rKernels: no --{absent[0]}",
                hint="show the model it was compiled from",
            )
        plan, timeline = program.outline()
        others = _beside(beside, model, program, options)
        if as_json:
            print_json(program.report().to_json())
        else:
            out.print(escape(f"{program!r}\n{program.report()}"), highlight=False)
            if program.is_loaded:
                out.print(tables.operator_table(program, len(program.report().operators)))
            click.echo(viz.text_gantt(timeline, plan, width=width))
        texts = {file: FORMS[form][1](timeline, plan) for form, file in asked.items() if form != "html"}
        if "html" in asked:
            texts[asked["html"]] = viz.html(timeline, plan, others=others)
        if supersteps:
            profile = _superstep_profile(program)
            click.echo(f"{profile}\n{profile.timeline()}", err=as_json)
            texts[supersteps] = viz.superstep_trace(profile.steps, profile.totals["clock_hz"])
        for file, text in texts.items():
            files.write(file, text, sources=paths_of(model))
            wrote(file)


def _beside(
    beside: str | None, model: str | dict[str, str], program: Program, options: dict[str, Any]
) -> dict[str, tuple[Timeline, ExecutionPlan]]:
    """Return what to draw beside a plan, by its name: measured times, or another policy's plan, which is not built."""
    if beside is None:
        return {}
    if beside == MEASURED:
        return {MEASURED: (program.measured_timeline(), program.outline()[0])}
    if is_saved(model):
        refuse_options(model, beside=beside)
    how = how_to_compile({**options, "policy": beside}).but(together=None)
    with progress_bar() as show, Compilation.of(model, how, progress=show) as compilation:
        return {beside: (compilation.proven.timeline, compilation.proven.plan)}


def _superstep_profile(program: Program) -> SuperstepProfile:
    """Return the cycles of a run on zeros. Raises DeviceError if the target does not count them."""
    if not isinstance(program.executable, CountsSupersteps):
        raise DeviceError(f"{program.target!r} has no supersteps", hint="target='ipu' with device='emulator' has")
    program.run({p.name: np.zeros(p.type.shape, p.type.dtype.numpy) for p in program.inputs})
    return program.executable.profile()
