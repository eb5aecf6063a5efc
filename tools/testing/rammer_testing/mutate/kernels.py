"""Define bugs of generators and printers: they change tile programs, or C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import Const
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation
from rammer.ir.tile import Body, Buffer, Stmt, Store, Sync, TileProgram, statements, with_children
from rammer.ir.tile import children as inside
from rammer.vdevice.cpu.codegen.emit import emit, translation_unit
from rammer_testing.mutate.bug import HOST, SIMT, Bug, Hit, afterwards, bug, instead, replaced
from rammer_testing.mutate.tiles import mutant

OFFERED = "rammer.plugins:PluginRegistry.rkernels"
PRELUDE = "rammer.vdevice.cpu.codegen.emit:_prelude"
Change = Callable[[RKernel], RKernel | None]


def _every(change: Change) -> Callable[[Sequence[RKernel]], list[RKernel] | None]:
    """Change all candidates to which `change` applies, so that a sound one cannot hide the bug."""

    def changed(kernels: Sequence[RKernel]) -> list[RKernel] | None:
        found = [change(k) for k in kernels]
        made = [k if other is None else other for k, other in zip(kernels, found, strict=True)]
        return made if any(found) else None

    return changed


def _site(what: str, seed: int = 0) -> Change:
    return lambda kernel: mutant(kernel, what, seed)


def _without(suits: Callable[[Stmt], bool]) -> Change:
    """Leave out the first statement that suits."""

    def changed(kernel: RKernel) -> RKernel | None:
        if not isinstance(kernel.body, TileProgram):
            return None
        target = next((s for s in statements(kernel.body.body) if suits(s)), None)
        if target is None:
            return None
        return replace(kernel, body=replace(kernel.body, body=_removed(kernel.body.body, target)))

    return changed


def _removed(body: Body, target: Stmt) -> Body:
    return tuple(with_children(s, _removed(inside(s), target)) for s in body if s is not target)


def _clears(stmt: Stmt) -> bool:
    match stmt:
        case Store(_, _, Const(0)):
            return True
    return False


def _signs(made: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """Change the sign of the first number of the first matrix."""
    first, *rest = made
    return ((-first[0], *first[1:]), *rest)


def _half_scratch(kernel: RKernel) -> RKernel | None:
    program = kernel.body
    if not isinstance(program, TileProgram) or not program.scratch:
        return None
    less = tuple(replace(b, size=max(b.size // 2, 1)) for b in program.scratch)
    return replace(kernel, body=replace(program, scratch=less))


def _arguments_exchanged(kernel: RKernel) -> RKernel | None:
    """Exchange the names of two inputs of equal size."""
    program = kernel.body
    if not isinstance(program, TileProgram):
        return None
    inputs: list[Buffer] = list(program.arguments[program.num_outputs :])
    for n, b in enumerate(inputs):
        for m in range(n):
            if (inputs[m].size, inputs[m].dtype) == (b.size, b.dtype):
                inputs[n], inputs[m] = inputs[m], b
                arguments = (*program.arguments[: program.num_outputs], *inputs)
                return replace(kernel, body=replace(program, arguments=arguments))
    return None


GENERATORS: tuple[Bug, ...] = (
    *(
        bug("generator", name, OFFERED, afterwards(_every(_site(what, seed))))
        for seed, (name, what) in enumerate(
            (
                ("a loop ends one step early", "ends earlier"),
                ("a loop ends one step late", "ends later"),
                ("a loop starts one step late", "starts later"),
                ("a task digit has a larger stride", "stride"),
                ("an index is off by one", r"^[^t].* \+ 1$"),
                ("an index has another coefficient", r"^term \d+ of"),
                ("a guard is off by one", "^(low|high) of"),
                ("a scratch buffer is one element smaller", "is smaller"),
                ("a box is off by one", "of the box"),
                ("a packed layout has another digit", "^(div|mod|dim) of"),
                ("an instruction goes one block too far", "^(row|column|term|batch)"),
                ("an operand of an instruction has another stride", "^step"),
                ("padding reads one", "padding is one"),
            )
        )
    ),
    bug("generator", "a Winograd matrix has one wrong sign", "rammer.kernels.winograd:matrices", afterwards(_signs)),
    bug("generator", "an accumulator is not cleared", OFFERED, afterwards(_every(_without(_clears)))),
    bug("generator", "half of the scratch is declared", OFFERED, afterwards(_every(_half_scratch))),
    bug("generator", "two operands have each other's name", OFFERED, afterwards(_every(_arguments_exchanged))),
    bug(
        "generator",
        "a block sync is left out",
        OFFERED,
        afterwards(_every(_without(lambda s: isinstance(s, Sync)))),
        SIMT,
    ),
)

TEXTS: tuple[Bug, ...] = (
    bug(
        "text",
        "the last lane of a partial vector is not stored",
        PRELUDE,
        replaced(r"(INLINE void vstore\(float \*p, vf v, int n\) \{)", r"\1 n -= n > 1;"),
        HOST,
    ),
    bug(
        "text",
        "the last lane of a partial vector is not loaded",
        PRELUDE,
        replaced(r"(INLINE vf vload\(const float \*p, int n\) \{[^\n]*\n  vf v = \{0\};)", r"\1 n -= n > 1;"),
        HOST,
    ),
    bug("text", "exp has one wrong coefficient", PRELUDE, replaced(r"1\.66665211e-1f", "1.6e-1f"), HOST),
    bug(
        "text",
        "a sum over lanes leaves out a step",
        "rammer.vdevice.cpu.codegen.emit:_folds",
        replaced(r"b = __builtin_shufflevector\(a, a, 1,[^;]*; a = a \+ b;", ""),
        HOST,
    ),
    bug(
        "text",
        "a transpose exchanges two rows",
        "rammer.vdevice.cpu.codegen.emit:_transpose",
        replaced(r"V\(q\[0 \* step\]\)", "V(q[1 * step])"),
        HOST,
    ),
    bug("text", "a ticket is skipped", PRELUDE, replaced(r"p->mine \+ 1;", "p->mine + 1 + (p->mine == 1);"), HOST),
    bug(
        "text",
        "one of six products of bf16 parts is dropped",
        PRELUDE,
        replaced(r"ROWS\(2\) SQUARE ROWS\(0\)|THIRD\(0\)", lambda m: "ROWS(0)" if "ROWS" in m[0] else ""),
        ("amx",),
    ),
    bug(
        "text",
        "the first parts of bf16 are exchanged",
        PRELUDE,
        replaced(r"COLUMNS\(2\) SQUARE COLUMNS\(1\)", "COLUMNS(1) SQUARE COLUMNS(1)"),
        ("amx",),
    ),
    bug(
        "text",
        "a GPU waits for one slot less",
        "rammer.vdevice.simt.codegen.image:program_text",
        replaced(r"- run\.base\) <= on\.order", "- run.base) < on.order"),
        SIMT,
    ),
    bug(
        "text",
        "a GPU does not sync behind a wait",
        "rammer.vdevice.simt.codegen.image:program_text",
        replaced(r"mk_sync\(\);  // the block's writes", "// the block's writes"),
        SIMT,
    ),
)


def _exchanged(rows: Sequence[list[Any]]) -> list[list[Any]] | None:
    """Give each kernel the object and symbol of the next one."""
    others = (*rows[1:], rows[0])
    return [[*other[:2], row[2]] for row, other in zip(rows, others, strict=True)] if len(rows) > 1 else None


def _foreign(original: Any, hit: Hit) -> Any:
    """Let a plugin's kernels in C compute another rTask than the requested one."""

    def erring(self: Any, operation: Operation, spec: VDeviceSpec, *more: Any, **named: Any) -> list[RKernel]:
        found = []
        for kernel in (made := original(self, operation, spec, *more, **named)):
            program = kernel.body
            if not isinstance(program, TileProgram) or kernel.num_rtasks < 2 or kernel.packing:
                continue
            text = emit(kernel, spec)
            if text.capacity or text.tickets:
                continue
            wrong = replace(
                text, text=text.text.replace("rtask, status);", f"(rtask + 1) % {kernel.num_rtasks}, status);")
            )
            whole = translation_unit([wrong], spec)
            body = ForeignSource("c", text.symbol, whole, program.digits, scratch_bytes=kernel.scratch_bytes)
            found.append(replace(kernel, body=body, schedule=""))
        if found:
            hit()
        return found or made

    return erring


