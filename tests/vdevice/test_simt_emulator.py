"""Programs for GPUs on the host: right results, exact reports of what is wrong, every order of threads."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx.parser
import pytest
from handmade import Net, foreign, memory
from simt_plans import SIZE, agree, chain, image, load, mirror, placed, values

import rammer
from rammer.errors import ArtifactError, DeviceError, InputError, LoweringError
from rammer.ir.expr import Call, Load, Range, Stage, TensorExpr
from rammer.ir.graph import Graph
from rammer.ir.index import var
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.ir.operator import OpDef, Operations, ROperator
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RProgram, RTask, TaskUid
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import DType, TensorType
from rammer.ir.tile import Buffer, For, If, Kind, Scope, Store, Sync, TileProgram
from rammer.kernels import candidates
from rammer.vdevice import toolchain
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.codegen.table import END, Streams
from rammer.vdevice.simt.emulator import compile
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.runtime.streams import SOURCE, TABLE
from rammer_viz.demo import lstm_stack

CHAIN = chain(3)
ACROSS = [[0, [(1, 1)], 2], [[(0, 0)], 1]]  # 0 on vEU 0, 1 on vEU 1, 2 on vEU 0


@pytest.mark.parametrize("policy", ["sequential", "wavefront", "round_robin", "list", "stationary", "graphturbo"])
def test_a_model_under_every_policy(policy: str) -> None:
    model = lstm_stack(2, 3, 16)
    x = np.random.default_rng(0).standard_normal((3, 1, 16)).astype(np.float32)
    wanted = evaluate_graph(rammer.from_onnx(model), {"x": x})["y"]
    with rammer.compile(model, "cuda", device="emulator:3", policy=policy, tune_seconds=0) as program:
        first = program(x)
        np.testing.assert_allclose(first, wanted, rtol=1e-4, atol=1e-5)
        executable = program.executable
        assert isinstance(executable, EmulatorExecutable)
        executable.poison = True
        for executable.deterministic, executable.seed in ((True, 1), (True, 2), (False, 0), (False, 3)):
            np.testing.assert_array_equal(program(x), first)


@pytest.mark.parametrize("threads", [(32, 32, 32), (1, 64, 32), (33, 1, 100)], ids=str)
def test_tasks_of_different_sizes_share_a_veu(threads: tuple[int, ...]) -> None:
    plan = placed(CHAIN, [mirror(CHAIN, t) for t in threads], ACROSS)
    executable = EmulatorExecutable(image(plan), poison=True)
    for executable.seed in range(4):
        for executable.deterministic in (True, False):
            assert agree(CHAIN, executable, executable.seed)
    assert executable.streams.header["threads"] % 32 == 0


def test_a_missing_wait_shows() -> None:
    lanes = [[0], [1, 2]]
    plan = placed(CHAIN, [mirror(CHAIN, spin=10)] * 3, lanes)
    executable = load(plan, poison=True)
    assert not all(agree(CHAIN, executable, executable.seed) for executable.seed in range(4))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_deadlock_is_reported_and_the_program_goes_on(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where one OS thread knows that nothing can happen, by the clock otherwise."""
    monkeypatch.setenv("RAMMER_WATCHDOG_SECONDS", "60" if deterministic else "0.2")
    lanes = [[0, [(1, 1)], 2], [[(0, 1)], 1]]
    plan = placed(CHAIN, [mirror(CHAIN)] * 3, lanes)
    executable = load(plan, deterministic=deterministic)
    for _ in range(2):
        with pytest.raises(DeviceError) as caught:
            executable.run(values())
        text = str(caught.value)
        assert "rProgram 0: vEU" in text and "waited in vain" in text and "waiting slots" in text
        assert "has published 0 of its slots" in text


def test_a_wait_for_a_vEU_that_stopped_names_its_operator() -> None:
    plan = placed(CHAIN, [mirror(CHAIN)] * 3, ACROSS)
    good = image(plan)
    streams = Streams.from_bytes(good.files[TABLE])
    instructions = streams.instructions.copy()
    instructions[instructions[:, 0] != END, 6] = 0  # nobody publishes
    broken = replace(streams, instructions=instructions)
    executable = EmulatorExecutable(replace(good, files={**good.files, TABLE: broken.to_bytes()}))
    with pytest.raises(DeviceError, match=r"vEU 0, order 0 \(mirror 'node t0'\)"):
        executable.run(values())


