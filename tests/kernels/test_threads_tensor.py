"""Products on matrix units: fragments on host fibers against the expression, instructions by NVRTC."""

from __future__ import annotations

import random
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from kernel_harness import compare, operation, random_inputs
from simt_harness import GPU, SimtRunner, build
from test_every_operator import CASES

from rammer.cost.estimate import estimated_us
from rammer.errors import LoweringError
from rammer.ir.device import VDeviceSpec
from rammer.ir.instruction import Instruction, multiply
from rammer.ir.kernel import RKernel
from rammer.ir.operator import Operation
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, Digit, DType, Layout, TensorType
from rammer.ir.tile import Apply, TileProgram, statements
from rammer.kernels import candidates
from rammer.kernels.problem import KernelProblem
from rammer.kernels.schedule import Schedule
from rammer.vdevice.rocm.matrix_cores import MATRIX_CORES
from rammer.vdevice.simt.codegen.mma import LATER, SM_80_FP32
from rammer.vdevice.simt.codegen.prelude import CUDA, prelude
from rammer.vdevice.simt.codegen.printer import emit


def t(*shape: int) -> TensorType:
    return TensorType(shape, DType.F32)


def operations() -> dict[str, Operation]:
    """Whole tiles and overhanging ones, long sums and the shortest, both operands along memory and across it."""
    conv = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    return {
        "matmul": operation("matmul", t(64, 96), t(96, 128), static=("b",)),
        "matmul-transposed": operation("matmul", t(48, 72), t(132, 48), trans_a=True, trans_b=True),
        "matmul-deep": operation("matmul", t(64, 480), t(480, 96), static=("b",)),
        "matmul-odd": operation("matmul", t(3, 37, 16), t(3, 16, 45)),
        "conv": operation("conv", t(2, 16, 9, 16), t(40, 16, 3, 3), t(40), static=("w", "bias"), **conv),
        "conv-1x1": operation("conv", t(1, 48, 5, 7), t(36, 48, 1, 1), static=("w",)),
        "conv-grouped": operation("conv", t(1, 64, 6, 8), t(64, 16, 3, 3), static=("w",), group=4, **conv),
        "conv-strided": operation("conv", t(1, 16, 19, 22), t(20, 16, 3, 3), strides=(2, 2), pads=(1, 0, 1, 2)),
    }


OPERATIONS = operations()


UNITS = {
    "tf32": replace(GPU, num_veus=5, precision="tf32"),
    "bf16": replace(GPU, num_veus=5, precision="bf16"),
    "tf32x3": replace(GPU, num_veus=5, instructions=(SM_80_FP32, LATER)),
    "mfma-fp32": replace(GPU, num_veus=5, subgroup_size=64, instructions=MATRIX_CORES["gfx90a"]),
    "wmma-bf16": replace(GPU, num_veus=5, instructions=MATRIX_CORES["gfx1201"], precision="bf16"),
    "mfma-bf16": replace(GPU, num_veus=5, subgroup_size=64, instructions=MATRIX_CORES["gfx90a"], precision="bf16"),
}


def on_unit(op: Operation, spec: VDeviceSpec) -> list[RKernel]:
    found = candidates(op, spec)
    return [k for k in found if isinstance(k.body, TileProgram) and multiplies(k.body)]


@pytest.mark.parametrize("unit", ["tf32", "bf16", "tf32x3"])
def test_long_sums_are_software_pipelines(unit: str) -> None:
    assert any(k.pipeline_depth for k in on_unit(OPERATIONS["matmul-deep"], UNITS[unit]))


def multiplies(program: TileProgram) -> bool:
    """Whether it has an instruction for products."""
    return any(isinstance(s, Apply) and s.instruction.multiplies for s in statements(program.body))


def rounded(x: Array, precision: str) -> Array:
    """What the unit makes of its operands."""
    if precision == "fp32":
        return x
    if precision == "bf16":
        return x.astype(ml_dtypes.bfloat16).astype(np.float32)
    return ((x.view(np.uint32) + 0x1000) & ~np.uint32(0x1FFF)).view(np.float32)


@pytest.fixture(scope="module", params=UNITS)
def built(request: pytest.FixtureRequest):
    spec = UNITS[request.param]
    return spec.precision, build({name: (op, on_unit(op, spec)) for name, op in OPERATIONS.items()})


