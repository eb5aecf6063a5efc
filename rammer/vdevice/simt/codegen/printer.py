"""Print tile programs as device functions of CUDA C++ and its dialects. Every thread of the block runs the text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rammer.errors import LoweringError
from rammer.ir.expr import Load, Range, Select, loads
from rammer.ir.index import Index, var, variables
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.tensor import DType, Encoding
from rammer.ir.tile import Apply, For, Kind, Store, Sync, TileProgram, block_syncs, contains, statements
from rammer.vdevice.ctext.cfamily import CTYPE, CFamilyPrinter
from rammer.vdevice.ctext.vectors import SINGLE
from rammer.vdevice.simt.codegen.prelude import Dialect

LANES = 4  # elements of a 16-byte vector
PLACEHOLDER = "rammer_kernel"


@dataclass(frozen=True, slots=True)
class EmittedFunction:
    """`void symbol(void *const *args, char *scratch, int rtask, int tid, int *status)`, a device function.

    All threads of the block call it. Those from `num_threads` on take part in its block syncs at most.
    """

    symbol: str
    text: str
    num_threads: int
    guarded: bool = False  # the caller excludes the extra threads,
    extra_syncs: int = 0  # and they run this many block syncs
    prefetch: str = ""  # a function that prefetches constants before the rTask waits,
    prefetch_text: str = ""  # and its text
    messages: tuple[int, int, int] = (0, 0, 0)  # their first argument, how many it receives, and sends


def emit(
    kernel: RKernel,
    dialect: Dialect,
    block: int,
    unaligned: frozenset[int] = frozenset(),
    copied: frozenset[int] = frozenset(),
) -> EmittedFunction:
    """Emit the text of a kernel for blocks of `block` threads. Equal bodies get equal symbols.

    `unaligned`: arguments that may not start at a multiple of 16 bytes. `copied`: arguments in the block's shared
    memory, given as byte offsets from the scratch. Raises LoweringError.
    """
    body = kernel.program
    if isinstance(body, ForeignSource):
        if body.language != dialect.language:
            raise LoweringError(f"{kernel.name} is written in {body.language!r}, not in {dialect.language!r}")
        counted = (
            dialect.counted_sync and body.num_threads % dialect.subgroup_size == 0 and body.num_block_syncs is not None
        )
        own = body.own_syncs and dialect.partial_sync
        if body.num_threads not in (1, block) and body.num_block_syncs != 0 and not (counted or own):
            raise LoweringError(
                f"{kernel.name} syncs its {body.num_threads} threads; the vEUs have {block}",
                hint="give it as many threads as the vEUs have, or no block syncs",
            )
        guarded = body.num_threads < block
        extra = body.num_block_syncs or 0 if guarded and counted else 0
        return EmittedFunction(body.symbol, body.text, body.num_threads, guarded, extra)
    inputs = zip(body.arguments[body.num_outputs :], kernel.operation.static, strict=True)
    quiet = {b.name for b, static in inputs if static}
    if dialect.restrict_arguments:
        quiet = {b.name for b in body.arguments}
    text = function(SimtPrinter(body, dialect, block, unaligned, copied), quiet, copied)
    symbol = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return EmittedFunction(symbol, text.replace(PLACEHOLDER, symbol), body.num_threads)


def in_language(kernels: Iterable[RKernel], dialect: Dialect) -> list[RKernel]:
    """Return the kernels that can be emitted in the dialect's language, without duplicates."""
    bodies = ((k, k.body) for k in dict.fromkeys(kernels))
    return [k for k, body in bodies if not isinstance(body, ForeignSource) or body.language == dialect.language]


