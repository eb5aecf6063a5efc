"""Choose physical layouts: channels in blocks of a vector's width through convolutional regions. Known as: NCHWc."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from math import prod

from rammer.ir.device import Execution, VDeviceSpec
from rammer.ir.expr import Load, Stage, inline, loads
from rammer.ir.graph import Graph
from rammer.ir.index import Atom, Div, Index, Mod, var, variables
from rammer.ir.operator import Operation, ROperator
from rammer.ir.remembered import remembered
from rammer.ir.tensor import DType, Layout, TensorId, TensorType, channel_blocked
from rammer.passes.editor import Editor
from rammer.passes.layout.channels_last import moves_last_channels, wants_last_channels
from rammer.passes.structure import is_pointwise

# Operators that are faster with blocked channels in any surroundings; and with those, operators with reductions
# that profit from them. Every other one is row-major.
_CONVOLVING = frozenset({"conv", "input_transform", "output_transform"})
_BLOCKED_CORES = _CONVOLVING | {"max_pool", "average_pool", "reduce", "lrn", "resample", "resample_evenly"}
_WINDOWS = frozenset({"lrn"})  # over neighbouring channels: `vectors.channel_window` copies these contiguously
# I32: sums of quantised models
# I32: sums of quantised models
_BLOCKED_TYPES = frozenset({DType.F32, DType.F16, DType.BF16, DType.I32, DType.U8, DType.I8})


class Channels(Enum):
    """How an operation reads the channels of an input."""

    SAME = "same"  # the channel it computes, perhaps from a whole block further
    SUMMED = "summed"  # all channels of a group
    OTHER = "other"


def choose_layouts(graph: Graph, spec: VDeviceSpec, per_image: bool = False) -> Graph:
    """Block the channels of tensors that convolutions read and write, and of those between; convert at the edges.

    These stay row-major: tensors with channels for at most half a block, or with a single position; operands of
    convolutions whose groups straddle blocks; between row-major operators, depthwise convolutions, where partial
    vectors cost no more than whole ones, and those of single places, which are products. So does everything on devices
    without vectors, and on SIMT devices, whose threads read neighbours anyway. With `per_image` the blocks of an image
    are contiguous.
    """
    if spec.lanes < 2 or spec.execution is Execution.SIMT:
        return graph
    chooser = _Chooser(Editor(graph), spec.lanes, spec.masks, per_image)
    for n in list(chooser.editor.operators):
        chooser.visit(n)
    return chooser.editor.finish()


class _Chooser:
    """A chooser of layouts for operators, one after another."""

    def __init__(self, editor: Editor, lanes: int, masks: bool, per_image: bool) -> None:
        self.editor, self.lanes, self.masks, self.per_image = editor, lanes, masks, per_image
        self.versions: dict[tuple[TensorId, Layout | None], TensorId] = {}
        self.layouts: dict[TensorId, Layout | None] = {}  # of operators' results; graph outputs are converted

    def visit(self, n: int) -> None:
        """Choose one operator's layouts; those of its operands are known."""
        op = self.editor.operators[n]
        operation = op.operation
        blocked = self._accepts(op) and self._wants(op)
        moved = op.kind == "transpose" and wants_last_channels(op, op.inputs[0])  # reads blocks as well
        sources = tuple(
            kind
            if t in self.editor.constants
            else replace(kind, layout=self.layouts.get(t))
            if moved
            else self._in_layout(kind, blocked)
            for t, kind in zip(op.inputs, operation.inputs, strict=True)
        )
        outputs = zip(op.outputs, operation.outputs, strict=True)
        targets = tuple(self._in_layout(kind, blocked) for _, kind in outputs)
        self.layouts |= {t: kind.layout for t, kind in zip(op.outputs, targets, strict=True)}
        inputs = tuple(self._version(t, kind.layout) for t, kind in zip(op.inputs, sources, strict=True))
        if inputs == op.inputs and sources == operation.inputs and targets == operation.outputs:
            return
        if sources != operation.inputs or targets != operation.outputs:
            operation = self.editor.interner.retype(operation, sources, targets, operation.static)
        self.editor.remove(n)
        results = tuple(
            self.editor.fresh(t) if t in self.editor.outputs and kind.layout else t
            for t, kind in zip(op.outputs, targets, strict=True)
        )
        self.editor.add(op.name, operation, inputs, results)
        for old, new, kind in zip(op.outputs, results, targets, strict=True):
            self.versions[old, kind.layout] = new
            if old != new:
                plain = TensorType(kind.shape, kind.dtype)
                self.editor.add(f"{op.name}: convert", self.editor.interner.copy(kind, plain), (new,), (old,))
                self.versions[old, None] = old

    def _version(self, tensor: TensorId, layout: Layout | None) -> TensorId:
        """Return the tensor in a layout. A conversion is made once for all readers."""
        have = self.layouts.get(tensor)
        if (tensor, layout) in self.versions or layout == have:
            return self.versions.get((tensor, layout), tensor)
        source = self.versions.get((tensor, have), tensor)
        kind = self.editor.types[source]
        target = TensorType(kind.shape, kind.dtype, layout)
        maker = self.editor.maker(source, "transpose")
        if maker and moves_last_channels(maker) and self.editor.only_reader(source) is not None and have is None:
            operation = self.editor.interner.retype(maker.operation, maker.operation.inputs, (target,), (False,))
            (made,) = self.editor.add(maker.name, operation, maker.inputs)  # the other one is dead then
        else:
            (made,) = self.editor.add(f"{tensor}: convert", self.editor.interner.copy(kind, target), (source,))
        self.versions[tensor, layout] = made
        return made

    def _in_layout(self, kind: TensorType, blocked: bool) -> TensorType:
        layout = kind.layout  # channels last already
        if layout is None and blocked and self._blockable(kind):
            layout = channel_blocked(kind.rank, self.lanes, batch_first=self.per_image and kind.shape[0] > 1)
        return TensorType(kind.shape, kind.dtype, layout)

    def _blockable(self, kind: TensorType) -> bool:
        return (
            kind.rank in (3, 4, 5)
            and kind.dtype in _BLOCKED_TYPES
            and 2 * kind.shape[1] > self.lanes
            and kind.size > 0
            and prod(kind.shape[2:]) > 1
        )

    def _accepts(self, op: ROperator) -> bool:
        """Check whether the operator's kernels stay simple with blocked channels."""
        operation, members = op.operation, set(op.kind.split("+"))
        if not is_pointwise(operation) and not members & _BLOCKED_CORES:
            return False
        if len({self._blockable(kind) for kind in operation.outputs}) > 1:
            return False
        reads = channel_reads(operation, self.lanes)
        for tensor, kind, how in zip(op.inputs, operation.inputs, reads, strict=True):
            if tensor in self.editor.constants or not self._blockable(kind):
                continue
            summed = how is Channels.SUMMED and "conv" not in members
            if summed or (how is Channels.OTHER and op.kind not in _WINDOWS):
                return False
        return True

    def _wants(self, op: ROperator) -> bool:
        if any(self.layouts.get(t) is not None for t in op.inputs):
            return True
        if op.kind == "unfold":  # for a product whose columns are blocks of channels
            readers = [self.editor.operators[n].operation for n in self.editor.readers.get(op.outputs[0], ())]
            return any(self._blockable(reader.outputs[0]) for reader in readers)
        if not _CONVOLVING & {*op.kind.split("+")} or self._in_rows(op):
            return False
        floats = any(kind.dtype is DType.F32 and kind.rank > 2 for kind in op.operation.inputs)
        return floats or self._blockable(
            op.operation.outputs[0]
        )  # bytes are multiplied as well where places are columns

    def _in_rows(self, op: ROperator) -> bool:
        """Check whether a convolution lies between row-major operators, and is depthwise, or of single places.

        Partial vectors along rows, or products of plain matrices, then take less time than blocks with a conversion
        before and after.
        """
        readers = self.editor.readers.get(op.outputs[0], ())
        if any(self._accepts(self.editor.operators[n]) for n in readers):
            return False
        depthwise = readers and self.masks and _along_rows(op.operation, self.lanes)
        return bool(depthwise) or _of_places(op.operation)


