"""Compile HIP to code objects with ziglang's clang and LLD.

Needs no ROCm, driver or GPU. RAMMER_HIPCC names another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from rammer import config, files
from rammer.errors import ArtifactError, DeviceError, ToolchainError
from rammer.vdevice.rocm.elf import arch_of, read_kernels
from rammer.vdevice.rocm.spec import FAMILIES
from rammer.vdevice.simt.gpu import Gpu, check_resident
from rammer.vdevice.simt.machine_code import KernelResources, MachineCode
from rammer.vdevice.toolchain import (
    MACHINE_CODE,
    ask,
    fingerprint,
    named_compiler,
    object_store,
    read_made,
    run,
    ziglang,
)

HSACO = "program.hsaco"
FLAGS = (
    *("--offload-device-only", "-nogpuinc", "-nogpulib", "-O3", "-w", "-fwrapv", "-ffp-contract=fast"),
    *("-fno-strict-aliasing", "-fno-math-errno", "-fno-trapping-math"),
)
# Kernels mark loops to unroll. The compiler would unroll more until registers spill: the fallback forbids it.
UNROLLING = (
    tuple(
        word
        for name in ("unroll-threshold", "amdgpu-unroll-threshold-local", "amdgpu-unroll-threshold-private")
        for word in ("-mllvm", f"-{name}=200")
    ),
    ("-fno-unroll-loops",),
)
SIMDS = 4  # of a CU with waves of 64
TIMEOUT_S = 600.0
_INSTALL = "install ziglang (pip install ziglang), or set RAMMER_HIPCC to a HIP compiler"


@dataclass(frozen=True, slots=True)
class HipCompiler:
    """A HIP compiler: ziglang's clang with a separate linker, or a driver that compiles and links."""

    command: tuple[str, ...]
    linker: tuple[str, ...]  # empty: the command links by itself
    version: str

    def assembly(self, text: str, arch: str) -> str:
        """Return the program in the GPU's assembly language, to read and for tests. Raises ToolchainError."""
        with files.temporary_folder("hip", ToolchainError) as folder:
            target = folder / "program.s"
            self._compile(text, arch, folder, *UNROLLING[0], "-S", "-o", str(target))
            return read_made(target, self.command).decode()

    def code_object(self, text: str, arch: str, flags: Sequence[str] = ()) -> bytes:
        """Return the program as a code object. Raises ToolchainError with the compiler's log."""
        with files.temporary_folder("hip", ToolchainError) as folder:
            assembly, unlinked, target = (str(folder / f"program.{end}") for end in ("s", "o", "hsaco"))
            if not self.linker:
                self._compile(text, arch, folder, *flags, "--no-gpu-bundle-output", "-o", target)
            else:
                self._compile(text, arch, folder, *flags, "-S", "-o", assembly)
                machine = ("-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", code_object_flag())
                assemble = [*self.command, "-x", "assembler", *machine, "-c", assembly, "-o", unlinked]
                run(assemble, folder=folder, timeout_s=TIMEOUT_S)
                link = [*self.linker, "-shared", "--no-undefined", unlinked, "-o", target]
                run(link, folder=folder, timeout_s=TIMEOUT_S)
            return read_made(Path(target), self.linker or self.command, MACHINE_CODE)

    def _compile(self, text: str, arch: str, folder: Path, *more: str) -> None:
        source = folder / "program.hip"
        source.write_text(text, encoding="utf-8")
        flags = (f"--offload-arch={arch}", *FLAGS, *own_flags(arch), code_object_flag())
        run([*self.command, "-x", "hip", *flags, str(source), *more], folder=folder, timeout_s=TIMEOUT_S)


def own_flags(arch: str) -> tuple[str, ...]:
    """Return flags by arch: CU mode where a CU has fewer SIMDs.

    A block stays on one CU. If two CUs could share it, the compiler would empty L0 at every block sync.
    """
    return ("-mcumode",) if FAMILIES[arch].simds < SIMDS else ()


def code_object_flag() -> str:
    """Return clang's flag for the version of the file format. Raises RammerError."""
    return f"-mcode-object-version={config.integer('RAMMER_CODE_OBJECT')}"


def hip_compiler() -> HipCompiler:
    """Return the HIP compiler of this process: RAMMER_HIPCC, else ziglang's. Raises ToolchainError."""
    return _find(config.get("RAMMER_HIPCC"))


@lru_cache(maxsize=8)
def _find(requested: str) -> HipCompiler:
    if requested:
        command = named_compiler("RAMMER_HIPCC", requested, _INSTALL)
        return HipCompiler(command, (), ask((*command, "--version"), "HIP", _INSTALL))
    zig = ziglang("HIP", _INSTALL)
    return HipCompiler((zig, "clang"), (zig, "ld.lld"), ask((zig, "clang", "--version"), "HIP", _INSTALL))


def compile_code_object(text: str, arch: str) -> MachineCode:
    """Return machine code for one arch ("gfx90a"), cached; less unrolled if registers spill. Raises ToolchainError.

    Of several kernels each needs what it needs where it does not spill.
    """
    kernels: dict[str, KernelResources] = {}
    for flags in UNROLLING:
        data = _code_object(text, arch, flags)
        for name, needs in read_kernels(data).items():
            if name not in kernels or kernels[name].spill_bytes:
                kernels[name] = needs
        if not any(needs.spill_bytes for needs in kernels.values()):
            break
    return MachineCode(data, kernels)


def compiler_version() -> str:
    """Return the compiler's version and options. Raises ToolchainError."""
    return " ".join((hip_compiler().version, code_object_flag(), *FLAGS, *UNROLLING[0]))


def _code_object(text: str, arch: str, flags: Sequence[str]) -> bytes:
    compiler = hip_compiler()
    key = fingerprint("hip", compiler.version, code_object_flag(), arch, *FLAGS, *own_flags(arch), *flags, text)
    return object_store().made(key, lambda: compiler.code_object(text, arch, flags))


def check_fits(num_veus: int, threads: int, shared_bytes: int, gpu: Gpu, needs: KernelResources) -> None:
    """Raise DeviceError unless every vEU's block fits on the GPU at once, without spilled registers."""
    family = FAMILIES[gpu.arch]
    if needs.spill_bytes:
        raise DeviceError(
            f"the program needs more than the {family.vgprs} registers that a thread has on {gpu.arch}: "
            f"{needs.spill_bytes // 4} spill to memory",
            hint="kernels with smaller tiles or fewer threads",
        )
    given = -(-max(needs.registers, 1) // family.granule) * family.granule
    waves = min(family.max_waves, family.vgpr_file // given)
    blocks = family.simds * waves // -(-threads // family.wavefront_size)  # that a CU holds by registers
    check_resident(num_veus, threads, shared_bytes + needs.shared_bytes, gpu, needs.registers, blocks)


def check_code(code: bytes, needs: KernelResources, gpu: Gpu) -> None:
    """Raise ArtifactError for a code object of another arch."""
    if (arch := arch_of(code)) != gpu.arch:
        raise ArtifactError(f"the program's code object is for {arch}, {gpu.name} is {gpu.arch}")
