"""Describe AMD GPUs as data: what kernels and policies may know about them."""

from __future__ import annotations

from dataclasses import dataclass

from rammer.errors import DeviceError
from rammer.ir.device import VDeviceSpec
from rammer.vdevice.rocm.matrix_cores import MATRIX_CORES
from rammer.vdevice.simt.gpu import Gpu, Latencies, find_model, gpu_spec

# Not measured: a start as on an NVIDIA GPU; of loads and syncs, published latencies of L2 and of a barrier.
LATENCIES = Latencies(start=870, load=600, sync=40)
LDS_BYTES = 64 << 10  # of a CU, and of a block


@dataclass(frozen=True, slots=True)
class Family:
    """What the archs of a family share.

    Vector registers are counted per SIMD lane and allocated in units of `granule`.
    """

    wavefront_size: int
    vgprs: int  # that one thread may have
    vgpr_file: int  # of a lane of a SIMD
    granule: int
    max_waves: int  # of a SIMD
    lanes: int  # fp32 multiply-adds of a CU per clock
    simds: int = 4  # of a CU
    line_bytes: int = 128
    writes_back: bool = False  # a release writes back the L2 of an XCD, one of several


FAMILIES: dict[str, Family] = {
    "gfx906": Family(64, 256, 256, 4, 10, 64, line_bytes=64),
    "gfx908": Family(64, 256, 256, 4, 10, 64),
    "gfx90a": Family(64, 512, 512, 8, 8, 64),
    "gfx942": Family(64, 512, 512, 8, 8, 128, writes_back=True),
    # HIP counts a CU as half of a WGP; its two SIMDs have 32 lanes that issue two multiply-adds where they can.
    "gfx1100": Family(32, 256, 1536, 24, 16, 64, simds=2),
    "gfx1201": Family(32, 256, 1536, 24, 16, 64, simds=2),
}


def _gpu(name: str, arch: str, num_cus: int, l2_mib: float, dram_gib: int, dram_gbps: float, ghz: float) -> Gpu:
    family = FAMILIES[arch]
    numbers = LDS_BYTES >> 10, l2_mib, dram_gib, dram_gbps, ghz, family.lanes, 1, family.line_bytes
    return Gpu(name, arch, num_cus, *numbers, writes_back=family.writes_back)


# The first of an arch is the default if no model is named and no device is present.
GPUS: dict[str, Gpu] = {
    g.name: g
    for g in (
        _gpu("mi50", "gfx906", 60, 4, 16, 1024, 1.725),  # the paper's
        _gpu("mi60", "gfx906", 64, 4, 32, 1024, 1.8),
        _gpu("mi100", "gfx908", 120, 8, 32, 1229, 1.502),
        _gpu("mi250x", "gfx90a", 110, 8, 64, 1638, 1.7),  # one of its two dies
        _gpu("mi210", "gfx90a", 104, 8, 64, 1638, 1.7),
        _gpu("mi300x", "gfx942", 304, 32, 192, 5300, 2.1),
        _gpu("rx7900xtx", "gfx1100", 96, 6, 24, 960, 2.5),
        _gpu("rx9070xt", "gfx1201", 64, 8, 16, 640, 2.97),
    )
}


def choose_gpu(name: str | None) -> Gpu:
    """Return a GPU by model ("mi50") or arch ("gfx90a"). Raises DeviceError."""
    return find_model(GPUS, name or "mi50", "AMD")


def of_device(name: str, arch: str, num_cus: int, l2_bytes: int, dram_bytes: int, gbps: float, ghz: float) -> Gpu:
    """Return the GPU of this machine by its driver's numbers. Raises DeviceError for an unsupported arch."""
    if arch not in FAMILIES:
        raise DeviceError(f"{name} is {arch}; programs are made for {', '.join(FAMILIES)}", hint='use target="cpu"')
    return _gpu(name, arch, num_cus, l2_bytes / 2**20, dram_bytes >> 30, gbps, ghz)


def make_spec(gpu: Gpu, num_veus: int | None = None) -> VDeviceSpec:
    """Return the spec that kernels and policies see."""
    family = FAMILIES[gpu.arch]
    return gpu_spec(
        gpu,
        num_veus,
        name="rocm",
        language="hip",
        subgroup_size=family.wavefront_size,
        registers_bytes=4 * family.wavefront_size * family.vgpr_file * family.simds,
        l2_bytes=64 * 0.5,  # half of the peak, as conflicts cost some
        memories=("LDS", "HBM"),
        latencies=LATENCIES,
        launch_us=5.0,  # estimates until measured: a HIP launch behind another
        barrier_us=1.5,  # a counter in L2 that another CU polls
        kept_reads=5,  # as on an NVIDIA GPU
        instructions=MATRIX_CORES.get(gpu.arch, ()),
    )
