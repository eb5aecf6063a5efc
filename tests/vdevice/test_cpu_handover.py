"""Parts of rTasks that are done by vEUs that wait, on plans by hand in which one vEU has all the work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from handmade import memory

import rammer
import rammer.compiler.candidates
from rammer import config
from rammer.errors import ArtifactError, InputError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.graph import Graph
from rammer.ir.operator import Operations, ROperator
from rammer.ir.ops import OPS
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, Position, RProgram, RTask, TaskUid
from rammer.ir.tensor import Array, DType, TensorType
from rammer.kernels import candidates
from rammer.planner.stealing import is_stealable
from rammer.vdevice.base import Image, silent
from rammer.vdevice.cpu.codegen.emit import emit
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.runtime.executable import CpuExecutable
from rammer.vdevice.cpu.runtime.table import TABLE, TICKETS, Table

RUNS = 20
PATIENCE_S = 30  # until somebody helps: on a single CPU the other thread must come in between


@pytest.fixture
def device() -> CpuVDevice:
    return CpuVDevice(device=2)


@pytest.fixture
def opened() -> Iterator[list[CpuExecutable]]:
    """What tests load; closed at the end."""
    found: list[CpuExecutable] = []
    yield found
    for executable in found:
        executable.close()


def lopsided(
    device: CpuVDevice, kind: str, *types: TensorType, busy: int = 0, unproven: bool = False, **attrs: object
) -> ExecutionPlan:
    """A plan of one operator, all of whose rTasks are one vEU's; the other one waits for the last one."""
    made = Operations(OPS)
    operation = made.define(kind, types, tuple(sorted(attrs.items())))
    names = [f"x{n}" for n in range(len(types))]
    operator = ROperator("the node", operation, tuple(names), ("out",))
    kinds = dict(zip(names, types, strict=True)) | {"out": operation.outputs[0]}
    graph = Graph("net", tuple(names), ("out",), (operator,), kinds, {}, made)
    kernel = replace(next(k for k in candidates(operation, device.spec) if k.num_rtasks == 2), unproven=unproven)
    work = tuple(RTask(TaskUid(0, n)) for n in range(kernel.num_rtasks))
    lanes = (work, (BarrierRTask((Position(0, kernel.num_rtasks - 1),)),)) if busy == 0 else ((), work)
    return ExecutionPlan(graph, device.spec, (kernel,), (RProgram(lanes),), memory=memory(graph))


def tickets(image: Image) -> list[int]:
    return [int(n) for n in Table.from_bytes(image.file(TABLE)).slots[:, TICKETS]]


def helped(executable: CpuExecutable, veu: int) -> int:
    pool = executable._pool
    assert pool is not None
    return int(executable._runtime.helped(pool.address, veu))


def run_until(executable: CpuExecutable, inputs: dict[str, Array], veu: int) -> Iterator[Array]:
    """Results of some runs, and of more until a vEU has helped."""
    before, end = helped(executable, veu), time.monotonic() + PATIENCE_S
    for n in count():
        if n >= RUNS and (helped(executable, veu) > before or time.monotonic() > end):
            break
        yield executable.run(inputs)["out"]
    assert helped(executable, veu) > before


A, B = TensorType((256, 512)), TensorType((512, 256))


@pytest.mark.parametrize("hands_over", [True, False])
def test_who_waits_does_parts(device: CpuVDevice, opened: list[CpuExecutable], hands_over: bool) -> None:
    """Results are the same bit for bit, on scratch of NaN; nobody helps where RAMMER_HAND_OVER says so."""
    image = device.build(lopsided(device, "matmul", A, B))
    assert min(tickets(image)[:2]) > 2 and not any(tickets(image)[2:])
    with config.override(RAMMER_HAND_OVER=str(int(hands_over))):
        opened.append(device.load(image))
    (executable,) = opened
    executable.poison = True
    rng = np.random.default_rng(0)
    x = {f"x{n}": rng.standard_normal(t.shape).astype(np.float32) for n, t in enumerate((A, B))}
    before, first = helped(executable, 1), executable.run(x)["out"]
    np.testing.assert_allclose(first, x["x0"] @ x["x1"], rtol=1e-3, atol=1e-3)
    runs = run_until(executable, x, 1) if hands_over else (executable.run(x)["out"] for _ in range(RUNS))
    for result in runs:
        np.testing.assert_array_equal(result, first)
    assert hands_over or helped(executable, 1) == before


