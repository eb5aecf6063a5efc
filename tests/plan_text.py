"""rPrograms back from the text that rammer.ir.text prints: what holds that nothing of them is lost in it."""

from __future__ import annotations

import re

from rammer.errors import RammerError
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, Slot, TaskUid

MAX_LANES = 1 << 20
_NUMBER = r"(0|[1-9][0-9]{0,8})"
_TASK, _WAIT = re.compile(rf"{_NUMBER}\.{_NUMBER}"), re.compile(rf"{_NUMBER}:{_NUMBER}")


def parse_programs(text: str) -> tuple[RProgram, ...]:
    """rPrograms from text. Raises RammerError with the number of the first bad line."""
    programs: list[list[list[Slot]]] = []
    widths: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        match line.partition("#")[0].split():
            case []:
                pass
            case ["rprogram", count] if re.fullmatch(_NUMBER, count) and int(count) <= MAX_LANES:
                _complete(programs, widths, number)
                programs.append([])
                widths.append(int(count))
            case ["lane", veu] if programs and veu == str(len(programs[-1])) and len(programs[-1]) < widths[-1]:
                programs[-1].append([])
            case ["task", uid] if programs and programs[-1] and (found := _TASK.fullmatch(uid)):
                programs[-1][-1].append(RTask(TaskUid(int(found[1]), int(found[2]))))
            case ["wait", *targets] if programs and programs[-1] and all(map(_WAIT.fullmatch, targets)):
                pairs = (target.split(":") for target in targets)
                programs[-1][-1].append(BarrierRTask(tuple(Position(int(v), int(o)) for v, o in pairs)))
            case _:
                raise RammerError(
                    f"line {number}: not understood: {line.strip()[:80]!r}", hint=_expected(programs, widths)
                )
    _complete(programs, widths, text.count("\n") + 1)
    return tuple(RProgram(tuple(map(tuple, lanes))) for lanes in programs)


def _complete(programs: list[list[list[Slot]]], widths: list[int], number: int) -> None:
    if programs and len(programs[-1]) != widths[-1]:
        raise RammerError(
            f"line {number}: an rProgram of {widths[-1]} lanes ends after {len(programs[-1])}",
            hint="write every lane, empty ones too",
        )


def _expected(programs: list[list[list[Slot]]], widths: list[int]) -> str:
    if not programs:
        return f"expected 'rprogram <lanes>' with at most {MAX_LANES} lanes"
    if len(programs[-1]) < widths[-1]:
        slots = ", 'task <operator>.<rtask>' or 'wait <veu>:<order> …'" if programs[-1] else ""
        return f"expected 'lane {len(programs[-1])}'{slots}"
    return "expected 'task <operator>.<rtask>', 'wait <veu>:<order> …' or 'rprogram <lanes>'"
