"""Build an image of a plan: codelets, host program, tables, and their machine code."""

from __future__ import annotations

from rammer.errors import DeviceError
from rammer.ir.plan import ExecutionPlan
from rammer.ir.tensor import Array
from rammer.vdevice.base import Image, Progress, ports_of
from rammer.vdevice.ipu.codegen.codelets import registrations, source
from rammer.vdevice.ipu.codegen.memory import check_memory, fits
from rammer.vdevice.ipu.codegen.placement import place
from rammer.vdevice.ipu.codegen.program import PoplarProgram
from rammer.vdevice.ipu.codegen.sets import ROUND
from rammer.vdevice.ipu.codegen.tables import plan_text
from rammer.vdevice.ipu.sdk import HOST, build_emulated, build_with_sdk, require_sdk
from rammer.vdevice.ipu.spec import IpuModel

ABI = 3
CODELETS, HOST_CPP, TABLES = "codelets.cpp", "host.cpp", "plan.txt"
FEWER = (0.2, 0.1)  # smaller shares of a tile's bytes for the rTasks of one compute set, if memory is short
EMULATOR, MODEL, HARDWARE = "emulator", "model", "hardware"
DEVICES = (EMULATOR, MODEL, HARDWARE)


def fingerprint(device: str, arch: str) -> str:
    """Return the string that must match between an image and the machine that loads it."""
    return f"ipu-abi{ABI}-{device}-{arch}"


def emit(plan: ExecutionPlan, arch: IpuModel) -> tuple[PoplarProgram, dict[str, str]]:
    """Return the placed plan and its program's texts. Raises LoweringError, or DeviceError if a tile is too full."""
    if plan.spec.num_veus != arch.num_veus:
        raise DeviceError(f"the plan is for {plan.spec.num_veus} vEUs, {arch.name} has {arch.num_veus}")
    placed = _fitting(plan, arch)
    check_memory(placed)
    classes = list(placed.codelets())
    texts = {
        CODELETS: source(classes),
        "codelets_emulated.cpp": registrations(classes),
        HOST_CPP: HOST.read_text(encoding="utf-8"),
        TABLES: plan_text(placed),
    }
    return placed, texts


def has_room(plan: ExecutionPlan, arch: IpuModel) -> bool:
    """Return whether some placement of a plan fits. Raises LoweringError."""
    return fits(_fitting(plan, arch))


def _fitting(plan: ExecutionPlan, arch: IpuModel) -> PoplarProgram:
    """Return the first placement that fits.

    Tries weights spread evenly, then levelled, and then the same with fewer rTasks of a tile per compute set. If none
    fits, returns the levelled one with the usual share.
    """
    first = None
    for share in (ROUND, *FEWER):
        for level in (False, True):
            placed = place(plan, arch, level=level, share=share)
            if fits(placed):
                return placed
        first = first or placed
    assert first is not None
    return first


def build_image(plan: ExecutionPlan, arch: IpuModel, device: str, progress: Progress) -> Image:
    """Emit and compile a plan. Raises LoweringError, DeviceError, ToolchainError."""
    progress("emitting IPU program", 0, 2)
    placed, texts = emit(plan, arch)
    progress("compiling IPU program", 1, 2)
    if device == EMULATOR:
        emulated = {name: texts[name] for name in (CODELETS, "codelets_emulated.cpp")}
        made = {"host.so": build_emulated(emulated)}
    else:
        made = build_with_sdk(require_sdk(arch), arch, {name: texts[name] for name in (CODELETS, HOST_CPP)})
    progress("compiling IPU program", 2, 2)
    weights: dict[str, Array] = {v.name: v.value for v in placed.variables if v.value is not None and v.count}
    return Image(
        "ipu",
        fingerprint(device, arch.name),
        *ports_of(plan.graph),
        {**{name: text.encode() for name, text in texts.items()}, **made},
        weights,
        plan,
    )
