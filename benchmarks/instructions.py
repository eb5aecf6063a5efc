"""Machine instructions per multiply-add of tasks for NVIDIA's GPUs, beside the least of such tiles: no GPU needed.

    python -m benchmarks.instructions                             # the best guess of every task, for sm_90
    python -m benchmarks.instructions --arch sm_80 --all --json instructions.json
    python -m benchmarks.instructions --model today_llama_256    # how wide the loads of a model's rKernels are

Counted in the innermost loop with the most products, or in all of a function that has no such loop. An HMMA of 16 x 8
points and 8 terms is 32 FFMA of a warp, an HGMMA of 64 x 128 points and 16 terms, which four warps make, 1024; of
float32 in parts three of them are. Least: the products, and the operands that the tile reads, by 16 bytes, or by 4 for
HMMA, and three instructions to take each apart; what HGMMA reads is stored by 16 bytes; for each exchange of sums two
instructions.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from benchmarks import catalog
from rammer.compiler import Compilation, CompileOptions
from rammer.ir.expr import loads
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation, Operations, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import TensorType
from rammer.ir.tile import TileProgram
from rammer.kernels import candidates
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.sass import Instr, Listing, disassembled, listings
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.simt.early import early_words
from rammer.vdevice.simt.hops import ENTRY, standalone_text
from rammer.vdevice.simt.prelude import CUDA
from rammer.vdevice.simt.printer import emit
from rammer.vdevice.simt.ready import with_constants

FFMA_OF_HMMA = 32  # of a warp: 16 x 8 points, 8 terms, 32 threads
PRODUCTS = "HGMMA", "HMMA", "FFMA"
SHARED, FAR = ("LDS", "STS"), ("LDG", "STG", "LDGSTS")
SPLIT = 3  # instructions that take a float32 apart
CONV: dict[str, Any] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}


def tasks() -> dict[str, Operation]:
    """What is looked at: convolutions, products of many rows and of one, and a cell."""
    state = (1, 256)
    return {
        "conv 3x3": _operation("conv", 1, [(1, 64, 56, 56), (64, 64, 3, 3)], CONV),
        "conv 1x1": _operation("conv", 1, [(1, 256, 28, 28), (128, 256, 1, 1)], {**CONV, "pads": (0,) * 4}),
        "conv 7x7": _operation(
            "conv", 1, [(1, 3, 224, 224), (64, 3, 7, 7)], {**CONV, "pads": (3,) * 4, "strides": (2, 2)}
        ),
        "matmul": _operation("matmul", 1, [(512, 1024), (1024, 512)], {}),
        "row": _operation("matmul", 1, [(1, 2048), (2048, 5632)], {}),
        "cell": _operation("lstm_cell", 3, [(1, 4, 256), state, state, (4, 256, 256)], {}),
    }


def _operation(kind: str, static: int, shapes: Sequence[tuple[int, ...]], attrs: dict[str, Any]) -> Operation:
    """An operation of which one input is a constant."""
    operations = Operations(OPS)
    made = operations.define(kind, tuple(map(TensorType, shapes)), attributes(**attrs))
    return operations.retype(made, made.inputs, made.outputs, tuple(n == static for n in range(len(shapes))))


@dataclass(frozen=True)
class Counts:
    """Instructions of a warp in the counted region, by what they are; loads and stores with their bits."""

    task: str
    rkernel: str
    ffma: float  # multiply-adds, as FFMA of a warp
    tensor_parts: int  # instructions of tensor cores for each product of float32: 0 for FFMA
    kinds: dict[str, int]
    least: float  # instructions per FFMA of such a tile
    in_flight_kib: float  # that a block has asked main memory for, or copies of it, before it waits

    @property
    def each(self) -> float:
        """Instructions per FFMA."""
        return sum(self.kinds.values()) / self.ffma

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds.items() if n)
        return f"{self.task:9} {self.each:5.2f} {self.least:6.2f} {self.in_flight_kib:6.0f}   {self.rkernel}: {kinds}"


def hot(listing: Listing) -> Sequence[Instr]:
    """The innermost loop with the most products; all, if most of them are in none."""

    def products(loop: tuple[int, int]) -> int:
        return sum(i.kind in PRODUCTS for i in listing.code[loop[0] : loop[1] + 1])

    every = (0, len(listing.code) - 1)
    loops = [lp for lp in listing.loops() if products(lp)]
    inner = [lp for lp in loops if not any(o != lp and lp[0] <= o[0] and o[1] <= lp[1] for o in loops)]
    best = max(inner, key=products, default=every)
    begin, end = best if 4 * products(best) >= products(every) else every
    return listing.code[begin : end + 1]


def in_flight(code: Sequence[Instr]) -> int:
    """The most bytes that a thread has loaded from main memory, or copies, and not yet waited for."""
    pending: list[tuple[int, tuple[str, ...]]] = []
    most = copied = 0
    for instr in code:
        reads = set(instr.reads)
        last = max((n for n, (_, sets) in enumerate(pending) if reads & set(sets)), default=-1)
        pending = pending[last + 1 :]
        if instr.kind == "LDG" and "STRONG" not in instr.opcode:
            pending.append((bits(instr) // 8, instr.sets))
        copied += bits(instr) // 8 if instr.kind == "LDGSTS" else 0
        most = max(most, copied, sum(size for size, _ in pending))
    return most


def bits(instr: Instr) -> int:
    """How wide an access is."""
    return next((n for n in (128, 64) if f".{n}" in instr.opcode), 32)


def counted(task: str, kernel: RKernel, listing: Listing) -> Counts:
    """The counts of a kernel's machine code."""
    code = hot(listing)
    product = next((kind for kind in PRODUCTS if any(i.kind == kind for i in code)), "FFMA")
    kinds = Counter(_kind(i, product) for i in code)
    parts = (3 if "_fp32_" in kernel.name else 1) if product != "FFMA" else 0
    ffma = sum(_ffma(i) for i in code if i.kind == product) / max(parts, 1)
    least = _least(kinds, product, parts) / ffma if ffma else 0.0
    return Counts(task, kernel.name, ffma, parts, dict(kinds), least, _kib(kernel, listing))


