"""Define the functions that kernels call, for all backends that print C: floats (s…), doubles (d…), integers (i…).

Text uses INLINE, INFINITY, fixed-width types, bf16 (16 bits) and the functions of <math.h>. It is valid C and C++. In
templates F_ stands for float, I_ for an integer of the same bits, P_ for the prefix of names; the same templates make
the CPU's vector functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from rammer.vdevice.ctext.files import text_of

_text = partial(text_of, "rammer.vdevice.ctext", "text")

ONE = ("floor", "ceil", "sqrt", "exp", "log", "sin", "cos", "tanh", "erf")  # named as in <math.h>
LIBM = {**{name: f"{name}f" for name in ONE}, "round": "rintf", "abs": "fabsf"}

BITS = _text("bits.h")

# Complex numbers: complex64 is 8 bytes, complex128 is a type C128 of each language.
COMPLEX = _text("complex.h")

# For a type of half floats, HALF.
HALF_BITS = _text("half_bits.h")

# Templates. They use `sel`, `splat`, `sqrt` and `abs`, to be defined before.
SIMPLE = _text("simple.h")

# Templates without library calls, equal for each lane. They also use `bits`, `float` (of bits) and `int` (to float).
ABS = _text("abs.h")
POWER = _text("power.h")
POLYNOMIALS = _text("polynomials.h")
# Fitted to erf(x) / x for the least relative error, 1.3e-8; with float32's rounding 3.5e-7.
ERF = _text("erf.h")

# Coefficients are fitted for the least relative error, and rounded one at a time, lowest first.
ARCS = _text("arcs.h")

# Templates that compute in doubles, and round once. D_ stands for double, L_ for its bits, W_ for the prefix of their
# names. They use P_double and P_single (conversions), P_most (the largest lane of integers), P_sin_large and
# P_cos_large, which replace results for arguments of 2^20 and more, and P_fmod_any, for operands of any size.
THROUGH_DOUBLES = _text("through_doubles.h")

POW = "INLINE float spow(float x, float y) { return powf(x, y); }\n"
REMAINDER = "INLINE float sfmod(float x, float y) { return fmodf(x, y); }\n"

DOUBLES = _text("doubles.h")

INTEGERS = _text("integers.h")

INDICES = _text("indices.h")


def library(names: Iterable[str]) -> str:
    """Return float functions that call the C library."""
    return "".join(f"INLINE float s{name}(float x) {{ return {LIBM[name]}(x); }}\n" for name in names)


def instance(template: str, number: str = "float", bits: str = "int", prefix: str = "s") -> str:
    """Return a template's text for floats, or for vectors of them."""
    return template.replace("F_", number).replace("I_", bits).replace("P_", prefix)


def wide_instance(template: str, wide: str = "double", bits: str = "int64_t", prefix: str = "d") -> str:
    """Return a template's text for doubles, or for vectors of them; `instance` replaces the rest."""
    return template.replace("D_", wide).replace("L_", bits).replace("W_", prefix)


def indices(index: str, dividend: str = "", divisor: str = "", report: str = "if (bad) *status = 1") -> str:
    """Return quotients and checks of indices of a type; `dividend` and `divisor` may have others.

    `report` says that an index is `bad`: without a condition only where no other thread has the same status.
    """
    text = INDICES.replace("DIVIDEND", dividend or index).replace("DIVISOR", divisor or index)
    return text.replace("INDEX", index).replace("REPORT", report)
