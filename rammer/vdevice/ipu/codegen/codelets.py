"""Emit codelets: one vertex class per distinct tile program, in C++ for both popc and a host compiler."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rammer.ir.expr import loads
from rammer.ir.index import Index, variables
from rammer.ir.kernel import RKernel
from rammer.ir.remembered import remembered
from rammer.ir.tensor import DType
from rammer.ir.tile import Body, Buffer, For, Kind, Store, TileProgram, statements, uses
from rammer.vdevice.ctext import functions, minifloats
from rammer.vdevice.ctext.cfamily import CTYPE, CFamilyPrinter
from rammer.vdevice.ipu.codegen.access import Variant, accesses
from rammer.vdevice.ipu.codegen.cycles import VERTEX_CYCLES, code_bytes, vertex_cycles
from rammer.vdevice.ipu.codegen.narrow import narrow, poplar
from rammer.vdevice.ipu.spec import WORKERS

NAME = "RTaskClass"  # placeholder of the class's name, a hash of its text


@dataclass(frozen=True, slots=True)
class EmittedField:
    """A field of a codelet: `name` in C++, `argument` of the tile program, or a scratch buffer of `size` elements."""

    name: str
    argument: str
    dtype: DType
    access: str  # Input, Output, InOut
    size: int


@dataclass(frozen=True, slots=True)
class EmittedCodelet:
    """A vertex class. `cycles` as setPerfEstimate takes them: of one worker alone, or of the tile if `multi`."""

    name: str
    text: str
    edges: tuple[EmittedField, ...]  # arguments, outputs first
    scratch: tuple[EmittedField, ...]
    values: tuple[str, ...]  # `int` fields set per vertex: rtask, and first elements of arguments
    has_status: bool
    multi: bool
    cycles: int
    code_bytes: int

    @property
    def tile_cycles(self) -> int:
        """Return the tile's cycles if this vertex runs there alone."""
        return self.cycles if self.multi else WORKERS * self.cycles

    @property
    def state_bytes(self) -> int:
        return 4 * (len(self.edges) + len(self.scratch) + len(self.values) + self.has_status)


class CodeletPrinter(CFamilyPrinter):
    """Printer of a tile program without vector types: popc vectorises by itself, and any host can run the text."""

    restrict, loop_type, align = "", "int", ""
    ctype: Mapping[DType, str] = {**CTYPE, DType.F16: "half"}
    unrolled: frozenset[Kind] = frozenset()  # a tile has little room for code

    def __init__(self, program: TileProgram, split: For | None) -> None:
        super().__init__(program, 1)
        self.split = split
        self.env = {f"{b.name}_at": (0, 0) for b in program.arguments}  # never behind an index: no negative quotients
        self.fields = {b.name: f"t_{b.name}" for b in (*program.arguments, *program.scratch)}

    def place(self, buffer: str, index: str, reach: int) -> str:
        return f"{self.fields.get(buffer, buffer)}[{index}]"

    def vector(self, loop: For) -> For | None:
        return None

    def declare(self, buffer: Buffer, body: Body) -> None:
        self._typed(buffer)

    def counted(self, loop: For) -> str:
        v = loop.var
        if loop is self.split:
            return f"int {v} = {loop.start} + int(worker); {v} < {loop.stop}; {v} += {WORKERS}"
        return super().counted(loop)


def codelets(kernel: RKernel) -> tuple[EmittedCodelet, ...]:
    """Return the classes of a kernel's vertices, by variant. Raises LoweringError."""
    return _codelets(kernel)


@remembered(4096)
def _codelets(kernel: RKernel) -> tuple[EmittedCodelet, ...]:
    return tuple(_emit(v, len(kernel.operation.outputs)) for v in accesses(kernel).variants)


def _emit(variant: Variant, num_outputs: int) -> EmittedCodelet:
    program = narrow(variant.program)
    split = _worker_loop(program, num_outputs)
    printer = CodeletPrinter(program, split)
    body = "\n".join("  " + line for line in printer.body(program.body, 1))
    edges = tuple(
        EmittedField(f"t_{b.name}", b.name, b.dtype, "Output" if n < num_outputs else "Input", b.size)
        for n, b in enumerate(program.arguments)
    )
    scratch = tuple(EmittedField(f"t_{b.name}", b.name, b.dtype, "InOut", b.size) for b in program.scratch)
    digits = (s for s in statements(program.body) if isinstance(s, For) and s.kind is Kind.TASK)
    values: tuple[str, ...] = ("rtask",) if any(uses(s.body, s.var) for s in digits) else ()
    values += tuple(f"{b.name}_at" for b, given in zip(program.arguments, variant.at, strict=True) if given)
    has_status = any(ld.dynamic for s in _stores(program.body) for ld, _ in loads(s.value))
    vertex, worker = ("MultiVertex", "unsigned worker") if split else ("Vertex", "")
    members = [_member(f, "VectorLayout::ONE_PTR, 8") for f in (*edges, *scratch)]
    members += [*(f"int {v}" for v in values), *(["Output<int> t_status"] if has_status else [])]
    if has_status:
        body = f"    int failed = 0, *status = &failed;\n{body}\n    *t_status = failed;"
    text = _class(NAME, vertex, members, worker, body)
    name = "RTask_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return EmittedCodelet(
        name, text.replace(NAME, name), edges, scratch, values, has_status, split is not None,
        _cycles(program, split), code_bytes(program.body),
    )  # fmt: skip


