"""Describe instructions of a device as data: what each one means, and the layouts of its operands.

After Exo's `@instr`. Programs are proven against the meaning. The text is the backend's; tests compare it with the
meaning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from rammer.ir.expr import Axes, Call, Cast, Load, Scalar, Stage, TensorExpr, loads
from rammer.ir.index import Index, var, variables
from rammer.ir.tensor import Digit, DType, Encoding, Layout, Shape, TensorType, row_major


@dataclass(frozen=True, slots=True)
class Instruction:
    """What hardware does as a whole: `meaning` is a tensor expression of one stage, `name` the backend's name for it.

    Layouts of the meaning's tensors say how operands lie in their buffers. If several `threads` execute it together,
    the thread's number comes first in each layout, and the rest numbers a register of that thread; but `staged` inputs
    lie in scratch. Padding in an output's layout is written too.
    """

    name: str
    meaning: TensorExpr
    threads: int = 1
    accumulates: bool = False  # it adds to what its output holds
    precision: str = "fp32"  # what it rounds operands of float32 to, none or "tf32", "bf16"
    gain: float = 1.0  # multiply-adds, or elements copied, in the time of one multiply-add of the vEU's own
    wake_us: float = 0.0  # time to start after a while out of use
    split_dtype: str = ""  # type of the two parts into which it splits an operand; three of their products count
    later: bool = False  # asynchronous: what it writes is complete at a block sync that awaits it
    staged: bool = False  # of many threads: its inputs lie in scratch, as their layouts say, and not in registers

    @property
    def axes(self) -> Axes:
        """All axes, those of the sum last."""
        stage = self.meaning.root
        return (*stage.axes, *stage.reduce)

    @property
    def tensors(self) -> tuple[tuple[str, TensorType], ...]:
        """The output, then the inputs."""
        return (*self.meaning.outputs, *self.meaning.inputs)

    @property
    def multiplies(self) -> bool:
        """Return whether it is output[row, column] = Σ input[row, term] · input[term, column], perhaps widened."""
        match self.meaning.root:
            case Stage(_, ((row, _), (column, _)), Call("mul", (a, b)), ((term, _),), "sum"):
                at_a, at_b = (var(row), var(term)), (var(term), var(column))
                return all(isinstance(x, Load) and x.index == at for x, at in ((_narrow(a), at_a), (_narrow(b), at_b)))
        return False

    @property
    def folds(self) -> bool:
        """Return whether threads combine what each of them holds, and all get the result: see `fold`."""
        stage = self.meaning.root
        return self.threads > 1 and bool(stage.reduce) and isinstance(stage.body, Load)

    @property
    def operands(self) -> tuple[DType, ...]:
        """Element types of its inputs."""
        return tuple(kind.dtype for _, kind in self.meaning.inputs)

    @property
    def encoding(self) -> Encoding | None:
        """Encoding of its first input."""
        layout = self.meaning.inputs[0][1].layout
        return layout.encoding if layout else None

    @property
    def splits(self) -> bool:
        """Return whether it computes with parts of its operands, or rounds them.

        The parts of an infinity are the infinity and a NaN, so that products of it are NaN.
        """
        encoded = (kind.layout.encoding for _, kind in self.tensors if kind.layout)
        return bool(self.split_dtype) or self.precision != "fp32" or any(e is not None for e in encoded)

    def layout_of(self, columns: bool) -> Layout | None:
        """Return the layout of a product's rows, or of its columns, as if these came before their terms."""
        layout = self.meaning.inputs[int(columns)][1].layout
        if layout is None or not columns:
            return layout
        return replace(layout, digits=tuple(replace(d, dim=1 - d.dim) for d in layout.digits))

    def block_of(self, copy: Instruction) -> int:
        """Return how many rows, or columns, in the layout that `copy` makes a product takes at once; 1 if none."""
        made = copy.meaning.outputs[0][1].layout
        return next((self.extent(a) for n, a in enumerate(("row", "column")) if self.layout_of(bool(n)) == made), 1)

    @property
    def copies(self) -> bool:
        """Return whether its output is its input in another layout."""
        stage = self.meaning.root
        return (
            isinstance(stage.body, Load)
            and not stage.reduce
            and stage.body.index == tuple(var(a) for a, _ in stage.axes)
        )

    @property
    def encodes(self) -> bool:
        """Return whether it is a copy that changes the encoding alone: both are contiguous, in the same order."""
        (_, source), (_, kind) = self.tensors[-1], self.tensors[0]
        bare = kind.layout and replace(kind.layout, encoding=None)
        return self.copies and source.layout is not None and source.layout == bare

    def extent(self, axis: str) -> int:
        """Return the extent of an axis in one execution."""
        return dict(self.axes)[axis]

    def axes_of(self, tensor: str) -> tuple[str, ...]:
        """Return the axis along which each dimension of a tensor lies."""
        stage = self.meaning.root
        if tensor == stage.name:
            return tuple(a for a, _ in stage.axes)
        load = next(ld for ld, _ in loads(stage.body) if ld.tensor == tensor)
        return tuple(name for ix in load.index for name in variables(ix))

    def types(self, extents: Mapping[str, int]) -> Iterator[tuple[str, TensorType]]:
        """Yield the types of its tensors for other extents of axes: it is repeated along them, or cut short."""
        for name, kind in self.tensors:
            yield name, replace(kind, shape=tuple(extents[axis] for axis in self.axes_of(name)))

    def registers(self, tensor: str) -> int:
        """Return the number of elements of a tensor that each thread holds."""
        return prod(dict(self.tensors)[tensor].physical_shape) // self.threads

    def digits(self, tensor: str) -> tuple[tuple[Digit, ...], tuple[Digit, ...]]:
        """Return the digits that number the thread, and those of its registers, of a tensor that many threads hold."""
        kind = dict(self.tensors)[tensor]
        assert kind.layout is not None
        count, left = 0, self.threads
        while left > 1:
            left //= kind.physical_shape[count]
            count += 1
        return kind.layout.digits[:count], kind.layout.digits[count:]

    def held(self, tensor: str, thread: Index, register: Index) -> tuple[Index, ...]:
        """Return the element of a tensor that a thread holds in one of its registers."""
        element = [Index() for _ in self.axes_of(tensor)]
        for digits, number in zip(self.digits(tensor), (thread, register), strict=True):
            left = number
            for digit, size, step in self._sized(tensor, digits):
                element[digit.dim] += left // step % size * digit.div
        return tuple(element)

    def holder(self, tensor: str, element: Sequence[Index]) -> tuple[Index, Index]:
        """Return the thread that holds an element of a tensor, and the register."""
        places = []
        for digits in self.digits(tensor):
            at = Index()
            for digit, size, step in self._sized(tensor, digits):
                at += element[digit.dim] // digit.div % size * step
            places.append(at)
        return places[0], places[1]

    def _sized(self, tensor: str, digits: tuple[Digit, ...]) -> Iterator[tuple[Digit, int, int]]:
        """Yield digits of a number, each with the number of its values, and the weight of one step."""
        sizes = Layout(digits).physical_shape(dict(self.tensors)[tensor].shape)
        for n, (digit, size) in enumerate(zip(digits, sizes, strict=True)):
            yield digit, size, prod(sizes[n + 1 :])


