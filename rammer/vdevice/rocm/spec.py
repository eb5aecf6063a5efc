"""AMD GPUs as data: what kernels and policies may know about them."""

from __future__ import annotations

from dataclasses import dataclass

from rammer.errors import DeviceError, did_you_mean
from rammer.ir.device import MemoryLevel, VDeviceSpec
from rammer.vdevice.rocm.matrix_cores import MATRIX_CORES
from rammer.vdevice.simt.megakernel import header_bytes

MAX_THREADS = 256  # of a vEU: one wave of 64 per SIMD, which leaves each thread all registers
MAX_ARGS = MAX_THREADS
LDS_BYTES = 64 << 10  # of a CU, and of a block


@dataclass(frozen=True, slots=True)
class Family:
    """What archs have in common. Vector registers per SIMD lane, and how many at once they are given out."""

    wave: int
    vgprs: int  # that one thread may have
    vgpr_file: int  # of a lane of a SIMD
    granule: int
    max_waves: int  # of a SIMD
    lanes: int  # fp32 multiply-adds of a CU per clock


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: what HIP calls one device. L2 in MiB; clocks are boost clocks."""

    name: str
    arch: str
    num_cus: int
    l2_mib: float
    dram_gib: int
    dram_gbps: float
    ghz: float


FAMILIES: dict[str, Family] = {
    "gfx906": Family(64, 256, 256, 4, 10, 64),
    "gfx908": Family(64, 256, 256, 4, 10, 64),
    "gfx90a": Family(64, 512, 512, 8, 8, 64),
    "gfx942": Family(64, 512, 512, 8, 8, 128),
    # HIP counts a CU as half of a WGP; its two SIMDs have 32 lanes that issue two multiply-adds where they can.
    "gfx1100": Family(32, 256, 1536, 24, 16, 64),
    "gfx1201": Family(32, 256, 1536, 24, 16, 64),
}

# The first of an arch stands for it where no model is named and no device is there.
GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        Gpu("mi50", "gfx906", 60, 4, 16, 1024, 1.725),  # the paper's
        Gpu("mi60", "gfx906", 64, 4, 32, 1024, 1.8),
        Gpu("mi100", "gfx908", 120, 8, 32, 1229, 1.502),
        Gpu("mi250x", "gfx90a", 110, 8, 64, 1638, 1.7),  # one of its two dies
        Gpu("mi210", "gfx90a", 104, 8, 64, 1638, 1.7),
        Gpu("mi300x", "gfx942", 304, 32, 192, 5300, 2.1),
        Gpu("rx7900xtx", "gfx1100", 96, 6, 24, 960, 2.5),
        Gpu("rx9070xt", "gfx1201", 64, 8, 16, 640, 2.97),
    )
}


def choose_gpu(name: str | None) -> Gpu:
    """A GPU by model ("mi50") or arch ("gfx90a"). Raises DeviceError."""
    wanted = (name or "mi50").lower()
    for gpu in GPUS.values():
        if wanted in (gpu.name, gpu.arch):
            return gpu
    known = [*FAMILIES, *GPUS]
    raise DeviceError(f"no AMD arch {name!r}; known: {', '.join(known)}", hint=did_you_mean(wanted, known))


def of_device(name: str, arch: str, num_cus: int, l2_bytes: int, dram_bytes: int, gbps: float, ghz: float) -> Gpu:
    """The GPU that is here, from its driver. Raises DeviceError for an arch that no program is made for."""
    if arch not in FAMILIES:
        raise DeviceError(f"{name} is {arch}; programs are made for {', '.join(FAMILIES)}", hint='use target="cpu"')
    return Gpu(name, arch, num_cus, l2_bytes / 2**20, dram_bytes >> 30, gbps, ghz)


def make_spec(gpu: Gpu, num_veus: int | None = None) -> VDeviceSpec:
    """The spec that kernels and policies see: a vEU is one block that has a CU for itself. Times are estimates."""
    family = FAMILIES[gpu.arch]
    per_cu = gpu.ghz * family.lanes
    l2_gbps = max(gpu.num_cus * gpu.ghz * 64 * 0.5, 1.3 * gpu.dram_gbps)  # 64 bytes per CU and clock, less conflicts
    return VDeviceSpec(
        name="rocm",
        num_veus=num_veus or gpu.num_cus,
        languages=("hip",),
        arch=gpu.arch,
        lanes=4,
        registers=48,  # of 16 bytes, for data: a thread has at least 256 words
        max_threads=MAX_THREADS,
        wave=family.wave,
        scratch_bytes=LDS_BYTES - header_bytes(MAX_ARGS),
        memory=(
            MemoryLevel(
                "registers",
                4 * family.wave * family.vgpr_file * (4 if family.wave == 64 else 2),
                "veu",
                round(per_cu * 12, 1),
                "scratch",
            ),
            MemoryLevel("LDS", LDS_BYTES, "veu", round(gpu.ghz * 128, 1), "scratch"),
            MemoryLevel("L2", int(gpu.l2_mib * 2**20), "device", round(l2_gbps, 1)),
            MemoryLevel("HBM", gpu.dram_gib << 30, "device", gpu.dram_gbps),
        ),
        peak_gflops=round(2 * per_cu, 1),
        launch_us=5.0,  # estimates until measured: a HIP launch behind another
        barrier_us=1.5,  # a counter in L2 that another CU sees
        sync_us=round(40e-3 / gpu.ghz, 4),
        load_us=round(0.6 / gpu.ghz, 3),  # from L2
        instructions=MATRIX_CORES.get(gpu.arch, ()),
    )
