"""Define the interface that a backend implements: `VDevice`, `Image` and `Executable`, with optional protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rammer import config
from rammer.about import VERSION
from rammer.errors import ArtifactError, DeviceError, InputError, did_you_mean
from rammer.ir.tensor import Array, DType, NamedArrays, Shape, Symbols, TensorType

if TYPE_CHECKING:  # running programs needs none of these
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.graph import Graph
    from rammer.ir.kernel import RKernel
    from rammer.ir.plan import ExecutionPlan, States
    from rammer.vdevice.export.project import ExportedPlan
    from rammer.vdevice.profiles import ProfileStore
    from rammer.vdevice.proof.decoded import DecodedImage
    from rammer.vdevice.proof.flow import DecodedFlow

Bytes = NDArray[np.uint8]
Progress = Callable[[str, int, int], None]  # (what, done, total)


def silent(what: str, done: int, total: int) -> None:
    """Show nothing: the default progress callback."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a vDevice can run here. If not, `reason` says why and `hint` what would help.

    If it can, `reason` is a remark for the user. `emulated`: only an emulator runs its programs here.
    """

    ok: bool
    reason: str = ""
    hint: str = ""
    emulated: bool = False


def later(module: str, name: str) -> Callable[..., Any]:
    """Return a proxy of a module's function that imports the module at its first call.

    Keeps plugins cheap to import.
    """
    return lambda *positional, **named: getattr(import_module(module), name)(*positional, **named)


@dataclass(frozen=True, slots=True)
class VDeviceEntry:
    """The announcement of a vDevice by a plugin.

    `probe()` is cheap and never raises. `open(arch=…, device=…)` may be costly and raises DeviceError. `archs()` lists
    the values of `arch` for programs that run here; empty if there is no choice. `words` are search words: hints name
    the vDevice to users who type one. `calibrate(progress)` measures the machine's rates in some seconds and stores
    them for specs; it returns rows of (name, usual value, measured value). `runs(arch=…, device=…)` opens the vDevice
    without a spec, only to load images, and imports nothing that compiles; if it is None, `open` is used instead.
    """

    name: str
    open: Callable[..., VDevice]
    probe: Callable[[], Availability] = lambda: Availability(True)
    summary: str = ""
    archs: Callable[[], Sequence[str]] = tuple
    words: tuple[str, ...] = ()
    calibrate: Callable[[Progress], Sequence[tuple[str, float, float]]] | None = None
    runs: Callable[..., VDevice] | None = None


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a program. `symbols` are the model's names of its dimensions, where it has names."""

    name: str
    type: TensorType
    symbols: Symbols = ()

    def __str__(self) -> str:
        return f"{self.name}: {self.type.text(self.symbols)}"

    def __repr__(self) -> str:
        return f"<Port {self}>"

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def check(self, dtype: str, shape: Sequence[int]) -> None:
        """Raise InputError unless an array has exactly this port's dtype, rank and shape."""
        wanted = self.type
        if dtype != wanted.dtype.value:
            raise InputError(
                f"input {self.name!r}: dtype {dtype}, the program takes {wanted.dtype.value}",
                hint=conversion_hint(wanted.dtype),
            )
        if len(shape) != wanted.rank:
            raise InputError(f"input {self.name!r}: rank {len(shape)}, the program takes rank {wanted.rank}: {wanted}")
        for axis, (got, extent) in enumerate(zip(shape, wanted.shape, strict=True)):
            if got != extent:
                raise InputError(
                    f"input {self.name!r}: axis {axis} is {got}, the program takes {extent} (shape {wanted.shape})",
                    hint="shapes are fixed when the model is compiled; compile with shapes={name: …} for another one",
                )


def conversion_hint(dtype: DType) -> str:
    """Return a hint that says how to convert an array of another dtype."""
    return f"convert it with .astype({dtype.value!r}), a tensor with .to(torch.{dtype.value})"


def ports_of(graph: Graph) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Return a graph's inputs and outputs as ports. Raises DeviceError for a blocked layout."""
    for tensor in (*graph.inputs, *graph.outputs):
        if graph.types[tensor].layout is not None:
            raise DeviceError(f"input or output {tensor!r} has a blocked layout", hint="ports must be row-major")
    inputs, outputs = (
        tuple(Port(t, graph.types[t], graph.symbols.get(t, ())) for t in some) for some in (graph.inputs, graph.outputs)
    )
    return inputs, outputs


