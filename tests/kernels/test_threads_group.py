"""Products that four waves make together of operands in scratch: results, proofs, descriptors, and machine code."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest
from kernel_harness import compare, operation, random_inputs
from simt_harness import GPU, SimtRunner, build, check
from test_threads_tensor import rounded, t

import rammer
from benchmarks.gpu.sass import disassembled, listings
from rammer.errors import LoweringError, ToolchainError
from rammer.frontend.builder import GraphBuilder
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tile import Apply, Body, Operand, Stmt, TileProgram, children, statements
from rammer.ir.verify.kernel import prove
from rammer.kernels.problem import KernelProblem
from rammer.kernels.threads import candidates as threads
from rammer.kernels.threads import group as threads_group
from rammer.vdevice.cuda.build import compile_cubin
from rammer.vdevice.cuda.spec import GPUS, make_spec
from rammer.vdevice.simt.codegen.prelude import CUDA
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.codegen.wgmma import SM_90, SM_90_FP32
from rammer.vdevice.simt.tune.registers import _text

# Whole tiles and overhanging ones, long sums and the shortest, operands along memory, across it, and packed.
OPERATIONS = {
    "matmul": operation("matmul", t(128, 96), t(96, 256), static=("b",)),
    "odd": operation("matmul", t(70, 48), t(48, 75), static=("b",)),
    "turned": operation("matmul", t(48, 72), t(133, 48), trans_a=True, trans_b=True),
    "turned-static": operation("matmul", t(65, 64), t(64, 64), trans_b=True, static=("b",)),
    "batch": operation("matmul", t(3, 37, 16), t(3, 16, 45)),
    "batch-static": operation("matmul", t(2, 40, 32), t(2, 32, 72), static=("b",)),
    "vectors": operation("matmul", t(5, 130, 16), t(16, 40)),
}
PRECISIONS = ["fp32", "tf32", "bf16"]
H200 = make_spec(GPUS["h200"])


def spec_of(precision: str) -> VDeviceSpec:
    return replace(GPU, num_veus=5, instructions=(*SM_90, *SM_90_FP32), precision=precision)


def in_groups(op: Operation, spec: VDeviceSpec) -> list[RKernel]:
    """Of all tiles, whether they are worth it or not."""
    product = threads_group.product(KernelProblem.of(op, spec, flat=False))
    assert product is not None
    own = [tile for tile in threads_group.tiles(product) if tile.unit.precision == spec.precision]
    return threads.fitting(product.problem, (threads_group.schedule(product, tile) for tile in own))


@pytest.fixture(scope="module", params=PRECISIONS)
def built(request: pytest.FixtureRequest):
    spec = spec_of(request.param)
    return request.param, build({name: (op, in_groups(op, spec)) for name, op in OPERATIONS.items()})


@pytest.mark.parametrize("name", OPERATIONS)
def test_results(built, name: str) -> None:
    """Those of float32, of operands rounded as the precision says; float32 in parts is as exact as float32."""
    precision, library = built
    op, kernels = library.kernels[name]
    assert kernels
    inputs = {n: rounded(a, precision) for n, a in random_inputs(op).items()}
    for kernel, symbol in kernels:
        runner = SimtRunner(kernel, library.library, symbol, inputs)
        for got, want in zip(runner.run(), evaluate_expr(op.expr, inputs), strict=True):
            compare(got, want, 2e-5, kernel.name)
    if precision == "fp32":
        check(library, name, rtol=2e-6)


@pytest.mark.parametrize("name", OPERATIONS)
def test_proofs(name: str) -> None:
    for precision in PRECISIONS:
        for kernel in in_groups(OPERATIONS[name], spec_of(precision)):
            assert prove(kernel) == (), kernel.name


def test_operands_are_rounded() -> None:
    op = OPERATIONS["matmul"]
    inputs = random_inputs(op)
    for precision in ("tf32", "bf16"):
        kernel = in_groups(op, spec_of(precision))[0]
        library = build({"one": (op, [kernel])})
        ((_, symbol),) = library.kernels["one"][1]
        (got,) = SimtRunner(kernel, library.library, symbol, inputs).run()
        (want,) = evaluate_expr(op.expr, {n: rounded(a, precision) for n, a in inputs.items()})
        compare(got, want, 2e-5, kernel.name)


def changed(body: Body, **steps: int) -> Body:
    """With other steps from piece to piece of the rows' operand."""

    def one(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Apply):
            sums, rows, columns = stmt.operands
            given = (steps.get("along", rows.steps[0]), steps.get("down", rows.steps[1]), *rows.steps[2:])
            return replace(stmt, operands=(sums, Operand(rows.buffer, rows.at, given), columns))
        return replace(stmt, body=changed(children(stmt), **steps)) if hasattr(stmt, "body") else stmt

    return tuple(map(one, body))


