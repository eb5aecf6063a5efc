"""NVIDIA GPUs as data: what kernels and policies may know about them."""

from __future__ import annotations

from dataclasses import dataclass

from rammer.errors import DeviceError, did_you_mean
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.vdevice.simt.megakernel import header_bytes
from rammer.vdevice.simt.mma import SM_80

MAX_THREADS = 256  # of a vEU: every thread may have 255 registers
MAX_ARGS = MAX_THREADS
TENSOR_ARCH = 80  # whose tensor cores take tf32 and bf16


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU. Shared memory in KiB of an SM, as a block can have it; L2 in MiB; clocks are boost clocks."""

    name: str
    arch: str
    num_sms: int
    shared_kib: int
    l2_mib: float
    dram_gib: int
    dram_gbps: float
    ghz: float
    fp32_lanes: int  # of an SM


# The first of an arch stands for it where no model is named and no device is there.
GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        Gpu("t4", "sm_75", 40, 64, 4, 16, 320, 1.59, 64),
        Gpu("rtx2080ti", "sm_75", 68, 64, 5.5, 11, 616, 1.55, 64),
        Gpu("a100", "sm_80", 108, 163, 40, 40, 1555, 1.41, 64),
        Gpu("rtx3090", "sm_86", 82, 99, 6, 24, 936, 1.70, 128),
        Gpu("a10", "sm_86", 72, 99, 6, 24, 600, 1.70, 128),
        Gpu("orin", "sm_87", 16, 163, 4, 32, 205, 1.30, 128),
        Gpu("rtx4090", "sm_89", 128, 99, 72, 24, 1008, 2.52, 128),
        Gpu("l4", "sm_89", 58, 99, 48, 24, 300, 2.04, 128),
        Gpu("h200", "sm_90", 132, 227, 50, 141, 4800, 1.98, 128),
        Gpu("h100", "sm_90", 132, 227, 50, 80, 3350, 1.98, 128),
        Gpu("b200", "sm_100", 148, 227, 126, 180, 8000, 1.96, 128),
        Gpu("b300", "sm_103", 148, 227, 126, 288, 8000, 1.92, 128),
        Gpu("rtx5090", "sm_120", 170, 99, 96, 32, 1792, 2.41, 128),
        Gpu("rtxpro6000", "sm_120", 188, 99, 128, 96, 1792, 2.62, 128),
        Gpu("gb10", "sm_121", 48, 99, 24, 128, 273, 2.42, 128),
        # As the paper's: its compiler is NVRTC 12, from the package nvidia-cuda-nvrtc-cu12.
        Gpu("v100", "sm_70", 80, 96, 6, 16, 900, 1.53, 64),
    )
}


def choose_gpu(name: str | None) -> Gpu:
    """A GPU by model ("h200") or arch ("sm_90"). Raises DeviceError."""
    wanted = (name or "h200").lower()
    for gpu in GPUS.values():
        if wanted in (gpu.name, gpu.arch):
            return gpu
    known = [*dict.fromkeys(g.arch for g in GPUS.values()), *GPUS]
    raise DeviceError(f"no NVIDIA arch {name!r}; known: {', '.join(known)}", hint=did_you_mean(wanted, known))


def of_device(name: str, arch: str, num_sms: int, shared_bytes: int, l2_bytes: int, dram_bytes: int) -> Gpu:
    """The GPU that is here, from its driver; rates are those of the nearest known one."""
    model = next((g for g in GPUS.values() if g.name in name.lower().replace(" ", "")), None)
    known = model or next((g for g in GPUS.values() if g.arch == arch), GPUS["a100"])
    return Gpu(
        known.name if model else name,
        arch,
        num_sms,
        shared_bytes >> 10,
        l2_bytes / 2**20,
        dram_bytes >> 30,
        known.dram_gbps,
        known.ghz,
        known.fp32_lanes,
    )


def make_spec(gpu: Gpu, num_veus: int | None = None) -> VDeviceSpec:
    """The spec that kernels and policies see: a vEU is one block that has an SM for itself. Times are estimates."""
    shared = gpu.shared_kib << 10
    per_sm = gpu.ghz * gpu.fp32_lanes
    l2_gbps = max(gpu.num_sms * gpu.ghz * 32 * 0.7, 1.3 * gpu.dram_gbps)  # 32 bytes per SM and clock, less conflicts
    return VDeviceSpec(
        name="cuda",
        num_veus=num_veus or gpu.num_sms,
        languages=("cuda",),
        arch=gpu.arch,
        lanes=4,
        registers=48,  # of 16 bytes, for data: a thread has 255 words
        max_threads=MAX_THREADS,
        wave=32,
        scratch_bytes=shared - header_bytes(MAX_ARGS),
        memory=(
            MemoryLevel("registers", 256 << 10, "veu", round(per_sm * 12, 1), "scratch"),
            MemoryLevel("shared", shared, "veu", round(gpu.ghz * 128, 1), "scratch"),
            MemoryLevel("L2", int(gpu.l2_mib * 2**20), "device", round(l2_gbps, 1)),
            MemoryLevel("DRAM", gpu.dram_gib << 30, "device", gpu.dram_gbps),
        ),
        peak_gflops=round(2 * per_sm, 1),
        launch_us=3.0,  # estimates until measured: a cooperative launch
        barrier_us=1.0,  # a counter in global memory that another SM sees
        sync_us=round(40e-3 / gpu.ghz, 4),
        load_us=round(0.6 / gpu.ghz, 3),  # from L2
        instructions=SM_80 if int(gpu.arch.removeprefix("sm_")) >= TENSOR_ARCH else (),
    )