PLUGINS: tuple[Bug, ...] = (bug("plugin", "a kernel in C computes another rTask", OFFERED, _foreign, HOST),)

CACHES: tuple[Bug, ...] = (
    Bug(
        "cache",
        "an old verdict says that a kernel is proven",
        (
            ("rammer.compiler.candidates:_proof", instead(lambda kernel: "proven\0\0")),
            (OFFERED, afterwards(_every(_site("^term \\d+ of", 3)))),
        ),
    ),
    Bug(
        "cache",
        "old verdicts say that a kernel is proven and was right",
        (
            ("rammer.compiler.candidates:_proof", instead(lambda kernel: "proven\0\0")),
            ("rammer.vdevice.cpu.device:check_kernels", instead(lambda *_: {})),
            (OFFERED, afterwards(_every(_site("^term \\d+ of", 4)))),
        ),
        HOST,
    ),
    Bug(
        "cache",
        "old verdicts, and padding reads one",
        (
            ("rammer.vdevice.cpu.device:check_kernels", instead(lambda *_: {})),
            (OFFERED, afterwards(_every(_site("padding is one")))),
        ),
        HOST,
    ),
    bug(
        "cache",
        "two objects are exchanged",
        "rammer.vdevice.cpu.codegen.build:_addresses",
        afterwards(_exchanged),
        HOST,
    ),
)

KERNEL_BUGS: tuple[Bug, ...] = (*GENERATORS, *TEXTS, *PLUGINS, *CACHES)
