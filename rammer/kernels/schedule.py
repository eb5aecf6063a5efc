"""Define schedules: how an expression becomes a loop nest, as plain frozen data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from rammer.ir.expr import Load, Stage
from rammer.ir.index import var
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Layout, TensorType
from rammer.ir.tile import Kind, Scope

LETTERS = {Kind.SERIAL: "s", Kind.UNROLLED: "u", Kind.VECTOR: "v", Kind.THREAD: "p", Kind.TASK: "t"}  # in texts
Packing: TypeAlias = tuple[tuple[str, Layout], ...]  # (static input, how it is packed at compile time)


@dataclass(frozen=True, slots=True)
class Loop:
    """One digit of `axis`: it counts in steps of `step` up to the next larger step of that axis (or its extent).

    The position in the schedule is the position in the nest; the step alone says which digit it is. An axis "*a*b*c" is
    the row-major number over the rest of these axes, so that thread digits need not know the extent of each one.
    """

    axis: str
    step: int = 1
    kind: Kind = Kind.SERIAL

    def __str__(self) -> str:
        return f"{self.axis}/{self.step}{LETTERS[self.kind]}"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that the loop counts through."""
        return members(self.axis)


def group(axes: Iterable[str]) -> str:
    """Return the name of the number that counts the points of several axes, the last one fastest."""
    return "*" + "*".join(axes)


def is_group(axis: str) -> bool:
    """Check whether `group` made this name."""
    return axis.startswith("*")


def members(axis: str) -> tuple[str, ...]:
    """Return the axes of a group, or a plain axis itself."""
    return tuple(a for a in axis.split("*") if a)


def copied(tensor: str, kind: TensorType) -> Stage:
    """Return the stage by which an At copies a tensor for its readers. Its axes are the tensor's dimensions."""
    axes = tuple((f"{tensor}{d}", extent) for d, extent in enumerate(kind.shape))
    return Stage(f"{tensor}_s", axes, Load(tensor, tuple(var(a) for a, _ in axes)), dtype=kind.dtype)


@dataclass(frozen=True, slots=True)
class At:
    """Compute a stage (or copy an input, see `copied`) inside loop number `depth` of its host: just the box read there.

    A stage that an instruction copies has a second At for itself; products by instructions read the copy. The host is
    the root, or the stage `inside`. Depth -1 is before the first loop of the host. `gap`: unused elements after each
    plane of the buffer's two innermost dimensions, so that adjacent planes do not fall on the same cache sets.
    """

    stage: str
    depth: int
    loops: tuple[Loop, ...] = ()
    scope: Scope = Scope.LOCAL
    order: tuple[int, ...] = ()  # dimension order of the scratch buffer, if not the natural one
    inside: str = ""
    gap: int = 0
    pad: int = 0  # unused elements after each row of the innermost dimension
    instruction: Instruction | None = None  # that computes the stage, or copies the input
    layout: Layout | None = None  # layout of the box, instead of an order of its dimensions

    def __str__(self) -> str:
        loops = " ".join(map(str, self.loops))
        rest = f"{self.scope.value} {self.order} {self.gap} {self.pad} {_name(self.instruction)}"
        if self.layout:
            rest += _lie(self.layout)
        return f"{self.stage} in {self.inside or 'root'}[{self.depth}]: {loops}, {rest}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The root's nest (outermost loop first), the place of each other stage, and the packing of static inputs."""

    name: str
    loops: tuple[Loop, ...]
    stages: tuple[At, ...] = ()
    packing: Packing = ()
    threads: int = 1
    instruction: Instruction | None = None  # that computes the root

    def __str__(self) -> str:
        """Return all of it as text. Different schedules have different texts."""
        packed = " ".join(f"{tensor}{_lie(layout)}" for tensor, layout in self.packing)
        more = [*map(str, self.stages), _name(self.instruction), packed and f"packs {packed}"]
        return "; ".join([" ".join(map(str, self.loops)), *filter(None, more), f"threads {self.threads}"])


def _lie(layout: Layout) -> str:
    """Return a layout as text."""
    digits = " ".join(f"{d.dim}/{d.div}%{d.mod}" + f"@{d.pitch}" * bool(d.pitch) for d in layout.digits)
    return f"({digits}) {layout.encoding or ''}".rstrip()


def _name(instruction: Instruction | None) -> str:
    return instruction.name if instruction else ""


def distinct(found: Iterable[Schedule | None]) -> Iterator[Schedule]:
    """Yield the schedules that are not None, each pair of loops and packing once."""
    seen = set()
    for schedule in found:
        if schedule is not None and (schedule.loops, schedule.packing) not in seen:
            seen.add((schedule.loops, schedule.packing))
            yield schedule
