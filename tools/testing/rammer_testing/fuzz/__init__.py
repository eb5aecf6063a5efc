"""Models at real sizes, drawn from seeds, compiled with any options, and compared with an oracle.

    python -m rammer.testing.fuzz --seconds 600 --seed 0

For plugin authors, too: `--target` and `--policy` name what is theirs.
"""

from rammer_testing.fuzz.case import Case, Choices, Options, draw
from rammer_testing.fuzz.families import FAMILIES
from rammer_testing.fuzz.sketch import Port, Sketch
from rammer_testing.fuzz.trial import Trial, Verdict
from rammer_testing.fuzz.worker import Limits, alone, apart

__all__ = [
    "FAMILIES",
    "Case",
    "Choices",
    "Limits",
    "Options",
    "Port",
    "Sketch",
    "Trial",
    "Verdict",
    "alone",
    "apart",
    "draw",
]
