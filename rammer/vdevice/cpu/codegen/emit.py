"""Emit C text of CPU kernels: a prelude with vector types and functions, and one C function per rKernel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.tile import NEXT, TileProgram
from rammer.planner.in_place import replaced
from rammer.vdevice.cpu.codegen.prefetch import capacity, prefetched
from rammer.vdevice.cpu.codegen.printer import TICKETS, CpuPrinter
from rammer.vdevice.cpu.codegen.text import c_text
from rammer.vdevice.cpu.codegen.unit_text import TEXTS
from rammer.vdevice.ctext import functions, minifloats
from rammer.vdevice.ctext.cfamily import CTYPE
from rammer.vdevice.ctext.definitions import Definitions

PLACEHOLDER = "rammer_kernel"
LARGE = 64  # lines of a body from which it is not inlined into its entry: clang would optimise it a second time
NOINLINE = "__attribute__((noinline)) "


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """The C function `void symbol(char *const *args, char *scratch, long rtask, int *status)` of an rKernel.

    It can prefetch `capacity` lines for later rTasks. `tickets` has the most tickets of each rTask, for work stealing.
    With either, `status` is the first member of a context.
    """

    symbol: str
    text: str
    capacity: int = 0
    tickets: tuple[int, ...] = ()


def emit(kernel: RKernel, spec: VDeviceSpec) -> EmittedKernel:
    """Return the C text of a kernel. Equal bodies get equal symbols."""
    if isinstance(kernel.body, ForeignSource):
        if kernel.body.language != "c":
            raise LoweringError(f"{kernel.name} is written in {kernel.body.language!r}, not in C")
        return EmittedKernel(kernel.body.symbol, kernel.body.text)
    return function(CpuPrinter(prefetched(kernel.body, spec), spec.lanes))


def function(printer: CpuPrinter) -> EmittedKernel:
    """Return a worker whose parameters are `restrict`, for alias analysis, and its entry of fixed signature.

    An output that may replace an input in place is not `restrict`, and neither is that input. The worker also takes the
    lines to prefetch for later rTasks, and its tickets, if it has any.
    """
    program: TileProgram = printer.program
    lines_ahead, tickets = capacity(program), printer.tickets
    names = [b.name for b in program.arguments]
    kinds = [f"{'const ' * (n >= program.num_outputs)}{CTYPE[b.dtype]} *" for n, b in enumerate(program.arguments)]
    shared = replaced(program)
    shared |= {b.name for b in program.arguments[: program.num_outputs] if shared}
    parameters = "".join(f"{k}{'' if b in shared else 'restrict '}{b}, " for k, b in zip(kinds, names, strict=True))
    arguments = "".join(f"({k})args[{n}], " for n, k in enumerate(kinds))
    if lines_ahead:
        parameters += f"const rammer_ahead *restrict {NEXT}, "
        arguments += "&((const rammer_context *)status)->next, "
        names.append(NEXT)
    if tickets:
        parameters += f"rammer_parts *restrict {TICKETS}, "
        arguments += "rammer_begun(((const rammer_context *)status)->taken, &rammer_own), "
        names.append(TICKETS)
    nests = printer.share(f"{PLACEHOLDER}_", ", ".join([*names, "scratch", "status"]))
    body = [*printer.scratch(), *printer.body(program.body, 1), *printer.end()]
    large = len(body) >= LARGE
    lines = []
    for nest in (*nests, *printer.loops):
        head = ", ".join([f"{parameters}char *restrict scratch, int *restrict status", *nest.parameters])
        lines += [f"static {NOINLINE}void {nest.name}({head}) {{", *nest.lines, "}"]
    lines += [
        f"static {NOINLINE * large}void {PLACEHOLDER}_body({parameters}char *restrict scratch, long rtask, "
        "int *restrict status) {",
        *body,
        "}",
        f"void {PLACEHOLDER}(char *const *args, char *scratch, long rtask, int *status) {{",
        *(["  rammer_parts rammer_own;"] if tickets else []),
        f"  {PLACEHOLDER}_body({arguments}scratch, rtask, status);",
        "}",
    ]
    text = "\n".join(lines) + "\n"
    symbol = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return EmittedKernel(symbol, text.replace(PLACEHOLDER, symbol), lines_ahead, tickets)


def translation_unit(kernels: Iterable[EmittedKernel], spec: VDeviceSpec) -> str:
    """Return one C file with the kernels, each symbol once, and the definitions of the prelude that they use."""
    text = "\n".join({k.symbol: k.text for k in kernels}.values())
    return _definitions(prelude(spec)).needed(text) + "\n" + text


@lru_cache(maxsize=8)
def _definitions(text: str) -> Definitions:
    return Definitions(text)


@lru_cache(maxsize=8)
def _prelude(lanes: int, texts: tuple[str, ...]) -> str:
    # one text for floats and for vectors of them, so that loop tails equal bodies bit for bit
    before, after = functions.ABS + functions.SIMPLE, functions.POLYNOMIALS + functions.ERF + functions.ARCS
    power = functions.instance(functions.POWER, "vf", "vi", "v")
    loads, numbers, integers = map(c_text, ("loads", "numbers", "integers"))
    math = before + functions.POWER + after
    scalars = functions.library(("floor", "ceil", "round", "sqrt")) + functions.instance(math)
    return (
        c_text("head").replace("LANES", str(lanes)).replace("VBYTES", str(4 * lanes)).replace("HBYTES", str(2 * lanes))
        + functions.BITS
        + functions.COMPLEX
        + COMPLEX128
        + functions.HALF_BITS.replace("HALF", "_Float16")
        + functions.instance(before, "vf", "vi", "v")
        + f"{POWER}#else\n{power}#endif\n".replace("LANES", str(lanes))
        + functions.instance(after, "vf", "vi", "v")
        + scalars
        + _folds(lanes, "vf", "float")
        + functions.DOUBLES
        + functions.INTEGERS
        + functions.indices("long", report="*status |= bad")  # with a condition, clang scatters to it in vectors
        + _typed(loads, "vc", "int8_t", lanes, 1)
        + _typed(loads, "vb", "uint8_t", lanes, 1)
        + _typed(loads, "vs", "int16_t", lanes, 2)
        + _typed(loads, "vt", "uint16_t", lanes, 2)
        + _typed(loads, "vd", "double", lanes, 8)
        + _typed(loads + numbers + integers, "vl", "int64_t", lanes, 8)
        + _typed(loads + numbers + integers, "vi", "int", lanes, 4)
        + _folds(lanes, "vl", "int64_t")
        + _folds(lanes, "vi", "int")
        + c_text("weights").replace("LANES", str(lanes))
        + _typed(numbers + c_text("doubles"), "vd", "double", lanes, 8)
        + _folds(lanes, "vd", "double")
        + c_text("large_arguments").replace("LANES", str(lanes))
        + functions.instance(functions.wide_instance(functions.THROUGH_DOUBLES))
        + functions.instance(functions.wide_instance(functions.THROUGH_DOUBLES, "vd", "vl", "vd_"), "vf", "vi", "v")
        + _transpose(lanes)
        + f"static {NOINLINE}void vturned(float *p, long row, const float *q, int rows, int columns) "
        + f"{{ vtranspose(p, row, q, {lanes}, rows, columns); }}\n"
        + _transpose(lanes, "vb_", "vb", "uint8_t")
        + _transpose(lanes, "vt_", "vt", "uint16_t")
        + _transpose(lanes, "vl_", "vl", "int64_t")
        + functions.instance(minifloats.TEMPLATES)
        + functions.instance(minifloats.TEMPLATES, "vf", "vi", "v")
        + "".join(texts).replace("LANES", str(lanes))
    )


def _typed(text: str, vector: str, element: str, lanes: int, size: int) -> str:
    """Return functions for vectors T_ of E_, whose comparisons yield vectors M_; `size` is an element's in bytes."""
    text = text.replace("T_", vector).replace("E_", element).replace("M_", "vl" if size == 8 else "vi")
    return text.replace("LANES", str(lanes)).replace("SIZE", str(size)).replace("BYTES", str(size * lanes))