def test_threads_that_miss_a_sync_are_reported() -> None:
    text = (
        "static __device__ void mirror_32(void *const *args, char *scratch, int rtask, int tid, int *status) {{\n"
        "  if (tid < 16) mk_sync();\n}}\n"
    )
    graph = chain(1)
    executable = load(placed(graph, [mirror(graph, text=text)], [[0], []]))
    with pytest.raises(DeviceError, match="never reach their block sync"):
        executable.run(values())


def test_an_index_out_of_range_names_the_operator() -> None:
    net = Net(SIZE)
    net.types["n"] = TensorType((SIZE,), DType.I64)
    net.inputs = ("x", "n")
    graph = net.graph(net.op("pick", "x", "n"))
    plan = placed(graph, [], [[0], []])
    kernel = min(candidates(graph.operators[0].operation, plan.spec), key=lambda k: k.num_rtasks)
    plan = replace(
        plan,
        kernels=(kernel,),
        programs=(RProgram((tuple(RTask(TaskUid(0, r)) for r in range(kernel.num_rtasks)), ())),),
    )
    executable = load(plan)
    x = values()["x"]
    good = np.arange(SIZE) % 7 - 3
    np.testing.assert_array_equal(executable.run({"x": x, "n": good})["t0"], x[good])
    with pytest.raises(InputError, match="pick 'node t0': index out of range"):
        executable.run({"x": x, "n": good * SIZE})
    np.testing.assert_array_equal(executable.run({"x": x, "n": good})["t0"], x[good])


def _tree(threads: int, extent: int) -> tuple[Graph, ExecutionPlan]:
    """Sum of a vector by a tree in scratch: syncs, and threads that do not divide a warp."""
    kind = TensorType((extent,))

    def express(a: TensorType) -> TensorExpr:
        stage = Stage("o", (("z", 1),), Load("a", (var("i"),)), (("i", extent),), "sum")
        return TensorExpr("total", (("a", a),), (stage,), (("o", TensorType((1,))),))

    operations = Operations({"total": OpDef("total", express)})
    operation = operations.define("total", (kind,), ())
    graph = Graph(
        "g",
        ("x",),
        ("t",),
        (ROperator("node", operation, ("x",), ("t",)),),
        {"x": kind, "t": TensorType((1,))},
        {},
        operations,
    )
    t, i = var("t"), var("i")
    steps: list[object] = [
        Store("s", t, Load("a", (t,))),
        For(
            "i",
            1,
            extent // threads,
            Kind.SERIAL,
            (Store("s", t, Call("add", (Load("s", (t,)), Load("a", (t + i * threads,))))),),
        ),
        Sync(),
    ]
    half = threads // 2
    while half:
        pair = Call("add", (Load("s", (t,)), Load("s", (t + half,))))
        steps += [If((Range(t, 0, half),), (Store("s", t, pair),)), Sync()]
        half //= 2
    steps.append(If((Range(t, 0, 1),), (Store("o", t, Load("s", (t,))),)))
    body = (For("t", 0, threads, Kind.THREAD, tuple(steps)),)  # type: ignore[arg-type]
    arguments = (Buffer("o", 1, Scope.ARGUMENT), Buffer("a", extent, Scope.ARGUMENT))
    program = TileProgram("tree", arguments, 1, body, (), threads, (Buffer("s", threads, Scope.LOCAL),), 1)
    plan = placed(graph, [RKernel("tree", operation, program)], [[0], []])
    return graph, plan