def _of_places(operation: Operation) -> bool:
    """Check whether it sums over all channels of one place, for each place in turn."""
    sums = [stage for stage in inline(operation.expr, set()) if stage.reduce]
    if len(sums) != 1 or sums[0].dtype is not DType.F32 or sum(e > 1 for _, e in sums[0].reduce) != 1:
        return False
    kinds, places = dict(operation.expr.inputs), {Index(), *(var(a) for a, _ in sums[0].axes)}
    read = [load for load, _ in loads(sums[0].body) if load.tensor not in kinds or kinds[load.tensor].rank > 2]
    return all(ix in places for load in read for ix in load.index[2:])


def _along_rows(operation: Operation, lanes: int) -> bool:
    """Check whether it sums over windows of single channels, with contiguous reads along rows.

    Reads of every second number count if a row fills more than half a vector.
    """
    reads = channel_reads(operation, lanes)
    sums = [stage for stage in inline(operation.expr, set()) if stage.reduce]
    if len(sums) != 1 or Channels.SUMMED in reads or Channels.SAME not in reads:
        return False
    kinds, (last, extent) = dict(operation.expr.inputs), sums[0].axes[-1]
    read = [load for load, _ in loads(sums[0].body) if kinds[load.tensor].rank > 2]
    steps = {step for load in read for axis, step in load.index[-1].terms if axis == last}
    return steps == {1} or (steps <= {1, 2} and 2 * extent > lanes)


