"""Detect this machine's CPU (instruction sets, cores, caches, quota), and choose an arch and a number of vEUs."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, replace
from fnmatch import filter as matching
from functools import lru_cache
from pathlib import Path

from rammer import config
from rammer.errors import DeviceError, did_you_mean
from rammer.ir.instruction import Instruction
from rammer.vdevice.cpu.cgroup import Quota, cpu_quota, system_file
from rammer.vdevice.cpu.codegen import amx, dots, vnni
from rammer.vdevice.cpu.runtime.table import MAX_VEUS


@dataclass(frozen=True, slots=True)
class Arch:
    """An instruction set to compile kernels for. `features` are the flags of /proc/cpuinfo that it requires."""

    name: str
    machine: str
    lanes: int
    registers: int
    features: frozenset[str]
    zig: tuple[str, ...]  # flags for ziglang's clang
    cc: tuple[str, ...]  # flags for gcc and clang
    instructions: tuple[Instruction, ...] = ()  # besides plain vector arithmetic


_SSE = frozenset({"ssse3", "sse4_1", "sse4_2", "popcnt"})
_AVX2 = _SSE | {"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_VNNI, _BF16, _AMX = {"avx512_vnni"}, {"avx512_bf16"}, {"amx_tile", "amx_bf16"}


def _with_512_bits(name: str, features: frozenset[str], names: tuple[str, ...] = (), *units: Instruction) -> Arch:
    """Return an arch of 512-bit vectors.

    Without these flags, Clang uses 256 bits on many CPUs (Sapphire Rapids), and gathers, which took twice as
    long as loads on a Skylake.
    """
    zig = "".join(["-mcpu=x86_64_v4", *(f"+{n}" for n in names), "-prefer_256_bit", "+prefer_no_gather"])
    cc = ("-march=x86-64-v4", "-mprefer-vector-width=512", *(f"-m{n.replace('_', '-')}" for n in names))
    return Arch(name, "x86_64", 16, 32, features, (zig,), cc, units)


_M4F = ("-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")

# Levels instead of "native": an artifact says exactly which features it requires. Widest first.
ARCHES: dict[str, Arch] = {
    a.name: a
    for a in (
        _with_512_bits(
            "x86-64-amx",
            _AVX512 | _VNNI | _BF16 | _AMX,
            ("avx512vnni", "avx512bf16", "amx_tile", "amx_bf16"),
            *amx.AMX,
            *vnni.VNNI,
        ),
        _with_512_bits(
            "x86-64-avx512bf16", _AVX512 | _VNNI | _BF16, ("avx512vnni", "avx512bf16"), *dots.AVX512_BF16, *vnni.VNNI
        ),
        _with_512_bits("x86-64-avx512vnni", _AVX512 | _VNNI, ("avx512vnni",), *vnni.VNNI),
        _with_512_bits("x86-64-avx512", _AVX512, (), *vnni.AVX512),
        Arch("x86-64-avx2", "x86_64", 8, 16, _AVX2, ("-mcpu=x86_64_v3",), ("-march=x86-64-v3",), vnni.AVX2),
        Arch("x86-64-sse4", "x86_64", 4, 16, _SSE, ("-mcpu=x86_64_v2",), ("-march=x86-64-v2",)),
        Arch("x86-64", "x86_64", 4, 16, frozenset(), ("-mcpu=x86_64",), ("-march=x86-64",)),
        Arch("aarch64-neon", "aarch64", 4, 32, frozenset(), ("-mcpu=generic",), ("-march=armv8-a",)),
        Arch("riscv64", "riscv64", 4, 32, frozenset(), (), ("-march=rv64gc",)),
        Arch("wasm32-simd128", "wasm32", 4, 16, frozenset(), ("-mcpu=generic+simd128",), ("-msimd128",)),
        Arch("cortex-m4f", "thumb", 4, 8, frozenset(), ("-mcpu=cortex_m4+vfp4d16sp",), _M4F),
    )
}


EMULATED = "-DEMULATED"  # do not emulate with similar instructions that round differently
HERE = "here"  # as the second arch of an emulation: this machine's


def known_arch(name: str) -> Arch | None:
    """Return the arch of that name, or None. "A@B" emulates A in machine code for B.

    Lanes, registers and instructions are A's, so choices and texts equal A's. What B lacks is split or written in C.
    """
    shape, _, code = name.partition("@")
    if not code:
        return ARCHES.get(name)
    if shape not in ARCHES or code not in ARCHES:
        return None
    like = ARCHES[shape]
    made = replace(ARCHES[code], name=name, lanes=like.lanes, registers=like.registers, instructions=like.instructions)
    return replace(made, zig=(*made.zig, EMULATED), cc=(*made.cc, EMULATED))


def find_arch(name: str) -> Arch:
    """Return the arch of that name, emulations included. Raises DeviceError."""
    if arch := known_arch(name):
        return arch
    known = ", ".join(ARCHES)
    raise DeviceError(f"the CPU has no arch {name!r}; known: {known}", hint=did_you_mean(name, ARCHES))


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about the machine."""

    name: str  # the CPU's model and clock: the key of measured times
    machine: str
    features: frozenset[str]
    cpus: tuple[int, ...]  # CPUs of the affinity mask, one per physical core first, then their siblings
    num_cores: int  # physical cores among them
    ghz: float
    caches: tuple[int, int, int]  # bytes of L1d and L2 (of a core), and L3
    quota: Quota | None = None  # of CPU time
    l3_cores: int = 0  # cores of the mask that share one L3; 0: all

    def runs(self, arch: Arch) -> bool:
        """Return whether kernels for `arch` run here."""
        return arch.machine == self.machine and arch.features <= self.features

    def lacks(self, arch: Arch) -> str:
        """Return why kernels for `arch` do not run here, as text for users."""
        if arch.machine != self.machine:
            return f"this machine is {self.machine}, not {arch.machine}"
        return f"this CPU lacks {', '.join(sorted(arch.features - self.features))}"