@pytest.mark.parametrize("threads", [16, 32, 64])
def test_extra_threads_keep_out_of_syncs_and_stores(threads: int) -> None:
    """In blocks of 128, because a second task wants as many. Paper: §4.1.3."""
    graph, plan = _tree(threads, 128)
    kernel = plan.kernels[0]
    wide = emit(kernel, CUDA, 128).text
    assert ("mk_sync_part(" in wide) == (threads % 32 == 0)
    assert (f"if (tid < {threads}) {{" in wide) == (threads % 32 != 0)
    other = mirror(CHAIN, 128)
    operation = other.operation
    operators = (*graph.operators, ROperator("m", operation, ("y",), ("u",)))
    kind = TensorType((SIZE,))
    both = Graph("g", ("x", "y"), ("t", "u"), operators, {**graph.types, "y": kind, "u": kind}, {}, graph.interner)
    plan = replace(placed(both, [kernel, other], [[0, 1], []]), memory=memory(both))
    x = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    executable = load(plan, poison=True)
    for executable.seed in range(3):
        np.testing.assert_allclose(executable.run({"x": x, "y": values()["x"]})["t"], [x.sum()], rtol=1e-4)
    assert executable.streams.header["threads"] == 128


def test_foreign_kernels_are_checked() -> None:
    in_c = foreign(CHAIN.operators[0].operation, "void mirror() {}")
    with pytest.raises(LoweringError, match="written in 'c', not in 'cuda'"):
        load(placed(CHAIN, [in_c] * 3, ACROSS))
    body = mirror(CHAIN, 64).body
    assert isinstance(body, ForeignSource)
    syncs = RKernel("s", CHAIN.operators[0].operation, replace(body, num_block_syncs=None))
    with pytest.raises(LoweringError, match="syncs its 64 threads"):
        load(placed(CHAIN, [syncs, mirror(CHAIN, 128), mirror(CHAIN, 128)], ACROSS))


def test_damaged_images_are_refused() -> None:
    good = image(placed(CHAIN, [mirror(CHAIN)] * 3, ACROSS))
    table = good.files[TABLE]
    for files in (
        {SOURCE: good.files[SOURCE]},
        {TABLE: table},
        {**good.files, TABLE: table[:100]},
        {**good.files, TABLE: table[:8] + table[8:].replace(b'"num_veus": 2', b'"num_veus": 3')},
    ):
        with pytest.raises(ArtifactError):
            EmulatorExecutable(replace(good, files=files))
    with pytest.raises(ArtifactError, match="this is rammer"):
        EmulatorExecutable(replace(good, fingerprint="cuda-abi0-sm_90"))


def test_a_closed_program_says_so() -> None:
    executable = load(placed(CHAIN, [mirror(CHAIN)] * 3, ACROSS))
    executable.close()
    with pytest.raises(InputError, match="closed"):
        executable.run(values())


def test_saved_for_a_gpu_runs_on_the_host(tmp_path: object) -> None:
    path = f"{tmp_path}/p.rammer"
    model = lstm_stack(1, 2, 8)
    x = np.ones((2, 1, 8), np.float32)
    with rammer.compile(model, "cuda", device="emulator:2", tune_seconds=0) as program:
        wanted = program(x)
        program.save(path)
    with rammer.load(path, device="emulator") as again:
        np.testing.assert_array_equal(again(x), wanted)


def test_integers_that_threads_share_are_not_folded_as_floats_are() -> None:
    """A search for the last update of each place: every place has its own threads, and no scratch in common."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
        pooled (float[1, 1, 2, 2] x, int64[1, 1, 2, 2] i) => (float[1, 1, 4, 4] y) {
          y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)
        }"""
    places = np.array([5, 7, 13, 15])
    inputs = {"x": np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2), "i": places.reshape(1, 1, 2, 2)}
    with rammer.compile(onnx.parser.parse_model(text), "cuda", device="emulator:2", tune_seconds=0) as program:
        assert np.flatnonzero(program.run(inputs)["y"]).tolist() == places.tolist()


def test_flags_of_the_compiler_are_part_of_the_caches_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object compiled without a flag that repairs the compiler must not be found."""
    keys: list[str] = []
    monkeypatch.setattr(compile, "object_store", lambda: SimpleNamespace(made=lambda key, make: keys.append(key)))
    for more in ((), ("-DMORE",), ()):
        monkeypatch.setattr(toolchain, "FLAGS", (*more, "-O1"))
        compile.compile_host("")
    assert keys[0] == keys[2] != keys[1]
