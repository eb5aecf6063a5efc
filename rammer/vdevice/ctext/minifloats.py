"""Generate C conversions between float32 and floats of at most 8 bits, from the properties of their NumPy types.

As in `functions`, one text serves scalars and vectors: F_ stands for float, I_ for an integer of the same bits, P_ for
the prefix of names. Codes are integers in I_. Rounding is to nearest, ties to even, as NumPy's astype. Overflow becomes
infinity, or NaN, or the largest number, depending on which of them the type has.
"""

from __future__ import annotations

import numpy as np

from rammer.ir.tensor import DType
from rammer.vdevice.ctext.files import text_of

MINIFLOATS = tuple(d for d in DType if d.is_float and d.only_stored)

FROM = text_of("rammer.vdevice.ctext", "text", "from_minifloat.h")
TO = text_of("rammer.vdevice.ctext", "text", "to_minifloat.h")
SCALES = text_of("rammer.vdevice.ctext", "text", "scales.h")


def template(dtype: DType) -> str:
    """Return both conversions of a type."""
    if dtype is DType.F8E8M0:
        return SCALES
    info = dtype.info
    sign, mantissa = 1 << (dtype.bits - 1), int(info.nmant)
    normal, smallest = float(info.smallest_normal), float(info.smallest_subnormal)
    largest, infinite, invalid = (_code(v, dtype) for v in (float(info.max), np.inf, np.nan))
    has_infinity = infinite not in (largest, invalid)
    last = infinite if has_infinity else largest
    values = {
        "NAME": dtype.value,
        "MAGNITUDE": sign - 1,
        "FIRST_NORMAL": 1 << mantissa,
        "NORMAL_BITS": hex(_bits(normal)),
        "OFFSET": hex(_bits(normal) - (1 << 23)),
        "SMALLEST": f"{smallest!r}f",
        "MAGIC": f"{smallest * 2**23!r}f",
        "SIGN_SHIFT": 32 - dtype.bits,
        "HALF": hex(1 << (22 - mantissa)),
        "SHIFT": 23 - mantissa,
        "LARGEST": largest,
        "OVER": infinite,
        "NOT_A_NUMBER": invalid,
    }
    special = ""
    if has_infinity:
        special += f"  v = P_sel(m == {last}, P_splat(INFINITY), v);\n"
    if invalid < sign:
        special += f"  v = P_sel(m > {last}, P_splat(NAN), v);\n"
    signless = invalid == sign and _code(-np.nan, dtype) == sign  # no -0: its code is that of NaN
    if signless:
        special += f"  v = P_sel(x == {sign}, P_splat(NAN), v);\n"
    values |= {"RESULT": f"P_sel_i((r == 0) | (r == {sign}), r, r ^ sign)" if signless else "r ^ sign"}
    text = (FROM + TO).replace("SPECIAL", special)
    for name in sorted([*values, "SIGN"], key=len, reverse=True):
        text = text.replace(name, str(values.get(name, sign)))
    return text


def _code(value: float, dtype: DType) -> int:
    """Return the bits of the nearest number."""
    return int(np.float32(value).astype(dtype.numpy).view(np.uint8))


def _bits(value: float) -> int:
    """Return the bits of a float32."""
    return int(np.float32(value).view(np.uint32))


TEMPLATES = "".join(map(template, MINIFLOATS))


def wrapped(text: str, dtype: DType, signed: str = "") -> str:
    """Print the low bits of a byte, as an integer of less than 8 bits has them.

    The text is a vector's, or a scalar's if `signed` is a cast.
    """
    if dtype.bits >= 8 or dtype.is_float:
        return text
    if dtype.value.startswith("u"):
        return f"({text} & {(1 << dtype.bits) - 1})"
    return f"({signed}({text} << {8 - dtype.bits}) >> {8 - dtype.bits})"
