"""Run a program once from the command line: inputs from files, outputs described and saved. Needs NumPy only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from rammer import files
from rammer.errors import InputError, RammerError
from rammer.ir.tensor import Array
from rammer.runtime import measure
from rammer.runtime.program import Program

COLUMNS = ("output", "shape", "dtype", "min", "mean", "max")


def array(option: str, name: str, file: str) -> Array:
    """Read the .npy file that an option names. Raises InputError."""
    try:
        with files.open_plain(file) as opened:
            return np.asarray(np.load(opened, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{option} {name}: cannot read {file}: {error}", hint="write it with numpy.save") from error


def inputs_of(program: Program, given: Mapping[str, str], seed: int) -> dict[str, Array]:
    """Return the inputs from .npy files, and seeded random values for the others."""
    arrays = measure.random_inputs(program.inputs, seed)
    return arrays | {name: array("--input", name, file) for name, file in given.items()}


def described(outputs: Mapping[str, Array]) -> Iterator[tuple[str, ...]]:
    """Yield a row of COLUMNS for each output; of complex numbers the magnitudes."""
    for name, value in outputs.items():
        size, kind = (np.abs(value), f"|{value.dtype}|") if value.dtype.kind == "c" else (value, str(value.dtype))
        wide = size.astype(np.float64)
        numbers = (f"{f(wide):.6g}" if value.size else "-" for f in (np.min, np.mean, np.max))
        yield name, "×".join(map(str, value.shape)), kind, *numbers


def check_folder(folder: str, sources: Collection[str]) -> None:
    """Make the folder for outputs. Raises RammerError if that is impossible."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RammerError(f"cannot make the folder {folder}: {error.strerror}", hint="name another one") from error
    files.check_new(Path(folder, "0.npy"), sources=sources)


def save(outputs: Mapping[str, Array], folder: str, sources: Collection[str]) -> None:
    """Write every output as FOLDER/<number>.npy."""
    for number, value in enumerate(outputs.values()):
        with files.new_file(Path(folder) / f"{number}.npy", sources=sources) as file:
            np.save(file, value)