def host() -> Host:
    """Return the machine's facts as of now: affinity and quota may change.

    Raises DeviceError on Windows, and for unknown names in RAMMER_DISABLE_CPU_FEATURES.
    """
    if sys.platform == "win32":
        raise DeviceError("the CPU vDevice needs POSIX threads and memory maps", hint="use Linux, macOS or WSL")
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    cpus, cores = _cpus()
    features, ghz, model = _cpuinfo()
    features -= _disabled()
    if "amx_tile" in features and not _matrix_unit_granted():
        features -= _AMX
    name, beside = f"{model} {ghz} GHz", _cores_of_l3(cpus[:cores])
    return Host(name, machine, features, cpus, cores, ghz, _caches(), cpu_quota(), beside)


def choose_arch(name: str | None, here: Host) -> Arch:
    """Return the named arch, or the widest that runs here and RAMMER_VECTOR_LANES and RAMMER_MATRIX_UNIT allow.

    "A@here" is A if it runs here, else A emulated by that widest one. Raises DeviceError.
    """
    if name:
        shape, _, code = name.partition("@")
        if code != HERE:
            return find_arch(name)
        arch = find_arch(shape)
        return arch if here.runs(arch) else find_arch(f"{shape}@{choose_arch(None, here).name}")
    lanes = config.integer("RAMMER_VECTOR_LANES")
    found = [a for a in ARCHES.values() if here.runs(a) and lanes in (None, a.lanes)]  # widest first
    if found and not config.boolean("RAMMER_MATRIX_UNIT"):
        return replace([a for a in found if a.lanes == found[0].lanes][-1], instructions=())
    if found:
        return found[0]
    if lanes is None:
        raise DeviceError(f"no arch for a {here.machine} machine", hint=f"known machines: {', '.join(ARCHES)}")
    usable = sorted({a.lanes for a in ARCHES.values() if here.runs(a)})
    raise DeviceError(
        f"RAMMER_VECTOR_LANES={lanes}: this CPU runs kernels with {', '.join(map(str, usable))} lanes",
        hint="compile for another CPU with arch=…",
    )


def choose_num_veus(device: str | int | None, here: Host) -> int:
    """Return the number of vEUs that `device` requests (4, "4" or "cpu:4"), or the default. Raises DeviceError."""
    if device is None or device == "cpu":
        return default_num_veus(here)[0]
    text = str(device).removeprefix("cpu:")
    if not text.isdecimal() or not 1 <= int(text) <= MAX_VEUS:
        raise DeviceError(f"no CPU device {device!r}", hint="device= is the number of vEUs: 4 or 'cpu:4'")
    return int(text)


def default_num_veus(here: Host) -> tuple[int, str]:
    """Return the default number of vEUs and its reason: RAMMER_NUM_VEUS, or cores within the quota.

    A quota is rounded down. All vEUs of a run compute or spin; if their number exceeded the quota, Linux would stop all
    of them for the rest of each period. Raises DeviceError.
    """
    cpus, cores, quota = len(here.cpus), here.num_cores, here.quota
    if asked := config.integer("RAMMER_NUM_VEUS"):
        return asked, f"RAMMER_NUM_VEUS={asked}"
    how = f"the affinity mask has {_count(cpus, 'CPU')} on {_count(cores, 'core')}"
    if quota is None:
        return cores, f"{how}, no cgroup limits CPU time"
    return max(1, min(cores, int(quota.cpus))), f"{how}, {quota.file} grants the time of {_count(quota.cpus, 'CPU')}"


