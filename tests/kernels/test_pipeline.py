"""Products whose operands are copied while earlier ones are multiplied: results, proofs, and what the machine does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from kernel_harness import operation
from simt_harness import GPU, build, check
from test_every_operator import t

from benchmarks.gpu.sass import disassembled, listings
from rammer.errors import ToolchainError
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.tile import Body, Stmt, Store, Sync, TileProgram, statements
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.kernels.threads.candidates import in_pipeline
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.spec import GPUS, make_spec
from rammer.vdevice.rocm.spec import GPUS as AMD
from rammer.vdevice.rocm.spec import make_spec as make_amd
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.tune.registers import _text

PADDED = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "group": 1}
CASES: dict[str, Operation] = {
    "matmul": operation("matmul", t(64, 256), t(256, 128), static=("b",)),
    "odd": operation("matmul", t(33, 203), t(203, 75)),
    "turned": operation("matmul", t(40, 130), t(96, 130), trans_b=True),
    "batch": operation("matmul", t(3, 24, 200), t(3, 200, 64)),
    "conv": operation("conv", t(1, 32, 14, 14), t(32, 32, 3, 3), static=("w",), **PADDED),
    "conv-odd": operation("conv", t(2, 19, 9, 11), t(24, 19, 3, 3), t(24), **{**PADDED, "strides": (2, 1)}),
}


H200 = make_spec(GPUS["h200"])
PLAIN = replace(H200, instructions=tuple(i for i in H200.instructions if not i.multiplies))
LARGE = {
    "matmul": operation("matmul", t(512, 1024), t(1024, 512), static=("b",)),
    "conv": operation("conv", t(1, 64, 56, 56), t(64, 64, 3, 3), static=("w",), **PADDED),
}


def piped(op: Operation, spec: VDeviceSpec = GPU) -> list[RKernel]:
    """Pipelines of all candidates that can be one, whether they are worth it or not."""
    found = [k if k.pipeline_depth > 1 else in_pipeline(k, 3) for k in candidates(op, spec)]
    return [k for k in found if k is not None]


@pytest.fixture(scope="module")
def built():  # type: ignore[no-untyped-def]
    return build({name: (op, piped(op)) for name, op in CASES.items()})


@pytest.mark.parametrize("name", CASES)
def test_results(built, name: str) -> None:  # type: ignore[no-untyped-def]
    """The emulator makes a copy as late as it may: what is not awaited is not there."""
    check(built, name)


@pytest.mark.parametrize("name", CASES)
def test_proofs_and_syncs(name: str) -> None:
    for kernel in piped(CASES[name]):
        assert prove(kernel) == (), kernel.name
        assert isinstance(kernel.program, TileProgram)
        syncs = [s for s in statements(kernel.program.body) if isinstance(s, Sync) and s.pending is not None]
        assert sorted(s.pending for s in syncs) in ([0, 0], [0, 1]), "all before the loop, and all but the last in it"
        assert any(s.later for s in statements(kernel.program.body) if isinstance(s, Store))
        assert kernel.scratch_bytes > kernel.body.scratch_bytes


def _with_pending(body: Body, pending: int) -> Body:
    def changed(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Sync) and stmt.pending is not None:
            return replace(stmt, pending=pending)
        return replace(stmt, body=_with_pending(stmt.body, pending)) if hasattr(stmt, "body") else stmt

    return tuple(map(changed, body))


def test_a_copy_that_nobody_awaits_is_missed() -> None:
    kernel = piped(CASES["matmul"])[0]
    assert isinstance(kernel.program, TileProgram)
    wrong = replace(kernel, pipeline_depth=1, body=replace(kernel.program, body=_with_pending(kernel.program.body, 4)))
    with pytest.raises(AssertionError):
        check(build({"wrong": (CASES["matmul"], [wrong])}), "wrong", boxes=False)


def test_what_is_no_plain_copy_has_no_pipeline() -> None:
    """Neither a softmax nor a product of one row copies anything in passes."""
    for op in (operation("softmax", t(64, 256), axis=1), operation("matmul", t(1, 256), t(256, 128), static=("b",))):
        assert not piped(op)


def test_devices_that_cannot_do_not() -> None:
    op = LARGE["matmul"]
    for name in ("a100", "h200", "rtx5090"):
        assert make_spec(GPUS[name]).copies_later and piped(op, make_spec(GPUS[name])), name
    for spec in (make_spec(GPUS["t4"]), make_amd(AMD["mi300x"])):
        assert spec.copies_later is None and all(k.pipeline_depth == 1 for k in candidates(op, spec))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_machine_code(name: str, arch: str) -> None:
    """Operands go to shared memory by themselves, by 16 bytes where they lie so; one block sync in a pass."""
    kernel = emit(next(k for k in candidates(LARGE[name], PLAIN) if k.pipeline_depth == 3), CUDA, 256)
    try:
        text = disassembled(compile_cubin(_text([kernel], CUDA, 256), arch).data)
    except ToolchainError as error:
        pytest.skip(str(error))
    (listing,) = listings(text).values()
    kinds = [i.opcode for i in listing.code]
    assert any(re.match(r"LDGSTS.*\.128", k) for k in kinds) and "LDGDEPBAR" in kinds
    body = max(listing.loops(), key=lambda loop: sum("FFMA" in k for k in kinds[loop[0] : loop[1]]))
    inside = kinds[body[0] : body[1] + 1]
    assert not any(k.startswith(("STS", "LDG.")) for k in inside)
    whole = [loop for loop in listing.loops() if any(k.startswith("LDGSTS") for k in kinds[loop[0] : loop[1] + 1])]
    assert all(sum(k.startswith("BAR") for k in kinds[a : b + 1]) <= 1 for a, b in whole)
    assert any(k.startswith("LDS.128") for k in kinds)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_float32_in_parts_on_tensor_cores(arch: str) -> None:
    """Three products of tf32 for each of float32, their operands copied by themselves; nothing spills."""
    found = [k for k in piped(LARGE["matmul"], H200) if "_fp32_" in k.name]
    kernel = emit(found[0], CUDA, 256)
    try:
        cubin = compile_cubin(_text([kernel], CUDA, 256), arch)
        text = disassembled(cubin.data)
    except ToolchainError as error:
        pytest.skip(str(error))
    (listing,) = listings(text).values()
    kinds = [i.opcode for i in listing.code]
    assert sum("HMMA" in k and "TF32" in k for k in kinds) % 3 == 0 < sum("HMMA" in k for k in kinds)
    assert any(k.startswith("LDGSTS") for k in kinds) and "FFMA" not in kinds
    assert not any(needs.spill_bytes for needs in cubin.kernels.values())
