"""The CPU as data, arches and their machine code, half floats, aligned memory and packing."""

from __future__ import annotations

import ctypes
import itertools
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import chain, foreign, make_plan, reference

from rammer import config
from rammer.errors import DeviceError, RammerError
from rammer.ir.kernel import ForeignSource
from rammer.ir.tensor import Array, Digit, Layout, channel_blocked, pack
from rammer.vdevice.cpu import host as cpu_host
from rammer.vdevice.cpu.codegen.compile import arch_flags
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import ARCHES, EMULATED, choose_arch, choose_num_veus, find_arch, host
from rammer.vdevice.cpu.plugin import probe
from rammer.vdevice.cpu.runtime.table import RUNTIME
from rammer.vdevice.cpu.spec import make_spec
from rammer.vdevice.cpu.tune.profile import Operands, Timer
from rammer.vdevice.image.memory import HUGE_PAGE, allocate, gather
from rammer.vdevice.image.placement import arrange
from rammer.vdevice.toolchain import c_compiler
from rammer.vdevice.toolchain.library import Library

HERE = host()
SERVER = replace(HERE, machine="x86_64", features=ARCHES["x86-64-amx"].features)
DESKTOP = replace(SERVER, features=ARCHES["x86-64-avx2"].features)
C_COMPILERS = ["", *(["gcc"] if shutil.which("gcc") else [])]


def test_this_machine_makes_sense() -> None:
    spec = CpuVDevice().spec
    assert spec.name == "cpu" and spec.languages == ("c",)
    assert spec.num_veus >= 1 and spec.lanes in (4, 8, 16) and spec.peak_gflops > 1
    l1, l2, l3, ram = (m.nbytes for m in spec.memory)
    assert 8 << 10 <= l1 < l2 <= max(l3, l2) < ram
    assert len(set(HERE.cpus)) == len(HERE.cpus) and 1 <= HERE.num_cores <= len(HERE.cpus)
    assert probe().ok


def test_more_vEUs_than_cores_have_more_of_a_shared_cache() -> None:
    """On paper: each core that is not here would bring a part of it; main memory stays what it is."""
    one_cache, two = (replace(DESKTOP, num_cores=4, l3_cores=cores) for cores in (4, 2))
    few, own, many = (make_spec(ARCHES["x86-64-avx2"], n, one_cache) for n in (2, 4, 16))
    for name in ("read_gbps", "write_gbps"):
        shared, memory = ([getattr(spec.memory[at], name) for spec in (few, own, many)] for at in (2, 3))
        assert shared == [shared[0], shared[0], pytest.approx(4 * shared[0])]
        assert len(set(memory)) == 1
    assert few.memory[2].veu_gbps == many.memory[2].veu_gbps
    groups = [make_spec(ARCHES["x86-64-avx2"], n, two).memory[2] for n in (4, 16)]
    assert groups[0] == groups[1] and groups[0].group == 2  # of two cores each, as many as it takes


def test_specs_are_the_same_every_time() -> None:
    """They are part of cache keys."""
    assert CpuVDevice(device=2).spec == CpuVDevice(device="cpu:2").spec


@pytest.mark.parametrize(("device", "number"), [(3, 3), ("3", 3), ("cpu:3", 3)])
def test_device_is_the_number_of_veus(device: str | int, number: int) -> None:
    assert choose_num_veus(device, HERE) == number


@pytest.mark.parametrize("device", [0, -1, "", "cpu:", "cpu:x", "gpu", "cpu:4.5", 5000, "²"])
def test_other_devices_are_refused(device: str | int) -> None:
    with pytest.raises(DeviceError, match="no CPU device"):
        choose_num_veus(device, HERE)


