"""Of C definitions those that a text needs: the smallest set that compiles."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from kernel_harness import SPEC, library

from rammer.ir.device import VDeviceSpec
from rammer.vdevice.cpu.codegen import amx, dots, vnni
from rammer.vdevice.cpu.codegen.emit import prelude
from rammer.vdevice.ctext.definitions import Definitions

UNIT = replace(SPEC, instructions=amx.AMX)
NEON = replace(SPEC, lanes=4)
BYTES = replace(SPEC, instructions=vnni.VNNI)
SHORT = replace(SPEC, instructions=dots.AVX512_BF16)
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


def test_all_parts_together_are_the_text() -> None:
    for text in (TEXT, *map(prelude, (SPEC, UNIT, BYTES, SHORT, NEON))):
        made = "each_a other_b vfloor vd_exp rammer_1x1_u8i8 rammer_sums_1 rammer_add_1_bf16"  # names by macros
        names = " ".join(re.findall(r"\w+", text)) + f" {made}"
        assert Definitions(text).needed(names) == text


@pytest.mark.parametrize("spec", [SPEC, UNIT, BYTES, NEON], ids=["avx512", "amx", "vnni", "neon"])
@pytest.mark.parametrize("used", ["vd_exp", "vtranspose", "vd_fold_max", "vsigmoid", "imod", "dsigmoid", "serf", "at"])
def test_what_is_needed_compiles(spec: VDeviceSpec, used: str) -> None:
    """Nothing of the prelude is used that is not kept: C refuses functions that are not declared."""
    needed = Definitions(prelude(spec)).needed(f"{used} INLINE")
    assert f"{used}(" in needed or f"EACH({used.removeprefix('vd_')}, " in needed
    assert len(needed) < len(prelude(spec)) / 2
    library(needed)


@pytest.mark.parametrize("spec", [UNIT, BYTES, SHORT], ids=["amx", "vnni", "avx512-bf16"])
def test_instructions_compile_with_what_they_use(spec: VDeviceSpec) -> None:
    """Each function of the instructions' texts is there if it is named, and so is all that it and each macro needs."""
    text = prelude(spec)
    functions = {*re.findall(r"\b(?:static|INLINE) void (rammer_\w+)\(", text)}
    functions |= {
        BYTES: {"rammer_8x48_u8i8", "rammer_bytes_rows"},
        SHORT: {"rammer_add_8x48_bf16", "rammer_end_8x48"},
    }.get(spec, set())
    macros = re.findall(r"#define (rammer_begin_\w+)\(sums, to\)", text)
    calls = [f"void *called = (void *){name};" for name in sorted(functions)]
    calls += [f"void called(float *to) {{ {name}(block, to); }}" for name in macros]
    assert len(calls) >= 3
    for call in calls:
        library(Definitions(text).needed(call) + call)