def multiply(
    name: str,
    sizes: Shape,
    layouts: Sequence[Layout],
    *,
    dtypes: tuple[DType, DType, DType] = (DType.F32, DType.F32, DType.F32),
    threads: int = 1,
    accumulates: bool = False,
    precision: str = "fp32",
    gain: float = 1.0,
    staged: bool = False,
) -> Instruction:
    """Build a matrix product of `sizes` rows, columns and terms.

    `layouts` and `dtypes` are those of the sums, of the operand with rows, and of the one with columns. Operands are
    widened to the type of the sums.
    """
    row, column, term = var("row"), var("column"), var("term")
    rows, columns, terms = sizes
    shapes = {"sums": (rows, columns), "a": (rows, terms), "b": (terms, columns)}
    kinds = [(t, TensorType(s, d, at)) for (t, s), d, at in zip(shapes.items(), dtypes, layouts, strict=True)]
    sums, *narrow = dtypes
    places = Load("a", (row, term)), Load("b", (term, column))
    factors = tuple(x if kind is sums else Cast(x, sums) for x, kind in zip(places, narrow, strict=True))
    stage = Stage("sums", (("row", rows), ("column", columns)), Call("mul", factors), (("term", terms),), dtype=sums)
    meaning = TensorExpr("multiply", tuple(kinds[1:]), (stage,), (kinds[0],))
    return Instruction(name, meaning, threads, accumulates, precision, gain, staged=staged)


def fold(name: str, combine: str, threads: int, terms: int, beside: int = 1, gain: float = 1.0) -> Instruction:
    """Build a reduction over `terms` threads of a subgroup, `beside` numbers from each other; all get the result."""
    sizes, lies = (threads // (terms * beside), terms, beside), Layout((Digit(0), Digit(1), Digit(2)))
    group, term, at = var("group"), var("term"), var("at")
    axes = tuple(zip(("group", "member", "at"), sizes, strict=True))
    stage = Stage("result", axes, Load("held", (group, term, at)), (("term", terms),), combine)
    kind = TensorType(sizes, DType.F32, lies)
    return Instruction(name, TensorExpr("fold", (("held", kind),), (stage,), (("result", kind),)), threads, gain=gain)


def copy(
    name: str,
    shape: Shape,
    to: Layout,
    source: Layout,
    precision: str = "fp32",
    dtype: DType = DType.F32,
    gain: float = 1.0,
) -> Instruction:
    """Build a copy of [row, term] from one layout to another."""
    body = Load("source", (var("row"), var("term")))
    stage = Stage("copy", tuple(zip(("row", "term"), shape, strict=True)), body, dtype=dtype)
    inputs = (("source", TensorType(shape, dtype, source)),)
    outputs = (("copy", TensorType(shape, dtype, to)),)
    return Instruction(name, TensorExpr("copy", inputs, (stage,), outputs), precision=precision, gain=gain)


def _narrow(value: Scalar) -> Scalar:
    """Return the operand of a widening Cast, or the value itself."""
    return value.arg if isinstance(value, Cast) else value


def place(layout: Layout | None, shape: Shape, index: Sequence[Index], steps: Sequence[int] = ()) -> Index:
    """Return the position of an element; `steps`: strides of physical dimensions, if they are not contiguous."""
    digits = layout.digits if layout else [Digit(d) for d in range(len(shape))]
    sizes = layout.physical_shape(shape) if layout else shape
    steps = steps or row_major(sizes)
    at = Index()
    for digit, step in zip(digits, steps, strict=True):
        moved = index[digit.dim] // digit.div
        at += (moved % digit.mod if digit.mod else moved) * step
    return at


def padded(layout: Layout | None, shape: Shape) -> Shape:
    """Return the extents, with what a layout's blocks hold past the edge."""
    if layout is None:
        return shape
    whole = dict.fromkeys(range(len(shape)), 1)
    for digit, extent in zip(layout.digits, layout.physical_shape(shape), strict=True):
        whole[digit.dim] *= extent
    return tuple(whole.values())
