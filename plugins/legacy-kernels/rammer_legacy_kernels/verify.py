"""Verify a record by executing it under the emulator, in a separate process. No other module executes a record.

Every block runs alone, with its threads shuffled. It must write exactly its tile, with correct values, for any
previous content of outputs, and for any content of inputs that the tile does not need. All its threads must run the
same block syncs.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import prod

import numpy as np
from numpy.typing import NDArray

from rammer.errors import ArtifactError, RammerError
from rammer.ir.analysis.dependency import reads
from rammer.ir.analysis.intervals import expand
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, TensorType
from rammer.vdevice.simt.codegen.megakernel import program_text
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import EmittedFunction
from rammer.vdevice.simt.emulator.compile import FLAGS, host_text
from rammer.vdevice.toolchain import c_compiler
from rammer.vdevice.toolchain.library import Library
from rammer_legacy_kernels.convert import COUNTING, convert_source
from rammer_legacy_kernels.record import (
    MAX_BYTES,
    Record,
    Tile,
    check_tiles,
    parse_record,
    to_json,
    with_tiles,
)

SECONDS = 300.0
MAX_WORK = 1 << 33  # elements checked, over all blocks
GUARD = 4096  # bytes around every tensor
POISONS = (0xFF, 0x5A)
_COUNTS = "static int mk_counts[1024];\n#define mk_counted_sync() (mk_counts[threadIdx.x]++, __syncthreads())\n"


@dataclass(frozen=True, slots=True)
class Verified:
    """The results of execution; the record has `tiles` and `syncs` too."""

    record: Record
    syncs: int
    blocks: int
    max_error: float


def verify(record: Record, *, seconds: float = SECONDS) -> Verified:
    """Compile a record's kernel for the host and run every block, in a separate process, for at most `seconds`.

    Raises ArtifactError that describes the fault. This executes the kernel: verify only kernels that you trust enough.
    """
    module = "rammer_legacy_kernels.verify"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-m", module],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            input=json.dumps(to_json(record)),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _wrong(
            record, f"it ran for longer than {seconds:g} s", "a loop without end, or too large a shape"
        ) from None
    if done.returncode < 0:
        raise _wrong(record, f"it crashed (signal {-done.returncode})", "it writes or reads outside of its tensors")
    try:
        answer = json.loads(done.stdout)
        if "error" in answer:
            raise _wrong(record, str(answer["error"]), str(answer["hint"]))
        found = parse_record(json.dumps(answer["record"]))
        return Verified(found, int(answer["syncs"]), int(answer["blocks"]), float(answer["max_error"]))
    except (ValueError, KeyError, TypeError):
        raise _wrong(record, f"verification ended with {done.returncode}: {done.stderr[-500:]}", "") from None


def _wrong(record: Record, what: str, hint: str) -> ArtifactError:
    return ArtifactError(f"record {record.name!r}: {what}", hint=hint)


class _Wrong(Exception):
    """Raised for a fault of a block, with a hint."""


class _Bench:
    """The kernel on the host, with guards around its tensors."""

    def __init__(self, record: Record) -> None:
        self.record = record
        made = convert_source(record.source, record.launch, COUNTING)
        self.threads, self.scratch = made.num_threads, made.scratch_bytes
        self.operation = record.operation
        kinds = (*self.operation.outputs, *record.inputs)
        self.memory = [np.zeros(k.nbytes + 2 * GUARD, np.uint8) for k in kinds]
        self.tensors = [_inside(m, k) for m, k in zip(self.memory, kinds, strict=True)]
        self.num_outputs = len(self.operation.outputs)
        emitted = EmittedFunction(made.symbol, _COUNTS + made.text, made.num_threads)
        text = program_text([emitted], CUDA, 32, len(kinds))
        harness = files("rammer_legacy_kernels").joinpath("harness.h").read_text(encoding="utf-8")
        whole = f"{host_text(text)}\n{harness.replace('CHECKED_TASK', made.symbol)}"
        self.library = Library(c_compiler().compile_shared(whole, FLAGS, timeout_s=120))
        long = ctypes.c_long
        self.run_one = self.library.function(
            "check_run", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, long, long, long, long
        )
        self.args = np.array([t.ctypes.data for t in self.tensors], np.uint64)
        self.syncs = np.zeros(1024, np.int32)

    @property
    def outputs(self) -> list[Array]:
        return self.tensors[: self.num_outputs]

    @property
    def inputs(self) -> list[Array]:
        return self.tensors[self.num_outputs :]

    def run(self, block: int, values: Sequence[Array], poison: int, seed: int) -> list[NDArray[np.bool_]]:
        """Run one block; return which elements of each output it wrote. Raises _Wrong."""
        for m in self.memory[: self.num_outputs]:
            m[:] = poison
        for tensor, value in zip(self.inputs, values, strict=True):
            np.copyto(tensor, value)
        for m in self.memory[self.num_outputs :]:
            m[:GUARD] = m[-GUARD:] = poison
        code = self.run_one(
            self.args.ctypes.data, self.syncs.ctypes.data, block, self.threads, max(self.scratch, 64), seed
        )
        if code == 1:
            raise _Wrong(f"block {block}: threads wait at a block sync that others never reach", "")
        if code:
            raise _Wrong(f"the emulator cannot get memory for {self.threads} threads", "")
        counted = self.syncs[: self.threads]
        if counted.min() != counted.max():
            raise _Wrong(f"block {block}: its threads run {counted.min()} to {counted.max()} block syncs", "")
        for n, m in enumerate(self.memory):
            if (m[:GUARD] != poison).any() or (m[-GUARD:] != poison).any():
                raise _Wrong(f"block {block} writes outside of tensor {n} (outputs first)", "check its bounds")
        for n, (tensor, value) in enumerate(zip(self.inputs, values, strict=True)):
            if tensor.tobytes() != value.tobytes():
                raise _Wrong(f"block {block} writes to input{n}", "")
        return [(_bytes(t) != poison).any(axis=-1).reshape(t.shape) for t in self.outputs]


def check(record: Record) -> Verified:
    """Verify a record in this process. Raises ArtifactError."""
    blocks = record.num_rtasks
    elements = sum(t.size for t in (*record.operation.outputs, *record.inputs))
    if blocks * elements > MAX_WORK:
        raise _wrong(record, f"{blocks} blocks over {elements} elements take too long to check", "a smaller shape")
    try:
        bench = _Bench(record)
        syncs: set[int] = set()
        found, error = record, 0.0
        for seed, poison in enumerate(POISONS):
            values = [_values(t, seed + 7 * n) for n, t in enumerate(record.inputs)]
            names = [n for n, _ in record.expr.inputs]
            wanted = evaluate_expr(record.expr, dict(zip(names, values, strict=True)))
            if found.tiles is None:
                found = with_tiles(found, _find_tiles(bench, values, poison), 0)
                check_tiles(found)
            error = max(error, _check_blocks(bench, found, values, wanted, poison, seed, syncs))
    except _Wrong as wrong:
        raise _wrong(record, *wrong.args) from None
    if len(syncs) > 1:
        raise _wrong(record, f"its blocks run {min(syncs)} to {max(syncs)} block syncs", "all must run as many")
    (count,) = syncs
    if record.syncs is not None and record.syncs != count:
        raise _wrong(record, f"it declares {record.syncs} block syncs, and every thread runs {count}", "")
    return Verified(with_tiles(found, found.tiles or (), count), count, blocks, error)


def _check_blocks(
    bench: _Bench,
    record: Record,
    values: Sequence[Array],
    wanted: Sequence[Array],
    poison: int,
    seed: int,
    syncs: set[int],
) -> float:
    """Run every block, with all inputs and with only those that its tile needs. Return the largest relative error."""
    kernel = RKernel(record.name, record.operation, ForeignSource("", "", "", record.digits()))
    largest = [_largest(w) for w in wanted]
    worst = 0.0
    for block in range(record.num_rtasks):
        box = tuple(slice(*span) for span in kernel.box(block).values())
        for whole in (True, False):
            given = values if whole else [_needed(v, kernel, n, block) for n, v in enumerate(values)]
            written = bench.run(block, given, poison, seed + block)
            syncs.add(int(bench.syncs[0]))
            for n, (mask, tensor, good) in enumerate(zip(written, bench.outputs, wanted, strict=True)):
                outside = mask.copy()
                outside[box] = False
                if outside.any():
                    place = tuple(int(i) for i in np.argwhere(outside)[0])
                    raise _Wrong(f"block {block} writes element {place} of output{n}, outside of its tile", "")
                error = _error(tensor[box], good[box], mask[box], largest[n])
                if error > record.tolerance:
                    what = f"block {block}: output{n} differs by {error:.3g} of its largest value"
                    if whole:
                        raise _Wrong(what, "its tile holds what is not written, or is wrong")
                    raise _Wrong(f"{what} where inputs that its tile does not need are NaN", "it must not use them")
                worst = max(worst, error)
    return worst


def _find_tiles(bench: _Bench, values: Sequence[Array], poison: int) -> list[Tile]:
    """Return the tiles, from the elements that each block writes.

    Raises _Wrong unless they are boxes by grid digits.
    """
    record = bench.record
    rank = len(bench.outputs[0].shape)
    low = np.zeros((record.num_rtasks, rank), np.int64)
    size = np.zeros(rank, np.int64)
    hint = 'declare "tiles", and let each block write one box'
    for block in range(record.num_rtasks):
        places = np.argwhere(bench.run(block, values, poison, block)[0])
        if not len(places):
            raise _Wrong(f"block {block} writes nothing", hint)
        low[block] = places.min(axis=0)
        size = np.maximum(size, places.max(axis=0) + 1 - low[block])
    tiles = []
    grid = dict(zip("xyz", record.launch.grid, strict=True))
    index = {"x": 1, "y": grid["x"], "z": grid["x"] * grid["y"]}
    blocks = np.arange(record.num_rtasks)
    for axis in range(rank):
        if not low[:, axis].any():
            continue
        first = int(np.flatnonzero(low[:, axis])[0])  # the digit's stride: the first block with another begin
        count = len(np.unique(low[:, axis]))
        along = max((g for g in grid if index[g] <= first and grid[g] > 1), key=lambda g: index[g])
        sound = low[:, axis].min() == 0 and first % index[along] == 0
        if not sound or (low[:, axis] != blocks // first % count * size[axis]).any():
            raise _Wrong(f"what blocks write along axis {axis} is cut by no digit of the grid", hint)
        tiles.append(Tile(axis, along, int(size[axis]), count, first // index[along]))
    return tiles


def _needed(value: Array, kernel: RKernel, position: int, block: int) -> Array:
    """Return the input with NaN where the block's tile does not need it; integers are unchanged."""
    if value.dtype.kind != "f":
        return value
    seen = np.full(value.shape, np.nan, value.dtype)
    needed = expand(reads(kernel, position, block))
    seen.reshape(-1)[needed] = value.reshape(-1)[needed]
    return seen