@remembered(4096)
def channel_reads(operation: Operation, lanes: int) -> tuple[Channels, ...]:
    """Return how each input's dimension 1 is read; inputs of lower rank count as OTHER."""
    expr = operation.expr
    stages = inline(expr, set())
    shared = {s.name for s in stages if len(s.axes) > 1}
    found: dict[str, set[Channels]] = {name: set() for name, _ in expr.inputs}
    for stage in stages:
        for load, _ in loads(stage.body):
            how = _channel(load, stage, lanes)
            if load.tensor in found:
                found[load.tensor].add(how)
            elif load.tensor in shared and how is not Channels.SAME:
                return (Channels.OTHER,) * len(expr.inputs)
    worst = (Channels.OTHER, Channels.SUMMED, Channels.SAME)
    return tuple(next((w for w in worst if w in found[name]), Channels.OTHER) for name, _ in expr.inputs)


def _whole_blocks(atom: Atom, inputs: int, channel: str, lanes: int) -> bool:
    """Check whether groups, each of `inputs` summed channels, begin with a block or share one evenly."""
    if not isinstance(atom, Div) or atom.arg != var(channel):
        return False
    if atom.by % lanes == 0:
        return inputs % lanes == 0
    return lanes % atom.by == 0 and inputs == atom.by


def _by_blocks(index: Index, channel: str, lanes: int) -> bool:
    """Check whether an index is the same for all channels of a block."""
    return all(
        atom != channel
        if isinstance(atom, str)
        else (isinstance(atom, Div) and atom.arg == var(channel) and atom.by % lanes == 0)
        or _by_blocks(atom.arg, channel, lanes)
        for atom, _ in index.terms
    )


def _channel(load: Load, stage: Stage, lanes: int) -> Channels:
    if len(load.index) < 2 or len(stage.axes) < 2 or any(d.dim == 1 for d in load.dynamic):
        return Channels.OTHER
    channel = stage.axes[1][0]
    index = load.index[1]
    others = [ix for p, ix in enumerate(load.index) if p != 1]
    match index.terms:
        case ((Mod(arg, count), 1),) if arg == var(channel):  # the places of a window, each with all channels
            whole = count % lanes == 0 and all(_by_blocks(ix, channel, lanes) for ix in others)
            return Channels.SAME if whole else Channels.OTHER
    if any(channel in variables(ix) for ix in others):
        return Channels.OTHER
    further = index - var(channel)
    if channel not in variables(further):
        if further.const % lanes == 0 and all(step % lanes == 0 for _, step in further.terms):
            return Channels.SAME
        if not further.terms:
            return Channels.OTHER
    summed = {a for a, _ in stage.reduce}
    if summed & variables(index) and variables(index) <= summed | {channel}:
        groups = [(a, c) for a, c in index.terms if channel in variables(Index(0, ((a, c),)))]
        return Channels.SUMMED if all(_whole_blocks(a, c, channel, lanes) for a, c in groups) else Channels.OTHER
    return Channels.OTHER