class SimtPrinter(CFamilyPrinter):
    """Printer of one tile program for a block of threads."""

    restrict = ""  # other threads write scratch, so restrict would be wrong
    loop_type, align = "int", ""
    ctype: Mapping[DType, str] = {**CTYPE, DType.F16: "f16", DType.C128: "c128"}
    vectors: Mapping[DType, str] = dict.fromkeys(SINGLE, "vf")  # 16 bytes hold two elements of the other types
    narrow: Mapping[DType, str] = {}
    unrolled = frozenset({Kind.UNROLLED, Kind.VECTOR})  # registers have no addresses: their indices must be constants

    def __init__(
        self,
        program: TileProgram,
        dialect: Dialect,
        block: int,
        unaligned: frozenset[int],
        copied: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(program, LANES)
        arguments = program.arguments
        self.in_shared_memory = {b.name for n, b in enumerate(arguments) if n in copied}
        aligned = [b for n, b in enumerate(arguments) if n not in unaligned]
        self.aligned = {b.name for b in (*aligned, *program.scratch)}
        self.memory = {b.name for b in (*arguments, *program.scratch)}
        if any(b.size > 2**31 - 1 for b in arguments):
            self.loop_type = "int64_t"
        threads, syncs = program.num_threads, contains(program.body, Sync)
        self.extra_syncs = block_syncs(program.body) if dialect.counted_sync else 0
        separate = (dialect.partial_sync or self.extra_syncs > 0) and threads % dialect.subgroup_size == 0
        self.shares_syncs = syncs and 1 < threads < block and not separate
        self.leaves = threads < block and not self.shares_syncs
        if not self.leaves or threads == 1:
            self.extra_syncs = 0
        part = self.leaves and dialect.partial_sync
        self.sync_text = "" if threads == 1 else f"mk_sync_part({threads});" if part else "mk_sync();"
        self.encodings = {b.name: b.encoding for b in program.scratch if b.encoding}
        if any(isinstance(s, Apply) and s.instruction.staged for s in statements(program.body)):
            self.sync_text = f"mk_show_units(); {self.sync_text}"

    def sync(self, pending: int | None) -> str:
        return self.sync_text if pending is None else f"mk_await<{pending}>(); {self.sync_text}"

    def one_access(self, buffer: str, index: Index) -> bool:
        """Return whether the vector lies in memory at a multiple of 16 bytes, so that one access is enough."""
        return buffer in self.aligned and index.const % LANES == 0 and all(c % LANES == 0 for _, c in index.terms)

    def square(self, loop: For) -> str | None:
        return None

    def apply(self, s: Apply) -> list[str]:
        unit, (sums, *inputs) = s.instruction, s.operands
        if not unit.staged:
            return [f"mk_{unit.name}({', '.join(f'{o.buffer} + {self.index(o.at)}' for o in s.operands)});"]
        assert unit.encoding is not None
        strides = (n * unit.encoding.nbytes for o in inputs for n in o.steps[:2])  # along terms, along the other axis
        numbers = s.sizes["term"] // unit.extent("term"), *strides
        places = (f"{o.buffer} + {self.index(o.at * unit.encoding.parts)}" for o in inputs)
        operands = ", ".join((f"{sums.buffer} + {self.index(sums.at)}", *places))
        return [f"mk_{unit.name}<{', '.join(map(str, numbers))}>({operands});"]

    def store(self, s: Store, lane: str | None, count: int = 0) -> str:
        if encoding := self.encodings.get(s.buffer):
            text = self.encoded(s, encoding, lane, count)
        else:
            text = self.copied_later(s, lane, count) if s.later else super().store(s, lane, count)
        guarded = self.shares_syncs and s.buffer in self.memory
        return f"if (tid < {self.program.num_threads}) {{ {text} }}" if guarded else text

    def encoded(self, s: Store, encoding: Encoding, lane: str | None, count: int) -> str:
        """Store a vector to scratch in parts, as a matrix unit reads it.

        Raises LoweringError for less than a vector.
        """
        start = s.index - var(lane or "")
        if lane is None or count not in (0, LANES) or s.index.coef(lane) != 1 or not self.one_access(s.buffer, start):
            raise LoweringError(f"{self.program.name}: {s.buffer} holds {encoding} and takes whole vectors")
        value = self.wide_text(s.value, lane, count, DType.F32)
        return f"mk_put_{encoding}({s.buffer}, {self.index(start)}, {value});"

    def copied_later(self, s: Store, lane: str | None, count: int) -> str:
        """Emit an asynchronous copy (cp.async); a plain store if the argument lies in the block's shared memory."""
        where: tuple[Range, ...] = s.value.where if isinstance(s.value, Select) else ()
        load = s.value.then if isinstance(s.value, Select) else s.value
        assert isinstance(load, Load)
        if load.tensor in self.in_shared_memory:
            return super().store(s, lane, count)
        start = var(lane) if lane else Index()
        to, source = s.index - start, load.index[0] - start
        there = self.conditions(where) or "true"
        lanes = count or LANES if lane else 1
        moves = lane is not None and s.index.coef(lane) == load.index[0].coef(lane) == 1 and not _uses(where, lane)
        if lane is not None and not (moves and lanes == LANES and self.both_aligned(s.buffer, to, load.tensor, source)):
            each = ({lane: Index(n)} for n in range(lanes))
            return " ".join(self.copied_later(s.at(values), None, 0) for values in each)
        target, origin = f"&{s.buffer}[{self.index(to)}]", f"&{load.tensor}[{self.index(source)}]"
        if where:  # the address must be valid even if the element is masked
            origin = f"({there} ? {origin} : {load.tensor})"
        return f"mk_copy_later<{4 * lanes if moves else 4}>({target}, {origin}, {there});"

    def both_aligned(self, buffer: str, to: Index, tensor: str, source: Index) -> bool:
        return self.one_access(buffer, to) and self.one_access(tensor, source)

    def conditions(self, where: tuple[Range, ...]) -> str:
        kind = "unsigned" if self.loop_type == "int" else "uint64_t"
        return " && ".join(f"({kind})({self.index(r.index - r.low)}) < {r.high - r.low}" for r in where)


def _uses(where: tuple[Range, ...], name: str) -> bool:
    return any(name in variables(r.index) for r in where)


def function(printer: SimtPrinter, quiet: set[str], copied: frozenset[int]) -> str:
    """Return the worker with typed parameters, and the device function of fixed signature that calls it.

    Quiet arguments are restrict: no other pointer accesses them meanwhile. Outputs that the rTask also reads are not.
    """
    program = printer.program
    read = {ld.tensor for s in statements(program.body) if isinstance(s, Store) for ld, _ in loads(s.value)}
    parameters, arguments = "", ""
    for n, b in enumerate(program.arguments):
        kind = f"{'' if n < program.num_outputs else 'const '}{printer.ctype[b.dtype]} *"
        restrict = b.name in quiet and (n >= program.num_outputs or b.name not in read)
        parameters += f"{kind}{'__restrict__ ' if restrict else ''}{b.name}, "
        arguments += f"({kind})(scratch + (int64_t)args[{n}]), " if n in copied else f"MK_TENSOR({kind}, args, {n}), "
    tid = "MK_WAVE(tid)" if printer.extra_syncs else "tid"
    rest = f" else for (int n = 0; n < {printer.extra_syncs}; n++) mk_sync();" if printer.extra_syncs else ""
    lines = [
        f"INLINE void {PLACEHOLDER}_body({parameters}char *scratch, int rtask, int tid, int *status) {{",
        *printer.scratch(),
        *printer.body(program.body, 1),
        "}",
        f"MK_TASK void {PLACEHOLDER}(void *const *args, char *scratch, int rtask, int tid, int *status) {{",
        f"  {f'if ({tid} < {program.num_threads}) ' if printer.leaves else ''}"
        f"{PLACEHOLDER}_body({arguments}scratch, rtask, MK_HERE(tid), status);{rest}",
        "}",
    ]
    return "\n".join(lines) + "\n"
