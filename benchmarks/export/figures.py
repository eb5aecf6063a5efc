"""Measure exported projects against their goals: `python -m benchmarks.export.figures`.

For each model: the bytes of the library without weights, the time of `rammer_open` with the file of weights in the page
cache, the time of a run against `program.bind` in turns, the memory beyond weights and arena, and calls of malloc in
runs. The C program (figures.c) runs in a process of its own, and sleeps while Python has its turn.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import click

import rammer
from benchmarks.models.catalog import prepare
from benchmarks.models.store import Scale
from rammer.runtime.program import Program
from rammer.vdevice.toolchain import c_compiler

DRIVER = Path(__file__).with_name("figures.c")
PAUSE_S = 0.02  # longer than idle threads of the peer spin
TURN_S = 0.05
KB = 1000
SIZE_GOALS_KB = {"today_vad": 300, "today_mobilenet_v2": 3000}


class Measured(NamedTuple):
    """A figure with its unit, and the goal that it is at or below (None: there is none)."""

    figure: str
    value: float
    unit: str
    goal: float | None


def build(folder: Path, name: str) -> tuple[Path, Path]:
    """Build a project by CMake, its weights in a file. Return figures.c on it, and the model as a shared library."""
    compiler, made = c_compiler(), folder / "build"
    configure = ["cmake", "-S", folder, "-B", made, "-DRAMMER_WEIGHTS_FILE=ON", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"]
    for command in ([*configure, f"-DCMAKE_C_COMPILER={';'.join(compiler.command)}"], ["cmake", "--build", made]):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    archives = [f"{made}/lib{name}.a", f"{made}/librammer.a"]
    driver, library = folder / "figures", folder / f"lib{name}.so"
    for target, given in (
        (driver, [f"-DMODEL={name}_model", f"-I{folder}/include", "-O2", str(DRIVER), *archives]),
        (library, ["-shared", "-s", "-Wl,--whole-archive", *archives, "-Wl,--no-whole-archive"]),
    ):
        subprocess.run([*compiler.command, *given, "-lm", "-lpthread", "-o", str(target)], check=True)
    return driver, library


class Driver:
    """A process of figures.c, which answers commands."""

    def __init__(self, driver: Path, weights: Path) -> None:
        self._process = subprocess.Popen([driver, weights], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, command: str, number: int = 0) -> list[float]:
        """Return the numbers of an answer. Raises RuntimeError if the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # there is no answer then, either
            self._process.stdin.write(f"{command} {number}\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"figures.c ended at {command!r} with status {self._process.wait()}")
        return [float(word) for word in answer.split()]

    def close(self) -> None:
        """End the process."""
        with suppress(BrokenPipeError):
            self._process.communicate()


def in_turns(driver: Driver, bound: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    """Return microseconds of a run, by round, of the C program and of a bound call."""
    bound()
    began = time.perf_counter()
    bound()
    runs = max(3, int(TURN_S / (time.perf_counter() - began)))
    by_c, by_python = list[float](), list[float]()
    for _ in range(rounds):
        time.sleep(PAUSE_S)
        driver.ask("run", 1)
        by_c += driver.ask("run", runs)
        time.sleep(PAUSE_S)
        bound()
        began = time.perf_counter()
        for _ in range(runs):
            bound()
        by_python.append((time.perf_counter() - began) / runs * 1e6)
    return by_c, by_python


def figures(program: Program, inputs: dict[str, object], size_goal_kb: float | None, rounds: int) -> list[Measured]:
    """Export a program, build it, and measure."""
    with TemporaryDirectory(prefix="figures") as folder:
        project = Path(folder, "project")
        program.export(project, name="network")
        weights = project / "weights.bin"
        made, library = build(project, "network")
        with closing(Driver(made, weights)) as driver:
            added, named = driver.ask("memory")
            (opened,) = driver.ask("open", 100)
            by_c, by_python = in_turns(driver, program.bind(inputs), rounds)
            (allocations,) = driver.ask("allocations", 100)
        held = weights.stat().st_size
        return [
            Measured("library without weights", library.stat().st_size / KB, "KB", size_goal_kb),
            Measured("weights", held / KB, "KB", None),
            Measured("open", opened / 1e3, "ms", 1.0),
            Measured("run", min(by_c), "us", None),
            Measured("run, median", median(by_c), "us", None),
            Measured("run over bound call", min(by_c) / min(by_python), "", 1.0),
            Measured("run over bound call, medians", median(by_c) / median(by_python), "", 1.0),
            Measured("memory", added / KB, "KB", None),
            Measured("memory beyond weights and rammer_memory()", (added - held - named) / KB, "KB", 200.0),
            Measured("calls of malloc in 100 runs", allocations, "", 0.0),
        ]


@click.command()
@click.argument("models", nargs=-1)
@click.option("--scale", type=click.Choice(["full", "small"]), default="full", show_default=True)
@click.option("--device", default=2, show_default=True, help="vEUs.")
@click.option("--rounds", default=12, show_default=True, help="Turns of each side.")
@click.option("--json", "file", type=click.Path(dir_okay=False), help="Write the figures there, too.")
def main(models: tuple[str, ...], scale: Scale, device: int, rounds: int, file: str | None) -> None:
    """Print the figures of MODELS, of the catalogue; by default a voice detector and MobileNet-v2."""
    found: dict[str, list[Measured]] = {}
    for name in models or tuple(SIZE_GOALS_KB):
        built = prepare(name, 1, scale).built
        with rammer.compile(built.path, "cpu", device=device) as program:
            found[name] = figures(program, dict(built.inputs), SIZE_GOALS_KB.get(name), rounds)
        for row in found[name]:
            goal = "" if row.goal is None else f"  goal {row.goal:g}: {'met' if row.value <= row.goal else 'MISSED'}"
            click.echo(f"{name}: {row.figure}: {row.value:.4g} {row.unit}{goal}")
    if file:
        Path(file).write_text(json.dumps({name: [r._asdict() for r in rows] for name, rows in found.items()}, indent=1))


if __name__ == "__main__":
    main()
