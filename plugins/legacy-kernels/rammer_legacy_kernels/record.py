"""Read and check the record of an imported kernel: its operator, launch and text. Nothing is executed here."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import isfinite, prod
from pathlib import Path
from typing import Any, TypeAlias

from rammer.errors import ArtifactError, RammerError, did_you_mean
from rammer.ir.analysis.dependency import num_written, writers
from rammer.ir.expr import TensorExpr
from rammer.ir.graph import Graph
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import Operation, Operations, ROperator, attributes
from rammer.ir.ops import OPS
from rammer.ir.tensor import DType, TensorType
from rammer.ir.tile import TaskDigit
from rammer.passes.fusion.regions import fuse
from rammer_legacy_kernels.convert import MAX_THREADS, Converted, Dims, Launch, argument_places, convert_source
from rammer_legacy_kernels.source import CTYPES, Source, read_source

SCHEMA = "rammer-kernel/1"
MAX_BYTES = 1 << 20  # of a file
MAX_ELEMENTS = 1 << 28  # of a tensor
MAX_RTASKS = 1 << 16
MAX_SHARED = 1 << 20
MAX_RANK, MAX_INPUTS, MAX_STEPS = 8, 32, 16
DEFAULT_TOLERANCE, MAX_TOLERANCE = 1e-4, 1e-2
HINT = "docs/kernels.md describes records"

Json: TypeAlias = Any
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_ARGUMENT = re.compile(r"(input|output)(\d{1,2})")


@dataclass(frozen=True, slots=True)
class Step:
    """An operator of the record. Inputs are "input0" … of the record, or "step0" …, the first output of a step."""

    kind: str
    attrs: tuple[tuple[str, Any], ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """A digit of a grid index: blockIdx.<grid> // div % count; the block's box on `axis` begins at digit * step."""

    axis: int
    grid: str
    step: int
    count: int
    div: int = 1


@dataclass(frozen=True)
class Record:
    """An imported kernel. `tiles` None: verification finds them. `syncs` None: it counts them.

    `key` identifies the operation; `digest` the whole record.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[TensorType, ...]
    launch: Launch
    text: str
    tiles: tuple[Tile, ...] | None = None
    syncs: int | None = None
    tolerance: float = DEFAULT_TOLERANCE
    origin: str = ""
    licence: str = ""

    @cached_property
    def source(self) -> Source:
        """Return the text, read and checked. Raises LoweringError with the refused line."""
        return read_source(self.text)

    @cached_property
    def operation(self) -> Operation:
        """Return the operation of the kernel, as passes would make it. Raises ArtifactError."""
        return _operation(self)

    @property
    def expr(self) -> TensorExpr:
        return self.operation.expr

    @property
    def num_rtasks(self) -> int:
        return prod(self.launch.grid)

    @property
    def key(self) -> str:
        """Return the SHA-256 of the operator's canonical form: kinds, attributes, shapes and types.

        Kernels do not affect it.
        """
        return _digest({k: v for k, v in to_json(self).items() if k in ("operator", "inputs")})

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the record's canonical form."""
        return _digest(to_json(self))

    def digits(self) -> tuple[TaskDigit, ...]:
        """Return the tiles as digits of the rTask's number, which counts blocks with x fastest.

        Raises ArtifactError.
        """
        if self.tiles is None:
            raise ArtifactError(f"record {self.name!r}: its tiles are not known", hint="verify it: that finds them")
        axes = [a for a, _ in self.expr.root.axes]
        gx, gy, _ = self.launch.grid
        stride = {"x": 1, "y": gx, "z": gx * gy}
        return tuple(
            TaskDigit(axes[t.axis], t.step, t.count, stride[t.grid] * t.div) for t in self.tiles if t.count > 1
        )

    def rkernel(self, operation: Operation, language: str, wave: int = 32) -> RKernel:
        """Return the record as an rKernel of an operation with its expression. Raises LoweringError, ArtifactError."""
        made: Converted = convert_source(self.source, self.launch, language, wave=wave, syncs=self.syncs)
        source = ForeignSource(
            language,
            made.symbol,
            made.text,
            self.digits(),
            made.num_threads,
            made.scratch_bytes,
            made.num_block_syncs,
            made.own_syncs,
        )
        return RKernel(f"imported_{self.name}", operation, source, schedule=f"record {self.digest[:16]}")