def _largest(wanted: Array) -> float:
    """Return the largest finite magnitude of a whole output, so that a tile of small numbers is not held to more."""
    if wanted.dtype.kind != "f":
        return 1.0
    sizes = np.abs(wanted[np.isfinite(wanted)])
    return max(float(sizes.max(initial=0.0)), 1e-30)


def _error(found: Array, wanted: Array, written: NDArray[np.bool_], largest: float) -> float:
    """Return the largest difference relative to `largest`; 0 or infinite for integers. NaNs must have been written."""
    if not found.size:
        return 0.0
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(found, wanted) else float("inf")
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted) & written)
    with np.errstate(all="ignore"):
        difference = np.where(same, 0.0, np.abs(found.astype(np.float64) - wanted.astype(np.float64)))
    return float("inf") if np.isnan(difference).any() else float(difference.max()) / largest


def _values(kind: TensorType, seed: int) -> Array:
    random = np.random.default_rng(seed)
    if kind.dtype.is_float:
        return random.standard_normal(kind.shape).astype(kind.dtype.numpy)
    high = 2 if kind.dtype.value == "bool" else 5
    return random.integers(0, high, kind.shape).astype(kind.dtype.numpy)


def _inside(memory: Array, kind: TensorType) -> Array:
    return memory[GUARD : GUARD + kind.nbytes].view(kind.dtype.numpy).reshape(kind.shape)


def _bytes(tensor: Array) -> Array:
    return tensor.reshape(prod(tensor.shape), 1).view(np.uint8)


def main() -> None:
    """Run the process: a record on stdin, an answer on stdout."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    record = parse_record(sys.stdin.read(2 * MAX_BYTES))
    try:
        found = check(record)
        answer = {
            "record": to_json(found.record),
            "syncs": found.syncs,
            "blocks": found.blocks,
            "max_error": found.max_error,
        }
    except RammerError as error:
        answer = {"error": error.what.removeprefix(f"record {record.name!r}: "), "hint": error.hint}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