@pytest.mark.parametrize("steps", [{"along": 64}, {"down": 128}])
def test_wrong_steps_are_no_proof(steps: dict[str, int]) -> None:
    kernel = in_groups(OPERATIONS["matmul"], spec_of("bf16"))[0]
    assert isinstance(kernel.body, TileProgram)
    wrong = replace(kernel, body=replace(kernel.body, body=changed(kernel.body.body, **steps)))
    assert any(f.broken for f in prove(wrong))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_descriptors_under_the_emulator(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program whose products are all made so: what its descriptors say is where the operands lie."""
    random = np.random.default_rng(0)
    x, a, b = (random.standard_normal(s).astype(np.float32) for s in ((72, 128), (128, 136), (136, 40)))
    net = GraphBuilder()
    hidden = net.add("relu", net.add("matmul", net.input("x", x.shape), net.constant(a)))
    net.output(net.add("matmul", net.add("transpose", hidden, perm=(0, 1)), net.constant(b)))
    offered = threads.products

    def only(operation: Operation, spec: VDeviceSpec) -> list[RKernel]:
        found = [k for k in offered(operation, spec) if "_g" in k.name]
        assert found or "matmul" not in operation.kind
        return found[:1]

    monkeypatch.setattr(threads, "products", only)
    options = {"device": "emulator:3", "arch": "sm_90", "precision": precision}
    with rammer.compile(net.build(), "cuda", tune_seconds=0, **options) as program:  # type: ignore[arg-type]
        bodies = [k.body for k in program.plan.kernels]
        applied = [s for k in bodies if isinstance(k, TileProgram) for s in statements(k.body) if isinstance(s, Apply)]
        assert sum(s.instruction.staged for s in applied) == 2
        wanted = np.maximum(x.astype(np.float64) @ a, 0) @ b
        error = np.abs(program(x) - wanted).max() / np.abs(wanted).max()
    low, high = {"fp32": (0, 1e-6), "tf32": (1e-5, 1e-3), "bf16": (1e-4, 1e-2)}[precision]
    assert low <= error < high


@pytest.mark.parametrize("seed", [pytest.param(n, marks=pytest.mark.slow) if n else n for n in range(3)])
def test_drawn_shapes(seed: int) -> None:
    draw = random.Random(seed)
    cases: dict[str, tuple[Operation, list[RKernel]]] = {}
    for n in range(4):
        sizes = draw.choice([33, 40, 64, 129]), 16 * draw.randint(1, 5), draw.choice([33, 72, 200])
        turned_a, turned_b, known = (draw.random() < 0.5 for _ in range(3))
        a, b = (sizes[1::-1] if turned_a else sizes[:2]), (sizes[:0:-1] if turned_b else sizes[1:])
        static = ("b",) if known else ()
        op = operation("matmul", t(*a), t(*b), trans_a=turned_a, trans_b=turned_b, static=static)
        cases[str(n)] = op, in_groups(op, spec_of("fp32"))
    library = build(cases)
    for name in cases:
        check(library, name, rtol=2e-6, boxes=False)


def test_other_archs_and_other_products_do_without() -> None:
    """Of sm_90 alone; windows and sums that do not fill the unit's depth are computed as before."""
    large = operation("matmul", t(2048, 1024), t(1024, 4096), static=("b",))
    for name in GPUS:
        spec = make_spec(GPUS[name])
        assert any("_g" in k.name for k in threads.products(large, spec)) == (spec.arch == "sm_90"), name
    assert threads_group.product(KernelProblem.of(operation("conv", t(1, 64, 28, 28), t(64, 64, 3, 3)), H200)) is None
    product = threads_group.product(KernelProblem.of(operation("matmul", t(64, 20), t(20, 64)), H200, flat=False))
    assert product is not None and not threads_group.tiles(product)


def test_loops_that_do_not_fit_are_named() -> None:
    product = threads_group.product(KernelProblem.of(OPERATIONS["matmul"], spec_of("bf16"), flat=False))
    assert product is not None
    schedule = threads_group.schedule(product, next(t for t in threads_group.tiles(product) if t.unit is SM_90[0]))
    with pytest.raises(LoweringError, match=r"wgmma_bf16_n256 needs steps of \[64, 256, 8, 8, 1, 1\]"):
        product.problem.kernel(replace(schedule, instruction=SM_90[2]))


@pytest.mark.parametrize(("precision", "kind"), [("bf16", "BF16"), ("tf32", "TF32"), ("fp32", "TF32")])
def test_machine_code(precision: str, kind: str) -> None:
    """Four waves' products, behind a fence of what was stored; vectors into scratch; nothing spills."""
    op = operation("matmul", t(2048, 1024), t(1024, 4096), static=("b",))
    found = [k for k in threads.products(op, replace(H200, precision=precision)) if "_g" in k.name]
    assert found
    kernels = [emit(k, CUDA, 256) for k in found]
    try:
        cubin = compile_cubin(_text(kernels, CUDA, 256), "sm_90")
        text = disassembled(cubin.data)
    except ToolchainError as error:
        pytest.skip(str(error))
    assert not any(r.spill_bytes for r in cubin.kernels.values())
    for listing in listings(text).values():
        kinds = [i.opcode for i in listing.code]
        assert all(kind in k for k in kinds if k.startswith("HGMMA.64x"))
        stores = [k for k in kinds if re.match(r"STS(?!\.(64|128))", k)]
        assert not stores and any(k.startswith("LDG.E.128") for k in kinds)
        fences = [n for n, k in enumerate(kinds) if k.startswith("FENCE.VIEW.ASYNC")]
        first = next(n for n, k in enumerate(kinds) if k.startswith("HGMMA"))
        assert fences and any(k.startswith("BAR") for k in kinds[fences[-1] : first])
