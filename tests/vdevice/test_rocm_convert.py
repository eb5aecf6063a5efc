"""CUDA kernels converted to HIP: they run as rTasks, and what has no counterpart is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from simt_plans import SIZE, agree, chain, mirror, placed
from test_rocm_build import in_hip

from rammer.__main__ import main
from rammer.errors import LoweringError
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.vdevice.rocm.build import compile_code_object
from rammer.vdevice.rocm.convert import convert
from rammer.vdevice.rocm.prelude import hip
from rammer.vdevice.simt.emulator.runtime import EmulatorExecutable
from rammer.vdevice.simt.image import make_image, make_program

GRAPH = chain(2)
MIRROR = """\
#define LAST 63
/* o[i] = a[i] + 2 a[63 - i],
   through shared memory */
static __device__ float twice(float x) { return 2 * x; }
extern "C" __global__ void __launch_bounds__(64)
mirror(float *__restrict__ o, const float *__restrict__ a) {
  __shared__ float s[64];
  __shared__ double wide[2][3];
  int i = blockIdx.x * blockDim.x + threadIdx.x;  // asm is only a word here
  s[threadIdx.x] = __ldg(a + i);
  wide[1][2] = 0;
  __syncthreads();
  if (i <= LAST) { o[i] = s[threadIdx.x] + twice(s[LAST - threadIdx.x]); }
  __syncthreads();
}
"""


def test_a_converted_kernel_is_an_rtask() -> None:
    """In a vEU with four times as many threads; on the host, and as machine code."""
    made = convert(MIRROR, 64)
    assert (made.symbol, made.num_threads, made.scratch_bytes, made.num_block_syncs) == ("mirror", 64, 256 + 64, 2)
    assert "__restrict__" not in made.text and "tid" in made.text
    digits = mirror(GRAPH).body.digits
    source = ForeignSource(
        "hip", made.symbol, made.text, digits, made.num_threads, made.scratch_bytes, made.num_block_syncs
    )
    kernel = RKernel("imported", GRAPH.operators[0].operation, source)
    plan = placed(GRAPH, [kernel, in_hip(mirror(GRAPH, 256))], [[0, 1], []])
    program = make_program(plan, hip(64))
    executable = EmulatorExecutable(make_image(plan, program, {}), poison=True)
    for executable.seed in range(3):
        assert agree(GRAPH, executable, executable.seed)
    assert compile_code_object(program.text, "gfx90a").resources.spilled_vgprs == 0
    assert SIZE == 64


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('asm volatile("membar.gl;");', "'asm' cannot be converted: inline assembly"),
        ("float x = __shfl_xor_sync(~0u, 1.0f, 1);", "'__shfl_xor_sync' cannot be converted: it counts on waves"),
        ("atomicAdd(o, 1.0f);", "rTasks share nothing"),
        ("int i = threadIdx.y;", "'threadIdx.y' cannot be converted"),
        ("other<<<1, 1>>>(o);", "a kernel cannot launch others"),
        ("extern __shared__ float big[];", "scratch must have a size"),
        ("__shared__ float s[N];", "'__shared__ float s\\[N\\]' cannot be converted"),
        ("if (threadIdx.x > 3) return; __syncthreads();", "'return' cannot be converted: threads that leave"),
        ("cudaMalloc(0, 1);", "'cudaMalloc' cannot be converted"),
        ("for (;;) {", "'{' cannot be converted: it is never closed"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_its_line(line: str, text: str) -> None:
    with pytest.raises(LoweringError, match=f"line {3 if 'closed' not in text else 2}: .*{text}"):
        convert(f"// first\n__global__ void k(float *o) {{\n  {line}\n}}\n", 64)


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("__global__ void k(float *o, int n) {}", "line 1: 'int n' cannot be converted: parameters are tensors"),
        ("__global__ void k(const float *a, float *o) {}", "outputs come before inputs"),
        ("#include <cuda_fp16.h>\n__global__ void k(float *o) {}", "line 1: '#include'"),
        ("void k(float *o) {}", "the file has 0 kernels"),
    ],
)
def test_heads_that_are_refused(head: str, text: str) -> None:
    with pytest.raises(LoweringError, match=text):
        convert(head, 64)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("__syncthreads(); __syncthreads();", 2),
        ("", 0),
        ("for (int n = 0; n < 3; n++) { __syncthreads(); }", None),
        ("for (int n = 0; n < 3; n++) __syncthreads();", None),
        ("if (threadIdx.x) __syncthreads();", None),
    ],
)
def test_syncs_are_counted_where_that_is_sure(body: str, count: int | None) -> None:
    assert convert(f"__global__ void k(float *o) {{ {body} }}", 64).num_block_syncs == count


def test_the_command(tmp_path: Path) -> None:
    source, target = tmp_path / "k.cu", tmp_path / "k.hip"
    source.write_text(MIRROR)
    done = CliRunner().invoke(main, ["convert", str(source), "-o", str(target), "--threads", "64"])
    assert done.exit_code == 0, done.output
    assert "mirror: 64 threads, 320 bytes of scratch, 2 block syncs" in done.output
    assert target.read_text() == convert(MIRROR, 64).text
    source.write_text(MIRROR.replace("__syncthreads", "__syncwarp"))
    failed = CliRunner().invoke(main, ["convert", str(source), "-o", str(target)])
    assert failed.exit_code == 1
    missing = CliRunner().invoke(main, ["convert", str(tmp_path / "no.cu"), "-o", str(target)])
    assert missing.exit_code != 0
