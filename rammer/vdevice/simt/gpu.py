"""Describe GPUs as data: what kernels and policies may know about a GPU of any vendor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from rammer.errors import DeviceError, did_you_mean
from rammer.ir.device import Execution, Issue, MemoryLevel, VDeviceSpec
from rammer.ir.instruction import Instruction
from rammer.vdevice.simt.codegen.table import header_bytes
from rammer.vdevice.simt.instructions import folds

MAX_THREADS = 256  # of a vEU: every thread can have all registers that an instruction addresses
MAX_ARGS = MAX_THREADS
MAX_BLOCKS = 16  # of a multiprocessor
SHARES = {f"x{n}": n for n in (1, 2)}  # vEUs per multiprocessor, by the suffix of an arch
CLUSTERS = {"c4": 4, "c8": 8}  # vEUs of a cluster, by the suffix of an arch
UNCACHED = "uncached"  # suffix of an arch: what vEUs hand over lies in uncached memory
BANKS = 32  # of shared memory (LDS), 4 bytes each in a clock: CUDA C++ Programming Guide, AMD's ISA guides
PENDING = 32  # words: a block's 30 KiB, the least that NVRTC's code has in flight (docs/cuda.md)
SCRATCH_CYCLES = 24  # of a load from shared memory: 19 to 29 from Volta to Hopper (Jia et al. 2018, Luo et al. 2024)


@dataclass(frozen=True, slots=True)
class Latencies:
    """Clocks of a multiprocessor that no thread issues in.

    `start`: of an rTask that does nothing: arguments, addresses, its end. `load`: until a load from L2 arrives. `sync`:
    of a block sync, until the last subgroup comes.
    """

    start: int
    load: int
    sync: int

    def us(self, clocks: int, gpu: Gpu) -> float:
        return round(clocks * 1e-3 / gpu.ghz, 4)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as data.

    Shared memory is in KiB of a multiprocessor (SM, CU), as a block can have it; L2 in MiB; clocks are boost clocks.
    `veus_per_sm`: vEUs per multiprocessor. `clustered`: blocks that are resident at once in clusters; 0: none.
    `cluster`: vEUs of a cluster. `writes_back`: a release writes back a whole L2 cache, of which there are several,
    unless memory is `uncached`.
    """

    name: str
    arch: str
    num_multiprocessors: int
    shared_kib: int
    l2_mib: float
    dram_gib: int
    dram_gbps: float
    ghz: float
    fp32_lanes: int  # of a multiprocessor: multiply-adds per clock
    veus_per_sm: int = 1
    line_bytes: int = 128  # of L2: NVIDIA's Ampere tuning guide; AMD's CDNA and RDNA white papers
    clustered: int = 0
    cluster: int = 1
    writes_back: bool = False
    uncached: bool = False


def find_model(known: Mapping[str, Gpu], name: str, brand: str) -> Gpu:
    """Return the first known GPU of a model ("h200") or arch ("sm_90"). "h200:x2" has two vEUs per multiprocessor.

    Raises DeviceError.
    """
    wanted, _, shares = name.lower().partition(":")
    suffixes = (*SHARES, *CLUSTERS, UNCACHED)
    if shares and shares not in suffixes:
        hint = f"behind a colon comes one of {', '.join(suffixes)}"
        raise DeviceError(f"no {brand} arch {name!r}", hint=hint)
    for gpu in known.values():
        if wanted in (gpu.name, gpu.arch):
            if shares in CLUSTERS and not gpu.clustered:
                has = ", ".join(g.name for g in known.values() if g.clustered) or "no GPU"
                raise DeviceError(f"{gpu.name} has no clusters of blocks that are known", hint=f"they are of {has}")
            if shares == UNCACHED and not gpu.writes_back:
                useful = "".join(f"; it is for {g.name}" for g in known.values() if g.writes_back)
                raise DeviceError(f"{gpu.name} needs no uncached memory", hint=f"leave out :{UNCACHED}{useful}")
            found = replace(gpu, veus_per_sm=SHARES.get(shares, 1), cluster=CLUSTERS.get(shares, 1))
            return replace(found, uncached=shares == UNCACHED)
    names = [*dict.fromkeys(g.arch for g in known.values()), *known]
    raise DeviceError(f"no {brand} arch {name!r}; known: {', '.join(names)}", hint=did_you_mean(wanted, names))


