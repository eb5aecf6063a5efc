"""Define rKernels: ways to compute an operation in equal rTasks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from rammer.errors import counted
from rammer.ir.device import VDeviceSpec
from rammer.ir.expr import TensorExpr
from rammer.ir.operator import Operation
from rammer.ir.remembered import remembered
from rammer.ir.software_pipeline import pipelined
from rammer.ir.tensor import Layout, TensorType
from rammer.ir.tile import Apply, TaskDigit, TileProgram, statements


@dataclass(frozen=True, slots=True)
class ForeignSource:
    """A hand-written or imported kernel body in one language of a vDevice.

    `text` defines a function `symbol`, in the backend's calling convention. `digits` say which box of the root's axes
    an rTask computes. `own_syncs`: its block syncs cover its own threads alone, however many the vEU has.
    """

    language: str
    symbol: str
    text: str
    digits: tuple[TaskDigit, ...]
    num_threads: int = 1
    scratch_bytes: int = 0
    num_block_syncs: int | None = None
    own_syncs: bool = False


@dataclass(frozen=True, slots=True)
class Tuning:
    """What a policy or a backend asks of passes and generators, beyond what the spec says.

    `tasks`: the number of rTasks to aim for first; 0: one per vEU. `most_bytes`: the most bytes that the smallest piece
    of work, a register block with all it reads, may touch; 0: no limit. If no register block is so small, the smallest
    one is used. `every_axis`: cut point-wise and row-wise nests also along each axis of the root before the others; on
    SIMT devices, keep the tiles of a product inside of one image. `small`: offer short operations, too, in several
    times as many rTasks. `task_multiples`: offer further rKernels with so many times the usual number of rTasks, marked
    `RKernel.for_splitting`. `per_image`: separate the memory of a batch's images.
    """

    tasks: int = 0
    most_bytes: int = 0
    every_axis: bool = False
    small: bool = False
    task_multiples: tuple[int, ...] = ()
    per_image: bool = False


USUAL = Tuning()


@dataclass(frozen=True, slots=True, eq=False)
class RKernel:
    """One implementation of an operation: a tiling into equal rTasks, and their body. Paper: §3.1.

    `packing`: (input name, layout) of static inputs that the kernel wants repacked at compile time. `schedule`: text of
    the schedule that it was lowered from, for readers and for cache keys. `form`: the expression that was lowered, if
    it is another form of the operation's (Winograd's). `overreads`: the body reads more than the expression (whole
    vectors, boxes with gaps) and uses none of it; rTasks depend on that, too. With several `pipeline_depth`, vEUs run
    the body as a pipeline (`program`); proofs and dependencies are those of the body itself. `unproven`: a rule cannot
    be shown, so nothing may rely on it. `for_splitting`: offered only to policies that cut operators into parts; for
    others it would add a candidate of uncertain time. `origin`: the plugin that offers it, with the version of its
    distribution; empty for rammer's own.
    """

    name: str
    operation: Operation
    body: TileProgram | ForeignSource
    packing: tuple[tuple[str, Layout], ...] = ()
    schedule: str = ""
    form: TensorExpr | None = None
    overreads: bool = False
    pipeline_depth: int = 1
    unproven: bool = False
    for_splitting: bool = False
    origin: str = ""

    def __repr__(self) -> str:
        return f"<RKernel {self.name} of {self.operation!r}: {counted(self.num_rtasks, 'rTask')}>"

    @property
    def is_foreign(self) -> bool:
        """Return whether the body is a text, which cannot be proven. Without text, it runs as its expression says."""
        return isinstance(self.body, ForeignSource) and bool(self.body.text)

    @property
    def program(self) -> TileProgram | ForeignSource:
        """The body as vEUs run it."""
        return self.body if self.pipeline_depth == 1 else _pipeline(self)

    @property
    def identity(self) -> tuple[object, ...]:
        """Key that distinguishes it from others of its operation: equal keys have equal bodies."""
        return self.schedule or self.body, self.packing, self.form, self.pipeline_depth

    @property
    def faithful(self) -> bool:
        """Return whether each element is a function of just the terms that the operation's expression has for it.

        An infinity or NaN then reaches the elements that the formula gives it to, and rounding errors are those of sums
        in the type of the stage. It holds if the rKernel lowers the operation's own expression, not another `form` of
        it, and no instruction splits operands. Foreign text does not count as faithful. A source without text does: the
        interpreter evaluates the expression itself.
        """
        if isinstance(self.body, ForeignSource):
            return not self.body.text
        if self.form is not None:
            return False
        return not any(s.instruction.splits for s in statements(self.body.body) if isinstance(s, Apply))

    @property
    def num_rtasks(self) -> int:
        return prod(digit.extent for digit in self.body.digits)

    @property
    def num_threads(self) -> int:
        return self.body.num_threads

    @property
    def scratch_bytes(self) -> int:
        return self.program.scratch_bytes

    @property
    def num_block_syncs(self) -> int | None:
        return self.program.num_block_syncs

    def argument_types(self) -> tuple[TensorType, ...]:
        """Return the types of outputs, then of inputs as `input_types` has them."""
        return (*self.operation.outputs, *self.input_types())

    def fits(self, spec: VDeviceSpec) -> bool:
        """Return whether a vEU has the threads and the scratch that an rTask takes."""
        return self.num_threads <= spec.max_threads and self.scratch_bytes <= spec.scratch_bytes

    def input_types(self) -> tuple[TensorType, ...]:
        """Return the types of inputs as the kernel reads them, packing included."""
        packed, inputs = dict(self.packing), self.operation.expr.inputs
        return tuple(TensorType(t.shape, t.dtype, packed[n]) if n in packed else t for n, t in inputs)

    def bytes_read(self) -> list[float]:
        """Return the bytes read of each input: of a table, those of the rows that are looked up."""
        expr = self.operation.expr
        kinds = zip(expr.inputs, self.input_types(), strict=True)
        return [min(t.filled_bytes, expr.most_read(name) * t.element_bytes) for (name, _), t in kinds]

    def box(self, rtask_id: int) -> dict[str, tuple[int, int]]:
        """Return [low, high) on every root axis that an rTask computes; empty ranges for a tile past the edge."""
        extents = dict(self.operation.expr.root.axes)
        low = dict.fromkeys(extents, 0)
        step = dict(extents)
        for digit in self.body.digits:
            low[digit.axis] += rtask_id // digit.stride % digit.extent * digit.step
            step[digit.axis] = min(step[digit.axis], digit.step)
        return {a: (min(low[a], e), min(low[a] + step[a], e)) for a, e in extents.items()}


@remembered(1 << 12)
def _pipeline(kernel: RKernel) -> TileProgram:
    assert isinstance(kernel.body, TileProgram)
    made = pipelined(kernel.body, kernel.pipeline_depth)
    assert made is not None, f"{kernel.name} has no loop for a pipeline"
    return made
