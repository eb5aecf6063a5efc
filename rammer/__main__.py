"""The `rammer` command: argument parsing and printing only."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import rammer
from rammer import artifact, config, demo, files, measure, viz
from rammer.cache_commands import cache
from rammer.errors import ArtifactError, DeviceError, InputError, RammerError
from rammer.ir.plan import ExecutionPlan
from rammer.plugins import PluginRegistry
from rammer.program import Program
from rammer.scheduler.policy_options import split_policies
from rammer.scheduler.timeline import Timeline
from rammer.vdevice.base import Progress as ProgressCallback
from rammer.vdevice.hops import HopCosts
from rammer.vdevice.supersteps import CountsSupersteps, SuperstepProfile

out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)


POLICIES = "sequential,wavefront"  # that `bench` compares
INTERRUPTED = 130  # the shell's status for a command that Ctrl-C ended


class _Group(click.Group):
    """Prints warnings as lines, and a RammerError as text with its hint, and exits with 1; -vv shows the traceback."""

    def main(self, *args: Any, **extra: Any) -> Any:
        with _cleaning_up():
            return super().main(*args, **extra)

    def invoke(self, context: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(context)
        except KeyboardInterrupt:
            if context.params.get("verbose", 0) > 1:
                raise
            err.print("interrupted")
            context.exit(INTERRUPTED)
        except RammerError as error:
            if context.params.get("verbose", 0) > 1:
                raise
            err.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
            for note in getattr(error, "__notes__", ()):
                err.print(f"  {escape(note)}", style="dim")
            context.exit(1)


@contextmanager
def _cleaning_up() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does: what it has started ends with it."""

    def leave(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    chosen = (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, leave) for number in chosen if signal.getsignal(number) is signal.SIG_DFL}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    err.print(f"[yellow]warning:[/] {escape(str(message))}", highlight=False)


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


