"""The interface a backend implements."""

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
from rammer.errors import ArtifactError, DeviceError, InputError, did_you_mean
from rammer.ir.tensor import Array, DType, Shape, Symbols, TensorType

if TYPE_CHECKING:  # who only runs programs needs none of it
    from rammer.ir.device import VDeviceSpec
    from rammer.ir.graph import Graph
    from rammer.ir.kernel import RKernel
    from rammer.ir.plan import ExecutionPlan, States
    from rammer.vdevice.profiles import ProfileStore
    from rammer.vdevice.proof.decoded import DecodedImage
    from rammer.vdevice.proof.flow import DecodedFlow

Bytes = NDArray[np.uint8]
Progress = Callable[[str, int, int], None]  # (what, done, total)


def silent(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a vDevice can run here; if not, why, and what would help.

    If it can, `reason` is what else to know about it.
    """

    ok: bool
    reason: str = ""
    hint: str = ""


def later(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that its first call imports: what announces a vDevice loads nothing of it."""
    return lambda *positional, **named: getattr(import_module(module), name)(*positional, **named)


@dataclass(frozen=True, slots=True)
class VDeviceEntry:
    """A vDevice as a plugin announces it.

    `probe()` is cheap and never raises. `open(arch=…, device=…)` may be costly and raises DeviceError. `archs()` lists
    what `arch` may be for programs that run here; empty where there is no choice. `words` are those by which people may
    look for it: a hint names it to them. `calibrate(progress)` measures what the machine can do, in some seconds, and
    keeps it for specs: (name, what is usual, measured). `runs(arch=…, device=…)` opens the same vDevice, without
    its spec, to load images alone, and imports nothing that compiles; if it is None, `open` does that, too.
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
    """An input or output of a program. `symbols`: what the model calls its dimensions, as far as it has names."""

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
                    f"input {self.name!r}: dimension {axis} is {got}, the program takes {extent} "
                    f"(shape {wanted.shape})",
                    hint="shapes are fixed when the model is compiled; compile with shapes={name: …} for another one",
                )


def conversion_hint(dtype: DType) -> str:
    """How a caller converts what has another element type."""
    return f"convert it with .astype({dtype.value!r}), a tensor with .to(torch.{dtype.value})"


def ports_of(graph: Graph) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """A graph's inputs and outputs. Raises DeviceError for one in a blocked layout."""
    for tensor in (*graph.inputs, *graph.outputs):
        if graph.types[tensor].layout is not None:
            raise DeviceError(
                f"input or output {tensor!r} has a blocked layout", hint="passes must keep ports row-major"
            )
    inputs, outputs = (
        tuple(Port(t, graph.types[t], graph.symbols.get(t, ())) for t in some) for some in (graph.inputs, graph.outputs)
    )
    return inputs, outputs


@dataclass(frozen=True)
class Image:
    """What a backend built from a plan: named files (code, tables), and packed weights by name.

    `plan` is present only in the process that compiled it; a saved program is loaded from the rest.
    `fingerprint` says what the image needs from a machine (arch, toolchain ABI); loading checks it. `signature`: the
    model's inputs and outputs, if some have no elements: those are no ports of the image. `state`: outputs that are
    inputs of the next run; those `in_place` are such inputs' own memory, changed.
    """

    target: str
    fingerprint: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    weights: Mapping[str, Array] = field(default_factory=dict)
    plan: ExecutionPlan | None = None
    signature: tuple[tuple[Port, ...], tuple[Port, ...]] | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    in_place: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        nbytes = sum(array.nbytes for array in self.weights.values())
        return f"<Image for {self.target}: {len(self.files)} files, {len(self.weights)} weights of {nbytes} bytes>"

    def file(self, name: str) -> bytes:
        """A file. Raises ArtifactError."""
        if name not in self.files:
            raise ArtifactError(f"the program lacks its file {name!r}", hint="compile the model again")
        return self.files[name]

    def weight(self, name: str) -> Array:
        """A packed constant. Raises ArtifactError."""
        if name not in self.weights:
            raise ArtifactError(f"the program lacks its constant {name!r}", hint="compile the model again")
        return self.weights[name]

    def check_fingerprint(self, wanted: str) -> None:
        """Raise ArtifactError unless it has the fingerprint that this version would give it."""
        if self.fingerprint != wanted:
            raise ArtifactError(
                f"the program was built as {self.fingerprint!r}, for another version of rammer",
                hint="compile the model again with this version",
            )

    @property
    def ports(self) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
        """The model's inputs and outputs, in its order, with those that have no elements."""
        return self.signature or (self.inputs, self.outputs)


class Executable(Protocol):
    """A loaded program. `run` may be called many times, by one thread at a time."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs by name, for inputs already checked against the image's ports."""

    def close(self) -> None:
        """Free threads and memory; later runs are errors."""


@dataclass(frozen=True)
class SlotTimes:
    """Measured times of one run: for every rProgram and vEU an array [slots, 2] of begin and end, in µs.

    `operators` has the operator of every slot, -1 for barrier-rTasks.
    """

    programs: tuple[tuple[Array, ...], ...]
    operators: tuple[tuple[NDArray[np.int32], ...], ...]
    total_us: float
    emulated: bool = False  # by a device whose clock says nothing about a real one


@runtime_checkable
class TimedExecutable(Executable, Protocol):
    """A loaded program that can tell when each slot began and ended."""

    def run_timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], SlotTimes]:
        """As `run`, with the times of one run. Copying inputs and outputs is not in it."""


