"""A figure or table of the paper as data: jobs whose results are kept, and what is drawn of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Values: TypeAlias = dict[str, Any]  # what a job found: numbers, or lists of numbers, by name
Kind: TypeAlias = Literal["measured", "simulated", "emulated", "counted"]


@dataclass(frozen=True, slots=True)
class Source:
    """How numbers came about: measured on a device, simulated on a spec, emulated, or counted."""

    kind: Kind
    on: str

    def __str__(self) -> str:
        return {
            "measured": f"measured on {self.on}",
            "simulated": f"simulated on spec {self.on}",
            "emulated": f"emulated: {self.on}",
            "counted": f"counted: {self.on}",
        }[self.kind]


@dataclass(frozen=True, slots=True)
class Job:
    """A part of a figure that is made by itself and kept. `target`: the device that it is measured on, alone."""

    key: str
    make: Callable[[], tuple[Source, Values]]
    target: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """What a job found, and when. `n`: how many runs, cells or operators it stands for."""

    source: Source
    date: str
    commit: str
    values: Values

    @property
    def n(self) -> int:
        return int(self.values.get("n", 1))


Points: TypeAlias = Mapping[str, Point]


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: bars by group and series (None: nothing to draw there), curves of (x, y), or rows of numbers."""

    title: str
    axis: str
    form: Literal["bars", "curves", "dots", "rows"]
    groups: tuple[str, ...] = ()
    series: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    across: str = ""  # the x axis of curves and dots
    log: bool = False
    unit: str = ""  # of the numbers above bars


@dataclass(frozen=True, slots=True)
class Claim:
    """A number that the paper prints, and the same of ours (None: not made yet)."""

    what: str
    paper: str
    ours: Callable[[Points], str | None]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a page shows of a figure's points: charts, and tables by title with their first row as heads."""

    panels: tuple[Panel, ...] = ()
    tables: Mapping[str, list[tuple[str, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or table of the paper. `caption` is the paper's, `how` says what is done here.

    `jobs` may be many; `draw` sees those that are made. `differs`: why numbers are not the paper's. `absent`: parts
    of the paper's figure that cannot be made here, with the reason. `results`: the file, if figures share one.
    """

    name: str
    title: str
    caption: str
    section: str
    how: str
    jobs: Callable[[], Iterable[Job]]
    draw: Callable[[Points], Drawn]
    claims: tuple[Claim, ...] = ()
    differs: tuple[str, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    results: str = ""