@pytest.mark.parametrize("name", OPERATIONS)
def test_fragments_multiply(built, name: str) -> None:
    """With operands that the unit does not round the result is that of float32; with others it is rounded theirs."""
    precision, library = built
    op, kernels = library.kernels[name]
    assert kernels, f"no kernel of {name} uses matrix units"
    plain = random_inputs(op)
    exact = {n: rounded(a, precision) for n, a in plain.items()}
    products = {n for n, kind in op.expr.inputs if n != "bias"}
    half = {n: rounded(a, precision) if n in products else a for n, a in plain.items()}
    for kernel, symbol in kernels:
        for given, meant in ((exact, exact), (plain, half)):
            runner = SimtRunner(kernel, library.library, symbol, given)
            for got, want in zip(runner.run(), evaluate_expr(op.expr, meant), strict=True):
                compare(got, want, 2e-5, kernel.name)


def test_parts_are_as_exact_as_float32() -> None:
    """Over 24 orders of magnitude, relative to the sum of sizes: no worse than sums of float32; tf32 is far worse."""
    op, random = OPERATIONS["matmul"], np.random.default_rng(0)
    found = {}
    inputs = {
        name: (random.standard_normal(kind.shape) * 10.0 ** random.uniform(-12, 12, kind.shape)).astype(np.float32)
        for name, kind in op.expr.inputs
    }
    a, b = (x.astype(np.float64) for x in inputs.values())
    for unit in ("tf32x3", "tf32"):
        library = build({unit: (op, on_unit(op, UNITS[unit])[:1])})
        (kernel, symbol) = library.kernels[unit][1][0]
        (got,) = SimtRunner(kernel, library.library, symbol, inputs).run()
        found[unit] = float((np.abs(got - a @ b) / (np.abs(a) @ np.abs(b))).max())
    plain = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        plain += inputs["a"][:, k : k + 1] * inputs["b"][k]
    own = float((np.abs(plain - a @ b) / (np.abs(a) @ np.abs(b))).max())
    assert found["tf32x3"] < 2 * own < 1e-6 and found["tf32"] > 100 * found["tf32x3"]


def drawn(seed: int) -> dict[str, Operation]:
    """Products whose sums fill the unit's depth, of any other shape."""
    draw = random.Random(seed)
    found = {}
    for n in range(6):
        rows, terms, columns = draw.choice([17, 40, 64]), 16 * draw.randint(1, 4), draw.choice([9, 33, 72])
        found[f"matmul-{n}"] = operation("matmul", t(rows, terms), t(terms, columns), static=("b",))
        groups, inside, outside = draw.choice([1, 2, 3]), draw.choice([16, 32]), draw.choice([7, 16, 20])
        kernel, stride = draw.choice([1, 2, 3]), draw.choice([1, 2])
        found[f"conv-{n}"] = operation(
            "conv",
            t(draw.choice([1, 2]), inside * groups, draw.randint(5, 12), draw.randint(5, 12)),
            t(outside * groups, inside, kernel, kernel),
            static=("w",),
            strides=(stride, stride),
            pads=(draw.randint(0, 1),) * 2 + (draw.randint(0, 1),) * 2,
            group=groups,
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_drawn_shapes(unit: str) -> None:
    precision = UNITS[unit].precision
    cases = {name: (op, on_unit(op, UNITS[unit])) for name, op in drawn(7).items()}
    library = build({n: (op, ks) for n, (op, ks) in cases.items() if ks})
    assert len(library.kernels) > 6
    for op, kernels in library.kernels.values():
        given = {n: rounded(a, precision) for n, a in random_inputs(op).items()}
        for kernel, symbol in kernels:
            for got, want in zip(
                SimtRunner(kernel, library.library, symbol, given).run(), evaluate_expr(op.expr, given), strict=True
            ):
                compare(got, want, 2e-5, f"{kernel.name} {op.expr.inputs}")


def test_float32_stays_exact_unless_asked() -> None:
    for op in OPERATIONS.values():
        assert not on_unit(op, GPU)


SOUND = operation("conv", t(1, 1, 1, 4000), t(64, 1, 1, 16), static=("w",), strides=(1, 8))


@pytest.mark.parametrize("name", ["matmul-half", "lstm_cell", "softmax", "conv-depthwise", "sound"])
def test_what_does_not_fit_the_unit_is_computed_as_before(name: str) -> None:
    """Other types, sums that do not fill the unit's depth, few rows, windows whose terms are neighbours' points."""
    op = {**CASES, "sound": SOUND}.get(name) or operation("matmul", t(64, 52), t(52, 64))
    names = [k.name for k in candidates(op, UNITS["tf32"])]
    assert names == [k.name for k in candidates(op, replace(UNITS["tf32"], precision="fp32"))]


def mismatched() -> Instruction:
    """As a GPU's, but columns count their terms by other digits than rows."""
    sums = Layout((Digit(0, 1, 8), Digit(1, 2), Digit(0, 8), Digit(1, 1, 2)))
    rows = Layout((Digit(0, 1, 8), Digit(1, 1, 4), Digit(1, 4), Digit(0, 8)))
    columns = Layout((Digit(1), Digit(0, 2, 4), Digit(0, 1, 2)))
    return multiply("odd", (16, 8, 8), (sums, rows, columns), threads=32, accumulates=True, precision="tf32", gain=4.0)


@pytest.mark.parametrize(
    ("other", "needs"),
    [(mismatched(), "steps of 2 along"), (MATRIX_CORES["gfx90a"][0], r"steps of \[")],
)
def test_loops_that_do_not_fit_an_instruction_are_named(other: Instruction, needs: str) -> None:
    op, spec = OPERATIONS["matmul"], UNITS["tf32"]
    seen: list[tuple[KernelProblem, Schedule]] = []

    def noted(problem: KernelProblem, schedule: Schedule) -> RKernel:
        seen.append((problem, schedule))
        return kernel_of(problem, schedule)

    kernel_of = KernelProblem.kernel
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelProblem, "kernel", noted)
        candidates(op, spec)
    problem, schedule = next((p, s) for p, s in seen if s.instruction)
    with pytest.raises(LoweringError, match=f"{other.name} needs {needs}"):
        problem.kernel(replace(schedule, instruction=other))


