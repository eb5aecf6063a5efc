"""Schedules: how an expression becomes a loop nest, as plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rammer.ir.instruction import Instruction
from rammer.ir.tensor import Layout
from rammer.ir.tile import Kind, Scope

LETTERS = {Kind.SERIAL: "s", Kind.UNROLLED: "u", Kind.VECTOR: "v", Kind.THREAD: "p", Kind.TASK: "t"}  # in texts
Packing: TypeAlias = tuple[tuple[str, Layout], ...]  # (static input, how it is packed at compile time)


@dataclass(frozen=True, slots=True)
class Loop:
    """One digit of `axis`: it counts in steps of `step` up to the next larger step of that axis (or its extent).

    The position in the schedule is the position in the nest; the step alone says which digit it is.
    """

    axis: str
    step: int = 1
    kind: Kind = Kind.SERIAL

    def __str__(self) -> str:
        return f"{self.axis}/{self.step}{LETTERS[self.kind]}"


@dataclass(frozen=True, slots=True)
class At:
    """Compute a stage (or copy an input) inside loop number `depth` of its host, just the box read there.

    The host is the root, or the stage `inside`. `gap`: elements left free after each plane of the buffer's two
    innermost dimensions, so that planes used side by side do not fall on the same sets of a cache.
    """

    stage: str
    depth: int
    loops: tuple[Loop, ...] = ()
    scope: Scope = Scope.LOCAL
    order: tuple[int, ...] = ()  # dimension order of the scratch buffer, if not the natural one
    inside: str = ""
    gap: int = 0
    pad: int = 0  # elements left free after each row: of the innermost dimension
    instruction: Instruction | None = None  # that computes the stage, or copies the input

    def __str__(self) -> str:
        loops = " ".join(map(str, self.loops))
        rest = f"{self.scope.value} {self.order} {self.gap} {self.pad} {_name(self.instruction)}"
        return f"{self.stage} in {self.inside or 'root'}[{self.depth}]: {loops}, {rest}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The root's nest (outermost loop first), where the other stages go, and how static inputs are packed."""

    name: str
    loops: tuple[Loop, ...]
    stages: tuple[At, ...] = ()
    packing: Packing = ()
    threads: int = 1
    instruction: Instruction | None = None  # that computes the root
    split_padding: bool = False  # True: interior without guards, at several times the code

    def __str__(self) -> str:
        """All of it but the packing: schedules that differ have different texts."""
        more = [*map(str, self.stages), *(["split"] if self.split_padding else []), _name(self.instruction)]
        return "; ".join([" ".join(map(str, self.loops)), *filter(None, more), f"threads {self.threads}"])


def _name(instruction: Instruction | None) -> str:
    return instruction.name if instruction else ""