def _folds(lanes: int, vector: str, element: str) -> str:
    """Return functions that reduce a vector's lanes: each step combines the upper half with the lower one."""
    text, (own, of) = "", ("", "v") if vector == "vf" else (f"{vector}_", f"{vector}_")
    for name, step in (("add", "a + b"), ("mul", "a * b"), ("max", f"{of}max(a, b)"), ("min", f"{of}min(a, b)")):
        lines, left = [f"INLINE {element} {own}fold_{name}({vector} a) {{", f"  {vector} b;"], lanes // 2
        while left:
            upper = ", ".join(str((n + left) % lanes) for n in range(lanes))
            lines.append(f"  b = __builtin_shufflevector(a, a, {upper}); a = {step};")
            left //= 2
        text += "\n".join([*lines, "  return a[0];", "}", ""])
    return text


def _transpose(lanes: int, prefix: str = "v", vector: str = "vf", element: str = "float") -> str:
    """Return a function that transposes a square of `lanes` vectors: log2(lanes) rounds of two-input shuffles.

    It stores `rows` rows of `columns` elements each. `vturned` is its outlined form for squares that a kernel computes:
    kernels have one at each edge and share one function.
    """
    declared = f"{element} *p, long row, const {element} *q, long step, int rows, int columns"
    lines = [f"INLINE void {prefix}transpose({declared}) {{"]
    for i in range(lanes):
        text = f"rows < {lanes} ? {prefix}load(q + {i} * step, rows) : VECTOR({vector}, q[{i} * step])"
        lines.append(f"  {vector} r{i} = {i} < columns ? {text} : ({vector}){{0}}, t{i};")
    size = 1
    while size < lanes:
        for i in (i for i in range(lanes) if not i & size):
            low = ", ".join(str(n + lanes - size if n & size else n) for n in range(lanes))
            high = ", ".join(str(n + lanes if n & size else n + size) for n in range(lanes))
            lines.append(
                f"  t{i} = __builtin_shufflevector(r{i}, r{i + size}, {low}); "
                f"t{i + size} = __builtin_shufflevector(r{i}, r{i + size}, {high});"
            )
        lines += ["  " + " ".join(f"r{i} = t{i};" for i in range(lanes))]
        size *= 2
    for i in range(lanes):
        part, whole = f"{prefix}store(p + {i} * row, r{i}, columns)", f"VECTOR({vector}, p[{i} * row]) = r{i}"
        lines.append(f"  if ({i} < rows) {{ if (columns < {lanes}) {part}; else {whole}; }}")
    return "\n".join([*lines, "}", ""])


def prelude(spec: VDeviceSpec) -> str:
    """Return the definitions that kernel texts use: types, partial vectors, scalar and vector functions."""
    names = {i.name for i in spec.instructions}
    return _prelude(spec.lanes, tuple(text for table, text in TEXTS if names & {i.name for i in table}))


# Bit for bit as two products, the first of which is exact.
POWER = """\
#if defined(__AVX512F__) && LANES == 16
INLINE vf vpower(vf x, vf t) { return (vf)__builtin_ia32_scalefps512_mask(x, t - 12582912.0f, x, -1, 4); }
"""


COMPLEX128 = """\
INLINE double c128_real(_Complex double x) { return __real__ x; }
INLINE double c128_imag(_Complex double x) { return __imag__ x; }
INLINE _Complex double c128_complex(double re, double im) { return __builtin_complex(re, im); }
"""