def test_flags_choose_veus_and_width() -> None:
    with config.override(RAMMER_NUM_VEUS="5"):
        assert choose_num_veus(None, HERE) == choose_num_veus("cpu", HERE) == 5
    with config.override(RAMMER_NUM_VEUS="none"), pytest.raises(RammerError, match="RAMMER_NUM_VEUS"):
        choose_num_veus(None, HERE)
    for lanes, name in ((16, "x86-64-amx"), (8, "x86-64-avx2"), (4, "x86-64-sse4")):
        with config.override(RAMMER_VECTOR_LANES=str(lanes)):
            assert choose_arch(None, SERVER).name == name
    with config.override(RAMMER_MATRIX_UNIT="0"):
        assert choose_arch(None, SERVER).name == "x86-64-avx512"
        assert choose_arch("x86-64-amx", SERVER).name == "x86-64-amx"
        assert (choose_arch(None, DESKTOP).name, choose_arch(None, DESKTOP).instructions) == ("x86-64-avx2", ())
    with config.override(RAMMER_VECTOR_LANES="7"), pytest.raises(DeviceError, match="RAMMER_VECTOR_LANES=7"):
        choose_arch(None, HERE)
    with config.override(RAMMER_VECTOR_LANES="16"), pytest.raises(DeviceError, match="with 4, 8 lanes"):
        choose_arch(None, DESKTOP)


@pytest.mark.parametrize(
    "name", ["x86-64-avx51", "x86-64-avx51@here", "x86-64-avx512@", "@x86-64", "x86-64@x86-64@x86-64", "here", "@here"]
)
def test_unknown_archs_are_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=r"no arch .*; known: x86-64-amx") as caught:
        CpuVDevice(arch=name)
    assert ("x86-64-avx512" in caught.value.hint) == ("avx51" in name)


def test_what_the_machine_lacks_is_emulated_where_that_is_asked_for() -> None:
    amx, avx2 = ARCHES["x86-64-amx"], ARCHES["x86-64-avx2"]
    assert choose_arch("x86-64-amx@here", SERVER) == amx
    emulated = choose_arch("x86-64-amx@here", DESKTOP)
    assert emulated == find_arch("x86-64-amx@x86-64-avx2") and DESKTOP.runs(emulated)
    assert (emulated.lanes, emulated.registers, emulated.instructions) == (amx.lanes, amx.registers, amx.instructions)
    assert emulated.features == avx2.features
    assert (emulated.zig, emulated.cc) == ((*avx2.zig, EMULATED), (*avx2.cc, EMULATED))
    assert choose_arch("x86-64-amx", DESKTOP) == amx  # without being asked for, nothing is: it is for another machine
    arm = replace(DESKTOP, machine="aarch64", features=frozenset())
    assert choose_arch("x86-64-avx2@here", arm).name == "x86-64-avx2@aarch64-neon"


def test_features_count_as_missing_where_the_user_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_host, "_cpuinfo", lambda: (SERVER.features, 3.0, "a server"))
    monkeypatch.setattr(cpu_host, "_matrix_unit_granted", lambda: True)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    for disabled, best in (
        (None, "x86-64-amx"),
        ("amx_tile", "x86-64-avx512bf16"),
        ("amx_tile,avx512_bf16", "x86-64-avx512vnni"),
        ("amx_tile,avx512_bf16,avx512_vnni", "x86-64-avx512"),
        ("amx*,avx512*", "x86-64-avx2"),
        ("fma", "x86-64-sse4"),
    ):
        with config.override(RAMMER_DISABLE_CPU_FEATURES=disabled):
            assert choose_arch(None, host()).name == best
    for unknown in ("avx5", "amx*,avx1024*"):
        with config.override(RAMMER_DISABLE_CPU_FEATURES=unknown), pytest.raises(DeviceError, match="no arch needs"):
            host()
        with config.override(RAMMER_DISABLE_CPU_FEATURES=unknown):
            assert "no arch needs" in probe().reason


