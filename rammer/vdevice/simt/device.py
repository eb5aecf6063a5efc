"""Present a GPU as a vDevice, and the emulator of its programs on the host. All GPU backends share this."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from rammer.errors import ArtifactError, DeviceError, UnsuitableError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.vdevice.base import (
    Availability,
    CompiledOnly,
    Executable,
    Image,
    Progress,
    Registers,
    VDevice,
    later,
    silent,
)
from rammer.vdevice.simt.gpu import Gpu
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer.vdevice.simt.runtime.driver import Driver
from rammer.vdevice.simt.runtime.executable import GpuExecutable
from rammer.vdevice.simt.runtime.streams import RESOURCES, checked_streams

if TYPE_CHECKING:
    from rammer.vdevice.proof.decoded import DecodedImage
    from rammer.vdevice.simt.codegen.image import SimtProgram
    from rammer.vdevice.simt.codegen.prelude import Dialect

# Running programs needs none of these.
make_program: Callable[..., SimtProgram] = later("rammer.vdevice.simt.codegen.image", "make_program")
make_image: Callable[..., Image] = later("rammer.vdevice.simt.codegen.image", "make_image")
other_calls: Callable[[str], str] = later("rammer.vdevice.simt.codegen.megakernel", "other_calls")
decode: Callable[..., DecodedImage] = later("rammer.vdevice.simt.decode", "decode")
compile_host = later("rammer.vdevice.simt.emulator.compile", "compile_host")
emulated: Callable[[Image], Executable] = later("rammer.vdevice.simt.emulator.runtime", "EmulatorExecutable")
measure_kernels: Callable[..., Mapping[RKernel, float]] = later("rammer.vdevice.simt.tune.profile", "measure_kernels")
read_registers: Callable[..., Mapping[RKernel, Registers]] = later(
    "rammer.vdevice.simt.tune.registers", "read_registers"
)

if TYPE_CHECKING:
    from rammer.vdevice.simt.export.tables import GpuExport

EMULATED_VEUS = 8
MOST_BUILT_TWICE = 200_000  # characters of a program that may be built in two forms: bounds the compiler's time
EMULATE = 'device="emulator" runs the program on the host'
no_gpu = partial(Availability, False, emulated=True)  # an answer of `probe`


@dataclass(frozen=True, slots=True)
class Platform:
    """What a GPU backend adds to this package, as functions. They raise DeviceError, ToolchainError."""

    label: str  # the target's name in lower case
    brand: str  # of the GPUs
    code_file: str  # of an image: its machine code
    text_suffix: str  # of the text that it is compiled from
    probe: Callable[[], Availability]  # whether a GPU and its software are present
    find_gpu: Callable[[int], Gpu]  # of this machine, by number
    choose_gpu: Callable[[str | None], Gpu]  # a known one, by model or arch
    make_spec: Callable[[Gpu, int | None], VDeviceSpec]  # what kernels and policies see, for so many vEUs
    dialect: Callable[[VDeviceSpec], Dialect]  # the C++ dialect
    compiler: Callable[[], str]  # version and options
    compile: Callable[[str, str], MachineCode]  # a text, for an arch
    check_fits: Callable[[int, int, int, Gpu, KernelResources], None]  # vEUs, threads, shared bytes
    check_code: Callable[[bytes, KernelResources, Gpu], None]  # whether this GPU and its driver take machine code
    driver: Callable[[int], Driver]  # of a GPU, for one program


class GpuVDevice(VDevice):
    """A GPU of this machine, or one to compile for (`arch`) if the machine has none."""

    def __init__(self, platform: Platform, *, arch: str | None = None, device: str | int | None = None) -> None:
        self.platform = platform
        wanted = platform.choose_gpu(arch) if arch else None
        self.number = device_number(device, platform.label)
        here = platform.probe()
        if not here.ok and (arch is None or device is not None):
            raise DeviceError(f"no {platform.brand} GPU is usable: {here.reason}", hint=f"{here.hint}; or give arch=")
        found = None
        if here.ok:
            try:
                found = platform.find_gpu(self.number)
            except DeviceError as error:  # it may be hidden while another one is compiled for
                if wanted is None or device is not None:
                    raise
                here = Availability(False, error.what, error.hint)
        if found and wanted:
            chosen = {n: getattr(wanted, n) for n in ("veus_per_sm", "cluster", "clustered", "uncached")}
            found = replace(found, **chosen)
        self.missing, self._hint = ("", "") if found else (here.reason, here.hint)  # why programs cannot run
        if found and wanted and wanted.arch != found.arch:
            self.missing, self._hint = f"the GPU here is {found.name} ({found.arch})", EMULATE
        self.gpu = wanted if wanted and self.missing else found or platform.choose_gpu(arch)
        self.spec = platform.make_spec(self.gpu, None)

    @property
    def dialect(self) -> Dialect:
        """Return the C++ dialect that this GPU is programmed in."""
        return replace(self.platform.dialect(self.spec), veus_per_sm=self.gpu.veus_per_sm)

    def machine_code(self, text: str) -> MachineCode:
        """Compile a text for this GPU. Raises ToolchainError."""
        return self.platform.compile(text, self.gpu.arch)

    def check_fits(self, num_veus: int, threads: int, shared_bytes: int, needs: KernelResources) -> None:
        """Raise DeviceError unless the blocks of all vEUs fit on the GPU at the same time."""
        self.platform.check_fits(num_veus, threads, shared_bytes, self.gpu, needs)

    def driver(self) -> Driver:
        """Return a new driver of the GPU, for one program. Raises DeviceError."""
        return self.platform.driver(self.number)

    def open(self, image: Image, *, graph: bool | None = None) -> GpuExecutable:
        """Load an image on the GPU. Raises ArtifactError, DeviceError."""
        header, gpu, platform = checked_streams(image).header, self.gpu, self.platform
        if platform.code_file not in image.files:
            raise ArtifactError(
                "the program holds no machine code for a GPU",
                hint='it was compiled with device="emulator": again without',
            )
        if header["arch"] != gpu.arch:
            raise UnsuitableError(
                f"the program is for {header['arch']}, {gpu.name} is {gpu.arch}", hint=f"compile with arch={gpu.arch!r}"
            )
        try:
            needs = KernelResources(**json.loads(image.files[RESOURCES]))
        except (KeyError, ValueError, TypeError) as error:
            raise ArtifactError(f"the program's file {RESOURCES!r} is damaged: {error}") from error
        code = image.files[platform.code_file]
        self.check_fits(int(header["num_veus"]), int(header["threads"]), int(header["shared_bytes"]), needs)
        platform.check_code(code, needs, gpu)
        return GpuExecutable(image, code, gpu, self.driver(), lambda t: self.machine_code(t).data, graph=graph)

    def rkernels_registers(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, Registers]:
        """Return registers and spills of each rKernel compiled alone; needs no GPU. Raises ToolchainError."""
        return read_registers(kernels, self.dialect, budget_s, progress, self.machine_code)

    def rkernels_us(
        self, kernels: Sequence[RKernel], *, budget_s: float = 10.0, progress: Progress = silent
    ) -> Mapping[RKernel, float]:
        """Return measured microseconds of one rTask on one vEU; empty without a GPU."""
        return {} if self.missing else measure_kernels(kernels, self, budget_s, progress)

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Build machine code, tables and packed constants. Raises ToolchainError, DeviceError.

        If registers spill, tasks that are called are inlined, or the other way round, and the better form is taken.
        """
        progress("compile", 0, 1)
        program = make_program(plan, self.dialect)
        code = self.machine_code(program.text)
        if code.resources.spill_bytes and len(program.text) <= MOST_BUILT_TWICE:
            other = replace(program, text=other_calls(program.text))
            again = self.machine_code(other.text)
            if again.resources.spill_bytes < code.resources.spill_bytes:
                program, code = other, again
        self.check_fits(plan.spec.num_veus, program.threads, program.shared_bytes, code.resources)
        progress("compile", 1, 1)
        needs = json.dumps(asdict(code.resources), sort_keys=True).encode()
        return make_image(plan, program, {self.platform.code_file: code.data, RESOURCES: needs})

    def decode(self, image: Image) -> DecodedImage:
        """Decode the streams and the text of an image. Raises ValueError, KeyError."""
        return decode(image, self.dialect)

    def exported(self, image: Image) -> GpuExport:
        """Return the machine code and streams of a program for a project."""
        from rammer.vdevice.simt.export.tables import GpuExport  # running and compiling needs none of it

        assert image.plan is not None  # it was compiled here
        if self.gpu.cluster > 1:
            raise DeviceError("a program in clusters of blocks cannot be exported", hint="compile without :cN")
        if self.gpu.uncached:
            raise DeviceError("a program for uncached memory cannot be exported", hint="compile without :uncached")
        platform = self.platform
        return GpuExport(image, image.plan, platform.label.lower(), platform.code_file, platform.text_suffix)

    def load(self, image: Image) -> Executable:
        """Return the image ready to run; without a matching GPU, an executable that raises when it is run."""
        if self.missing:
            checked_streams(image)
            hint = f"save it and load it on a machine with such a GPU; {self._hint}"
            return CompiledOnly(f"the program is for {self.gpu.arch}: {self.missing}", hint)
        return self.open(image)


