"""Describe NVIDIA GPUs as data: what kernels and policies may know about them."""

from __future__ import annotations

from rammer import config
from rammer.ir.device import VDeviceSpec
from rammer.ir.instruction import Instruction
from rammer.vdevice.simt.codegen.mma import LATER, SM_80, SM_80_FP32
from rammer.vdevice.simt.codegen.wgmma import SM_90, SM_90_FP32
from rammer.vdevice.simt.gpu import Gpu, Latencies, find_model, gpu_spec

# Measured on an H200: loads by a pointer chase (`benchmarks.gpu.micro`); start and syncs are fitted to rTasks of 28
# programs (`benchmarks.gpu.estimates`). Other archs are not measured.
LATENCIES = Latencies(start=870, load=329, sync=90)
TENSOR_ARCH = 80  # whose tensor cores take tf32 and bf16

# The first of an arch is the default if no model is named and no device is present.
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
        Gpu("h200", "sm_90", 132, 227, 50, 141, 4800, 1.98, 128, clustered=120),
        Gpu("h100", "sm_90", 132, 227, 50, 80, 3350, 1.98, 128, clustered=120),
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
    """Return a GPU by model ("h200") or arch ("sm_90"). Raises DeviceError."""
    return find_model(GPUS, name or "h200", "NVIDIA")


def of_device(name: str, arch: str, num_sms: int, shared_bytes: int, l2_bytes: int, dram_bytes: int) -> Gpu:
    """Return the GPU of this machine by its driver's numbers, with rates of the most similar known GPU."""
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


def _instructions(arch: str) -> tuple[Instruction, ...]:
    if int(arch.removeprefix("sm_")) < TENSOR_ARCH:
        return ()
    own = SM_90, SM_90_FP32
    groups, exact = own if arch == "sm_90" else ((), ())
    fp32 = (*exact, SM_80_FP32) if config.boolean("RAMMER_MATRIX_UNIT") else ()
    return (*groups, *SM_80, *fp32, LATER)


def make_spec(gpu: Gpu, num_veus: int | None = None) -> VDeviceSpec:
    """Return the spec that kernels and policies see."""
    return gpu_spec(
        gpu,
        num_veus,
        name="cuda",
        language="cuda",
        subgroup_size=32,
        registers_bytes=256 << 10,
        l2_bytes=32 * 0.7,  # 70% of the peak, as conflicts cost some
        memories=("shared", "DRAM"),
        latencies=LATENCIES,
        # Measured on an H200 by 18 programs (`benchmarks.gpu.estimates`). A launch is a node of a recorded graph. A run
        # of an empty program takes 14.3 us. A hand-over by a counter takes 0.6 us when all blocks begin it together;
        # between rTasks, slots and blocks that come late make it longer.
        run_us=11.5,
        launch_us=2.8,
        barrier_us=1.6,
        passed_us=0.3,  # measured there by `benchmarks.gpu.micro`
        cluster_us=0.46,  # measured there: a message to each of 8 blocks takes 0.233 us, a slot without work 0.227
        kept_reads=5,  # measured there: loading 80 KiB takes 5.1 us, reading it from L2 1.3 us more than locally
        instructions=_instructions(gpu.arch),
    )
