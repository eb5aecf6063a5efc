"""A machine that is data alone: it executes tile programs in NumPy, and instructions by their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rammer.ir.expr import Call, Cast, Const, Load, Range, Scalar, Select
from rammer.ir.index import evaluate, var
from rammer.ir.instruction import Instruction, place
from rammer.ir.kernel import RKernel
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.semantics.functions import FUNCTIONS
from rammer.ir.tensor import Array, Encoding, pack, unpack
from rammer.ir.tile import Alloc, Apply, Body, Buffer, For, If, Kind, Operand, Stmt, Store, Sync, TileProgram


def run(kernel: RKernel, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs, all rTasks executed. An access outside of a buffer is an IndexError; what is not written is NaN."""
    expr, program = kernel.operation.expr, kernel.body
    assert isinstance(program, TileProgram)
    kinds = (*kernel.operation.outputs, *kernel.input_types())
    names = [name for name, _ in (*expr.outputs, *expr.inputs)]
    memory: dict[str, Array] = {}
    for buffer, name, kind in zip(program.arguments, names, kinds, strict=True):
        flat = np.full(buffer.size, np.nan, np.float32)
        if name in inputs:
            encoding = kind.layout.encoding if kind.layout else None
            layout = replace(kind.layout, encoding=None) if kind.layout else None
            flat[...] = _rounded((pack(inputs[name], layout) if layout else inputs[name]).ravel(), encoding)
        memory[buffer.name] = flat
    for rtask in range(kernel.num_rtasks):
        _Task(program, rtask, memory).execute(program.body)
    found = (memory[b.name] for b in program.arguments[: program.num_outputs])
    return [
        unpack(x, k.layout, k.shape) if k.layout else x.reshape(k.shape) for x, k in zip(found, kinds, strict=False)
    ]


def _rounded(values: Array, encoding: Encoding | None) -> Array:
    """Elements as an encoding holds them."""
    return encoding.decode(encoding.encode(values)).reshape(values.shape) if encoding else values