class SimtEmulator(VDevice):
    """A test device: the text for a GPU, run on the host. Results and synchronisation are real, times are not."""

    def __init__(self, spec: VDeviceSpec, dialect: Dialect) -> None:
        self.spec, self._dialect = spec, dialect

    def build(self, plan: ExecutionPlan, *, progress: Progress = silent) -> Image:
        """Build text, tables and packed constants. Raises ToolchainError, DeviceError."""
        program = make_program(plan, self._dialect)
        progress("compile", 0, 1)
        compile_host(program.text)
        progress("compile", 1, 1)
        return make_image(plan, program, {})

    def decode(self, image: Image) -> DecodedImage:
        """Decode the streams and the text of an image. Raises ValueError, KeyError."""
        return decode(image, self._dialect)

    def load(self, image: Image) -> Executable:
        """Return the image ready to run on the host, even if it was compiled for a GPU."""
        return emulated(image)


def open_gpu(platform: Platform, *, arch: str | None = None, device: str | int | None = None) -> VDevice:
    """Open a GPU: `arch` compiles for another one, `device` is its number, or "emulator". Raises DeviceError."""
    if isinstance(device, str) and device.startswith("emulator"):
        spec = platform.make_spec(platform.choose_gpu(arch), emulated_veus(device))
        return SimtEmulator(spec, platform.dialect(spec))
    return GpuVDevice(platform, arch=arch, device=device)


def emulated_veus(device: str) -> int:
    """Return the number of vEUs in "emulator" or "emulator:16". Raises DeviceError."""
    text = device.removeprefix("emulator").removeprefix(":")
    if not text:
        return EMULATED_VEUS
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise DeviceError(f"no emulator {device!r}", hint='device= may be "emulator", or "emulator:16" for 16 vEUs')
    return int(text)


def device_number(device: str | int | None, label: str) -> int:
    """Return the GPU's number in `device=` (1, "1", "cuda:1"); by default 0. Raises DeviceError."""
    prefix = f"{label.lower()}:"
    text = str(0 if device is None else device).removeprefix(prefix)
    if not text.isdecimal():
        raise DeviceError(
            f"no {label} device {device!r}", hint=f'device= is the GPU\'s number (0, "{prefix}1"), or "emulator"'
        )
    return int(text)