def _ffma(instr: Instr) -> float:
    """A product's multiply-adds, as FFMA of a warp."""
    if group := re.match(r"HGMMA\.(\d+)x(\d+)x(\d+)", instr.opcode):
        return prod(map(int, group.groups())) / 128
    return FFMA_OF_HMMA if instr.kind == "HMMA" else 1


def _kind(instr: Instr, product: str) -> str:
    if instr.kind in (*SHARED, *FAR):
        return f"{instr.kind}.{bits(instr)}"
    return instr.kind if instr.kind in (product, "SHFL", "BAR") else "other"


def _least(kinds: Counter[str], product: str, parts: int) -> float:
    """With the same operands by the widest loads that there are, and nothing else."""

    def words(*places: str) -> float:
        return sum(kinds[f"{place}.{n}"] * n // 32 for place in places for n in (32, 64, 128))

    own = kinds[product] + words(*FAR) / 4
    if product == "HGMMA":
        stored = words("STS")
        return own + stored / 4 + (SPLIT * stored / 2 if parts > 1 else 0)
    held = words("LDS")
    if product == "HMMA":
        return own + held + (SPLIT * held if parts > 1 else 0)
    return own + held / 4 + 2 * kinds["SHFL"]


def _kib(kernel: RKernel, listing: Listing) -> float:
    return in_flight(listing.code) * kernel.num_threads / 1024


def measured(arch: str, every: bool) -> Iterator[Counts]:
    """Counts of the best guess of every task, or of all candidates. Raises ToolchainError."""
    spec = make_spec(choose_gpu(arch), None)
    room = early_words(spec.registers, spec.lanes)
    for name, operation in tasks().items():
        kernels = [with_constants(k, room) for k in candidates(operation, spec)][: None if every else 1]
        emitted = [emit(k, CUDA, spec.max_threads) for k in kernels]
        found = listings(disassembled(compile_cubin(standalone_text(emitted, CUDA), spec.arch).data))
        for kernel, one in zip(kernels, emitted, strict=True):
            yield counted(name, kernel, found[ENTRY + one.symbol])


@dataclass(frozen=True)
class Accesses:
    """How an rKernel of a plan reaches memory: accesses of a thread by width, and bytes under way."""

    operator: str
    rkernel: str
    operators: int
    share: float  # of the bytes of all operators' inputs
    kinds: dict[str, int]
    in_flight_kib: float
    each: float  # instructions per FFMA, or 0 if it multiplies nothing
    least: float

    def __str__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        what = f"{self.operators:3} x {self.operator} {self.rkernel}"
        per_ffma = f"{self.each:5.2f} {self.least:5.2f}" if self.each else " " * 11
        return f"{self.share:6.1%} {self.in_flight_kib:5.0f} KiB {per_ffma}   {what}: {kinds}"


def of_model(name: str, arch: str) -> list[Accesses]:
    """Of each rKernel in a model's plan, those that read most first. Raises RammerError."""
    how = CompileOptions(target="cuda", arch=arch, policy="wavefront", tune_seconds=0)
    with Compilation.of(catalog.prepare(name).built.path, how) as compilation:
        plan = compilation.planned.plan
    spec = plan.spec
    room = early_words(spec.registers, spec.lanes)
    count = Counter(k for k in plan.kernels if isinstance(k.body, TileProgram))
    emitted = {k: emit(with_constants(k, room), CUDA, spec.max_threads) for k in count}
    found = listings(disassembled(compile_cubin(standalone_text(list(emitted.values()), CUDA), spec.arch).data))
    codes = {k: [i for i in found[ENTRY + e.symbol].code if "STRONG" not in i.opcode] for k, e in emitted.items()}
    kinds = {k: Counter(f"{i.kind}.{bits(i)}" for i in code if i.kind in (*SHARED, *FAR)) for k, code in codes.items()}
    read = {k: n * _bytes_read(k) for k, n in count.items()}
    every = sum(read.values())
    rows = []
    for (k, n), e in zip(count.items(), emitted.values(), strict=True):
        listing, per_ffma = found[ENTRY + e.symbol], (0.0, 0.0)
        if any(i.kind in PRODUCTS for i in hot(listing)):
            one = counted(k.operation.kind, k, listing)
            per_ffma = one.each, one.least
        kib = _kib(k, listing)
        rows.append(Accesses(k.operation.kind, k.name, n, read[k] / every, dict(kinds[k]), kib, *per_ffma))
    return sorted(rows, key=lambda row: -row.share)


def _bytes_read(kernel: RKernel) -> int:
    """Of an operation's inputs; of tables the rows that are looked up, as many as there are results."""
    expr = kernel.operation.expr
    looked_up = {ld.tensor for s in expr.stages for ld, _ in loads(s.body) if ld.dynamic}
    most = sum(t.nbytes for t in kernel.operation.outputs)
    return sum(min(t.nbytes, most) if name in looked_up else t.nbytes for name, t in expr.inputs)


def main() -> None:
    """Print a line per task, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--all", action="store_true", help="all candidates, not the best guess alone")
    parser.add_argument("--model", help="the rKernels of a model's plan instead: accesses by width, KiB in flight")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.model:
        print("share of the bytes read, in flight of a block, instructions per FFMA and least; accesses of a thread")
        accesses = of_model(given.model, given.arch)
        print(*accesses, sep="\n")
        total = sum((Counter(row.kinds) for row in accesses), Counter())
        print("all:", ", ".join(f"{n} {kind}" for kind, n in sorted(total.items())))
        if given.json:
            given.json.write_text(json.dumps({"arch": given.arch, "rows": list(map(asdict, accesses))}, indent=1))
        return
    rows = []
    print(f"{'task':9} {'each':>5} {'least':>6} {'KiB':>6}   instructions per FFMA, and bytes of a block in flight")
    for row in measured(given.arch, given.all):
        rows.append({**asdict(row), "each": row.each})
        print(row)
    if given.json:
        given.json.write_text(json.dumps({"arch": given.arch, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