def read_record(path: str | os.PathLike[str]) -> Record:
    """Read and check a record's file. Executes nothing of it. Raises ArtifactError, LoweringError."""
    return parse_record(read_text(Path(path)), folder=Path(path).parent)


def record_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the files of a sound record: its own, and that of its text if separate."""
    beside = json.loads(read_text(Path(path))).get("file")
    return (Path(path), *([Path(path).parent / beside] if beside else []))


def parse_record(text: str, *, folder: Path | None = None) -> Record:
    """Check a record's JSON. `folder`: where its "file" may lie. Raises ArtifactError, LoweringError."""
    try:
        data = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"the record is no JSON: {error}", hint=HINT) from None
    return from_json(data, folder=folder)


def from_json(data: Json, *, folder: Path | None = None, checked: bool = False) -> Record:
    """Check a record. Raises ArtifactError that names the entry, LoweringError with a line of the text.

    `checked`: its parts were checked against each other before; its text is read only when converted.
    """
    check = _Check("the record", data)
    if check.get("schema", str) != SCHEMA:
        raise ArtifactError(f"the record's schema is {data.get('schema')!r}, not {SCHEMA!r}", hint=HINT)
    name = check.get("name", str)
    if not _NAME.fullmatch(name):
        raise ArtifactError(f"the record's name {name[:80]!r} is no name", hint="letters, digits, and _ . - in it")
    inputs = tuple(_tensor(f"inputs[{n}]", t) for n, t in enumerate(check.items("inputs", MAX_INPUTS)))
    steps = _steps(check.get("operator", object), len(inputs))
    launch = Launch(
        check.dims("grid", MAX_RTASKS),
        check.dims("block", MAX_THREADS),
        check.number("dynamic_bytes", 0, 0, MAX_SHARED),
        tuple(_argument(a) for a in check.items("arguments", 4 * MAX_INPUTS, ())),
    )
    tiles = None
    if "tiles" in data:
        tiles = tuple(_tile(n, t, launch.grid) for n, t in enumerate(check.items("tiles", 3 * MAX_RANK)))
    tolerance = check.get("tolerance", float, DEFAULT_TOLERANCE)
    if not 0 < tolerance <= MAX_TOLERANCE:
        raise ArtifactError(f"the record's tolerance {tolerance} is not in (0, {MAX_TOLERANCE}]")
    record = Record(
        name,
        steps,
        inputs,
        launch,
        _text(check, folder),
        tiles,
        check.number("syncs", None, 0, 1 << 20),
        float(tolerance),
        check.get("origin", str, "")[:1000],
        check.get("licence", str, "")[:200],
    )
    key = check.get("key", str, "")
    check.nothing_else()
    if key and key != record.key:
        raise ArtifactError("the record's key is not that of its operator", hint="leave it out, or compute it again")
    if not checked:
        check_record(record)
    return record


def to_json(record: Record) -> dict[str, Json]:
    """Return the record as plain data, in canonical form with all defaults."""
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "name": record.name,
        "operator": [{"kind": s.kind, "attrs": dict(s.attrs), "inputs": list(s.inputs)} for s in record.steps],
        "inputs": [{"dtype": t.dtype.value, "shape": list(t.shape)} for t in record.inputs],
        "grid": list(record.launch.grid),
        "block": list(record.launch.block),
        "dynamic_bytes": record.launch.dynamic_bytes,
        "arguments": list(record.launch.arguments),
        "tolerance": record.tolerance,
        "origin": record.origin,
        "licence": record.licence,
        "source": record.text,
    }
    if record.tiles is not None:
        data["tiles"] = [
            {"axis": t.axis, "grid": t.grid, "step": t.step, "count": t.count, "div": t.div} for t in record.tiles
        ]
    if record.syncs is not None:
        data["syncs"] = record.syncs
    return data


