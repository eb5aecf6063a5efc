"""Messages inside clusters: chosen, proven, and right on the emulator, however late or early they arrive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from simt_races import find_races

import rammer
from rammer.errors import DeviceError, ToolchainError, VerificationError
from rammer.ir.analysis.messages import BOX_BYTES, deliveries
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import BarrierRTask, RProgram
from rammer.ir.tensor import Array
from rammer.ir.verify import verify_plan
from rammer.runtime.program import Program
from rammer.vdevice.base import Image
from rammer.vdevice.cuda import cluster
from rammer.vdevice.cuda.spec import choose_gpu, make_spec
from rammer.vdevice.proof.verify import verify_image
from rammer.vdevice.simt.codegen.image import make_image, make_program
from rammer.vdevice.simt.codegen.messages import RECEIVE_ARGS, SEND_ARGS, messages_of
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.table import NUMBER, Streams
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.runtime.streams import SOURCE, TABLE
from rammer_viz.demo import lstm_stack


@lru_cache(maxsize=4)
def compiled(layers: int = 2, steps: int = 5, hidden: int = 64, veus: int = 8) -> Program:
    model = lstm_stack(layers, steps, hidden)
    return rammer.compile(model, "cuda", arch="h200:c4", device=f"emulator:{veus}", policy="stationary", tune_seconds=0)


def given(program: Program, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.type.shape).astype(np.float32) for p in program.inputs}


def run(image: Image, inputs: dict[str, Array], **options: Any) -> Array:
    (found,) = EmulatorExecutable(image, poison=True, **options).run(inputs).values()
    return found


def image_of(plan: ExecutionPlan) -> Image:
    return make_image(plan, make_program(plan, CUDA), {})


@pytest.mark.parametrize("seed", range(4))  # with an odd one, messages arrive at once, and else when they are awaited
def test_the_results_are_onnx_runtimes(seed: int) -> None:
    program = compiled()
    inputs = given(program, seed)
    session = onnxruntime.InferenceSession(lstm_stack(2, 5, 64).SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, inputs)
    for deterministic in (True, False):
        found = run(program.image, inputs, deterministic=deterministic, seed=seed)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_layer_whose_weights_share_a_cluster_waits_for_no_counter() -> None:
    plan = compiled().plan
    verify_plan(plan)
    sent = [one for one in deliveries(plan, HappensBefore(plan.programs)) if one.tensor in plan.memory.messages]
    assert len(sent) == len(plan.memory.messages) >= 8
    waiting = [s for lane in plan.programs[0].lanes for s in lane if isinstance(s, BarrierRTask)]
    assert sum(bool(s.messages) and not s.waits for s in waiting) >= 6  # the steps of a layer
    assert len({*plan.memory.messages.values()}) < len(plan.memory.messages)  # places are used again
    text = compiled().image.file(SOURCE).decode()
    assert "MK_CLUSTER(4)" in text and "mk_send(" in text


def test_what_other_clusters_read_is_copied_to_memory() -> None:
    plan = compiled().plan
    outside = [one.outside for one in deliveries(plan, HappensBefore(plan.programs), plan.memory.messages)]
    assert True in outside
    arguments = messages_of(plan)
    copies = [sent[k][0] for sent in arguments.sent.values() for k in range(SEND_ARGS - 1, len(sent), SEND_ARGS)]
    assert {NUMBER, -1} >= {*copies} and -1 in copies


def broken(plan: ExecutionPlan, *rules: str) -> None:
    with pytest.raises(VerificationError) as caught:
        verify_plan(plan)
    assert caught.value.rule in rules, str(caught.value)


def with_barriers(plan: ExecutionPlan, change: Callable[[BarrierRTask], BarrierRTask]) -> ExecutionPlan:
    """The plan with the first barrier changed that `change` changes."""
    lanes, done = [], False
    for lane in plan.programs[0].lanes:
        mine = []
        for slot in lane:
            made = change(slot) if isinstance(slot, BarrierRTask) and not done else slot
            done |= made is not slot
            mine.append(made)
        lanes.append(tuple(mine))
    assert done
    return replace(plan, programs=(RProgram(tuple(lanes)),))


def test_faults_of_a_plan_are_found() -> None:
    plan = compiled().plan
    memory, places = plan.memory, plan.memory.messages

    def placed(messages: dict[str, int]) -> ExecutionPlan:
        return replace(plan, memory=replace(memory, messages=messages))

    broken(placed(dict.fromkeys(places, min(places.values()))), "R114")  # one place for all
    broken(placed({t: at + 4096 for t, at in places.items()}), "R114")  # beyond the scratch
    broken(placed(dict.fromkeys(places, BOX_BYTES)), "R114")  # where rTasks have theirs
    broken(placed({**places, next(iter(plan.graph.constants)): 0}), "R114")
    broken(placed({}), "R104")  # the barriers do not wait for counters
    for tensor in places:  # each result lies in memory alone
        broken(placed({t: at for t, at in places.items() if t != tensor}), "R104", "R114")
    broken(with_barriers(plan, lambda s: replace(s, messages=s.messages[1:]) if s.messages else s), "R104", "R114")
    for n in range(8):  # a counter that no message replaces

        def without(slot: BarrierRTask, n: int = n) -> BarrierRTask:
            return replace(slot, waits=slot.waits[:n] + slot.waits[n + 1 :]) if len(slot.waits) > n else slot

        if any(len(s.waits) > n for lane in plan.programs[0].lanes for s in lane if isinstance(s, BarrierRTask)):
            broken(with_barriers(plan, without), "R104", "R107", "R114")


def test_faults_of_an_image_are_found() -> None:
    program = compiled()
    image, plan = program.image, program.plan
    verify_image(image, plan, program._vdevice)
    streams = Streams.from_bytes(image.files[TABLE])
    arguments = messages_of(plan)

    def stopped(changed: Image) -> str:
        with pytest.raises(VerificationError) as caught:
            verify_image(changed, plan, program._vdevice)
        return caught.value.rule

    base = np.column_stack((streams.arg_base, streams.arg_offset)).tolist()
    for kind, size, shifts in (
        (arguments.sent, SEND_ARGS, (4, 1, 1, 16, 4)),
        (arguments.received, RECEIVE_ARGS, (16, 4, 1)),
    ):
        rows = next(iter(kind.values()))[:size]
        at = next(n for n in range(len(base)) if base[n : n + size] == [list(r) for r in rows])
        for position, shift in enumerate(shifts):
            offsets = streams.arg_offset.copy()
            offsets[at + position] ^= shift
            changed = replace(streams, arg_offset=offsets)
            assert stopped(replace(image, files={**image.files, TABLE: changed.to_bytes()})) == "R311"
    text = image.files[SOURCE].decode()
    fewer = text.replace("mk_send(argv + ", "mk_sent(argv + ", 1).encode()
    assert stopped(replace(image, files={**image.files, SOURCE: fewer})) in ("R311", "R303")
    size = arguments.cluster
    others = text.replace(f"MK_CLUSTER({size})", f"MK_CLUSTER({2 * size})").replace(
        f"MK_BLOCKS {size}", f"MK_BLOCKS {2 * size}"
    )
    header = replace(streams, header=streams.header | {"cluster": 2 * size})
    assert stopped(replace(image, files={**image.files, SOURCE: others.encode(), TABLE: header.to_bytes()})) == "R311"
    room = replace(streams, header=streams.header | {"shared_bytes": streams.header["shared_bytes"] - 1024})
    assert stopped(replace(image, files={**image.files, TABLE: room.to_bytes()})) == "R309"
    closed = text.replace("mk_open_box(scratch + ", "mk_open_box(scratch + 1", 1).encode()
    assert stopped(replace(image, files={**image.files, SOURCE: closed})) == "R311"


def test_the_emulator_sees_a_place_that_is_written_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "2")
    program = compiled()
    memory, inputs = program.plan.memory, given(program)
    one = replace(memory, messages=dict.fromkeys(memory.messages, min(memory.messages.values())))
    image, right = image_of(replace(program.plan, memory=one)), run(program.image, inputs)
    wrong = 0
    for seed in range(4):
        try:
            wrong += not np.array_equal(run(image, inputs, seed=seed), right)
        except DeviceError as error:
            wrong += 1
            assert "waited in vain" in str(error)
    assert wrong


def test_a_message_that_is_not_sent_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "2")
    program = compiled()
    text = program.image.files[SOURCE].decode().replace("if (ranks >> rank & 1)", "if (ranks >> rank & 1 && rank)")
    image = replace(program.image, files={**program.image.files, SOURCE: text.encode()})
    for deterministic in (True, False):
        with pytest.raises(DeviceError, match="waited in vain for vEU"):
            run(image, given(program), deterministic=deterministic)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_races(seed: int) -> None:
    program = compiled(1, 4, 32, 4)
    inputs = given(program)
    try:
        assert find_races(program.image, inputs, seed=seed) == ""
        text = program.image.files[SOURCE].decode().replace(" mk_sync(); mk_send(", " mk_send(")
        image = replace(program.image, files={**program.image.files, SOURCE: text.encode()})
        assert "data race" in find_races(image, inputs, seed=seed)
    except ToolchainError as error:
        pytest.skip(str(error))


def test_specs() -> None:
    spec = make_spec(choose_gpu("h200:c8"))
    assert spec.num_veus == 120 and spec.handover_us(0, 7) < spec.handover_us(7, 8) == spec.barrier_us
    assert make_spec(choose_gpu("h200")).cluster is None
    with pytest.raises(DeviceError, match=r"a100 has no clusters.*\n.*h200, h100"):
        choose_gpu("a100:c8")
    with pytest.raises(DeviceError, match="no clusters of 8"):
        make_spec(choose_gpu("h200:c8"), 9)


def test_launches_say_both_that_blocks_are_resident_and_that_they_form_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def launched(config: Any, function: Any, arguments: int, extra: int) -> tuple[int]:
        ids = [(a.id.name, a.value.clusterDim.x, a.value.cooperative) for a in config.attrs]
        seen.append((config.gridDimX, config.blockDimX, config.sharedMemBytes, ids, int(function)))
        return (codes.pop(0),)

    driver = pytest.importorskip("cuda.bindings.driver")
    names = ("CUfunction", "CUlaunchConfig", "CUlaunchAttribute", "CUlaunchAttributeID", "CUstream")
    fake = SimpleNamespace(**{n: getattr(driver, n) for n in names}, cuLaunchKernelEx=launched)
    fake.cuOccupancyMaxActiveClusters = lambda function, config: (0, 15)
    monkeypatch.setattr(cluster, "importlib", SimpleNamespace(import_module=lambda name: fake))
    codes = [0, 720]
    made = cluster.ClusterLaunch(7, 256, 1024, 8, 5)
    assert made.most_blocks() == 120
    made.launch(16, [np.uint64(1), np.int32(2)])
    grid, block, shared, ids, function = seen[0]
    assert (grid, block, shared, function) == (16, 256, 1024, 7)
    assert {name for name, *_ in ids} == {"CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", "CU_LAUNCH_ATTRIBUTE_COOPERATIVE"}
    assert ids[0][1] == 8 and ids[1][2] == 1
    with pytest.raises(DeviceError, match="failed to start clusters of 8 blocks: 720"):
        made.launch(16, [])