def test_the_widest_arch_of_other_machines() -> None:
    plain = replace(HERE, machine="x86_64", features=frozenset())
    assert choose_arch(None, plain).name == "x86-64"
    assert choose_arch(None, replace(plain, features=ARCHES["x86-64-avx2"].features)).name == "x86-64-avx2"
    assert choose_arch(None, replace(plain, machine="aarch64")).name == "aarch64-neon"
    with pytest.raises(DeviceError, match="vax"):
        choose_arch(None, replace(plain, machine="vax"))


@pytest.mark.parametrize("command", C_COMPILERS, ids=lambda c: c or "ziglang")
@pytest.mark.parametrize("arch", ARCHES)
def test_kernels_of_every_arch_run_here_or_are_emulated(arch: str, command: str) -> None:
    graph = chain(4, 128)
    with config.override(RAMMER_CC=command):
        device = CpuVDevice(arch=f"{arch}@here", device=2)
        image = device.build(make_plan(graph, device.spec))
    assert image.fingerprint.endswith(device.spec.arch) and device.spec.arch.startswith(arch)
    executable = device.load(image)
    x = {"x": np.linspace(0, 1, 128, dtype=np.float32)}
    np.testing.assert_allclose(executable.run(x)["t3"], reference(graph, x)["t3"], rtol=1e-5)
    executable.close()


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump: apt install binutils")
@pytest.mark.parametrize("arch", [a for a in ARCHES if a.startswith("x86")])
def test_kernels_use_the_registers_of_their_arch(arch: str, tmp_path: Path) -> None:
    with config.override(RAMMER_CC=None):
        device = CpuVDevice(arch=arch, device=2)
        image = device.build(make_plan(chain(4, 128), device.spec))
    used = set()
    for name, data in image.files.items():
        if name.endswith(".so") and name != RUNTIME:
            (tmp_path / name).write_bytes(data)
            text = subprocess.run(["objdump", "-d", str(tmp_path / name)], capture_output=True, text=True).stdout
            used |= set(re.findall(r"%([xyz])mm", text))
    assert max(used) == {16: "z", 8: "y", 4: "x"}[ARCHES[arch].lanes]


@pytest.mark.parametrize("arch", ARCHES)
def test_zig_compiles_for_every_arch_anywhere(arch: str) -> None:
    with config.override(RAMMER_CC=None):
        compiler = c_compiler()
    text = "#include <math.h>\nfloat f(float x) { return expf(x); }\n"
    magic = b"\0asm" if ARCHES[arch].machine == "wasm32" else b"\x7fELF"
    assert compiler.compile_shared(text, arch_flags(arch, compiler.family, HERE))[:4] == magic
    if ARCHES[arch].machine != HERE.machine:
        with pytest.raises(DeviceError, match="cross compiler"):
            arch_flags(arch, "gcc", HERE)


def test_another_cpu_is_not_measured() -> None:
    other = CpuVDevice(arch="riscv64" if HERE.machine != "riscv64" else "x86-64")
    plan = make_plan(chain(1), other.spec)
    assert other.rkernels_us(plan.kernels) == {}