def _member(field: EmittedField, layout: str) -> str:
    return f"{field.access}<Vector<{poplar(field.dtype)[0]}, {layout}>> {field.name}"


def _class(name: str, base: str, members: Iterable[str], worker: str, body: str) -> str:
    fields = "".join(f"  {member};\n" for member in members)
    head = f"class {name} : public {base} {{\npublic:\n{fields}  bool compute({worker}) {{"
    return f"{head}\n{body}\n    return true;\n  }}\n}};"


def _cycles(program: TileProgram, split: For | None) -> int:
    whole = vertex_cycles(program.body)
    if split is None:
        return VERTEX_CYCLES + round(whole)
    count = split.stop - split.start
    return WORKERS * (VERTEX_CYCLES + round(whole * -(-count // WORKERS) / count))


def _worker_loop(program: TileProgram, num_outputs: int) -> For | None:
    """Return the outermost loop if workers may share its iterations, each of which writes whole 8-byte words alone."""
    body = program.body
    while len(body) == 1 and isinstance(body[0], For) and body[0].kind is Kind.TASK:
        body = body[0].body
    if len(body) != 1 or not isinstance(loop := body[0], For) or loop.kind is not Kind.SERIAL or program.scratch:
        return None
    if loop.stop - loop.start < 2:
        return None
    sizes = {b.name: b.dtype.itemsize for b in program.arguments[:num_outputs]}
    kept = {b.name for b in program.arguments}
    for store in _stores(loop.body):
        if any(ld.dynamic or ld.tensor in sizes for ld, _ in loads(store.value)):
            return None
        if store.buffer in kept and not _stores_disjoint_words(store.index, loop.var, sizes[store.buffer]):
            return None
    return loop


def _stores_disjoint_words(index: Index, v: str, itemsize: int) -> bool:
    """Return whether each step of `v` moves by whole words, and no other term depends on it."""
    step = index.coef(v)
    rest = Index(0, tuple(t for t in index.terms if not isinstance(t[0], str)))
    return step != 0 and step * itemsize % 8 == 0 and v not in variables(rest)


def _stores(body: Body) -> Iterable[Store]:
    return (s for s in statements(body) if isinstance(s, Store))


def source(classes: Iterable[EmittedCodelet]) -> str:
    """Return the codelet file for popc."""
    texts = {c.name: c.text for c in classes}
    return PRELUDE + "\n" + "\n\n".join(texts.values()) + "\n"


def registrations(classes: Iterable[EmittedCodelet]) -> str:
    """Return the field tables that popc would extract, for the emulator."""
    lines = ['#include "codelets.cpp"', "using namespace poplar::emulator;"]
    for c in {c.name: c for c in classes}.values():
        ids = [*(f.name for f in (*c.edges, *c.scratch)), *c.values, *(["t_status"] if c.has_status else [])]
        fields = ", ".join(f'field<&{c.name}::{n}>("{n}")' for n in ids)
        lines.append(f"static const Field {c.name}_fields[] = {{{fields}}};")
        lines += [f'static Registration<{c.name}, {len(ids)}> {c.name}_("{c.name}", {c.code_bytes}, {c.name}_fields);']
    return "\n".join(lines) + "\n"


HEAD = """\
// Codelets made by rammer: one class per distinct rTask body.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <poplar/HalfFloat.hpp>
#include <poplar/Vertex.hpp>
using namespace poplar;
typedef uint16_t bf16;
#define INLINE static inline __attribute__((always_inline, unused))
"""
PRELUDE = (
    HEAD
    + functions.BITS
    + functions.HALF_BITS.replace("HALF", "half")
    + functions.library(functions.LIBM)
    + functions.instance(functions.SIMPLE + functions.ARCS + minifloats.TEMPLATES)
    + "INLINE float ssigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }\n"
    + functions.POW
    + functions.REMAINDER
    + functions.INTEGERS
    + functions.indices("int")
)
