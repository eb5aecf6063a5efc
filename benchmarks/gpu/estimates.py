"""Compare today's estimates with rTasks that a GPU has run, from files of measurements. Needs no GPU.

python -m benchmarks.gpu.estimates [--held-out] [--most 12]
python -m benchmarks.gpu.estimates --count MODEL…   # after rammer/cost/work.py changed: counts the rKernels again

The measured times are those of `benchmarks.gpu.slots`; beside them lies the counted work of each rKernel, so that no
model is compiled. `--held-out` fits the spec's constants without a model, and shows the error of that model.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import numpy.typing as npt

import rammer
from benchmarks.gpu.programs import GROUPINGS
from benchmarks.models import catalog
from rammer import files
from rammer.cost.estimate import block_us
from rammer.cost.work import Issued, Work, work
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.tile import TileProgram
from rammer.vdevice.cuda.spec import choose_gpu, make_spec

RAW = Path(__file__).parents[2] / "docs" / "measured" / "raw"
# Slots of programs, and what is counted of their rKernels. Counts of the first with units that multiply are gone: other
# rKernels have their names today.
DATA = tuple((RAW / f"h200-{day}.json", RAW / f"h200-{day}-work.json") for day in ("2026-11-28", "2026-11-28-evening"))
FITTED = ("start_us", "sync_us")  # of a spec
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """Equal rTasks of a program on a GPU, and what is counted of one: the bytes of its arguments, and its work."""

    program: str
    kind: str
    rkernel: str
    count: int
    us: float
    before_us: float  # the estimate of the commit that compiled it
    threads: int
    nbytes: int
    arguments: Mapping[str, float]
    resident: frozenset[str]
    work: Work

    @property
    def model(self) -> str:
        return self.program.partition("_full-")[0].rpartition("_b")[0]

    def estimated_us(self, spec: VDeviceSpec) -> float:
        return block_us(self.work, spec, self.threads, self.arguments, self.nbytes, self.resident)


@cache
def spec_of(program: str) -> VDeviceSpec:
    """Return the spec for which a program was compiled."""
    grouping = next((f":{g}" for g in GROUPINGS if f"@{g}" in program), "")
    return make_spec(choose_gpu(f"h200{grouping}"))


def counted(kernel: RKernel, spec: VDeviceSpec) -> dict[str, Any]:
    """Return what `Measured` keeps of an rKernel, for JSON."""
    body = kernel.program
    assert isinstance(body, TileProgram)
    found, inputs = work(body, spec), body.arguments[body.num_outputs :]
    types = (*kernel.input_types(), *kernel.operation.outputs)
    return {
        "threads": body.num_threads,
        "nbytes": sum(t.nbytes for t in types),
        "arguments": {b.name: found.total.get(b.name, 0.0) for b in body.arguments},
        "static": [b.name for b, static in zip(inputs, kernel.operation.static, strict=True) if static],
        "stored": sorted(found.stored),
        "shapes": [list(t.shape) for t in kernel.operation.inputs],
        "work": _as_json(found),
    }


def _as_json(found: Work) -> list[Any]:
    own = found.issued
    issued = [round(n, 4) for n in (own.arithmetic, own.loads, own.stores, own.made)]
    waits = [found.sums, found.syncs, found.load_rounds, found.pending_words]
    return [found.trips, issued, waits, [_as_json(inside) for inside in found.loops]]


def _of_json(found: Sequence[Any], stored: frozenset[str]) -> Work:
    trips, issued, (sums, *waits), loops = found
    inside = tuple(_of_json(one, stored) for one in loops)
    return Work(trips, Issued(*issued), inside, sums, {}, {}, *waits, stored)


def read(data: Iterable[tuple[Path, Path]] = DATA) -> list[Measured]:
    """Return all measured rTasks whose work is counted."""
    return [row for measured, counts in data for row in _read(measured, counts)]


def _read(measured: Path, counts: Path) -> list[Measured]:
    times, found = json.loads(measured.read_text())["slots"], json.loads(counts.read_text())
    rows = []
    for program, number, n, resident in found["rows"]:
        rkernel, count, us, before_us = times[program]["rows"][number]
        own = found["rkernels"][n]
        rows.append(
            Measured(
                program,
                own["kind"],
                rkernel,
                count,
                us,
                before_us,
                own["threads"],
                own["nbytes"],
                own["arguments"],
                frozenset(own["static"] if resident else ()),
                _of_json(own["work"], frozenset(own["stored"])),
            )
        )
    return rows


def errors(rows: Sequence[Measured], estimates: Floats) -> dict[str, float]:
    """Return by program the mean |measured / estimate - 1|, weighted by estimated time, as `slots` does."""
    weights = np.array([row.count for row in rows]) * estimates
    off = np.abs(np.array([row.us for row in rows]) / estimates - 1)
    programs = np.array([row.program for row in rows])
    return {
        name: float((weights * off)[programs == name].sum() / weights[programs == name].sum())
        for name in dict.fromkeys(programs.tolist())
    }


def held_out(rows: Sequence[Measured]) -> dict[str, float]:
    """Return by program the error of estimates whose constants are fitted to all other models."""
    specs = {row.program: spec_of(row.program) for row in rows}
    zero = {name: replace(spec, **dict.fromkeys(FITTED, 0.0)) for name, spec in specs.items()}
    base = np.array([row.estimated_us(zero[row.program]) for row in rows])
    parts = [
        [row.estimated_us(replace(zero[row.program], **{name: 1.0})) - us for name in FITTED]
        for row, us in zip(rows, base, strict=True)
    ]
    us, made, models = np.array([row.us for row in rows]), np.array(parts), np.array([row.model for row in rows])
    time = us * [row.count for row in rows]
    programs = np.array([row.program for row in rows])
    total = {name: time[programs == name].sum() for name in specs}
    scale = np.sqrt(time / [total[row.program] for row in rows]) / us
    found: dict[str, float] = {}
    for model in dict.fromkeys(models.tolist()):
        others = models != model
        fitted = np.linalg.lstsq((made * scale[:, None])[others], ((us - base) * scale)[others])[0]
        own = [row for row in rows if row.model == model]
        found |= errors(own, (base + made @ fitted)[~others])
    return found


def count_again(models: Sequence[str], data: tuple[Path, Path] = DATA[-1]) -> list[str]:
    """Count the work of candidates that have a measured rKernel's name and shapes, for models of the measured programs.

    Return the rKernels that are candidates no more; their work stays as it is.
    """
    measured, path = data
    content, times = json.loads(path.read_text()), json.loads(measured.read_text())["slots"]
    missing = []
    for model in models:
        mine = [row for row in content["rows"] if row[0].startswith(f"{_stem(model)}_")]
        by_program = {name: [row for row in mine if row[0] == name] for name in dict.fromkeys(row[0] for row in mine)}
        for program, rows in by_program.items():
            precision = next((p for p in ("tf32", "bf16") if f"@{p}" in program), "fp32")
            how = rammer.CompileOptions(
                target="cuda", arch="h200", policy="stationary", precision=precision, tune_seconds=0
            )
            with rammer.Compilation.of(catalog.named(model).built.path, how) as compilation:
                spec = compilation.device.spec
                some = (k for kernels in compilation.candidates.kernels.values() for k in kernels)
                found = {_key(k.name, own): own for k in some for own in [counted(k, spec)]}
                for _, number, n, _ in rows:
                    name = times[program]["rows"][number][0]
                    if own := found.get(_key(name, content["rkernels"][n])):
                        content["rkernels"][n] |= own
                    else:
                        missing.append(f"{program}: {name}")
    files.write(path, json.dumps(content, separators=(",", ":")) + "\n")
    return missing


def _key(name: str, counts: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a key of an rKernel, from its counts: several of a model have the same name."""
    return name, str(counts["shapes"]), str(counts["stored"])