def gpu_spec(
    gpu: Gpu,
    num_veus: int | None,
    *,
    name: str,
    language: str,
    subgroup_size: int,
    registers_bytes: int,
    l2_bytes: float,
    memories: tuple[str, str],
    latencies: Latencies,
    launch_us: float,
    barrier_us: float,
    run_us: float = 0.0,
    passed_us: float = inf,
    kept_reads: int,
    cluster_us: float = 0.0,
    instructions: tuple[Instruction, ...] = (),
) -> VDeviceSpec:
    """Return the spec that kernels and policies see. A vEU is one block, on a multiprocessor or a share of it.

    `registers_bytes`: of a multiprocessor; `l2_bytes`: bytes per clock from L2 to one; `memories`: the platform's names
    of shared and device memory; `cluster_us`: of a hand-over inside a cluster. Times are estimates. Vendors publish one
    rate per memory, which is used for loads and stores.
    """
    shares = gpu.veus_per_sm
    shared = (gpu.shared_kib << 10) if shares == 1 else ((gpu.shared_kib + 1 << 10) // shares) - 1024  # 1 KiB is kept
    veus = num_veus or (gpu.clustered if gpu.cluster > 1 else shares * gpu.num_multiprocessors)
    if veus % gpu.cluster:
        raise DeviceError(f"{veus} vEUs are no clusters of {gpu.cluster}", hint=f"a multiple of {gpu.cluster} vEUs")
    memory = _memory(gpu, registers_bytes, shared, l2_bytes, memories, latencies.us(latencies.load, gpu))
    if gpu.cluster > 1:
        cluster = MemoryLevel("cluster", gpu.cluster * shared, "group", 0.0, "scratch", group=gpu.cluster)
        memory = (*memory[:2], replace(cluster, handover_us=cluster_us), *memory[2:])
    return VDeviceSpec(
        name=name,
        num_veus=veus,
        languages=(language,),
        arch=gpu.arch,
        execution=Execution.SIMT,
        lanes=4,
        registers=48 // shares,  # of 16 bytes, for data: alone on its multiprocessor, a thread has at least 255 words
        max_threads=MAX_THREADS,
        subgroup_size=subgroup_size,
        scratch_bytes=shared - header_bytes(MAX_ARGS),
        memory=memory,
        clock_ghz=gpu.ghz,
        issue=Issue(
            arithmetic=gpu.fp32_lanes / subgroup_size / shares,
            loads=BANKS / subgroup_size / shares,
            stores=BANKS / subgroup_size / shares,
            latency=SCRATCH_CYCLES,
            banks=BANKS,
            pending=PENDING,
        ),
        run_us=run_us,
        launch_us=launch_us,
        barrier_us=barrier_us,
        passed_us=passed_us,
        sync_us=latencies.us(latencies.sync, gpu),
        start_us=latencies.us(latencies.start, gpu),
        resident=memories[0],
        kept_reads=kept_reads,
        uncached=gpu.uncached,
        instructions=(*instructions, *folds(subgroup_size)),
    )


def _memory(
    gpu: Gpu, registers_bytes: int, shared: int, l2_bytes: float, names: tuple[str, str], load_us: float
) -> tuple[MemoryLevel, ...]:
    """Return registers and shared memory of a vEU, L2, and device memory."""
    gflops = gpu.ghz * gpu.fp32_lanes / gpu.veus_per_sm
    gbps = round(max(gpu.num_multiprocessors * gpu.ghz * l2_bytes, 1.3 * gpu.dram_gbps), 1)
    return (
        MemoryLevel("registers", registers_bytes // gpu.veus_per_sm, "veu", round(gflops * 12, 1), "scratch"),
        MemoryLevel(names[0], shared, "veu", round(gpu.ghz * 128 / gpu.veus_per_sm, 1), "scratch"),
        MemoryLevel("L2", int(gpu.l2_mib * 2**20), "device", gbps, latency_us=load_us, line_bytes=gpu.line_bytes),
        MemoryLevel(names[1], gpu.dram_gib << 30, "device", gpu.dram_gbps, line_bytes=gpu.line_bytes),
    )


def check_resident(num_veus: int, threads: int, shared_bytes: int, gpu: Gpu, registers: int, blocks: int) -> None:
    """Raise DeviceError unless every vEU's block fits on the GPU at the same time.

    Otherwise a waiting block could keep out the block that it waits for. `blocks`: how many a multiprocessor holds by
    registers and threads.
    """
    shared = gpu.shared_kib << 10
    if shared_bytes > shared:
        raise DeviceError(
            f"a vEU needs {shared_bytes} bytes of shared memory, a block on {gpu.name} has {shared}",
            hint="kernels with smaller tiles; or compile for another arch",
        )
    if blocks < 1:
        raise DeviceError(
            f"a vEU of {threads} threads with {registers} registers does not fit a multiprocessor of {gpu.name}",
            hint="kernels with fewer threads",
        )
    each = min(blocks, shared // max(shared_bytes, 1), MAX_BLOCKS)
    if num_veus > each * gpu.num_multiprocessors:
        raise DeviceError(
            f"{num_veus} vEUs cannot all be on {gpu.name} at once: {each} on each of {gpu.num_multiprocessors} "
            "multiprocessors",
            hint="fewer vEUs",
        )
