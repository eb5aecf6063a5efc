"""Instructions of NVIDIA's matrix units, and which thread of a wave holds what. Their text is in `prelude`."""

from __future__ import annotations

from rammer.ir.instruction import Instruction, multiply
from rammer.ir.tensor import Digit, Layout

WAVE = 32


def _mma(precision: str, terms: int, gain: float) -> Instruction:
    """sums[16, 8] += a[16, terms] b[terms, 8]: thread 4g + t holds rows and columns g, pairs of columns and terms t.

    Terms are dealt out so that both formats read scratch without bank conflicts: the unit may see them in any order.
    """
    eight, four = Digit(0, 1, 8), Digit(1, 1, 4)
    sums = Layout((eight, Digit(1, 2), Digit(0, 8), Digit(1, 1, 2)))
    a = Layout((eight, four, Digit(1, 4), Digit(0, 8)))
    b = Layout((Digit(1), Digit(0, 1, 4), Digit(0, 4)))
    return multiply(
        f"mma_{precision}",
        (16, 8, terms),
        (sums, a, b),
        threads=WAVE,
        accumulates=True,
        precision=precision,
        gain=gain,
    )


SM_80 = (_mma("tf32", 8, 4.0), _mma("bf16", 16, 8.0))