def check_record(record: Record) -> None:
    """Check the parts against each other: parameters, tensors, tiles. Raises LoweringError, ArtifactError."""
    outputs = record.operation.outputs
    for n, kind in enumerate((*record.inputs, *outputs)):
        if kind.size > MAX_ELEMENTS or kind.size == 0:
            raise ArtifactError(f"record {record.name!r}: tensor {n} has {kind.size} elements")
    used: set[tuple[str, int]] = set()
    for p, (role, number) in zip(record.source.parameters, argument_places(record.source, record.launch), strict=True):
        if role == "number":
            continue
        kinds = record.operation.inputs if role == "input" else outputs
        at = int(number)
        if at >= len(kinds) or (role, at) in used:
            why = "is given twice" if at < len(kinds) else f"does not exist: the operator has {len(kinds)}"
            raise ArtifactError(f"record {record.name!r}: {role}{at} of parameter {p.name!r} {why}")
        used.add((role, at))
        if CTYPES[p.ctype] != kinds[at].dtype:
            raise ArtifactError(
                f"record {record.name!r}: parameter {p.name!r} has elements of {p.ctype}, {role}{at} is {kinds[at]}"
            )
    if missing := [n for n in range(len(outputs)) if ("output", n) not in used]:
        raise ArtifactError(f"record {record.name!r}: the kernel has no parameter for output{missing[0]}")
    convert_source(record.source, record.launch, "counting")
    if record.tiles is not None:
        check_tiles(record)


def check_tiles(record: Record) -> None:
    """Check that every element of the output belongs to the tile of exactly one block. Raises ArtifactError."""
    assert record.tiles is not None
    for grid, extent in zip("xyz", record.launch.grid, strict=True):
        div = 1
        for tile in sorted((t for t in record.tiles if t.grid == grid), key=lambda t: t.div):
            if tile.div != div:
                raise ArtifactError(
                    f"record {record.name!r}: a tile divides grid {grid} by {tile.div}; its digit's place is {div}"
                )
            div *= tile.count
        if div != extent:
            raise ArtifactError(
                f"record {record.name!r}: its tiles count {div} blocks along grid {grid}, which has {extent}",
                hint='each grid index is made of digits, as {"axis": 0, "grid": "x", "step": 16, "count": 4}',
            )
    rank = len(record.expr.root.axes)
    if bad := [t.axis for t in record.tiles if t.axis >= rank]:
        raise ArtifactError(f"record {record.name!r}: a tile is along axis {bad[0]}; the output has rank {rank}")
    kernel = RKernel(record.name, record.operation, ForeignSource("", "", "", record.digits()))
    for n, kind in enumerate(record.operation.outputs):
        try:
            writers(kernel, n)
        except ArtifactError:
            raise
        except RammerError as error:
            raise ArtifactError(f"record {record.name!r}: {error.what}") from None
        if num_written(kernel, n) != kind.size:
            raise ArtifactError(
                f"record {record.name!r}: its tiles hold {num_written(kernel, n)} of {kind.size} elements of output{n}"
            )


def with_tiles(record: Record, tiles: Sequence[Tile], syncs: int) -> Record:
    """Return the record with the results of verification."""
    return replace(record, tiles=tuple(tiles), syncs=syncs)


# Parts


