"""LSTM operators and unrolled networks are the same operators in the end, where vEUs are many: so are their plans."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from pass_models import SPEC, Net, assert_same, fed_back_cells, lstm, lstm_cells, lstm_layers

from rammer.compiler import Compilation, CompileOptions
from rammer.ir.graph import Graph
from rammer.ir.tensor import TensorId
from rammer.ir.verify.kernel import prove
from rammer.kernels import candidates
from rammer.passes import optimize
from rammer.passes.recurrent.decompose_cells import decompose_cells
from rammer.scheduler.hand_overs import longest_chain
from rammer.scheduler.timeline import simulate
from rammer.vdevice.cuda.spec import GPUS as NVIDIA
from rammer.vdevice.cuda.spec import make_spec
from rammer.vdevice.rocm.spec import GPUS as AMD
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit

MANY = replace(SPEC, kept_reads=5)
FORMS = ("operator", "concat", "separate", "bias of 1")
ARCHS = [
    *(("cuda", name) for name in NVIDIA),
    *(("rocm", name) for name in AMD),
]


def network(form: str, steps: int, layers: int, width: int, decodes: bool) -> Graph:
    """A stack of LSTM layers, step by step; in a decoder every step reads the one before. All forms compute alike."""
    b = Net(8)
    x = b.input("x", (steps, width))
    zeros = b.constant(np.zeros((1, width), np.float32), "zeros")
    weights = [(b.rng.standard_normal((2 * width, 4, width)), b.rng.standard_normal((4, width))) for _ in range(layers)]
    made = [_cell(b, form, w.astype(np.float32), bias.astype(np.float32)) for w, bias in weights]
    states = [(zeros, zeros)] * layers
    outputs: list[TensorId] = []
    for t in range(steps):
        row = b.add("slice", x, starts=(t, 0), steps=(1, 1), shape=(1, width))
        value = states[-1][0] if decodes and t else row
        for n, cell in enumerate(made):
            states[n] = cell(value, *states[n])
            value = states[n][0]
        outputs.append(value)
    b.output(b.add("concat", *outputs, axis=0), "y")
    return b.build()


def _cell(b: Net, form: str, w: np.ndarray, bias: np.ndarray):  # type: ignore[no-untyped-def]
    """A step of weights [input and state, gate, unit] and a bias [gate, unit]: (x, h, c) to (h, c)."""
    rows, _, width = w.shape
    size = rows - width
    whole = b.constant(w.reshape(rows, -1))
    if form == "operator":
        wx, shift = b.constant(w[:size].reshape(size, -1)), b.constant(bias.reshape(-1))
        r = b.constant(np.ascontiguousarray(w[size:].transpose(1, 2, 0)))

        def step(x: TensorId, h: TensorId, c: TensorId) -> tuple[TensorId, TensorId]:
            gx = b.add("add", b.add("matmul", x, wx), shift)
            c, h = b.add("lstm_cell", b.add("reshape", gx, shape=(1, 4, width)), h, c, r)
            return h, c

        return step
    less = np.zeros((4, 1), np.float32)
    less[2] = form == "bias of 1"
    one = b.constant(np.float32(1))
    shift = b.constant((bias - less).reshape(-1))
    own = [tuple(b.constant(np.ascontiguousarray(p[:, q])) for p in (w[:size], w[size:])) for q in range(4)]
    parts = [b.constant(bias[q]) for q in range(4)]

    def gates(x: TensorId, h: TensorId) -> list[TensorId]:
        if form == "separate":
            sums = (b.add("add", b.add("matmul", x, wx), b.add("matmul", h, wh)) for wx, wh in own)
            return [b.add("add", total, part) for total, part in zip(sums, parts, strict=True)]
        flat = b.add("add", b.add("matmul", b.add("concat", x, h, axis=1), whole), shift)
        cut = [b.add("slice", flat, starts=(0, q * width), steps=(1, 1), shape=(1, width)) for q in range(4)]
        return [b.add("add", part, one) if q == 2 and form == "bias of 1" else part for q, part in enumerate(cut)]

    def unrolled(x: TensorId, h: TensorId, c: TensorId) -> tuple[TensorId, TensorId]:
        i, o, f, z = gates(x, h)
        kept = b.add("mul", b.add("sigmoid", f), c)
        c = b.add("add", kept, b.add("mul", b.add("sigmoid", i), b.add("tanh", z)))
        return b.add("mul", b.add("sigmoid", o), b.add("tanh", c)), c

    return unrolled


def planned(graph: Graph, target: str, arch: str) -> tuple[tuple[object, ...], float]:
    """Hand-overs, rTasks, rKernels and the estimated time of the plan for a GPU."""
    how = CompileOptions(target=target, arch=arch, policy="wavefront", tune_seconds=0)
    with Compilation.of(graph, how) as compilation:
        plan, rtask_us = compilation.planned.plan, compilation.profiler.rtask_us
    kernels = Counter(k.name.partition("_")[2] for k in plan.kernels)
    return (longest_chain(plan), plan.num_rtasks, kernels), simulate(plan, rtask_us).total_us


@pytest.mark.parametrize("decodes", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_step_of_a_chain_is_one_operator(form: str, decodes: bool) -> None:
    """Of a decoder, too: its cells compute the product with their input themselves, and that with the state comes
    before."""
    steps, layers = 7, 3
    graph = network(form, steps, layers, 16, decodes)
    waves = len(optimize(graph, MANY).wavefronts())
    assert waves <= (steps * layers if decodes else steps + layers) + 2
    assert_same(graph, optimize(graph, MANY))


@pytest.mark.parametrize("decodes", [False, True])
def test_forms_are_the_same_operators(decodes: bool) -> None:
    found = [optimize(network(form, 5, 2, 12, decodes), MANY) for form in FORMS]
    kinds = [Counter((op.kind, str(op.operation.outputs)) for op in graph.operators) for graph in found]
    assert kinds[1:] == kinds[:-1]


@pytest.mark.parametrize(("target", "arch"), ARCHS)
def test_forms_have_one_plan_on_every_gpu(target: str, arch: str) -> None:
    forms = FORMS if arch in ("h200", "mi300x") else FORMS[:2]
    plans, times = zip(*(planned(network(form, 3, 2, 64, False), target, arch) for form in forms), strict=True)
    assert plans[1:] == plans[:-1]
    assert times[:3] == pytest.approx([times[0]] * len(times[:3]))
    assert times == pytest.approx([times[0]] * len(forms), rel=2e-2)  # a forget bias of 1 may be one addition more


@pytest.mark.parametrize(
    "graph",
    [lstm_cells(), lstm_cells(batch=1), lstm_layers(), lstm_layers(7, 1, 9, backwards=True), fed_back_cells(), lstm()],
)
def test_meaning_stays(graph: Graph) -> None:
    assert_same(graph, decompose_cells(graph))
    assert_same(graph, optimize(graph, MANY))


def test_cells_with_more_than_an_unrolled_network_has_stay_whole() -> None:
    b = Net()
    h, c = b.input("h", (1, 8)), b.input("c", (1, 8))
    gx, r = b.input("gx", (1, 4, 8)), b.weight(4, 8, 8)
    for n, attrs in enumerate(
        ({"clip": 1.0}, {"input_forget": True}, {"activations": ("sigmoid", ("elu", 1.0), "tanh")})
    ):
        b.output(b.add("lstm_cell", gx, h, c, r, **attrs)[1], f"y{n}")
    b.output(b.add("lstm_cell", gx, h, c, r, b.weight(3, 8))[1], "peepholes")
    b.output(b.add("lstm_cell", gx, h, c, b.input("r", (4, 8, 8)))[1], "weights that are not known")
    assert (
        decompose_cells(b.build()) is b.build()
        or sum(op.kind == "lstm_cell" for op in decompose_cells(b.build()).operators) == 5
    )


@pytest.mark.parametrize("units", [32, 128, 200])
def test_cells_of_unrolled_networks_load_as_others_do(units: int) -> None:
    """Their weights lie column by column, so they are packed: a thread loaded single numbers, and so many lines."""
    spec = make_spec(NVIDIA["h200"])
    graph = optimize(lstm(6, 1, units, style="concat"), spec)
    kinds = {op.operation for op in graph.operators if op.kind.startswith("gate_matmul+") and "tanh" in op.kind}
    kernels = [k for kind in kinds for k in candidates(kind, spec) if "_cell" in k.name]
    assert kernels
    for kernel in kernels:
        matrix = max(range(len(kernel.operation.inputs)), key=lambda n: kernel.operation.inputs[n].size)
        (packed,) = [layout for name, layout in kernel.packing if name == kernel.operation.expr.inputs[matrix][0]]
        assert [digit.dim for digit in packed.digits] == [1, 2, 0], "the terms of a sum lie side by side"
        text = emit(kernel, CUDA, 256).text
        assert f"V({kernel.operation.expr.inputs[matrix][0]}[" in text and prove(kernel) == ()