def _count(number: float, what: str) -> str:
    return f"{number:.4g} {what}{'' if number == 1 else 's'}"


def _disabled() -> frozenset[str]:
    """Return the features that RAMMER_DISABLE_CPU_FEATURES names; "amx*" is a pattern."""
    known = sorted(frozenset[str]().union(*(arch.features for arch in ARCHES.values())))
    found: set[str] = set()
    for pattern in config.names("RAMMER_DISABLE_CPU_FEATURES"):
        named = matching(known, pattern)
        if not named:
            raise DeviceError(
                f"RAMMER_DISABLE_CPU_FEATURES: no arch needs a feature {pattern!r}",
                hint=did_you_mean(pattern, known) or f"known: {', '.join(known)}",
            )
        found.update(named)
    return frozenset(found)


@lru_cache(maxsize=1)
def _matrix_unit_granted() -> bool:
    """Request permission to use AMX's tile registers, which Linux requires of each process. Returns whether granted."""
    if not sys.platform.startswith("linux"):
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # <asm/prctl.h>, and <asm/unistd_64.h>
    return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)


@lru_cache(maxsize=1)
def _cpuinfo() -> tuple[frozenset[str], float, str]:
    """Return CPU features, clock in GHz, and model."""
    text = system_file("/proc/cpuinfo")
    features: frozenset[str] = frozenset()
    mhz, model, parts = 0.0, "", set[str]()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features") and not features:
            features = frozenset(value.split())
        elif key.strip() == "model name":
            model = value.strip()
        elif key.strip() in ("CPU implementer", "CPU part"):  # Arm's substitute for a model name
            parts.add(value.strip())
        elif key.strip() == "cpu MHz" and value.strip():
            mhz = max(mhz, float(value))
    if khz := system_file("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip():
        mhz = int(khz) / 1000  # "cpu MHz" is only the current clock
    if sys.platform == "darwin":
        names = f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}".lower()
        features = frozenset(names.replace("avx1.0", "avx").replace(".", "_").split())
        mhz = int(_sysctl("hw.cpufrequency_max") or 0) / 1e6
        model = _sysctl("machdep.cpu.brand_string")
    model = model or " ".join((platform.processor(), *sorted(parts))).strip()
    return features, round(mhz / 1000, 1) or 3.0, model


def _cpus() -> tuple[tuple[int, ...], int]:
    """Return the CPUs that this process may use, one of each physical core first, and the number of those cores."""
    if not hasattr(os, "sched_getaffinity"):
        count = int(_sysctl("hw.physicalcpu") or os.cpu_count() or 1)
        return tuple(range(count)), count
    cores: dict[tuple[str, str], list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        topology = f"/sys/devices/system/cpu/cpu{cpu}/topology/"
        core = system_file(topology + "core_id").strip() or f"cpu{cpu}"
        cores.setdefault((system_file(topology + "physical_package_id").strip(), core), []).append(cpu)
    first = [siblings[0] for siblings in cores.values()]
    return (*first, *(cpu for siblings in cores.values() for cpu in siblings[1:])), len(first)


@lru_cache(maxsize=1)
def _caches() -> tuple[int, int, int]:
    """Return bytes of L1d, L2 and L3, with usual sizes where the system does not report them."""
    sizes = {1: 32 << 10, 2: 1 << 20, 3: 16 << 20}
    if sys.platform == "darwin":
        for level, name in ((1, "hw.l1dcachesize"), (2, "hw.l2cachesize"), (3, "hw.l3cachesize")):
            sizes[level] = int(_sysctl(name) or sizes[level])
        return sizes[1], sizes[2], sizes[3]
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        size, level = system_file(f"{index}/size").strip(), system_file(f"{index}/level").strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(size[-1:])
        data = system_file(f"{index}/type").strip() != "Instruction"
        if data and unit and size[:-1].isdecimal() and level in ("1", "2", "3"):
            sizes[int(level)] = int(size[:-1]) * unit
    return sizes[1], sizes[2], sizes[3]


def _cores_of_l3(cores: tuple[int, ...]) -> int:
    """Return how many of some cores share the first one's L3; 0 if the system does not report it."""
    shared = system_file(f"/sys/devices/system/cpu/cpu{cores[0]}/cache/index3/shared_cpu_list").strip()
    spans = [span.partition("-") for span in shared.split(",") if span]
    return sum(any(int(low) <= cpu <= int(high or low) for low, _, high in spans) for cpu in cores)


def _sysctl(name: str) -> str:
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, timeout=5, text=True, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
