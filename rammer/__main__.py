"""The `rammer` command: argument parsing and printing only."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import rammer
from rammer import config, demo, measure, viz
from rammer.errors import InputError, RammerError
from rammer.plugins import PluginRegistry
from rammer.program import Program
from rammer.scheduler.timeline import Timeline, simulate
from rammer.vdevice.base import Progress as ProgressCallback

out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)


class _Group(click.Group):
    """Prints a RammerError as text with its hint, and exits with 1; -v shows the traceback."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except RammerError as error:
            if context.params.get("verbose", 0) > 1:
                raise
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
            for note in getattr(error, "__notes__", ()):
                err.print(f"  {escape(note)}", style="dim")
            context.exit(1)


@contextmanager
def progress_bar() -> Iterator[ProgressCallback]:
    """A progress callback that draws on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=err, transient=True, disable=not err.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield show


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-v", "--verbose", count=True, help="Say more: -v phases and notes, -vv tracebacks.")
@click.version_option(rammer.__version__)
@click.pass_context
def main(context: click.Context, verbose: int) -> None:
    """Compile neural networks into static plans of tile-sized tasks, run them, and look at the plans."""
    context.obj = verbose
    logging.basicConfig(level=logging.WARNING - 10 * min(verbose, 2), format="%(name)s: %(message)s")


def _pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, equals, rest = value.rpartition("=")
        if not equals or not name or not rest:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE")
        pairs[name] = rest
    return pairs


def _shapes(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    try:
        return {n: tuple(map(int, v.split("x"))) for n, v in _pairs(context, parameter, values).items()}
    except ValueError:
        raise click.BadParameter("a shape looks like input=1x3x224x224") from None


def compile_options(command: Any) -> Any:
    """The options that say how to compile."""
    for option in (
        click.option(
            "--shape", "shapes", multiple=True, callback=_shapes, help="Fix an input's shape: NAME=1x3x224x224."
        ),
        click.option("--device", help="Which device of the target; for cpu the number of vEUs."),
        click.option("--arch", help="Compile for this architecture instead of the one found."),
        click.option("--policy", help="Scheduling policy.  [default: RAMMER_POLICY or wavefront]"),
        click.option("--target", help="vDevice to compile for.  [default: RAMMER_VDEVICE or cpu]"),
    ):
        command = option(command)
    return command


def _open(path: str, *, policy: str | None = None, **options: Any) -> Program:
    """Compile an .onnx file, or load a saved program."""
    if Path(path).suffix == ".onnx":
        with progress_bar() as show:
            return rammer.compile(path, policy=policy, progress=show, **options)
    if ignored := [n for n, v in {"policy": policy, **options}.items() if v and n != "device"]:
        raise InputError(f"{path} is a compiled program: --{ignored[0]} has no effect on it", hint="compile the .onnx")
    return rammer.load_program(path, device=options.get("device"))


def _inputs(program: Program, files: Mapping[str, str], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs given as .npy files, and seeded random values for the others."""
    arrays = measure.random_inputs(program.inputs, seed)
    for name, file in files.items():
        try:
            arrays[name] = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"--input {name}: cannot read {file}: {error}", hint="write it with numpy.save") from error
    return arrays


@main.command("compile")
@click.argument("model")
@click.option("-o", "--output", required=True, help="The file to write.")
@compile_options
@click.pass_obj
def compile_command(verbose: int, /, model: str, output: str, **options: Any) -> None:
    """Compile MODEL (.onnx) into a file that runs without the compiler."""
    with progress_bar() as show, rammer.compile(model, progress=show, **options) as program:
        program.save(output, progress=show)
        out.print(escape(str(program.report())), highlight=False)
    out.print(f"wrote {escape(output)} ({Path(output).stat().st_size / 1e6:.1f} MB)", highlight=False)


@main.command()
@click.argument("model")
@click.option("--input", "files", multiple=True, callback=_pairs, help="An input from a .npy file: NAME=FILE.")
@click.option("--save", "folder", help="Write every output as FOLDER/<number>.npy.")
@click.option("--seed", default=0, help="Seed of the random inputs.  [default: 0]")
@compile_options
@click.pass_obj
def run(verbose: int, /, model: str, files: dict[str, str], folder: str | None, seed: int, **options: Any) -> None:
    """Run MODEL (.onnx or a compiled program) once and describe its outputs."""
    with _open(model, **options) as program:
        if verbose:
            err.print(escape(str(program.report())), highlight=False)
        outputs = program.run(_inputs(program, files, seed))
    table = Table("output", "shape", "dtype", "min", "mean", "max")
    for number, (name, value) in enumerate(outputs.items()):
        wide = value.astype(np.float64)
        numbers = (f"{f(wide):.6g}" if value.size else "-" for f in (np.min, np.mean, np.max))
        table.add_row(escape(name), "×".join(map(str, value.shape)), str(value.dtype), *numbers)
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            np.save(Path(folder) / f"{number}.npy", value)
    out.print(table)


