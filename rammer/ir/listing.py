"""Print expressions and rKernels as text, for readers; it is never parsed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rammer.ir.expr import Axes, Call, Cast, Const, ConstantTable, Iota, Load, Range, Scalar, Select, Stage, TensorExpr
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.ir.text import printable
from rammer.ir.tile import Alloc, Apply, Body, Buffer, For, If, Kind, Prefetch, Stmt, Store, Sync, TileProgram

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def print_rkernels(plan: ExecutionPlan) -> str:
    """Print every rKernel of a plan: its rTasks and their time, the schedule, the expression, and the tile program."""
    used: dict[RKernel, list[str]] = {}
    for op, kernel in zip(plan.graph.operators, plan.kernels, strict=True):
        used.setdefault(kernel, []).append(op.name)
    parts = []
    shown: set[tuple[str, str]] = set()
    for kernel, names in used.items():
        others = f" and {len(names) - 1} more" if len(names) > 1 else ""
        lines = [f"rkernel {kernel.name} of {printable(names[0])}{others}", f"rtasks {kernel.num_rtasks}"]
        if (us := plan.rtask_us.get(kernel)) is not None:
            lines.append(f"rtask_us {us:.4g}")
        lines += [f"schedule {kernel.schedule}"] if kernel.schedule else []
        texts = print_expr(kernel.operation.expr), _print_body(kernel.program)
        lines += ["expression and program as above"] if texts in shown else [text.rstrip() for text in texts]
        shown.add(texts)
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _print_body(body: TileProgram | ForeignSource) -> str:
    if isinstance(body, TileProgram):
        return print_tile_program(body)
    return f"body in {body.language}: {body.symbol or 'as the expression says'}\n"


def print_expr(expr: TensorExpr) -> str:
    """Print an expression, a line per input, stage and output."""
    lines = [f"expression {expr.name}", *(f"  input {name}: {kind}" for name, kind in expr.inputs)]
    lines += [f"  {_stage(stage)}" for stage in expr.stages]
    if expr.into:
        into = f"{'a copy of ' * expr.copied}{_scalar(expr.into)}"
        lines.append(f"  {expr.root.name} into {into}{f' by {expr.combine}' * bool(expr.combine)}")
    lines += [f"  output {name}: {kind}" for name, kind in expr.outputs]
    return "".join(f"{line}\n" for line in lines)


def print_tile_program(program: TileProgram) -> str:
    """Print the body of one rTask, a statement a line."""
    lines = [f"program {program.name}, {program.num_threads} thread{'s' * (program.num_threads != 1)}"]
    for n, buffer in enumerate(program.arguments):
        lines.append(f"  {'output' if n < program.num_outputs else 'input'} {_buffer(buffer)}")
    lines += [f"  scratch {_buffer(buffer)}" for buffer in program.scratch]
    lines += [f"  {line}" for line in _body(program.body)]
    return "".join(f"{line}\n" for line in lines)


def _stage(stage: Stage) -> str:
    """Return one line: name[axes] = combine over terms of its value."""
    over = f"{stage.combine} over {_axes(stage.reduce)} of " if stage.reduce else ""
    return f"{stage.name}[{_axes(stage.axes)}] = {over}{_scalar(stage.body)}"


def _axes(axes: Axes) -> str:
    return ", ".join(f"{name} < {extent}" for name, extent in axes)


def _buffer(buffer: Buffer) -> str:
    return f"{buffer.name}: {buffer.encoding or buffer.dtype.value}[{buffer.size}]"


def _body(body: Body) -> Iterator[str]:
    for stmt in body:
        head, inside = _statement(stmt)
        yield head
        yield from (f"  {line}" for line in _body(inside))


def _statement(stmt: Stmt) -> tuple[str, Body]:
    match stmt:
        case Store(buffer, index, value, dynamic):
            later = ", later" if stmt.later else ""
            return f"{_scalar(Load(buffer, (index,), dynamic))} {stmt.combine}= {_scalar(value)}{later}", ()
        case Alloc(buffer, body):
            return f"{buffer.scope.value} {_buffer(buffer)}", body
        case If(where, then):
            return f"if {_conditions(where)}", then
        case For(name, start, stop, kind, body, stride):
            if kind in (Kind.TASK, Kind.THREAD):
                return f"{kind.value} {name} = id // {stride} % {stop}", body
            return f"{'for' if kind is Kind.SERIAL else kind.value} {name} in {start} … {stop - 1}", body
        case Apply(instruction, operands, extents):
            given = ", ".join(f"{o.buffer}[{o.at}]" for o in operands)
            return f"{instruction.name} ({'×'.join(map(str, extents))}) {given}", ()
        case Prefetch(buffer, index, size, level, _, once):
            return f"prefetch {size} of {buffer}[{index}] to level {level}{', read once' if once else ''}", ()
        case Sync(pending):
            return "sync" if pending is None else f"sync, all but the last {pending} groups of copies are there", ()


def _conditions(where: Iterable[Range]) -> str:
    return " and ".join(f"{r.low} <= {r.index} < {r.high}" for r in where)


def _scalar(value: Scalar) -> str:
    match value:
        case Const(number):
            return f"{number:g}" if isinstance(number, float) else str(number)
        case Iota(index):
            return f"({index})"
        case ConstantTable(_, index):
            return f"table[{index}]"
        case Load(tensor, index, dynamic):
            moved = {d.dim: f" + {_scalar(d.value)}" for d in dynamic}
            places = [f"{ix}{moved.get(n, '')}" for n, ix in enumerate(index)]
            return f"{tensor}[{', '.join(places)}]"
        case Call(fn, (a, b)) if fn in SIGNS:
            return f"({_scalar(a)} {SIGNS[fn]} {_scalar(b)})"
        case Call(fn, args):
            return f"{fn}({', '.join(map(_scalar, args))})"
        case Cast(arg, dtype, bits):
            return f"{'bits as ' * bits}{dtype.value}({_scalar(arg)})"
        case Select(where, then, other):
            return f"({_scalar(then)} if {_conditions(where)} else {_scalar(other)})"
    raise TypeError(f"not a scalar expression: {value!r}")
