"""Kernels emitted and compiled in batches, and their cache."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from handmade import TEXTS, chain, foreign, make_plan, memory, one_program, reference

from rammer import config
from rammer.compiler.candidates import drop_refused
from rammer.errors import DeviceError, RammerError, ToolchainError
from rammer.ir.graph import Graph
from rammer.ir.kernel import RKernel
from rammer.ir.plan import ExecutionPlan
from rammer.kernels import candidates
from rammer.vdevice import toolchain
from rammer.vdevice.base import silent
from rammer.vdevice.cpu.codegen.compile import KernelCompiler
from rammer.vdevice.cpu.codegen.emit import emit
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import host
from rammer.vdevice.toolchain import object_store


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    with config.override(RAMMER_CACHE_DIR=str(tmp_path / "cache")):
        yield tmp_path / "cache"


@pytest.fixture
def device() -> CpuVDevice:
    return CpuVDevice(device=2)


def emitted(graph: Graph, device: CpuVDevice) -> list[RKernel]:
    """Every candidate of every operation of the graph."""
    operations = dict.fromkeys(op.operation for op in graph.operators)
    return [k for operation in operations for k in candidates(operation, device.spec)]


def check(plan: ExecutionPlan, device: CpuVDevice) -> None:
    executable = device.load(device.build(plan))
    executable.poison = True
    x = {"x": np.linspace(-2, 2, 64, dtype=np.float32)}
    np.testing.assert_allclose(executable.run(x)["t5"], reference(plan.graph, x)["t5"], rtol=1e-5)
    executable.close()


def test_emitted_and_foreign_kernels_work_together(device: CpuVDevice) -> None:
    graph = chain()
    for choice in range(2):
        options = {op.operation: candidates(op.operation, device.spec) for op in graph.operators}
        made = {
            operation: [foreign(operation, TEXTS[operation.kind]), found[0]][(n + choice) % 2]
            for n, (operation, found) in enumerate(options.items())
        }
        kernels = tuple(made[op.operation] for op in graph.operators)
        check(
            ExecutionPlan(graph, device.spec, kernels, (one_program(graph, kernels, 2),), memory=memory(graph)), device
        )


def test_compiled_once_then_found(cache: Path, device: CpuVDevice) -> None:
    kernels = emitted(chain(), device)
    steps: list[tuple[str, int, int]] = []
    compiler = KernelCompiler(device.spec, host())
    first = compiler.compile(kernels, lambda *s: steps.append(s))
    assert steps[0] == ("compile", 0, steps[-1][2]) and steps[-1][1] == steps[-1][2] > 0
    assert set(first.where) == set(kernels)
    steps.clear()
    again = KernelCompiler(device.spec, host()).compile(kernels, lambda *s: steps.append(s))
    assert not steps and again.where == first.where and again.objects == first.objects


def test_long_kernels_are_compiled_once_and_alone_and_are_saved_as_they_are(
    cache: Path, device: CpuVDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object that is saved is the same whether it was there already, or is compiled for that alone."""
    kernels = emitted(chain(), device)
    texts = {k: len(emit(k, device.spec).text) for k in kernels}
    monkeypatch.setattr("rammer.vdevice.cpu.codegen.compile.LONG_BYTES", max(texts.values()) - 1)
    long = [k for k in kernels if texts[k] == max(texts.values())]
    alone = KernelCompiler(device.spec, host()).compile_only(long)
    with config.override(RAMMER_CACHE_DIR=str(cache.with_name("other"))):
        compiler = KernelCompiler(device.spec, host())
        found = compiler.compile(kernels)
        made: list[tuple[str, int, int]] = []
        assert long and compiler.compile_only(long, lambda *s: made.append(s)).objects == alone.objects and not made
    assert all([k for k in kernels if found.where[k][0] == found.where[one][0]] == [one] for one in long)


def test_archs_do_not_mix(cache: Path, device: CpuVDevice) -> None:
    (kernel,) = make_plan(chain(1), device.spec).kernels
    keys = set()
    for arch in ("x86-64-sse4", "x86-64-avx2"):
        other = CpuVDevice(arch=arch, device=2)
        with config.override(RAMMER_CC=None):
            keys |= set(KernelCompiler(other.spec, host()).compile([kernel]).where.values())
    assert len(keys) == 2


