"""Kernels of many threads at full size under NVRTC: they compile for old and new GPUs, and registers do not spill."""

from __future__ import annotations

import re

import pytest
import stages
from attentions import Attention
from kernel_harness import operation
from simt_harness import GPU

from rammer.ir.operator import Operation
from rammer.ir.tensor import DType, TensorType
from rammer.kernels import candidates
from rammer.vdevice.simt.codegen.prelude import CUDA, prelude
from rammer.vdevice.simt.codegen.printer import emit

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and NVRTC are not installed")
RESOURCES = re.compile(  # entry, stack, spill stores, spill loads, registers
    r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


def t(*shape: int) -> TensorType:
    return TensorType(shape, DType.F32)


def operations() -> dict[str, Operation]:
    conv = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    pool = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    constant = ("w", "bias")
    return {
        "matmul": operation("matmul", t(512, 512), t(512, 512), static=("b",)),
        "matmul-batch": operation("matmul", t(12, 128, 64), t(12, 64, 128)),
        "matmul-vector": operation("matmul", t(1, 4096), t(4096, 1000), static=("b",)),
        "conv-3x3": operation("conv", t(1, 64, 56, 56), t(64, 64, 3, 3), t(64), static=constant, **conv),
        "conv-1x1": operation("conv", t(1, 256, 28, 28), t(64, 256, 1, 1), t(64), static=constant),
        "conv-7x7": operation(
            "conv", t(1, 3, 224, 224), t(64, 3, 7, 7), static=("w",), strides=(2, 2), pads=(3, 3, 3, 3)
        ),
        "conv-grouped": operation("conv", t(1, 256, 32, 32), t(256, 16, 3, 3), static=("w",), group=16, **conv),
        "conv-depthwise": operation("conv", t(1, 96, 42, 42), t(96, 1, 5, 5), static=("w",), group=96, pads=(2,) * 4),
        "lstm_cell": operation("lstm_cell", t(1, 4, 256), t(1, 256), t(1, 256), t(4, 256, 256), static=("r",)),
        "gru_cell": operation("gru_cell", t(1, 3, 256), t(1, 256), t(3, 256, 256), static=("r",)),
        "softmax": operation("softmax", t(128, 1000), axis=1),
        "layer_norm": operation("layer_norm", t(128, 768), t(768), t(768), axis=1),
        "add": operation("add", t(64, 56, 56), t(64, 56, 56)),
        "tanh": operation("tanh", t(64, 1024)),
        "transpose": operation("transpose", t(64, 56, 56), perm=(1, 2, 0)),
        "max_pool": operation("max_pool", t(1, 64, 112, 112), **pool),
        "attention": next(op for op in stages.operations(Attention(1, 3, 97, 80, 64, 64).graph(), GPU)),
        "average_pool": operation("average_pool", t(1, 2048, 7, 7), kernel=(7, 7)),
    }


def compile_log(text: str, arch: str) -> str:
    """What ptxas says of a text; the cubin is thrown away."""
    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"k.cu", 0, [], [])
    options = [f"-arch={arch}".encode(), b"-std=c++17", b"--ptxas-options=-v", b"-default-device"]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(program)
    assert result == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()[:4000]
    return log.decode()


def sources(names: dict[str, str]) -> str:
    """One __global__ function per candidate; `names` gets the kernel's name of each."""
    text = prelude(CUDA) + "#define MK_TASK static __device__ __forceinline__\n"
    for name, op in operations().items():
        for n, kernel in enumerate(candidates(op, GPU)):
            e = emit(kernel, CUDA, kernel.num_threads)
            entry = f"entry_{name.replace('-', '_')}_{n}"
            names[entry] = kernel.name
            text += e.text + (
                f'extern "C" __global__ __launch_bounds__({kernel.num_threads}, 1) void {entry}'
                f"(void *const *args, int rtask, int *status) "
                f"{{ {e.symbol}(args, mk_arena, rtask, threadIdx.x, status); }}\n"
            )
    return text


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_no_spills(arch: str) -> None:
    names: dict[str, str] = {}
    found = RESOURCES.findall(compile_log(sources(names), arch))
    assert {entry for entry, *_ in found} == set(names)
    assert not [(names[entry], spills) for entry, *spills, _ in found if any(int(b) for b in spills)]
