"""Report a compilation: sizes, estimates of the schedule, time per phase, and a table of operators."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rammer.errors import ArtifactError, counted, duration, size
from rammer.runtime.usage import Usage

SHOWN = 10  # operators in a notebook
CHECKED = "checked by one run"  # prefix; the rest of the line depends on the time that was available


@dataclass(frozen=True)
class OperatorRow:
    """One operator of the plan; times are estimates in microseconds."""

    name: str
    kind: str
    rkernel: str
    num_rtasks: int
    rtask_us: float
    mflop: float


@dataclass(frozen=True)
class Report:
    """A compilation's report as plain data, so that it can be saved with the program."""

    target: str
    arch: str
    policy: str
    num_veus: int
    num_operators: int
    num_rkernels: int
    num_rtasks: int
    num_barriers: int
    num_rprograms: int
    arena_bytes: int
    weight_bytes: int
    estimated_us: float
    estimated_utilisation: float
    estimated_overhead: float
    phases_s: dict[str, float]
    notes: list[str] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)
    moved: dict[str, int] = field(default_factory=dict)  # estimated bytes that rTasks fetch, by memory level
    hand_overs: int = 0  # hand-overs on the longest chain of waits between vEUs
    handed_bytes: int = 0  # bytes that the rTasks of that chain wrote
    checked: str = ""  # whether the program was run and compared with its meaning, or why not
    usage: Usage | None = None  # result of the last `Program.profile`

    def to_json(self) -> dict[str, Any]:
        return {**asdict(replace(self, usage=None)), "usage": self.usage and self.usage.to_json()}

    def to_save(self) -> dict[str, Any]:
        """Return the report without times and details of the check, which differ between equal compilations."""
        checked = CHECKED if self.checked.startswith(CHECKED) else self.checked
        return {**self.to_json(), "phases_s": {}, "usage": None, "checked": checked}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Report:
        """Return a report from its data. Raises ArtifactError for data of another form."""
        try:
            return cls(**{**data, "operators": [OperatorRow(**row) for row in data["operators"]]})
        except (KeyError, TypeError) as error:
            raise ArtifactError(f"the program's report is damaged: {error}") from error

    def _repr_html_(self) -> str:
        """Show the report and the operators with most time in notebooks."""
        from rammer.ir.text import html_table

        spent = sorted(self.operators, key=lambda o: -o.rtask_us * o.num_rtasks)
        rows = ((o.name, o.kind, o.rkernel, o.num_rtasks, f"{o.rtask_us:.2f}") for o in spent[:SHOWN])
        lines = str(self).splitlines()
        facts = html_table([line.partition(":")[::2] if ": " in line else (line, "") for line in lines])
        return facts + html_table(rows, ("operator", "kind", "rKernel", "rTasks", "µs per rTask"))

    def __repr__(self) -> str:
        return f"<Report for {self.target}: {counted(self.num_operators, 'rOperator')}, {self.estimated_us:.0f} µs>"

    def __str__(self) -> str:
        moved = ", ".join(f"{size(nbytes)} from {level}" for level, nbytes in self.moved.items() if nbytes)
        lines = [
            f"target {self.target} ({self.arch}), policy {self.policy}, {counted(self.num_veus, 'vEU')}",
            f"{counted(self.num_operators, 'rOperator')} with {counted(self.num_rkernels, 'rKernel')}; "
            f"{counted(self.num_rtasks, 'rTask')} and {counted(self.num_barriers, 'barrier-rTask')} in "
            f"{counted(self.num_rprograms, 'rProgram')}",
            f"memory: arena {size(self.arena_bytes)}, weights {size(self.weight_bytes)}",
            f"timeline estimate {duration(self.estimated_us)}, vEU utilisation {self.estimated_utilisation:.0%}, "
            f"launches and barriers {self.estimated_overhead:.1%}",
            f"longest chain: {counted(self.hand_overs, 'hand-over')} between vEUs, of {size(self.handed_bytes)}",
            *([f"operands, estimated: {moved}"] if moved else []),
            *([self.checked] if self.checked else []),
            *([str(self.usage)] if self.usage else []),
        ]
        if self.phases_s:
            lines.append("compile: " + ", ".join(f"{what} {s:.2f} s" for what, s in self.phases_s.items()))
        return "\n".join([*lines, *(f"note: {n}" for n in self.notes)])