class TestHalf:
    @pytest.fixture(scope="class")
    @classmethod
    def library(cls) -> Library:
        text = (
            "#define CONVERT(name, from, to) void name(const from *x, to *y, long n) {\\\n"
            "  for (long i = 0; i < n; i++) y[i] = (to)x[i]; }\n"
            "CONVERT(widen, _Float16, float)\nCONVERT(round1, float, _Float16)\nCONVERT(round2, double, _Float16)\n"
        )
        compiler = c_compiler()
        plainest = [a.name for a in ARCHES.values() if HERE.runs(a)][-1]
        return Library(compiler.compile_shared(text, arch_flags(plainest, compiler.family, HERE)))

    @staticmethod
    def call(library: Library, name: str, x: Array, out: type) -> Array:
        y: Array = np.zeros(len(x), out)
        pointer = ctypes.c_void_p
        library.function(name, None, pointer, pointer, ctypes.c_long)(x.ctypes.data, y.ctypes.data, len(x))
        return y

    def test_every_half_widens_exactly(self, library: Library) -> None:
        halves = np.arange(65536, dtype=np.uint16).view(np.float16)
        with np.errstate(invalid="ignore"):  # NumPy on aarch64 mentions signalling NaNs
            wanted = halves.astype(np.float32)
        np.testing.assert_array_equal(self.call(library, "widen", halves, np.float32), wanted)

    @pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")
    @pytest.mark.parametrize(("name", "dtype"), [("round1", np.float32), ("round2", np.float64)])
    def test_rounding_is_numpys(self, library: Library, name: str, dtype: type) -> None:
        finite = np.arange(65536, dtype=np.uint16).view(np.float16)
        finite = np.sort(finite[np.isfinite(finite)]).astype(np.float64)
        middles = (finite[1:] + finite[:-1]) / 2
        rng = np.random.default_rng(0)
        near = [middles * (1 + s * 2.0**-k) for k in (20, 22, 23, 30, 50) for s in (-1, 1)]
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 1e30, -1e300, 2**-24, 2**-25, 1e-40]
        with np.errstate(over="ignore"):
            x: Array = np.concatenate([finite, middles, *near, rng.standard_normal(10_000), special]).astype(dtype)
        np.testing.assert_array_equal(self.call(library, name, x, np.float16), x.astype(np.float16))


class TestMemory:
    @pytest.mark.parametrize("nbytes", [0, 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5])
    def test_memory_is_zero_aligned_and_writable(self, nbytes: int) -> None:
        block = allocate(nbytes)
        assert len(block) == nbytes and not block.any()
        assert block.ctypes.data % (HUGE_PAGE if nbytes >= HUGE_PAGE else 4096) == 0
        block[:] = 1

    def test_gathered_arrays_are_aligned_and_equal(self) -> None:
        raw = np.arange(100, dtype=np.float32)
        arrays = [raw[1:17].reshape(4, 4), raw[::2], allocate(400).view(np.float32), np.zeros((0, 3), np.float32)]
        placed = gather(arrays)
        for before, after in zip(arrays, placed, strict=True):
            assert after.ctypes.data % 64 == 0 and after.flags.c_contiguous
            np.testing.assert_array_equal(before, after)
        assert placed[2] is arrays[2]

    LAYOUTS = (
        (None, 3),
        (channel_blocked(3, 4), 3),
        (channel_blocked(4, 16), 4),
        (Layout((Digit(1), Digit(0))), 2),
        (Layout((Digit(0, 6), Digit(1), Digit(0, 2, 3), Digit(0, 1, 2))), 2),
        (Layout((Digit(1, 8), Digit(0, 4), Digit(1, 1, 8), Digit(0, 1, 4))), 2),
        (Layout((Digit(0), Digit(0, 2, 3), Digit(1))), 2),  # no radix system: elements appear twice
    )

    @pytest.mark.parametrize(("layout", "rank"), LAYOUTS)
    def test_arranging_is_packing(self, layout: Layout | None, rank: int) -> None:
        for shape in itertools.product((1, 7, 16), repeat=rank):
            array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) + 1
            for given in (array, np.asfortranarray(array)):
                wanted = pack(given, layout) if layout else given
                out = np.full(wanted.size, -1, np.int32)
                arrange(given, layout, out)
                np.testing.assert_array_equal(out, wanted.reshape(-1))