def test_the_caller_helps_when_its_lane_is_done(device: CpuVDevice, opened: list[CpuExecutable]) -> None:
    """And takes subnormal numbers for zero as it does in its lane."""
    kind = TensorType((1024, 2048))
    opened.append(device.load(device.build(lopsided(device, "mul", kind, kind, busy=1))))
    (executable,) = opened
    small = np.full(kind.shape, 1e-25, np.float32)
    for result in run_until(executable, {"x0": small, "x1": small * np.float32(1e9)}, 0):
        assert not result.any()
    assert np.float32(1e-40) * np.float32(1)  # the calling thread has its own ways back


def test_indices_are_checked_whoever_reads_them(device: CpuVDevice, opened: list[CpuExecutable]) -> None:
    rows, table = 60000, TensorType((1000, 64))
    opened.append(device.load(device.build(lopsided(device, "gather", table, TensorType((rows,), DType.I64), axis=0))))
    (executable,) = opened
    values = np.random.default_rng(0).standard_normal(table.shape).astype(np.float32)
    index = np.arange(rows) % 1000
    for wrong in (0, rows // 2 - 1, rows - 1):
        with pytest.raises(InputError, match="gather 'the node': index out of range"):
            executable.run({"x0": values, "x1": np.where(np.arange(rows) == wrong, 1000, index)})
    np.testing.assert_array_equal(executable.run({"x0": values, "x1": index})["out"], values[index])


def test_what_is_not_proven_is_not_handed_over(device: CpuVDevice) -> None:
    assert not any(tickets(device.build(lopsided(device, "matmul", A, B, unproven=True))))


def test_what_cannot_be_shown_is_marked_once(device: CpuVDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = lopsided(device, "matmul", A, B).kernels
    unshown = (rammer.compiler.candidates.UNSHOWN, False, "too many cases")
    monkeypatch.setattr(rammer.compiler.candidates, "_proofs", lambda kernels, vdevice: dict.fromkeys(kernels, unshown))
    prover = rammer.compiler.candidates.Prover(device, 0, silent)
    changed = prover.check({kernel.operation: [kernel]}, [kernel])
    assert changed is not None
    kept, standing = changed
    marked = standing[kernel]
    assert marked.unproven and marked.body is kernel.body and kept == {kernel.operation: [marked]}
    assert prover.check(kept, [marked]) is None


def test_updates_are_not_handed_over(device: CpuVDevice) -> None:
    """Of several elements that data send to one place the last one stays: iterations keep their order."""
    made = Operations(OPS)
    cache, rows = TensorType((1000, 512)), TensorType((3000, 512))
    where = TensorType((3000, 1), DType.I64)
    attrs = (("how", "vectors"), ("moves", (-1, 1)))
    operation = made.define("update", (cache, rows, where), attrs)
    kernels = [k for k in candidates(operation, device.spec) if emit(k, device.spec).tickets]
    assert kernels and not any(is_stealable(k) for k in kernels)


def test_without_proofs_nothing_is_handed_over() -> None:
    builder = GraphBuilder()
    builder.output(builder.add("matmul", builder.input("a", A.shape), builder.input("b", B.shape)), "y")
    for verify in (0, 1):
        with config.override(RAMMER_VERIFY=str(verify)), rammer.compile(builder.build(), "cpu", device=2) as program:
            assert all(k.unproven == (not verify) for k in program.plan.kernels)
            assert verify or not any(tickets(program.image))


def test_times_of_slots_are_their_own(device: CpuVDevice, opened: list[CpuExecutable]) -> None:
    """Nobody helps in a run that is timed: what an rTask takes would be spread over barriers."""
    opened.append(device.load(device.build(lopsided(device, "matmul", A, B))))
    (executable,) = opened
    x = {"x0": np.ones(A.shape, np.float32), "x1": np.ones(B.shape, np.float32)}
    before = helped(executable, 1)
    for _ in range(RUNS):
        assert (executable.run_timed(x)[0]["out"] == A.shape[1]).all()
    assert helped(executable, 1) == before


def test_a_single_veu_has_nobody_to_help() -> None:
    device = CpuVDevice(device=1)
    plan = lopsided(CpuVDevice(device=2), "matmul", A, B)
    alone = RProgram(plan.programs[0].lanes[:1])
    assert not any(tickets(device.build(replace(plan, spec=device.spec, programs=(alone,)))))


def test_images_with_impossible_tickets_are_refused(device: CpuVDevice) -> None:
    image = device.build(lopsided(device, "matmul", A, B))
    table = Table.from_bytes(image.file(TABLE))
    slots = table.slots.copy()
    slots[0, TICKETS] = -1
    with pytest.raises(ArtifactError):
        device.load(replace(image, files={**image.files, TABLE: replace(table, slots=slots).to_bytes()}))