class _Task:
    """One rTask. Its threads are in step: a variable of theirs is an array of all its values."""

    def __init__(self, program: TileProgram, rtask: int, memory: dict[str, Array]) -> None:
        self.rtask, self.threads = rtask, program.num_threads
        self.shared = memory | {b.name: np.full(b.size, np.nan, np.float32) for b in program.scratch}
        self.encodings = {b.name: b.encoding for b in program.scratch}
        self.registers: dict[str, Array] = {}  # [thread, element]
        self.env: dict[str, Any] = {}
        self.active = np.ones(self.threads, bool)

    def execute(self, body: Body) -> None:
        for stmt in body:
            self.step(stmt)

    def step(self, stmt: Stmt) -> None:
        match stmt:
            case Store(buffer, index, value):
                self.store(buffer, self.number(evaluate(index, self.env)), self.value(value))
            case Alloc(Buffer(name, size), body):
                self.registers[name] = np.full((self.threads, size), np.nan, np.float32)
                self.execute(body)
            case If(where, then):
                before = self.active
                self.active = before & self.holds(where)
                if self.active.any():
                    self.execute(then)
                self.active = before
            case For(name, _, stop, Kind.TASK, body, stride):
                self.env[name] = self.rtask // stride % stop
                self.execute(body)
            case For(name, _, stop, Kind.THREAD, body, stride):
                self.env[name] = np.arange(self.threads) // stride % stop
                self.execute(body)
            case For(name, start, stop, _, body):
                for n in range(start, stop):
                    self.env[name] = n
                    self.execute(body)
            case Apply(instruction) if instruction.threads > 1:
                assert self.active.all(), f"{instruction.name}: threads of a wave are missing"
                for first in range(0, self.threads, instruction.threads):
                    self.by_wave(stmt, slice(first, first + instruction.threads))
            case Apply():
                self.apply(stmt)
            case Sync():
                assert self.active.all(), "threads miss a sync"

    def number(self, value: Any) -> Array:
        """One for each thread."""
        return np.broadcast_to(np.asarray(value), (self.threads,))

    def holds(self, where: tuple[Range, ...]) -> Array:
        found = np.ones(self.threads, bool)
        for r in where:
            index = self.number(evaluate(r.index, self.env))
            found = found & (r.low <= index) & (index < r.high)
        return found

    def store(self, buffer: str, index: Array, value: Any) -> None:
        value, mine = np.broadcast_to(value, (self.threads,))[self.active], index[self.active]
        if buffer in self.registers:
            self.registers[buffer][np.flatnonzero(self.active), mine] = value
        else:
            assert mine.min() >= 0, f"{buffer}[{mine.min()}]"
            self.shared[buffer][mine] = value

    def value(self, scalar: Scalar) -> Any:
        match scalar:
            case Const(value):
                return np.float32(value)
            case Load(name, (index,)):
                at = np.where(self.active, self.number(evaluate(index, self.env)), 0)
                assert at.min() >= 0, f"{name}[{at.min()}]"
                own = self.registers.get(name)
                return self.shared[name][at] if own is None else own[np.arange(self.threads), at]
            case Call(fn, args):
                return FUNCTIONS[fn](*map(self.value, args))
            case Cast(arg, dtype):
                return np.asarray(self.value(arg)).astype(dtype.numpy)
            case Select(where, then, other):
                before, chosen = self.active, self.holds(where)
                found = []
                for self.active, arm in ((before & chosen, then), (before & ~chosen, other)):
                    found.append(self.value(arm))
                self.active = before
                return np.where(chosen, *found)
        raise TypeError(f"not expected in a tile program: {scalar!r}")

    def apply(self, stmt: Apply) -> None:
        """An instruction of one thread: operands lie as its layouts say, or `steps` apart."""
        given: dict[str, Array] = {}
        (out, _), *_ = kinds = list(stmt.instruction.types(stmt.sizes))
        for operand, (name, kind) in list(zip(stmt.operands, kinds, strict=True))[::-1]:
            axes = stmt.instruction.axes_of(name)
            grid: dict[str, Any] = dict(zip(axes, np.ogrid[tuple(map(slice, kind.shape))], strict=True))
            at = place(kind.layout, kind.shape, [var(a) for a in axes], operand.steps)
            places = np.broadcast_to(int(self.first(operand)) + evaluate(at, grid), kind.shape)
            exists = np.ones(kind.shape, bool)
            for r in operand.where:
                index = evaluate(r.index, self.env | grid)
                exists &= np.broadcast_to((r.low <= index) & (index < r.high), kind.shape)
            buffer = self.shared[operand.buffer]
            assert places[exists].min(initial=0) >= 0
            if name == out:
                made = _meant(stmt.instruction, stmt.sizes, given)
                if stmt.instruction.accumulates:
                    made = made + buffer[places]
                buffer[places] = _rounded(made, self.encodings.get(operand.buffer))
            else:
                given[name] = np.zeros(kind.shape, np.float32)
                given[name][exists] = buffer[places[exists]]

    def first(self, operand: Operand) -> Array:
        return self.number(evaluate(operand.at, self.env))[0]

    def by_wave(self, stmt: Apply, wave: slice) -> None:
        """An instruction of many threads, whose registers hold what its layouts say."""
        unit, given = stmt.instruction, {}
        (out, _), *_ = unit.tensors
        for operand, (name, kind) in list(zip(stmt.operands, unit.tensors, strict=True))[::-1]:
            count, first = unit.registers(name), int(self.first(operand))
            grid = {"thread": np.arange(unit.threads)[:, None], "register": np.arange(count)[None]}
            index = unit.held(name, var("thread"), var("register"))
            element = tuple(np.broadcast_to(evaluate(ix, grid), (unit.threads, count)) for ix in index)
            mine = self.registers[operand.buffer][wave, first : first + count]
            if name == out:
                mine[...] = _meant(unit, stmt.sizes, given)[element] + (mine if unit.accumulates else 0)
            else:
                given[name] = np.full(kind.shape, np.nan, np.float32)
                given[name][element] = mine


def _meant(instruction: Instruction, sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> Array:
    """What an instruction makes of its inputs, for as far along its axes as `sizes` say."""
    expr, stage = instruction.meaning, instruction.meaning.root
    kinds = dict(instruction.types(sizes))
    axes, terms = (tuple((a, sizes[a]) for a, _ in part) for part in (stage.axes, stage.reduce))
    grown = replace(
        expr,
        stages=(replace(stage, axes=axes, reduce=terms),),
        inputs=tuple((n, kinds[n]) for n, _ in expr.inputs),
        outputs=tuple((n, kinds[n]) for n, _ in expr.outputs),
    )
    (found,) = evaluate_expr(grown, inputs)
    return found
