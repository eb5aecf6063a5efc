"""Run a program once from the command line: inputs from files, outputs described and saved. Needs NumPy only."""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from rammer import files
from rammer.errors import InputError, RammerError, duration, message
from rammer.ir.tensor import Array, NamedArrays
from rammer.runtime import measure
from rammer.runtime.program import Program

COLUMNS = ("output", "shape", "dtype", "min", "mean", "max")


def pair(text: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises ArgumentTypeError, a usage error, for another text."""
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def array(option: str, name: str, file: str) -> Array:
    """Read the .npy file that an option names. Raises InputError."""
    try:
        with files.open_plain(file) as opened:
            return np.asarray(np.load(opened, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{option} {name}: cannot read {file}: {error}", hint="write it with numpy.save") from error


def run_once(
    paths: Collection[str],
    opens: Callable[[], Program],
    given: Mapping[str, str],
    folder: str | None,
    seed: int,
    verbose: int,
) -> tuple[list[tuple[str, ...]], float]:
    """Run a program on .npy files, and on seeded random values for other inputs.

    Return a row for each output, and the seconds that the run took.

    `paths` are the program's files. With a `folder`, writes every output as FOLDER/<number>.npy. `verbose` prints the
    report on stderr.
    """
    sources = [*paths, *given.values()]
    if folder:
        _check_folder(folder, sources)
    with opens() as program:
        if verbose:
            print(message(str(program.report())), file=sys.stderr)
        arrays = {name: array("--input", name, file) for name, file in given.items()}
        inputs = measure.random_inputs(program.inputs, seed) | arrays
        begin = time.perf_counter()
        outputs = program.run(inputs)
        seconds = time.perf_counter() - begin
    for number, value in enumerate(outputs.values() if folder else ()):
        with files.new_file(Path(str(folder)) / f"{number}.npy", sources=sources) as file:
            np.save(file, value)
    return [*described(outputs)], seconds


def took(seconds: float, rows: Collection[object]) -> str:
    """Say how long a single run took. `rows`: one for each output."""
    return f"this run, the first one, took {duration(1e6 * seconds)}{'' if rows else '; its outputs are all state'}"


def described(outputs: NamedArrays) -> Iterator[tuple[str, ...]]:
    """Yield a row of COLUMNS for each output; of complex numbers the magnitudes."""
    for name, value in outputs.items():
        size, kind = (np.abs(value), f"|{value.dtype}|") if value.dtype.kind == "c" else (value, str(value.dtype))
        wide = size.astype(np.float64)
        numbers = (f"{f(wide):.6g}" if value.size else "-" for f in (np.min, np.mean, np.max))
        yield name, "×".join(map(str, value.shape)), kind, *numbers


def _check_folder(folder: str, sources: Collection[str]) -> None:
    """Make the folder for outputs. Raises RammerError if that is impossible."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RammerError(f"cannot make the folder {folder}: {error.strerror}", hint="name another one") from error
    files.check_new(Path(folder, "0.npy"), sources=sources)
