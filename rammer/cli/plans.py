"""Implement `rammer show`: print a plan as text, and draw it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click
import numpy as np
from rich.markup import escape

from rammer import files, viz
from rammer.cli.console import out
from rammer.cli.options import compile_options, open_program
from rammer.errors import ArtifactError, DeviceError
from rammer.ir.plan import ExecutionPlan
from rammer.runtime.program import Program
from rammer.scheduler.timeline import Timeline
from rammer.tools import tables
from rammer.vdevice.supersteps import CountsSupersteps, SuperstepProfile


@click.command()
@click.argument("model")
@click.option("--svg", help="Write the timeline as SVG.")
@click.option("--html", help="Write the timeline as one self-contained page.")
@click.option("--memory", help="Write where tensors and pieces of them lie over time as SVG.")
@click.option("--trace", help="Write the timeline as Chrome trace JSON (for Perfetto).")
@click.option("--supersteps", help="Run once, and write estimated cycles by superstep as Chrome trace JSON (ipu).")
@click.option("--plan", "plan_file", help="Write the rPrograms in their textual form.")
@click.option("--rkernels", help="Write expression, schedule and tile program of every rKernel in the plan.")
@click.option("--width", type=int, help="Columns of the text chart.  [default: the terminal's]")
@compile_options
@click.pass_obj
def show(
    verbose: int,
    /,
    model: str,
    svg: str | None,
    html: str | None,
    memory: str | None,
    trace: str | None,
    supersteps: str | None,
    plan_file: str | None,
    rkernels: str | None,
    width: int | None,
    **options: Any,
) -> None:
    """Show the plan of MODEL (ONNX): a text Gantt chart, and files in other forms.

    A compiled program keeps only the names of its rKernels.
    """
    for file in filter(None, (svg, html, memory, trace, supersteps, plan_file, rkernels)):
        files.check_new(file, sources=[model])
    drawings = {"svg": svg, "html": html, "memory": memory, "trace": trace, "plan": plan_file, "rkernels": rkernels}
    asked = {option: file for option, file in drawings.items() if file}
    with open_program(model, **options) as program:
        if program.is_loaded and (rkernels or memory):
            raise ArtifactError(
                f"{model} is a compiled program and keeps no rKernels: no {'--rkernels' if rkernels else '--memory'}",
                hint="show the model it was compiled from",
            )
        out.print(escape(f"{program!r}\n{program.report()}"), highlight=False)
        if program.is_loaded:
            out.print(tables.operator_table(program, len(program.report().operators)))
        _show_plan(program, asked, model, width or out.width)
        if supersteps:
            profile = _superstep_profile(program)
            click.echo(f"{profile}\n{profile.timeline()}")
            files.write(supersteps, viz.superstep_trace(profile.steps, profile.totals["clock_hz"]), sources=[model])
            out.print(f"wrote {escape(supersteps)}", highlight=False)


def _show_plan(program: Program, asked: Mapping[str, str], model: str, width: int) -> None:
    """Print the text chart, and write the requested files."""
    from rammer.ir.listing import print_rkernels
    from rammer.ir.text import print_plan

    plan, timeline = program.outline()
    click.echo(viz.text_gantt(timeline, plan, width=width))
    forms: dict[str, Callable[[Timeline, ExecutionPlan], str]] = {
        "svg": viz.svg,
        "html": viz.html,
        "memory": viz.memory_svg,
        "trace": viz.chrome_trace,
        "plan": lambda _, plan: print_plan(plan),
        "rkernels": lambda _, plan: print_rkernels(plan),
    }
    for form, path in asked.items():
        files.write(path, forms[form](timeline, plan), sources=[model])
        out.print(f"wrote {escape(path)}", highlight=False)


def _superstep_profile(program: Program) -> SuperstepProfile:
    """Return the cycles of a run on zeros. Raises DeviceError if the target does not count them."""
    if not isinstance(program.executable, CountsSupersteps):
        raise DeviceError(f"{program.target!r} has no supersteps", hint="target='ipu' with device='emulator' has")
    program.run({p.name: np.zeros(p.type.shape, p.type.dtype.numpy) for p in program.inputs})
    return program.executable.profile()