class TestProfile:
    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path) -> Iterator[None]:
        with config.override(RAMMER_CACHE_DIR=str(tmp_path)):
            yield

    def test_slower_kernels_measure_slower(self) -> None:
        device = CpuVDevice(device=1)
        operation = chain(1, 256).operators[0].operation
        text = "void mirror(char *const *a, char *s, long r, int *t) {{ for (volatile int i = 0; i < {}; i++); }}"
        kernels = [foreign(operation, text.format(n)) for n in (100, 10_000, 200_000)]
        seen: list[tuple[str, int, int]] = []
        times = device.rkernels_us(kernels, budget_s=1, progress=lambda *step: seen.append(step))
        assert times[kernels[0]] < times[kernels[1]] < times[kernels[2]]
        assert seen[-1] == ("profile", 3, 3)

    @pytest.mark.parametrize(
        ("operands", "counts"), [("in turn", {4}), ("near", set(range(8, 900))), ("shared", {4}), ("far", {4})]
    )
    def test_a_kernel_passes_over_its_rtasks_several_times(self, operands: Operands, counts: set[int]) -> None:
        """The first pass finds cold caches; a kernel that takes long passes once, or less."""
        device = CpuVDevice(device=1)
        count = "void mirror(char *const *a, char *s, long r, int *t) {{ ((long *)s)[r]++; {} }}"
        slow = "for (volatile int i = 0; i < 3000000; i++);"
        timed = Timer(device._compiler).functions[operands]
        for text, limit_ns in ((count.format(""), 10**10), (count.format(slow), 10**6)):
            kernel = foreign(chain(1, 64).operators[0].operation, text)
            compiled = device._compiler.compile([kernel])
            name, symbol = compiled.where[kernel]
            library, scratch, operand = Library(compiled.objects[name]), np.zeros(8, np.int64), np.zeros(64, np.int64)
            args, sizes = np.array([operand.ctypes.data], np.int64), np.array([operand.nbytes], np.int64)
            moved = {"far": (sizes.ctypes.data, 1), "shared": (operand.ctypes.data, operand.nbytes)}
            given = moved.get(operands, ())
            at = library.address(symbol), args.ctypes.data, *given, scratch.ctypes.data
            if operands == "far" and platform.machine() not in ("x86_64", "AMD64", "aarch64", "arm64"):
                assert timed(*at, 3, limit_ns) == 0.0  # nothing brings operands to main memory there
                return
            assert timed(*at, 3, limit_ns) > 0
            if slow in text:
                assert scratch.max() <= 2
            else:
                assert set(scratch[:3].tolist()) <= counts and not scratch[3:].any()

    def test_times_are_kept_for_this_machine(self) -> None:
        kernels = make_plan(chain(), CpuVDevice(device=1).spec).kernels
        steps: list[tuple[str, int, int]] = []
        first = CpuVDevice(device=1).rkernels_us(kernels)
        again = CpuVDevice(device=1).rkernels_us(kernels, progress=lambda *step: steps.append(step))
        assert first == again and not steps
        other = CpuVDevice(device=1)
        other._host = replace(HERE, name="another CPU")
        other.rkernels_us(kernels, progress=lambda *step: steps.append(step))
        assert steps

    def test_kernels_in_other_languages_are_left_out(self) -> None:
        device = CpuVDevice(device=1)
        (kernel,) = make_plan(chain(1), device.spec).kernels
        assert isinstance(kernel.body, ForeignSource)
        other = replace(kernel, body=replace(kernel.body, language="cuda"))
        assert set(device.rkernels_us([kernel, other])) == {kernel}
        assert device.rkernels_us([other]) == {} == device.rkernels_us([])


def test_machines_are_data() -> None:
    """A spec for a machine that is not this one."""
    other = replace(HERE, caches=(64 << 10, 512 << 10, 8 << 20), ghz=2.0)
    spec = make_spec(ARCHES["aarch64-neon"], 8, other)
    assert (spec.arch, spec.lanes, spec.num_veus, spec.peak_gflops) == ("aarch64-neon", 4, 8, 32.0)
    assert spec.scratch_bytes == 256 << 10


@pytest.mark.parametrize("part", ["0xd0c", "0xd40"])
def test_arm_names_parts_instead_of_models(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are kept under the CPU's name: two CPUs must not share it."""
    text = f"processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU variant : 0x3\nCPU part : {part}\n"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(cpu_host, "system_file", lambda name: text if name == "/proc/cpuinfo" else "")
    features, ghz, model = cpu_host._cpuinfo.__wrapped__()
    assert features == {"fp", "asimd"} and ghz == 3.0
    assert f"0x41 {part}" in model