class _Check:
    """Reader of a JSON object: takes checked entries out, and refuses the rest."""

    def __init__(self, where: str, data: Json) -> None:
        if not isinstance(data, dict):
            raise ArtifactError(f"{where} is no object", hint=HINT)
        self.where, self.data, self.seen = where, data, set[str]()

    def get(self, name: str, kind: type[Any], default: Any = None) -> Any:
        self.seen.add(name)
        if name not in self.data:
            if default is None:
                raise ArtifactError(f"{self.where} lacks {name!r}", hint=HINT)
            return default
        value = self.data[name]
        good = isinstance(value, (int, float) if kind is float else kind) and not (
            isinstance(value, bool) and kind in (int, float)
        )
        if not good:
            raise ArtifactError(f"{self.where}: {name!r} is no {kind.__name__}", hint=HINT)
        return value

    def number(self, name: str, default: Any, low: int, high: int) -> Any:
        if name not in self.data:
            self.seen.add(name)
            return default
        value = self.get(name, int)
        if not low <= value <= high:
            raise ArtifactError(f"{self.where}: {name!r} is {value}, not in {low} … {high}")
        return value

    def items(self, name: str, most: int, default: Sequence[Json] | None = None) -> Sequence[Json]:
        found: Sequence[Json] = self.get(name, list, default)
        if len(found) > most:
            raise ArtifactError(f"{self.where}: {name!r} has {len(found)} entries; at most {most} are read")
        return found

    def dims(self, name: str, most: int) -> Dims:
        value = self.get(name, list)
        sound = 1 <= len(value) <= 3 and all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in value)
        if not sound or prod(value) > most:
            raise ArtifactError(
                f"{self.where}: {name!r} is not one to three numbers of 1 and more, {most} in all at most"
            )
        x, y, z = (*value, 1, 1)[:3]
        return (x, y, z)

    def nothing_else(self) -> None:
        if left := sorted(self.data.keys() - self.seen):
            hint = did_you_mean(left[0], self.seen) or f"known: {', '.join(sorted(self.seen))}"
            raise ArtifactError(f"{self.where} has the unknown entry {left[0][:80]!r}", hint=hint)


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an entry is given twice")
    return found


def _no_constant(text: str) -> Json:
    raise ValueError(f"{text} is no number")


def _digest(data: Json) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _tensor(where: str, data: Json) -> TensorType:
    check = _Check(where, data)
    dtype, shape = check.get("dtype", str), check.items("shape", MAX_RANK)
    check.nothing_else()
    if dtype not in set(CTYPES.values()):
        raise ArtifactError(
            f"{where}: kernels are imported for {', '.join(sorted(set(CTYPES.values())))}, not {dtype!r}"
        )
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MAX_ELEMENTS for n in shape):
        raise ArtifactError(f"{where}: {shape!r} is no shape"[:200])
    if prod(shape) > MAX_ELEMENTS:
        raise ArtifactError(f"{where} has {prod(shape)} elements; at most {MAX_ELEMENTS} are possible")
    return TensorType(tuple(shape), DType(dtype))


def _steps(data: Json, num_inputs: int) -> tuple[Step, ...]:
    """Return the steps: one operator that reads the record's inputs in order, or a list that passes fuse into one."""
    listed = data if isinstance(data, list) else [data]
    if not 1 <= len(listed) <= MAX_STEPS:
        raise ArtifactError(f"the record's operator has {len(listed)} steps; 1 to {MAX_STEPS} are possible")
    steps: list[Step] = []
    for n, part in enumerate(listed):
        where = f"operator[{n}]"
        check = _Check(where, part)
        kind, attrs = check.get("kind", str), check.get("attrs", dict, {})
        default = [f"input{i}" for i in range(num_inputs)] if len(listed) == 1 else None
        inputs = check.items("inputs", MAX_INPUTS, default)
        check.nothing_else()
        if kind not in OPS:
            hint = did_you_mean(kind, OPS) or f"known: {', '.join(sorted(OPS))}"
            raise ArtifactError(f"{where}: no operator {kind[:80]!r}", hint=hint)
        known = {f"input{i}" for i in range(num_inputs)} | {f"step{i}" for i in range(n)}
        if bad := [i for i in inputs if not isinstance(i, str) or i not in known]:
            raise ArtifactError(f"{where}: no input {str(bad[0])[:80]!r}", hint=f"known: {', '.join(sorted(known))}")
        values = {str(k): _attribute(f"{where}: {k[:80]!r}", v) for k, v in attrs.items()}
        steps.append(Step(kind, attributes(**{**_defaults(kind), **values}), tuple(inputs)))
    return tuple(steps)


def _defaults(kind: str) -> dict[str, Any]:
    """Return an operator's default attributes, which the canonical form includes."""
    parameters = inspect.signature(OPS[kind].express).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def _attribute(where: str, value: Json, depth: int = 0) -> Any:
    if isinstance(value, list) and depth < 2 and len(value) <= 64:
        return tuple(_attribute(where, v, depth + 1) for v in value)
    if value is None or (isinstance(value, (bool, int, float, str)) and len(str(value)) <= 64):
        return value
    raise ArtifactError(f"{where} is no attribute", hint="numbers, words, true, false, null, and short lists of them")


