"""Report what a session has done: hits, misses, compile time, padding."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rammer.errors import counted, message
from rammer.moved import renamed


@renamed(put_out="evictions")
@dataclass(frozen=True)
class SessionReport:
    """Counts of a session so far. A miss is a run that had to compile first."""

    hits: int
    misses: int
    compiled_ahead: int
    evictions: int
    compile_s: float
    padding: float  # fraction of input elements that is padding
    programs: tuple[tuple[str, int, float], ...]  # signature, runs, seconds; the one used last at the end

    def with_part(self, label: str, other: SessionReport) -> SessionReport:
        """Return this report with the counts of a part of the model added."""
        counts = ("hits", "misses", "compiled_ahead", "evictions", "compile_s")
        sums = {name: getattr(self, name) + getattr(other, name) for name in counts}
        inner = ((f"{label}: {text}", runs, seconds) for text, runs, seconds in other.programs)
        return replace(self, **sums, programs=(*self.programs, *inner))

    def __str__(self) -> str:
        lines = [
            f"{counted(self.hits, 'hit')}, {counted(self.misses, 'miss')}, {self.compiled_ahead} compiled ahead, "
            f"{self.evictions} evicted; {self.compile_s:.1f} s of compilation; {self.padding:.0%} of inputs are padding"
        ]
        lines += [f"  {text}: {counted(runs, 'run')}, {seconds:.1f} s" for text, runs, seconds in self.programs]
        return message("\n".join(lines))