def test_an_instruction_whose_operands_do_not_fit_each_other_is_left_out() -> None:
    spec = replace(UNITS["tf32"], instructions=(mismatched(),))
    names = [k.name for k in candidates(OPERATIONS["matmul"], spec)]
    assert names == [k.name for k in candidates(OPERATIONS["matmul"], replace(spec, instructions=()))]


def test_the_model_of_time_prefers_matrix_units() -> None:
    op = operation("matmul", t(512, 512), t(512, 512), static=("b",))
    gpu = replace(GPU, precision="tf32")
    us = {k.name: k.num_rtasks * estimated_us(k, gpu) for k in candidates(op, gpu)}
    assert "_tf32_" in min(us, key=us.__getitem__)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("arch", [pytest.param("sm_80", marks=SLOW), "sm_90", pytest.param("sm_120", marks=SLOW)])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_machine_code_has_matrix_instructions(arch: str, precision: str) -> None:
    """Compiled for real GPUs: nothing spills, and every kernel's PTX multiplies on the unit."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and NVRTC are not installed")
    from test_threads_nvrtc import RESOURCES

    text = prelude(CUDA) + "#define MK_TASK static __device__ __forceinline__\n"
    large = operation("conv", t(1, 64, 28, 28), t(64, 64, 3, 3), t(64), static=("w", "bias"), pads=(1, 1, 1, 1))
    entries = 0
    for op in (operation("matmul", t(512, 512), t(512, 512), static=("b",)), large):
        for kernel in candidates(op, replace(GPU, precision=precision)):
            if f"_{precision}_" in kernel.name:
                e = emit(kernel, CUDA, kernel.num_threads)
                text += e.text + (
                    f'extern "C" __global__ __launch_bounds__({kernel.num_threads}, 1) void entry_{entries}'
                    "(void *const *args, int rtask, int *status) "
                    f"{{ {e.symbol}(args, mk_arena, rtask, threadIdx.x, status); }}\n"
                )
                entries += 1
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"k.cu", 0, [], [])
    options = [f"-arch={arch}".encode(), b"-std=c++17", b"--ptxas-options=-v", b"-default-device"]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()[:4000]
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program, ptx)
    nvrtc.nvrtcDestroyProgram(program)
    found = RESOURCES.findall(log.decode())
    assert len(found) == entries >= 4
    assert not [f for f in found if int(f[2]) or int(f[3])], "registers spill"
    shape = "m16n8k8.row.col.f32.tf32" if precision == "tf32" else "m16n8k16.row.col.f32.bf16"
    bodies = ptx.decode().split(".visible .entry")[1:]
    assert all(f"mma.sync.aligned.{shape}" in body for body in bodies)