def _parsed(convert: Callable[[str], Any], example: str) -> Callable[..., dict[str, Any]]:
    def parse(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
        try:
            return {name: convert(text) for name, text in _pairs(context, parameter, values).items()}
        except ValueError:
            raise click.BadParameter(example) from None

    return parse


_shapes = _parsed(lambda text: tuple(map(int, text.split("x"))), "a shape looks like input=1x3x224x224")
_extents = _parsed(int, "a dimension looks like batch=8")


def compile_options(command: Any) -> Any:
    """The options that say how to compile."""
    for option in (
        click.option(
            "--shape", "shapes", multiple=True, callback=_shapes, help="Fix an input's shape: NAME=1x3x224x224."
        ),
        click.option("--dim", "dims", multiple=True, callback=_extents, help="Fix a symbolic dimension: NAME=8."),
        click.option(
            "--constant", "constants", multiple=True, callback=_pairs, help="Fix an input's value: NAME=FILE.npy."
        ),
        click.option("--device", help="Which device of the target; for cpu the number of vEUs."),
        click.option(
            "--arch",
            help="Compile for this architecture instead of the one found; `rammer compile` takes several: A,B.",
        ),
        click.option(
            "--tune-seconds",
            type=click.FloatRange(min=0),
            help="Time to measure rKernels; from 60 on, tilings are searched.  [default: RAMMER_TUNE_SECONDS or 20]",
        ),
        click.option("--precision", help="Round operands of products, for matrix units: tf32, bf16.  [default: fp32]"),
        click.option(
            "--policy",
            help="Scheduling policy, maybe with options: wavefront:selection=fastest,beyond=off. `rammer doctor` lists "
            "them.  [default: RAMMER_POLICY or wavefront]",
        ),
        click.option("--target", help="vDevice to compile for.  [default: RAMMER_VDEVICE or cpu]"),
    ):
        command = option(command)
    return command


def _open(path: str, **options: Any) -> Program:
    """Load a saved program, or compile a model. What a file begins with tells which it is, whatever its name."""
    if artifact.is_archive(path) or (Path(path).suffix == ".rammer" and not Path(path).exists()):
        _refuse_options(path, **options)
        return rammer.load_program(path, device=options.get("device"))
    with progress_bar() as show:
        return rammer.compile(path, progress=show, **_loaded(options))


def _refuse_options(path: str, **options: Any) -> None:
    """Refuse what a saved program cannot be given any more."""
    if ignored := [name for name, value in options.items() if (value or value == 0) and name != "device"]:
        option = {"shapes": "shape", "dims": "dim", "constants": "constant"}.get(
            ignored[0], ignored[0].replace("_", "-")
        )
        raise InputError(f"{path} is a compiled program: --{option} has no effect on it", hint="compile the model")


def _loaded(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a compilation, the values of its constants read."""
    constants = {name: _array("--constant", name, file) for name, file in (options.get("constants") or {}).items()}
    return {**options, "constants": constants}


def _array(option: str, name: str, file: str) -> np.ndarray[Any, Any]:
    try:
        with files.open_plain(file) as opened:
            return np.asarray(np.load(opened, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{option} {name}: cannot read {file}: {error}", hint="write it with numpy.save") from error


def _inputs(program: Program, given: Mapping[str, str], seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs given as .npy files, and seeded random values for the others."""
    arrays = measure.random_inputs(program.inputs, seed)
    return arrays | {name: _array("--input", name, file) for name, file in given.items()}


@main.command("compile")
@click.argument("model")
@click.option("-o", "--output", required=True, help="The file to write.")
@click.option("--state", multiple=True, callback=_pairs, help="An output that is an input of the next run: OUT=IN.")
@compile_options
@click.pass_obj
def compile_command(verbose: int, /, model: str, output: str, state: dict[str, str], **options: Any) -> None:
    """Compile MODEL (ONNX) into a file that runs without the compiler."""
    files.check_new(output, sources=[model])
    arches = (options.pop("arch") or "").split(",")
    with progress_bar() as show, ExitStack() as stack:
        programs = [
            stack.enter_context(
                rammer.compile(model, state=state, progress=show, arch=arch or None, **_loaded(options))
            )
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


@main.command()
@click.argument("model")
@click.option("--input", "given", multiple=True, callback=_pairs, help="An input from a .npy file: NAME=FILE.")
@click.option("--save", "folder", help="Write every output as FOLDER/<number>.npy.")
@click.option("--seed", default=0, help="Seed of the random inputs.  [default: 0]")
@compile_options
@click.pass_obj
def run(verbose: int, /, model: str, given: dict[str, str], folder: str | None, seed: int, **options: Any) -> None:
    """Run MODEL (ONNX or a compiled program) once and describe its outputs."""
    if folder:
        _make_folder(folder)
        files.check_new(Path(folder, "0.npy"), sources=[model, *given.values()])
    with _open(model, **options) as program:
        if verbose:
            err.print(escape(str(program.report())), highlight=False)
        outputs = program.run(_inputs(program, given, seed))
    table = Table("output", "shape", "dtype", "min", "mean", "max")
    for number, (name, value) in enumerate(outputs.items()):
        wide = value.astype(np.float64)
        numbers = (f"{f(wide):.6g}" if value.size else "-" for f in (np.min, np.mean, np.max))
        table.add_row(escape(name), "×".join(map(str, value.shape)), str(value.dtype), *numbers)
        if folder:
            with files.new_file(Path(folder) / f"{number}.npy", sources=[model, *given.values()]) as file:
                np.save(file, value)
    out.print(table)


def _make_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RammerError(f"cannot make the folder {folder}: {error.strerror}", hint="name another one") from error


@main.command("check")
@click.argument("model")
@click.option("--every", is_flag=True, help="Compare every operator, also where the outputs agree.")
@click.option("--seed", default=0, help="Seed of the random inputs.  [default: 0]")
@compile_options
@click.pass_obj
def check_command(verbose: int, /, model: str, every: bool, seed: int, **options: Any) -> None:
    """Compile MODEL (ONNX), and compare what it computes with what it means: outputs, and the operator that differs."""
    from rammer.checking import check_model, require_agreement

    with progress_bar() as show:
        rows = check_model(model, every=every, seed=seed, progress=show, **_loaded(options))
    table = Table("tensor", "", "against", "")
    for row in rows:
        table.add_row(escape(row.tensor), row.found, escape(row.reference), escape(row.differs) or "agrees")
    out.print(table)
    require_agreement(rows)


@main.command()
@click.argument("model")
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
    model: str,
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
        if artifact.is_archive(model):
            _refuse_options(model, policies=policies)
            program = _open(model, policy=policy, **options)
            names = [program.report().policy]
            programs[names[0]] = program
        else:
            for name in names:
                programs[name] = _open(model, policy=name, **options)
        samples = measure.interleaved(programs, seconds)
        measure.profile(programs, seconds)
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
@click.option("--memory", help="Write where tensors and pieces of them lie over time as SVG.")
@click.option("--trace", help="Write the timeline as Chrome trace JSON (for Perfetto).")
@click.option("--supersteps", help="Run once, and write estimated cycles by superstep as Chrome trace JSON (ipu).")
@click.option("--hops", is_flag=True, help="Say what the longest chain's hand-overs take, by machine code (cuda).")
@click.option("--hop-costs", help="For --hops: a JSON file of measured fence_us, poll_us and dispatch_us.")
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
    hops: bool,
    hop_costs: str | None,
    plan_file: str | None,
    rkernels: str | None,
    width: int | None,
    **options: Any,
) -> None:
    """Show the plan of MODEL (ONNX): a text Gantt chart, and files in other forms.

    Of a compiled program's rKernels only the names are left.
    """
    for file in filter(None, (svg, html, memory, trace, supersteps, plan_file, rkernels)):
        files.check_new(file, sources=[model])
    drawings = {"svg": svg, "html": html, "memory": memory, "trace": trace, "plan": plan_file, "rkernels": rkernels}
    asked = {option: file for option, file in drawings.items() if file}
    with _open(model, **options) as program:
        if program.is_loaded and (rkernels or memory):
            raise ArtifactError(
                f"{model} is a compiled program and keeps no rKernels: no {'--rkernels' if rkernels else '--memory'}",
                hint="show the model it was compiled from",
            )
        out.print(escape(f"{program!r}\n{program.report()}"), highlight=False)
        if program.is_loaded:
            out.print(measure.operator_table(program, len(program.report().operators)))
        _show_plan(program, asked, model, width or out.width)
        if hops:
            click.echo(program.hops(HopCosts.read(hop_costs) if hop_costs else None))
        if supersteps:
            profile = _superstep_profile(program)
            click.echo(f"{profile}\n{profile.timeline()}")
            files.write(supersteps, viz.superstep_trace(profile.steps, profile.totals["clock_hz"]), sources=[model])
            out.print(f"wrote {escape(supersteps)}", highlight=False)


def _show_plan(program: Program, asked: Mapping[str, str], model: str, width: int) -> None:
    """Print the text chart, and write the forms that were asked for."""
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
    """Cycles of a run on zeros. Raises DeviceError where nobody counts them."""
    if not isinstance(program.executable, CountsSupersteps):
        raise DeviceError(f"{program.target!r} has no supersteps", hint="target='ipu' with device='emulator' has")
    program.run({p.name: np.zeros(p.type.shape, p.type.dtype.numpy) for p in program.inputs})
    return program.executable.profile()


@main.command()
@click.option("--calibrate", is_flag=True, help="Measure what this machine can do, for better estimates: some seconds.")
def doctor(calibrate: bool) -> None:
    """Say which vDevices, policies and plugins there are, and why one is unavailable."""
    registry = PluginRegistry()
    if calibrate:
        _calibrate(registry)
    table = Table("vDevice", "plugin", "state", "what to know", title="vDevices")
    for info in registry.devices():
        state = "[green]ready[/]" if info.available else "[yellow]unavailable[/]"
        known = [info.summary if info.available else "", info.reason, info.hint]
        table.add_row(info.name, info.plugin, state, escape("\n".join(k for k in known if k)))
    out.print(table)
    out.print(_policies(registry))
    for fault in registry.faults:
        out.print(f"[red]plugin {escape(fault.plugin)}[/] of {escape(fault.distribution)}: {escape(fault.reason)}")
    from rammer.vdevice import toolchain

    out.print(f"C compiler: {escape(toolchain.describe())}", highlight=False)
    try:
        out.print(f"cache: {escape(config.describe_cache())}", highlight=False)
    except RammerError as error:
        out.print(f"[red]cache:[/] {escape(str(error))}", highlight=False)
    set_flags = {name: value for name in config.FLAGS if (value := config.get(name)) != config.FLAGS[name].default}
    out.print("flags set: " + escape(", ".join(f"{n}={v}" for n, v in set_flags.items()) or "none"), highlight=False)


def _calibrate(registry: PluginRegistry) -> None:
    """Measure all vDevices that can be, and print what was found beside what is usual."""
    for name, (_, entry) in registry.vdevices().items():
        if entry.calibrate is None or not entry.probe().ok:
            continue
        with progress_bar() as show:
            found = entry.calibrate(show)
        table = Table("number", "usual", "measured", title=f"{name}: rates in 1e9 per second, times in µs")
        for number, usual, measured in found:
            table.add_row(number, f"{usual:g}", f"{measured:g}")
        out.print(table)


def _policies(registry: PluginRegistry) -> Table:
    """Every policy with what can be chosen of it."""
    table = Table("policy", "option", "what it means", title="policies")
    for name, options in sorted(registry.policy_options().items()):
        table.add_row(name)
        for option in options:
            for value, meaning in option.values.items():
                default = " (default)" if value == option.default else ""
                table.add_row("", f"{option.name}={escape(value)}{default}", escape(meaning))
    return table


main.add_command(cache)


def _dims(_: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, int, int] | None:
    """Grids and blocks are given as 64, 16x16 or 4x4x2."""
    try:
        numbers = [int(n) for n in value.split("x")] if value else []
    except ValueError:
        numbers = [0]
    if len(numbers) > 3 or any(n < 1 for n in numbers):
        raise click.BadParameter("one to three numbers, as 16x16")
    return (*numbers, 1, 1)[:3] if numbers else None  # type: ignore[return-value]


@main.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--output", required=True, help="The file to write: .json (a record), .cu or .hip (text).")
@click.option("--threads", default=256, show_default=True, help="Threads of a block, if it has one dimension.")
@click.option("--block", callback=_dims, help="Shape of a block: 16x16.")
@click.option("--grid", callback=_dims, help="Shape of the grid: 8x4.  [default: 1]")
@click.option("--shared", default=0, help="Bytes of dynamic shared memory.")
def convert(
    source: str,
    output: str,
    threads: int,
    block: tuple[int, int, int] | None,
    grid: tuple[int, int, int] | None,
    shared: int,
) -> None:
    """Check a kernel of others and convert it: SOURCE is a CUDA kernel (.cu) or a record (.json).

    A record becomes the same in canonical form. Either becomes the text of an rTask, in CUDA or (.hip) HIP. Nothing
    is executed; what has no counterpart is refused with its line.
    """
    from rammer.vdevice.simt.legacy.convert import Launch, convert_source
    from rammer.vdevice.simt.legacy.record import read_record, read_text, record_files, to_json
    from rammer.vdevice.simt.legacy.source import read_source

    language = {".cu": "cuda", ".hip": "hip"}.get(Path(output).suffix)
    record = read_record(source) if Path(source).suffix == ".json" else None
    sources = record_files(source) if record is not None else (Path(source),)
    files.check_new(output, sources=sources)
    if record is not None and Path(output).suffix == ".json":
        files.write(output, json.dumps(to_json(record), indent=1) + "\n", sources=sources)
        out.print(f"{escape(record.name)}: key {record.key[:16]}; wrote {escape(output)}", highlight=False)
        return
    if language is None:
        raise InputError(
            f"{output}: a text is written as .cu or .hip", hint="a record is made by hand: docs/kernels.md"
        )
    if record is not None:
        made = convert_source(record.source, record.launch, language, syncs=record.syncs)
    else:
        launch = Launch(grid or (1, 1, 1), block or (threads, 1, 1), shared)
        made = convert_source(read_source(read_text(Path(source))), launch, language)
    files.write(output, made.text, sources=sources)
    syncs = "an unknown number of" if made.num_block_syncs is None else made.num_block_syncs
    line = f"{made.symbol}: {made.num_threads} threads, {made.scratch_bytes} bytes of scratch, {syncs} block syncs"
    out.print(f"{escape(line)}; wrote {escape(output)}", highlight=False)


@main.group(cls=_Group)
def kernels() -> None:
    """Kernels of others, imported from records: candidates for the operators that they compute, on CUDA and ROCm."""


@kernels.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@click.option("--verify", "now", is_flag=True, help="Execute them under the emulator at once; else `verify` does.")
def import_command(files: tuple[str, ...], now: bool) -> None:
    """Check records (.json) and keep them. A kernel is executed only by --verify, and used only if verified."""
    from rammer.vdevice.simt.legacy import store
    from rammer.vdevice.simt.legacy.nnfusion import read_any

    for records, refused in map(read_any, files):
        for error in refused:
            err.print(f"[yellow]refused:[/] {escape('; '.join([*error.__notes__, error.what]))}", highlight=False)
        for record in records:
            if now:
                _verify(record)
            else:
                store.add(record)
                line = f"{record.name}: kept; `rammer kernels verify {record.name}` executes and admits it"
                out.print(escape(line), highlight=False)


@kernels.command("verify")
@click.argument("names", nargs=-1, required=True)
def verify_command(names: tuple[str, ...]) -> None:
    """Execute imported kernels under the emulator, each in a process of its own, and admit those that are right."""
    from rammer.vdevice.simt.legacy import store

    for name in names:
        _verify(store.find(name).record)


def _verify(record: Any) -> None:
    from rammer.vdevice.simt.legacy import store
    from rammer.vdevice.simt.legacy.verify import verify

    found = verify(record)
    store.add(record, found)
    line = f"{record.name}: verified: {found.blocks} blocks, {found.syncs} block syncs, error {found.max_error:.2g}"
    out.print(escape(line), highlight=False)


@kernels.command("list")
def list_command() -> None:
    """List imported kernels."""
    from rammer.vdevice.simt.legacy import store

    table = Table("name", "operator", "inputs", "grid", "block", "syncs", "state")
    for stored in store.stored_kernels():
        r = stored.record
        grid, block = ("×".join(map(str, d)) for d in (r.launch.grid, r.launch.block))
        state = f"verified, error {stored.max_error:.2g}" if stored.verified else "not verified: not used"
        syncs = "?" if r.syncs is None else str(r.syncs)
        table.add_row(escape(r.name), r.operation.kind, ", ".join(map(str, r.inputs)), grid, block, syncs, state)
    out.print(table)
    out.print(escape(f"folder: {store.store_folder()}"), highlight=False)


@kernels.command("remove")
@click.argument("names", nargs=-1, required=True)
def remove_command(names: tuple[str, ...]) -> None:
    """Forget imported kernels."""
    from rammer.vdevice.simt.legacy import store

    for name in names:
        store.remove(name)


@main.command("demo")
@click.option("--html", default="rammer-demo.html", show_default=True, help="Where to write the timeline.")
@click.option("--seconds", default=2.0, show_default=True, help="Time to measure, per network.")
def demo_command(html: str, seconds: float) -> None:
    """Compile and run real networks, check them, and compare sequential with wavefront scheduling."""
    files.check_new(html)
    with progress_bar() as show_progress:
        demo.run(out, Path(html), seconds, show_progress)


if __name__ == "__main__":
    sys.exit(main())
