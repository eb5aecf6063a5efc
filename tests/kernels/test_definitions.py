"""Of C definitions those that a text needs: the smallest set that compiles."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from kernel_harness import SPEC, library

from rammer.ir.device import VDeviceSpec
from rammer.vdevice.cpu import amx, vnni
from rammer.vdevice.cpu.emit import prelude
from rammer.vdevice.definitions import Definitions

UNIT = replace(SPEC, instructions=amx.AMX)
NEON = replace(SPEC, lanes=4)
BYTES = replace(SPEC, instructions=vnni.VNNI)
TEXT = """\
#include <math.h>
#define TWICE(x) (2 * one(x))
INLINE int one(int x) {  /* a brace in what is said: { */
#ifdef FAST
  return x;
#else
  return x + 0;
#endif
}
#define SUM(a, b) \\
  ((a) + (b))
#define EACH(name, how) INLINE int each_##name(int x) { return how(x); }
EACH(first, one)
EACH(second, SUM)
#undef EACH
typedef struct { int number; } pair;
static const int table[] = { 1, 2 };
static __attribute__((noinline)) void long_one(
    pair *p, int n) {
  p->number = table[n];
}
#define EACH(name) INLINE int other_##name(int x) { return x; }
EACH(third)
#undef EACH
"""


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", "math"),
        ("int n = TWICE(3);", "math TWICE one"),
        ("int n = SUM(1, 2), one_more;", "math SUM"),
        ("int n = each_second(1);", "math one SUM each_##"),
        ("void f(pair *);", "math pair"),
        ("void f(void) { long_one(0, 1); }", "math pair table long_one("),
        ("int n = other_third(1);", "math other_##"),
    ],
)
def test_what_a_text_uses_is_kept(text: str, kept: str) -> None:
    needed = Definitions(TEXT).needed(text)
    every = ["math", "TWICE", "one(int", "SUM(", "each_##", "pair;", "table[]", "long_one(\n", "other_##"]
    wanted = kept.split()
    assert [name for name in every if name in needed] == [
        name for name in every if any(name.startswith(w) for w in wanted)
    ]
    assert needed in TEXT or len(needed) < len(TEXT)


def test_all_parts_together_are_the_text() -> None:
    for text in (TEXT, prelude(SPEC), prelude(UNIT), prelude(NEON)):
        names = " ".join(re.findall(r"\w+", text)) + " each_a other_b vfloor vd_exp"
        assert Definitions(text).needed(names) == text


@pytest.mark.parametrize("spec", [SPEC, UNIT, BYTES, NEON], ids=["avx512", "amx", "vnni", "neon"])
@pytest.mark.parametrize("used", ["vd_exp", "vtranspose", "vd_fold_max", "vsigmoid", "imod", "dsigmoid", "serf", "at"])
def test_what_is_needed_compiles(spec: VDeviceSpec, used: str) -> None:
    """Nothing of the prelude is used that is not kept: C refuses functions that are not declared."""
    needed = Definitions(prelude(spec)).needed(f"{used} INLINE")
    assert f"{used}(" in needed or f"EACH({used.removeprefix('vd_')}, " in needed
    assert len(needed) < len(prelude(spec)) / 2
    library(needed)


@pytest.mark.parametrize("spec", [UNIT, BYTES], ids=["amx", "vnni"])
def test_instructions_compile_with_what_they_use(spec: VDeviceSpec) -> None:
    functions = sorted({*re.findall(r"\b(?:static|INLINE) void (rammer_\w+)\(", prelude(spec)), "rammer_8x48_u8i8"})
    macros = re.findall(r"#define (rammer_\w+)\(sums, to\)", prelude(spec))
    for used in [*functions, *(f"{name}(sums, (float *)0);" for name in macros)]:
        call = f"void called(void) {{ {used} }}" if "(" in used else ""
        library(Definitions(prelude(spec)).needed(f"{used} INLINE") + call)