def _stem(model: str) -> str:
    """Return NAME_bBATCH, with which names of programs begin."""
    name, _, batch = model.partition(":")
    return f"{name}_b{batch or 1}"


@click.command()
@click.argument("models", nargs=-1)
@click.option("--count", is_flag=True, help="Count the work of MODELS' rKernels again; a model is NAME or NAME:BATCH.")
@click.option("--held-out", "apart", is_flag=True, help="Fit constants without a model, and show that model's error.")
@click.option("--most", default=0, show_default=True, help="Also rKernels with the largest part of the error.")
def main(models: tuple[str, ...], count: bool, apart: bool, most: int) -> None:
    """Print |measured / estimate - 1| by program, and measured / estimate by operator; before: when it was measured."""
    if count:
        for rkernel in count_again(models):
            click.echo(f"no candidate any more: {rkernel}")
        return
    rows = [row for row in read() if not models or row.model in models]
    now = np.array([row.estimated_us(spec_of(row.program)) for row in rows])
    before = np.array([row.before_us for row in rows])
    found, earlier = errors(rows, now), errors(rows, before)
    others = held_out(rows) if apart else {}
    for program, off in found.items():
        held = f", held out {others[program]:.3f}" if apart else ""
        click.echo(f"{program:58} {off:.3f}{held}, before {earlier[program]:.3f}")
    held = f", held out {np.mean([*others.values()]):.3f}" if apart else ""
    means = np.mean([*found.values()]), np.mean([*earlier.values()])
    click.echo(f"mean of {len(found)} programs: {means[0]:.3f}{held}, before {means[1]:.3f}")
    kinds: dict[str, Floats] = defaultdict(lambda: np.zeros(3))
    for row, us in zip(rows, now, strict=True):
        kinds[row.kind.partition("+")[0]] += row.count * np.array([row.us, us, row.before_us])
    for kind, (us, new, old) in sorted(kinds.items(), key=lambda kind: -kind[1][0]):
        click.echo(f"  {kind:20} measured / estimate {us / new:.2f}, before {us / old:.2f}")
    worst = np.argsort([-row.count * abs(row.us - us) for row, us in zip(rows, now, strict=True)])
    for row, us in [(rows[n], now[n]) for n in worst[:most]]:
        click.echo(f"  {row.program:58} {row.rkernel:56} {row.count:6} x {row.us:.2f} us, estimated {us:.2f}")


if __name__ == "__main__":
    main()