def test_stores_of_times_and_verdicts_are_those_of_all_flags(
    device: CpuVDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that was wrong without a flag that repairs the compiler is a candidate again."""
    before = KernelCompiler(device.spec, host()).toolchain
    monkeypatch.setattr(toolchain, "FLAGS", (*toolchain.FLAGS, "-DMORE"))
    assert KernelCompiler(device.spec, host()).toolchain != before


def test_damaged_objects_are_compiled_again(cache: Path, device: CpuVDevice) -> None:
    plan = make_plan(chain(), device.spec)
    check(plan, device)
    objects = sorted((cache / "objects").glob("*.so"))
    for n, file in enumerate(objects):
        file.write_bytes(b"" if n % 2 else file.read_bytes()[:-1] + b"?")
    check(plan, device)
    assert sorted((cache / "objects").glob("*.so")) == objects
    (cache / "objects" / "index.sqlite").write_bytes(b"rubbish" * 1000)
    with pytest.warns(RuntimeWarning, match="was damaged"):
        check(plan, device)


def test_processes_compile_the_same_at_the_same_time(cache: Path) -> None:
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from handmade import chain
from test_cpu_compile import emitted
from rammer.vdevice.cpu.codegen.compile import KernelCompiler
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import host
device = CpuVDevice(device=2)
print(len(KernelCompiler(device.spec, host()).compile(emitted(chain(), device)).where))
"""
    workers = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [w.communicate(timeout=600)[0] for w in workers]
    assert [w.returncode for w in workers] == [0, 0] and answers[0] == answers[1]


def test_a_kernel_that_does_not_compile_is_an_error_that_names_it(cache: Path, device: CpuVDevice) -> None:
    good, bad = make_plan(chain(2), device.spec).kernels
    bad = foreign(bad.operation, "void add(char *const *args, char *s, long r, int *t) { oops; }")
    with pytest.raises(ToolchainError, match="oops"):
        KernelCompiler(device.spec, host()).compile([good, bad])
    with pytest.raises(ToolchainError, match=r"add:1:.*oops"):  # the place is named after the kernel
        device.build(replace(make_plan(chain(2), device.spec), kernels=(good, bad)))
    assert not list((cache / "objects").glob("new-*"))
    assert object_store().stats()[0] <= 1


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], object]]:
    """A compiler that never ends where a text holds a word, which the test names."""
    words = tmp_path / "words"
    script = tmp_path / "zig"
    script.write_text(
        f"""#!/bin/sh
for f; do case "$f" in *.c) [ -s {words} ] && grep -q -f {words} "$f" && while :; do :; done ;; esac; done
exec {toolchain.ziglang("C", "pip install ziglang")} "$@"
"""
    )
    script.chmod(0o755)
    monkeypatch.setattr("rammer.vdevice.cpu.codegen.compile.KERNEL_S", 1)
    monkeypatch.setattr("rammer.vdevice.cpu.codegen.compile.MORE_S", 0)
    with config.override(RAMMER_CC=f"{script} cc"):
        yield lambda word: words.write_text(f"{word}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the time of another process")
def test_a_kernel_that_takes_the_compiler_too_long_is_no_candidate(
    cache: Path, busy: Callable[[str], object], device: CpuVDevice
) -> None:
    options = {op.operation: candidates(op.operation, device.spec) for op in chain(2).operators}
    kernels = [k for found in options.values() for k in found]
    bad = emit(kernels[0], device.spec).symbol
    busy(bad)
    refused = device.rkernels_refused(kernels)
    assert {k: why.split(" after ")[1] for k, why in refused.items()} == {kernels[0]: "1 s of computing"}
    assert set(device.rkernels_us(kernels[1:])) == set(kernels[1:])
    busy("nothing else")
    assert list(device.rkernels_refused(kernels)) == kernels[:1], "what was refused once is not tried again"

    operation = kernels[0].operation
    with pytest.raises(DeviceError, match=f"{operation.kind}.*no rKernel .* can be compiled.*refused it before"):
        drop_refused(options, device, 1.0, silent)
    more = {**options, operation: [kernels[0], replace(kernels[1], operation=operation)]}
    kept, notes = drop_refused(more, device, 1.0, silent)
    assert kernels[0] not in kept[operation] and kernels[0].name in notes[0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds the time of another process")
def test_a_program_that_needs_such_a_kernel_is_refused_by_its_name(
    cache: Path, busy: Callable[[str], object], device: CpuVDevice
) -> None:
    kernels = emitted(chain(2), device)
    busy(emit(kernels[1], device.spec).symbol)
    with pytest.raises(ToolchainError, match="stopped after 1 s") as caught:
        KernelCompiler(device.spec, host()).compile(kernels)
    assert kernels[1].name in "".join(caught.value.__notes__)
    assert object_store().stats()[0] == len(kernels) - 1, "the others are kept"


def test_a_compiler_that_takes_nothing_is_an_error(cache: Path, tmp_path: Path) -> None:
    script = tmp_path / "zig"
    script.write_text('#!/bin/sh\n[ "$1" = version ] && echo 1 || exit 3\n')
    script.chmod(0o755)
    with config.override(RAMMER_CC=f"{script} cc"):
        device = CpuVDevice(device=2)
        with pytest.raises(ToolchainError, match="failed with status 3"):
            device.rkernels_refused(emitted(chain(2), device))


def test_texts_are_shown_when_asked_for(
    cache: Path, device: CpuVDevice, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = emitted(chain(1), device)
    with config.override(RAMMER_DEBUG="4", RAMMER_DUMP_DIR=str(tmp_path / "dump")):
        compiled = KernelCompiler(device.spec, host()).compile(kernels)
    symbols = {symbol for _, symbol in compiled.where.values()}
    assert {f.stem for f in (tmp_path / "dump").glob("*.c")} == symbols
    shown = capsys.readouterr().err
    assert all(f"// {symbol}\n" in shown for symbol in symbols)
    (tmp_path / "file").write_text("")
    with config.override(RAMMER_DUMP_DIR=str(tmp_path / "file")), pytest.raises(RammerError, match="RAMMER_DUMP_DIR"):
        KernelCompiler(device.spec, host()).compile(kernels)
