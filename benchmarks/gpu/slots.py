"""Compare measured slots of a GPU's programs with the scheduler's estimates, by operator. Needs no GPU.

python -m benchmarks.gpu.slots FOLDER [--json slots.json]

FOLDER has what `python -m benchmarks.gpu.run --slots FOLDER` writes. A slot is measured from the end of its wait to the
end of its task. The time between a slot and the next wait goes to the loop of instructions.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from rammer import files


@dataclass(frozen=True)
class Row:
    """Equal rTasks of a program: how many, and microseconds of one."""

    kind: str
    rkernel: str
    count: int
    measured_us: float
    estimated_us: float


@dataclass(frozen=True)
class Slots:
    """A program's rows, the longest first, with the µs of a wait, between the slots of a lane, and of the whole run."""

    rows: tuple[Row, ...]
    wait_us: float
    between_us: float
    total_us: float
    estimated_us: float

    @property
    def off(self) -> float:
        """Mean |measured / estimate - 1| of an rTask, by the time that it was estimated to take."""
        weights = np.array([row.count * row.estimated_us for row in self.rows])
        off = np.array([abs(row.measured_us / row.estimated_us - 1) if row.estimated_us else 0.0 for row in self.rows])
        return float((weights * off).sum() / weights.sum()) if weights.sum() else 0.0


def read(path: Path) -> Slots:
    """Read a file of slots."""
    with np.load(path, allow_pickle=False) as stored:
        found: dict[str, npt.NDArray[np.generic]] = {name: stored[name] for name in stored.files}
    times, operators = found["times"].astype(np.float64), found["operators"].astype(np.int64)
    taken = times[:, 1] - times[:, 0]
    rows: dict[tuple[str, str, float], list[npt.NDArray[np.float64]]] = {}
    for n in np.unique(operators[operators >= 0]).tolist():
        key = str(found["kinds"][n]), str(found["rkernels"][n]), float(found["rtask_us"][n])
        rows.setdefault(key, []).append(taken[operators == n])
    ends = np.cumsum(found["lengths"].astype(np.int64))
    first = np.isin(np.arange(len(times)), [0, *ends.tolist()])
    gaps = (times[1:, 0] - times[:-1, 1])[~first[1:]]
    waits = taken[operators < 0]
    made = (
        Row(kind, rkernel, sum(map(len, all_of)), float(np.concatenate(all_of).mean()), estimated)
        for (kind, rkernel, estimated), all_of in rows.items()
    )
    return Slots(
        tuple(sorted(made, key=lambda row: -row.count * row.measured_us)),
        float(waits.mean()) if len(waits) else 0.0,
        float(gaps.mean()) if len(gaps) else 0.0,
        float(found["total_us"]),
        float(found["estimated_us"]),
    )


def table_of(name: str, slots: Slots, most: int) -> Table:
    """Return the rows that take the most time."""
    title = (
        f"{name}: {slots.total_us:.0f} us, estimated {slots.estimated_us:.0f}; a wait {slots.wait_us:.2f}, "
        f"between slots {slots.between_us:.2f}; mean |measured / estimate - 1| {slots.off:.2f}"
    )
    table = Table("rTasks", "us", "estimated", "", "kind", "rKernel", title=title, title_justify="left", box=None)
    for row in slots.rows[:most]:
        ratio = f"{row.measured_us / row.estimated_us:.2f}" if row.estimated_us else ""
        table.add_row(
            str(row.count), f"{row.measured_us:.2f}", f"{row.estimated_us:.2f}", ratio, row.kind[:40], row.rkernel[:70]
        )
    return table


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--most", default=12, show_default=True, help="Rows of a program.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Where to write all rows.")
def main(folder: Path, most: int, output: Path | None) -> None:
    """Print each program of FOLDER, and the mean error of the estimates over all of them."""
    console = Console(width=180)
    found = {path.stem: read(path) for path in sorted(folder.glob("*.npz"))}
    for name, slots in found.items():
        console.print(table_of(name, slots, most), highlight=False)
    if found:
        console.print(
            f"mean of {len(found)} programs: |measured / estimate - 1| of an rTask "
            f"{np.mean([s.off for s in found.values()]):.3f}, of a run "
            f"{np.mean([abs(s.total_us / s.estimated_us - 1) for s in found.values() if s.estimated_us]):.3f}"
        )
    if output:
        files.write(output, json.dumps({name: asdict(slots) for name, slots in found.items()}, indent=1))


if __name__ == "__main__":
    main()