def random_inputs(ports: Sequence[Port], seed: int) -> dict[str, Array]:
    """Return seeded inputs: standard normal floats and complex parts, small non-negative integers, booleans."""
    random = np.random.default_rng(seed)

    def draw(port: Port) -> Array:
        shape, dtype = port.type.shape, port.type.dtype
        if dtype.is_complex:
            return np.asarray(random.standard_normal((*shape, 2)).astype(dtype.part.numpy).view(dtype.numpy)[..., 0])
        if dtype.is_float:
            return np.asarray(random.standard_normal(shape)).astype(dtype.numpy)
        return np.asarray(random.integers(0, 2, shape)).astype(DType(dtype).numpy)

    return {port.name: draw(port) for port in ports}


@dataclass(frozen=True)
class Image:
    """The result of building a plan: named files (code, tables), and packed weights by name.

    `plan` is present only in the process that compiled it; a saved program is loaded from the other fields.
    `fingerprint` names the arch and ABI that the image requires; loading checks it. `signature` has the model's inputs
    and outputs if some have no elements, because those are not ports of the image. `state` maps outputs to inputs of
    the next run. An output in `in_place` shares the memory of its input. `writer` is the release that built the image.
    """

    target: str
    fingerprint: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    weights: NamedArrays = field(default_factory=dict)
    plan: ExecutionPlan | None = None
    signature: tuple[tuple[Port, ...], tuple[Port, ...]] | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    in_place: frozenset[str] = frozenset()
    writer: str = VERSION

    def __repr__(self) -> str:
        nbytes = sum(array.nbytes for array in self.weights.values())
        return f"<Image for {self.target}: {len(self.files)} files, {len(self.weights)} weights of {nbytes} bytes>"

    def file(self, name: str) -> bytes:
        """Return a file's content. Raises ArtifactError if it is missing."""
        if name not in self.files:
            raise ArtifactError(f"the program lacks its file {name!r}")
        return self.files[name]

    def weight(self, name: str) -> Array:
        """Return a packed constant. Raises ArtifactError if it is missing."""
        if name not in self.weights:
            raise ArtifactError(f"the program lacks its constant {name!r}")
        return self.weights[name]

    def check_fingerprint(self, wanted: str) -> None:
        """Raise ArtifactError unless the fingerprint equals `wanted`, that of this version."""
        if self.fingerprint != wanted:
            raise self.of_other_release(wanted)

    def of_other_release(self, wanted: str) -> ArtifactError:
        """Return the error of an image that this release does not run; it runs those whose fingerprint is `wanted`."""
        runs = f", which runs {wanted!r}" if wanted else ""
        return ArtifactError(
            f"the program was built as {self.fingerprint!r} by rammer {self.writer}; this is rammer {VERSION}{runs}",
            hint="compile the model again with this release; docs/versioning.md says which reads which",
        )

    @property
    def ports(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """The model's inputs and outputs in its order, including those without elements."""
        return self.signature or (self.inputs, self.outputs)


class Executable(Protocol):
    """A loaded program. `run` may be called many times, by one thread at a time."""

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        """Return outputs by name. The caller has checked the inputs against the image's ports."""

    def close(self) -> None:
        """Free threads and memory. Later runs raise an error."""


@dataclass(frozen=True)
class SlotTimes:
    """Measured times of one run: for each rProgram and vEU an array [slots, 2] of begin and end, in µs.

    `operators` has the operator of each slot, -1 for barrier-rTasks.
    """

    programs: tuple[tuple[Array, ...], ...]
    operators: tuple[tuple[NDArray[np.int32], ...], ...]
    total_us: float
    emulated: bool = False  # times of an emulator do not predict those of hardware


@runtime_checkable
class TimedExecutable(Executable, Protocol):
    """A loaded program that can measure when each slot begins and ends."""

    def run_timed(self, inputs: NamedArrays) -> tuple[dict[str, Array], SlotTimes]:
        """Return the outputs of one run and its times, without the copying of inputs and outputs."""


@runtime_checkable
class BindsPorts(Protocol):
    """A loaded program that reads and writes its caller's arrays directly. Serialises its runs itself."""

    def bind(self, inputs: NamedArrays, outputs: NamedArrays) -> Callable[[], None]:
        """Return a call that reads and writes these arrays, checked against the ports.

        An input may also be an output.
        """


@runtime_checkable
class ChecksInputs(Protocol):
    """A loaded program that checks small inputs itself, faster than its caller could. Serialises its runs itself."""

    def try_run(self, inputs: Any) -> dict[str, Array] | None:
        """Check the inputs and run. Returns None unless they are NumPy arrays of exactly the ports' types."""


@runtime_checkable
class MayFork(Executable, Protocol):
    """A loaded program that may live in this process's memory alone. If `forks`, a forked child can run it, too."""

    forks: bool


@dataclass(frozen=True)
class Stepped:
    """A program that runs slot by slot: its arena, the scratch of each vEU, and `run`.

    `run` runs slots in this thread; it takes rows of [program, vEU, order].
    """

    arena: Bytes
    scratch: tuple[Bytes, ...]
    run: Callable[[NDArray[np.int64]], None]


@runtime_checkable
class RunsSlots(Executable, Protocol):
    """A loaded program that can run its slots one at a time, so that a caller sees the memory after each."""

    def stepped(self, inputs: NamedArrays) -> Stepped:
        """Prepare to run single slots, in memory filled with one bits (NaN)."""

    def run_late(self, inputs: NamedArrays, veu: int) -> dict[str, Array]:
        """Run, but start one vEU only when the others cannot go on without it. Work stealing is off."""


class DeviceBuffer(ABC):
    """A device buffer for a port. It outlives the program that made it. Its copies are host arrays."""

    type: TensorType

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @abstractmethod
    def content(self) -> Array:
        """Return the buffer's content, copied to the host."""

    def __deepcopy__(self, _: Any) -> Array:
        return self.content()


@runtime_checkable
class KeepsState(Protocol):
    """A loaded program whose ports may lie in buffers that the caller owns ("rooms"). Used for state between runs."""

    def room(self, kind: TensorType) -> Array | DeviceBuffer:
        """Return a new buffer of zeros: a host array, or a Room on a device."""

    def fill(self, room: Any, value: Array) -> None:
        """Copy a value into a buffer of its type."""

    def run_bound(
        self, inputs: Mapping[str, Any], rooms: Mapping[str, Any], outputs: Collection[str]
    ) -> dict[str, Any]:
        """Run, and return only these outputs. `rooms` are the buffers of outputs and of inputs missing in `inputs`.

        A port that shares its memory with other tensors is copied from and to its buffer. Others use it directly.
        """


@dataclass(frozen=True, slots=True)
class StepRows:
    """Where a port is in each step of a loop: in step n, row `(n + shift) % len(array)`. Each row is contiguous."""

    array: Array
    shift: int = 0


class LoopBody(Protocol):
    """A loaded program as the body of a loop. Used by one thread at a time.

    `progress` has the next step, and whether the loop goes on.
    """

    progress: NDArray[np.int64]

    def move(self, name: str, rows: StepRows) -> None:
        """Set the rows of a port. The caller keeps them alive."""

    def take(self, end: int) -> None:
        """Take steps until `end`, or until the condition is false; maybe fewer, to show signals to the caller."""


@runtime_checkable
class TakesSteps(Protocol):
    """A loaded program that can run as the body of a loop, many times in one call. Serialises its calls itself."""

    def rows(self, kind: TensorType, count: int) -> Array:
        """Return uninitialised rows, at which a port can be pointed."""

    def steps(self, rows: Mapping[str, StepRows], again: str | None) -> LoopBody:
        """Return the program as the body of a loop, with rows of all inputs and of some outputs.

        The loop goes on while the output `again` is true.
        """


@runtime_checkable
class SharesRooms(Protocol):
    """A loaded program whose buffers may be used by other programs: those with the same `keeper`."""

    keeper: object


@runtime_checkable
class DeviceArrays(Protocol):
    """A loaded program that takes arrays in its device's memory and leaves its outputs there."""

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run on device arrays.

        Only their names are checked; raises InputError for an array that does not fit its port.
        """


@runtime_checkable
class ExportsProjects(Protocol):
    """A vDevice whose programs can become a part of a C project that needs no Python."""

    def exported(self, image: Image) -> ExportedPlan:
        """Return what a project needs of an image that was compiled here. Raises DeviceError, ToolchainError."""


class CompiledOnly:
    """A program compiled for another machine: it can be saved but not run here."""

    def __init__(self, reason: str, hint: str) -> None:
        self._reason, self._hint = reason, hint

    def run(self, inputs: NamedArrays) -> dict[str, Array]:
        """Raise DeviceError."""
        raise self._refusal()

    def run_timed(self, inputs: NamedArrays) -> tuple[dict[str, Array], SlotTimes]:
        """Raise DeviceError."""
        raise self._refusal()

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _refusal(self) -> DeviceError:
        return DeviceError(self._reason, hint=self._hint)


@dataclass(frozen=True, slots=True)
class Registers:
    """Registers that the compiler gave a thread of an rKernel, and the bytes of values that it spilled."""

    used: int
    spilled_bytes: int


class VDevice(ABC):
    """A virtual device: vEUs that run rTasks in order, with barriers between them. Paper: §3.2."""

    spec: VDeviceSpec

    def adapted(self, *, precision: str, numerics: str = "fast") -> Self:
        """Return this device with kernels of another precision and numerics; itself if nothing changes.

        The original is unchanged. Both share their resources, so close only one. Override this if resources depend on
        the spec. Raises DeviceError for a precision or numerics that the device does not offer.
        """
        from rammer.ir.device import NUMERICS

        spec = self.spec
        if precision not in spec.precisions:
            raise DeviceError(
                f"vDevice {spec.name!r} ({spec.arch}) does not compute in {precision!r}, but in "
                f"{' or '.join(spec.precisions)}",
                hint=did_you_mean(precision, spec.precisions),
            )
        if numerics not in NUMERICS:
            raise DeviceError(
                f"numerics is {numerics!r}, and not {' or '.join(NUMERICS)}", hint=did_you_mean(numerics, NUMERICS)
            )
        if numerics == "strict" and precision != "fp32":
            raise DeviceError(
                f"numerics='strict' rounds no operands, and precision={precision!r} does",
                hint="leave one of them out; RAMMER_NUMERICS and RAMMER_PRECISION count, too",
            )
        direct = spec.no_winograd or numerics == "strict" or not config.boolean("RAMMER_WINOGRAD")
        made = replace(spec, precision=precision, numerics=numerics, no_winograd=direct)
        if made == spec:
            return self
        adapted = copy(self)
        adapted.spec = made
        return adapted

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Return measured microseconds of one rTask on one vEU. A kernel left out is estimated from the spec."""
        return {}

    def rkernels_states_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, States]:
        """Return measured microseconds with warm operands, with operands in shared caches, and in main memory.

        All operands are moved there before each run. A kernel left out stalls as long as the spec's rates say.
        """
        return {}

    def rkernels_refused(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        """Return kernels that the device's compiler cannot compile within bounds of time and memory, with the reason.

        They are removed from the candidates.
        """
        return {}

    def rkernels_registers(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, Registers]:
        """Return the registers of each kernel, read from its machine code. A kernel that spills is not a candidate."""
        return {}

    def rkernels_wrong(
        self, kernels: Sequence[RKernel], *, every: frozenset[RKernel] = frozenset(), progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        """Run each kernel once in another process, and return those with wrong results, with the error.

        Sampled rTasks are compared with the expression evaluated in NumPy; all rTasks of kernels in `every`. A wrong
        kernel is not a candidate.
        """
        return {}

    def rkernels_untried(
        self, kernels: Sequence[RKernel], *, every: frozenset[RKernel] = frozenset()
    ) -> Mapping[RKernel, str]:
        """Return kernels that `rkernels_wrong` does not run, or not in full, with the reason.

        The default runs no kernel; it reports foreign kernels, which have no proof either.
        """
        return {k: f"vDevice {self.spec.name!r} tries no rKernel out" for k in kernels if k.is_foreign}

    def verdicts(self) -> ProfileStore:
        """Return the store of verdicts on programs that run here, by machine and toolchain."""
        from rammer.vdevice.profiles import profile_store

        return profile_store(f"{self.spec.name} {self.spec.arch}", "")

    def has_room(self, plan: ExecutionPlan) -> bool | None:
        """Return whether the device's memory holds a plan's program; None if only building it would show that."""
        return None

    def prepare(self, kernels: Sequence[RKernel], *, progress: Progress = silent) -> None:  # noqa: B027 (a hint)
        """Compile and keep kernels that several plans will need, so that `build` finds them: fuzzing does.

        The default does nothing.
        """

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Emit and compile a plan. The default keeps the plan for `load`; such an image cannot be saved."""
        return Image(self.spec.name, self.spec.arch, *ports_of(plan.graph), plan=plan)

    def decode(self, image: Image) -> DecodedImage | DecodedFlow | str:
        """Decode an image into what the device will do, by code that shares nothing with `build`.

        The result is compared with the plan before the program is returned. A device without a decoder returns a text
        that says why, which the program's notes repeat. May raise ValueError, KeyError or ArtifactError for a damaged
        image.
        """
        return f"vDevice {self.spec.name!r} has no decoder"

    def seal(self, image: Image, *, progress: Progress = silent) -> Image:
        """Return the image to save: equal for equal plans, independent of other compilations. May compile."""
        return image

    @abstractmethod
    def load(self, image: Image) -> Executable:
        """Load an image so that it is ready to run on this device."""

    def load_together(self, images: Sequence[Image]) -> list[tuple[Image, Executable]]:
        """Load images whose programs never run at the same time. Override this if they can share memory."""
        return [(image, self.load(image)) for image in images]

    def begin(self) -> None:  # noqa: B027
        """Start background work that every compilation with measuring needs. `close` ends it."""

    def close(self) -> None:  # noqa: B027 (most devices have nothing to give back)
        """Release the device."""