@main.command()
@click.argument("model")
@click.option("--policies", default="sequential,wavefront", show_default=True, help="Policies to compare.")
@click.option("--seconds", default=2.0, show_default=True, help="Time to measure, in all.")
@click.option("--operators", default=15, show_default=True, help="Rows of the table of operators.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@compile_options
@click.pass_obj
def bench(
    verbose: int,
    /,
    model: str,
    policies: str,
    seconds: float,
    operators: int,
    as_json: bool,
    policy: str | None,
    **options: Any,
) -> None:
    """Time MODEL under several policies, interleaved, and list its most expensive operators."""
    names = [policy] if policy else [n.strip() for n in policies.split(",") if n.strip()]
    programs = {name: _open(model, policy=name, **options) for name in names}
    try:
        samples = measure.interleaved(programs, seconds)
        if as_json:
            data = {n: {**samples[n].summary(), "report": programs[n].report().to_json()} for n in names}
            click.echo(json.dumps(data, indent=1))
            return
        out.print(measure.policy_table(programs, samples))
        out.print(measure.operator_table(programs[names[-1]], operators))
    finally:
        for program in programs.values():
            program.close()


@main.command()
@click.argument("model")
@click.option("--svg", help="Write the timeline as SVG.")
@click.option("--html", help="Write the timeline as one self-contained page.")
@click.option("--trace", help="Write the timeline as Chrome trace JSON (for Perfetto).")
@click.option("--plan", "plan_file", help="Write the rPrograms in their textual form.")
@click.option("--width", type=int, help="Columns of the text chart.  [default: the terminal's]")
@compile_options
@click.pass_obj
def show(
    verbose: int,
    /,
    model: str,
    svg: str | None,
    html: str | None,
    trace: str | None,
    plan_file: str | None,
    width: int | None,
    **options: Any,
) -> None:
    """Show the plan of MODEL (.onnx): a text Gantt chart, and files in other forms."""
    with _open(model, **options) as program:
        plan = program.plan
        timeline = _timeline(program)
        out.print(escape(str(program.report())), highlight=False)
        click.echo(viz.text_gantt(timeline, plan, width=width or out.width))
        from rammer.ir.text import print_plan

        for path, text in (
            (svg, viz.svg),
            (html, viz.html),
            (trace, viz.chrome_trace),
            (plan_file, lambda _, p: print_plan(p)),
        ):
            if path:
                Path(path).write_text(text(timeline, plan), encoding="utf-8")
                out.print(f"wrote {escape(path)}", highlight=False)


def _timeline(program: Program) -> Timeline:
    """The timeline that the scheduler believed in."""
    return simulate(program.plan, program.plan.rtask_us.__getitem__)


@main.command()
def doctor() -> None:
    """Say which vDevices, policies and plugins there are, and why one is unavailable."""
    registry = PluginRegistry()
    table = Table("vDevice", "plugin", "state", "what to know", title="vDevices")
    for info in registry.devices():
        state = "[green]ready[/]" if info.available else "[yellow]unavailable[/]"
        known = [info.summary if info.available else info.reason, *([info.hint] if info.hint else [])]
        table.add_row(info.name, info.plugin, state, escape("\n".join(k for k in known if k)))
    out.print(table)
    out.print(f"policies: {', '.join(sorted(registry.policies()))}", highlight=False)
    for fault in registry.faults:
        out.print(f"[red]plugin {escape(fault.plugin)}[/] of {escape(fault.distribution)}: {escape(fault.reason)}")
    from rammer.vdevice import toolchain

    out.print(f"C compiler: {escape(toolchain.describe())}", highlight=False)
    set_flags = {name: value for name in config.FLAGS if (value := config.get(name)) != config.FLAGS[name].default}
    out.print("flags set: " + escape(", ".join(f"{n}={v}" for n, v in set_flags.items()) or "none"), highlight=False)


@main.command()
@click.option("--clear", is_flag=True, help="Delete compiled kernels and measured times.")
def cache(clear: bool) -> None:
    """Show (or clear) the cache of compiled kernels and measured times."""
    from rammer.vdevice import toolchain

    if clear:
        toolchain.clear_cache()
    out.print(escape(toolchain.cache_summary()), highlight=False)


@main.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, help="The file to write.")
@click.option("--threads", default=256, show_default=True, help="Threads of a block that the kernel is launched with.")
def convert(source: str, output: str, threads: int) -> None:
    """Convert the CUDA kernel in SOURCE to HIP that an rKernel for AMD GPUs can hold."""
    from rammer.vdevice.rocm.convert import convert as to_hip

    made = to_hip(Path(source).read_text(encoding="utf-8"), threads)
    Path(output).write_text(made.text, encoding="utf-8")
    syncs = "an unknown number of" if made.num_block_syncs is None else made.num_block_syncs
    line = f"{made.symbol}: {threads} threads, {made.scratch_bytes} bytes of scratch, {syncs} block syncs"
    out.print(f"{escape(line)}; wrote {escape(output)}", highlight=False)


@main.command("demo")
@click.option("--html", default="rammer-demo.html", show_default=True, help="Where to write the timeline.")
@click.option("--seconds", default=2.0, show_default=True, help="Time to measure, per network.")
def demo_command(html: str, seconds: float) -> None:
    """Compile and run real networks, check them, and compare sequential with wavefront scheduling."""
    with progress_bar() as show_progress:
        demo.run(out, Path(html), seconds, show_progress)


if __name__ == "__main__":
    sys.exit(main())