@runtime_checkable
class BindsPorts(Protocol):
    """A loaded program that reads inputs and writes outputs where its caller has them. It lets its runs take turns."""

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that copies from and to these arrays, checked against the image's ports. An input may be an output."""


@runtime_checkable
class ChecksInputs(Protocol):
    """A loaded program that checks small inputs by itself, in less time than its caller could. Its runs take turns."""

    def try_run(self, inputs: Any) -> dict[str, Array] | None:
        """As `run`, of what nobody has checked; None unless it is NumPy arrays just as the image's ports say."""


@runtime_checkable
class MayFork(Executable, Protocol):
    """A loaded program that may have all it needs in this process's memory: then a forked child can run it, too."""

    forks: bool


@dataclass(frozen=True)
class Stepped:
    """A program that runs slot by slot: its arena, the scratch of each vEU, and what runs slots in this thread.

    `run` takes rows of [program, vEU, order].
    """

    arena: Bytes
    scratch: tuple[Bytes, ...]
    run: Callable[[NDArray[np.int64]], None]


@runtime_checkable
class RunsSlots(Executable, Protocol):
    """A loaded program that can run its slots one after another, so that a caller sees what each leaves behind."""

    def stepped(self, inputs: Mapping[str, Array]) -> Stepped:
        """Prepare to run slots alone, in memory that was filled with ones."""

    def run_late(self, inputs: Mapping[str, Array], veu: int) -> dict[str, Array]:
        """As `run`, but one vEU begins when the others have come as far as they can without it, and none helps it."""


class Room(ABC):
    """Memory for a port on a device; it outlives the program that made it. Copies of it are arrays of the host."""

    type: TensorType

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @abstractmethod
    def content(self) -> Array:
        """What lies there, copied to the host."""

    def __deepcopy__(self, _: Any) -> Array:
        return self.content()


@runtime_checkable
class KeepsState(Protocol):
    """A loaded program whose ports may lie in memory of the caller's, where it can reach it: a room."""

    def room(self, kind: TensorType) -> Array | Room:
        """A new room, of zeros."""

    def fill(self, room: Any, value: Array) -> None:
        """Copy a value into a room of its type."""

    def run_bound(
        self, inputs: Mapping[str, Any], rooms: Mapping[str, Any], outputs: Collection[str]
    ) -> dict[str, Any]:
        """As `run`, for these outputs alone. `rooms` are of inputs that are not in `inputs`, or of outputs: ports that
        share their memory are copied from and to them, others lie there.
        """


