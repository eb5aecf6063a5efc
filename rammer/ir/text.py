"""Print rPrograms as text.

rprogram 2          an rProgram of two lanes; a plan is several of them
lane 0
  task 3.0          rTask 0 of operator 3
lane 1
  wait 0:0 2:4      a barrier-rTask: until slots prog[0][0] and prog[2][4] have completed
  task 4.1          # anything after a hash is a comment
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RTask


def print_plan(plan: ExecutionPlan) -> str:
    """Print the plan's rPrograms; comments name each rTask's operator and kernel."""
    operators = plan.graph.operators
    notes = [
        f"{op.kind} {printable(op.name)} by {printable(k.name)}" for op, k in zip(operators, plan.kernels, strict=True)
    ]
    head = f"# policy {printable(plan.policy)} on {printable(plan.spec.name)}\n"
    return head + print_programs(plan.programs, notes)


def print_programs(programs: Iterable[RProgram], notes: Sequence[str] = ()) -> str:
    """Print rPrograms; notes[operator] is added to its rTasks as a comment."""
    lines: list[str] = []
    for program in programs:
        lines.append(f"rprogram {len(program)}")
        for veu, lane in enumerate(program.lanes):
            lines.append(f"lane {veu}")
            for slot in lane:
                if isinstance(slot, RTask):
                    note = f"  # {notes[slot.uid.operator_id]}" if notes else ""
                    lines.append(f"  task {slot.uid.operator_id}.{slot.uid.rtask_id}{note}")
                else:
                    lines.append(" ".join(["  wait", *(f"{w.veu}:{w.order}" for w in slot.waits)]))
    return "".join(line + "\n" for line in lines)


def html_table(rows: Iterable[Iterable[object]], columns: Iterable[str] = ()) -> str:
    """Return a table for notebooks and pages. Cells are escaped: names come from models."""
    every = [("th", columns), *(("td", row) for row in rows)]
    lines = ("".join(f"<{tag}>{escape(printable(str(cell)))}</{tag}>" for cell in row) for tag, row in every)
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines if line)}</table>"


def printable(name: str) -> str:
    """Replace control, bidirectional and other invisible characters: names come from models, which are untrusted."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