def _argument(value: Json) -> str | int | float:
    if isinstance(value, str) and _ARGUMENT.fullmatch(value):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    raise ArtifactError(f"the argument {str(value)[:80]!r} is none", hint='"output0", "input0", or a number')


def _tile(n: int, data: Json, grid: Dims) -> Tile:
    check = _Check(f"tiles[{n}]", data)
    axis, along = check.number("axis", None, 0, MAX_RANK - 1), check.get("grid", str)
    if along not in ("x", "y", "z") or axis is None:
        raise ArtifactError(f"tiles[{n}] needs an 'axis' of the output, and a 'grid' of x, y or z", hint=HINT)
    div = check.number("div", 1, 1, MAX_RTASKS)
    count = check.number("count", -(-grid["xyz".index(along)] // div), 1, MAX_RTASKS)
    tile = Tile(axis, along, check.number("step", 1, 1, MAX_ELEMENTS), count, div)
    check.nothing_else()
    return tile


def _text(check: _Check, folder: Path | None) -> str:
    """Return the kernel's text: from the record, or from a file beside it."""
    source, file = check.get("source", str, ""), check.get("file", str, "")
    if bool(source) == bool(file):
        raise ArtifactError("the record has either a 'source' or a 'file'", hint=HINT)
    if source:
        return str(source)
    if folder is None or not _NAME.fullmatch(file):
        raise ArtifactError(f"the record's file {file[:80]!r} is no plain name of a file beside it")
    return read_text(folder / file)


def read_text(path: Path, most: int = MAX_BYTES) -> str:
    """Read a file of limited size as text, without following links. Raises ArtifactError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise ArtifactError(f"{path} has more than {most} bytes")
        return data.decode("utf-8")
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", hint="links are not followed") from None
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{path} is no text: {error.reason}") from None


def _operation(record: Record) -> Operation:
    """Return the record's steps as one operation, by the pass that fuses them in models. Raises ArtifactError."""
    operations = Operations(OPS)
    types = {f"input{n}": t for n, t in enumerate(record.inputs)}
    operators = []
    for n, step in enumerate(record.steps):
        where = f"operator[{n}] ({step.kind})"
        operation = _guarded(where, partial(_defined, operations, step, types))
        names = tuple(f"step{n}" if m == 0 else f"step{n}.{m}" for m in range(len(operation.outputs)))
        types |= dict(zip(names, operation.outputs, strict=True))
        operators.append(ROperator(names[0], operation, step.inputs, names))
    graph = Graph(
        "record",
        tuple(f"input{n}" for n in range(len(record.inputs))),
        operators[-1].outputs,
        tuple(operators),
        types,
        {},
        operations,
    )
    if len(operators) > 1:
        graph = _guarded("operator", lambda: fuse(graph))
    if len(graph.operators) != 1:
        kinds = ", ".join(op.kind for op in graph.operators)
        raise ArtifactError(f"the record's steps are not one operator in a model, but {kinds}", hint=HINT)
    found = graph.operators[0]
    if found.inputs != graph.inputs:
        raise ArtifactError(
            f"the record's inputs are read in the order {', '.join(found.inputs)}", hint="list and number them so"
        )
    return found.operation


def _defined(operations: Operations, step: Step, types: Mapping[str, TensorType]) -> Operation:
    attrs = {k: DType(v) if k == "dtype" and v is not None else v for k, v in step.attrs}
    return operations.define(step.kind, tuple(types[i] for i in step.inputs), attributes(**attrs))


def _guarded(where: str, make: Callable[[], Any]) -> Any:
    """Call `make`, and raise all its errors as the record's fault: its attributes may be of any kind."""
    try:
        return make()
    except RammerError as error:
        raise ArtifactError(f"{where}: {error.what}", hint=error.hint) from None
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise ArtifactError(f"{where}: {type(error).__name__}: {error}"[:500], hint="see its attributes") from None