@runtime_checkable
class DeviceArrays(Protocol):
    """A loaded program that takes arrays in its device's memory, and leaves its outputs there."""

    def run_device(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """As `run`; inputs are unchecked but for their names. Raises InputError for one that does not fit its port."""


class CompiledOnly:
    """A program that was compiled where it cannot run: it can be saved."""

    def __init__(self, reason: str, hint: str) -> None:
        self._reason, self._hint = reason, hint

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises DeviceError."""
        raise self._refusal()

    def run_timed(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], SlotTimes]:
        """Raises DeviceError."""
        raise self._refusal()

    def close(self) -> None:
        """Nothing is held."""

    def _refusal(self) -> DeviceError:
        return DeviceError(self._reason, hint=self._hint)


@dataclass(frozen=True, slots=True)
class Registers:
    """What the compiler says about a thread of an rKernel: registers, and bytes of values that do not fit into them."""

    used: int
    spilled_bytes: int


class VDevice(ABC):
    """A virtual device: vEUs that run rTasks in order, and a barrier between them. Paper: §3.2."""

    spec: VDeviceSpec

    def adapted(self, *, precision: str, numerics: str = "fast") -> Self:
        """This device with kernels of a precision and numerics; itself if nothing changes.

        The original stays as it is. Both share what they hold, so only one is to be closed; override this where some
        of that depends on the spec. Raises DeviceError for what the device does not offer.
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
        direct = spec.direct or numerics == "strict" or not config.boolean("RAMMER_WINOGRAD")
        made = replace(spec, precision=precision, numerics=numerics, direct=direct)
        if made == spec:
            return self
        adapted = copy(self)
        adapted.spec = made
        return adapted

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Measured microseconds of one rTask on one vEU. A kernel left out is estimated from the spec."""
        return {}

    def rkernels_states_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, States]:
        """The same with operands near, and with all in shared caches, or in main memory, before one run in turn.

        A kernel left out stalls for what is far as long as the spec's rates say.
        """
        return {}

    def rkernels_refused(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        """What the device's compiler does not take within bounds of time and memory, and why: no candidates."""
        return {}

    def rkernels_registers(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, Registers]:
        """What rKernels need alone, read back from their machine code. One that spills is no candidate."""
        return {}

    def rkernels_wrong(
        self, kernels: Sequence[RKernel], *, every: frozenset[RKernel] = frozenset(), progress: Progress = silent
    ) -> Mapping[RKernel, str]:
        """What is wrong with rKernels that were run once, away from this process; nothing of those that are right.

        Sampled rTasks are compared with the meaning of the expression, all of those in `every`. One found wrong is no
        candidate.
        """
        return {}

    def rkernels_untried(
        self, kernels: Sequence[RKernel], *, every: frozenset[RKernel] = frozenset()
    ) -> Mapping[RKernel, str]:
        """Why `rkernels_wrong` does not run rKernels, or not as asked. Where it runs none, foreign texts say so."""
        return {k: f"vDevice {self.spec.name!r} tries no rKernel out" for k in kernels if k.is_foreign}

    def verdicts(self) -> ProfileStore:
        """Where verdicts on programs that run here are kept, by machine and toolchain."""
        from rammer.vdevice.profiles import profile_store

        return profile_store(f"{self.spec.name} {self.spec.arch}", "")

    def has_room(self, plan: ExecutionPlan) -> bool | None:
        """Whether its memory holds a plan's program, or None if it cannot tell without building it."""
        return None

    def prepare(self, kernels: Sequence[RKernel], *, progress: Progress = silent) -> None:  # noqa: B027 (a hint)
        """Compile ahead, and keep, what several plans will need; `build` then finds it. The default does nothing."""

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Emit and compile. The default keeps the plan for `load` and cannot be saved."""
        return Image(self.spec.name, self.spec.arch, *ports_of(plan.graph), plan=plan)

    def decode(self, image: Image) -> DecodedImage | DecodedFlow | str:
        """What an image says that the device does, read back by code of its own: nothing that `build` calls.

        It is compared with the plan before the program is handed out. Or why it cannot be read, as the default says:
        the program's notes say that then. May raise ValueError, KeyError or ArtifactError for a damaged image.
        """
        return f"vDevice {self.spec.name!r} has no decoder"

    def seal(self, image: Image, *, progress: Progress = silent) -> Image:
        """The image to save: equal for equal plans, whatever else was compiled. May compile; the default need not."""
        return image

    @abstractmethod
    def load(self, image: Image) -> Executable:
        """Make an image ready to run on this device."""

    def begin(self) -> None:  # noqa: B027
        """Start beside this thread what a compilation with measuring will need, whatever the model; `close` ends it."""

    def close(self) -> None:  # noqa: B027 (most devices have nothing to give back)
        """Give the device back."""
