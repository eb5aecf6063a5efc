"""Define the options of commands that compile, and open the program that they describe."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeGuard

import click
from click.shell_completion import CompletionItem

import rammer
from rammer.cli.running import array, pair
from rammer.cli.syntax import option_of
from rammer.compiler import CompileOptions
from rammer.compiler.progress import progress_bar
from rammer.errors import InputError
from rammer.plugins import PluginRegistry
from rammer.runtime import artifact
from rammer.runtime.program import Program
from rammer.vdevice.base import Progress


def pairs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    try:
        return dict(map(pair, values))
    except ArgumentTypeError as error:
        raise click.BadParameter(str(error)) from None


def _parsed(convert: Callable[[str], Any], example: str) -> Callable[..., dict[str, Any]]:
    def parse(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, Any]:
        try:
            return {name: convert(text) for name, text in pairs(context, parameter, values).items()}
        except ValueError:
            raise click.BadParameter(example) from None

    return parse


_shapes = _parsed(lambda text: tuple(map(int, text.split("x"))), "a shape looks like input=1x3x224x224")
_extents = _parsed(int, "a dimension looks like batch=8")


def _read(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> str | dict[str, str]:
    """Return a path, or paths of several models by name."""
    if len(texts) == 1 and ("=" not in texts[0] or Path(texts[0]).exists()):
        return texts[0]
    parts = [text.partition("=") for text in texts]
    for text, (name, _, path) in zip(texts, parts, strict=True):
        if not (name and path):
            raise click.BadParameter(f"{text!r} is not NAME=FILE, as several models are given")
    if twice := [name for name, count in Counter(name for name, _, _ in parts).items() if count > 1]:
        raise click.BadParameter(f"two models are named {twice[0]!r}")
    return {name: path for name, _, path in parts}


def _sets(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> list[list[str]]:
    return [text.split(",") for text in texts]


together_option = click.option(
    "--together", multiple=True, callback=_sets, help="Models that get a plan of their own besides: vad,denoiser."
)


def _names(option: str) -> Callable[..., list[CompletionItem]]:
    """Return a function that completes the names of vDevices or of policies, plugins' too."""

    def complete(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
        registry = PluginRegistry()
        known = registry.policies() if option == "policy" else registry.vdevices()
        return [CompletionItem(name) for name in known if name.startswith(begun)]

    return complete


model_argument = click.argument("model", nargs=-1, required=True, metavar="MODEL...", callback=_read, type=click.Path())


def paths_of(model: str | Mapping[str, str]) -> list[str]:
    """Return the files of one model or of several."""
    return [model] if isinstance(model, str) else [*model.values()]


SECONDS = click.FloatRange(min=0)
PLAIN = {  # options that are texts
    "device": "Which device of the target; for cpu the number of vEUs.",
    "arch": "Compile for this architecture instead of the one found; `rammer compile` takes several: A,B.",
    "precision": "Round operands of products, for matrix units: tf32, bf16.  [default: fp32]",
    "numerics": "strict: infinities, NaN and rounding as of direct sums.  [default: RAMMER_NUMERICS or fast]",
    "policy": "Policy, with options: wavefront:beyond=off; see `rammer doctor`.  [default: RAMMER_POLICY or auto]",
    "target": "cpu, cuda, interpreter, ipu, rocm, or a plugin's device.  [default: RAMMER_VDEVICE or cpu]",
}


def compile_options(command: Any) -> Any:
    """Add the options for compiling to a command."""
    seconds = "Time to measure rKernels.  [default: RAMMER_TUNE_SECONDS or 20]"
    for option in (
        click.option("--shape", "shapes", multiple=True, callback=_shapes, help="Fix a shape: NAME=1x3x224x224."),
        click.option("--dim", "dims", multiple=True, callback=_extents, help="Fix a symbolic dimension: NAME=8."),
        click.option("--constant", "constants", multiple=True, callback=pairs, help="Fix an input: NAME=FILE.npy."),
        click.option("--link", "links", multiple=True, callback=pairs, help="Connect models: A.INPUT=B.OUTPUT."),
        click.option("--threads", type=click.IntRange(min=1), help="Number of vEUs on a CPU, the same as --device."),
        click.option("--tune-seconds", type=SECONDS, help=seconds),
        *(
            click.option(f"--{n}", help=text, shell_complete=_names(n) if n in ("policy", "target") else None)
            for n, text in PLAIN.items()
        ),
    ):
        command = option(command)
    return command


def is_saved(model: str | Mapping[str, str]) -> TypeGuard[str]:
    """Check whether this is a saved program. The file's first bytes decide, not its name."""
    return isinstance(model, str) and artifact.is_archive(model)


def open_program(path: str | Mapping[str, str], **options: Any) -> Program:
    """Load a saved program, or compile a model or several."""
    if is_saved(path) or (isinstance(path, str) and Path(path).suffix == ".rammer" and not Path(path).exists()):
        refuse_options(path, **options)
        return rammer.load(path, device=options.get("device"), threads=options.get("threads"))
    with progress_bar() as show:
        return rammer.compile(path, how=how_to_compile(options), progress=show)


@contextmanager
def compiled(model: str | Mapping[str, str], **options: Any) -> Iterator[tuple[list[Program], Progress]]:
    """Compile a model or several for each architecture of `--arch A,B`, and yield the programs, with a progress bar."""
    arches = dict.fromkeys((options.pop("arch") or "").split(","))
    how = how_to_compile(options)
    with progress_bar() as show, ExitStack() as stack:
        made = (rammer.compile(model, how=how, arch=arch or None, progress=show) for arch in arches)
        yield [stack.enter_context(program) for program in made], show


def refuse_options(path: str, **options: Any) -> None:
    """Raise InputError for options that have no effect on a saved program."""
    given = [name for name, value in options.items() if value or value == 0]
    if ignored := [name for name in given if name not in ("device", "threads")]:
        raise InputError(f"{path} is compiled already: {option_of(ignored[0])} has no effect", hint="compile the model")


def how_to_compile(options: Mapping[str, Any]) -> CompileOptions:
    """Return the options of a compilation as one value, with constants read from their files.

    Several models get one plan for all.
    """
    constants = {name: array("--constant", name, file) for name, file in (options.get("constants") or {}).items()}
    return CompileOptions(**{"together": (), **options, "constants": constants})
