"""Generate models at realistic sizes from seeds, compile them with any options, and compare with an oracle.

    python -m rammer.testing.fuzz --seconds 600 --seed 0

Known as: differential fuzzing. Plugin authors name their own with `--target` and `--policy`.
"""

from rammer_testing.fuzz.case import Case, Choices, Options, draw
from rammer_testing.fuzz.families import FAMILIES
from rammer_testing.fuzz.sketch import Port, Sketch
from rammer_testing.fuzz.trial import Trial, Verdict
from rammer_testing.fuzz.worker import Limits, alone, run_separately

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
    "draw",
    "run_separately",
]
