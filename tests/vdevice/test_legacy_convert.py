"""Legacy CUDA kernels as text: what is converted, what is refused, and on which line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from legacy_kernels import MATMUL, REVERSE, SOFTMAX, TANH, matmul_data
from rammer_legacy_kernels.convert import Launch, convert
from rammer_legacy_kernels.source import read_source

from rammer.cli.commands import main
from rammer.errors import LoweringError

ONE = Launch((4, 1, 1), (64, 1, 1))
SIZES = ("input0", "input1", "output0", 40, 24, 50)


def body(text: str, head: str = "float *o, const float *a") -> str:
    return f"// first\n__global__ void k({head}) {{\n{text}\n}}\n"


def test_indices_are_computed_from_rtask_and_thread() -> None:
    made = convert(MATMUL, Launch((2, 3, 1), (16, 16, 1), 0, SIZES), "cuda")
    assert "mk_blockIdx = {mk_rtask % 2, mk_rtask / 2 % 3, mk_rtask / 6}" in made.text
    assert "mk_threadIdx = {mk_tid % 16, mk_tid / 16 % 16, mk_tid / 256}" in made.text
    assert made.num_threads == 256 and made.own_syncs and "mk_sync_part(256)" in made.text
    assert made.scratch_bytes == 1088 + 1024, "each array at a multiple of 64 bytes"
    assert "int K = 50;" in made.text and "MK_TENSOR(float *, args, 0)" in made.text, "outputs come first"
    for word in ("__syncthreads", "__global__", "threadIdx.x ", " TILE", "__ldg", "include"):
        assert word not in made.text.replace("mk_threadIdx", "")


def test_the_same_converter_makes_hip() -> None:
    made = convert(MATMUL, Launch((2, 3, 1), (16, 16, 1), 0, SIZES), "hip", wave=64, syncs=8)
    assert "mk_sync();" in made.text and "__restrict__" not in made.text
    assert (made.num_threads, made.num_block_syncs, made.own_syncs) == (256, 8, False)


@pytest.mark.parametrize(("language", "wave", "whole"), [("cuda", 32, 64), ("hip", 64, 64), ("hip", 32, 64)])
def test_threads_that_are_no_whole_waves_get_company(language: str, wave: int, whole: int) -> None:
    launch = Launch((40, 1, 1), (40, 1, 1), 160, ("input0", "output0", 24))
    made = convert(SOFTMAX, launch, language, wave=wave, syncs=4)
    assert made.num_threads == whole and "n < 4" in made.text
    assert made.scratch_bytes == 64 + 160, "the dynamic array lies behind the static ones"
    flat = convert(TANH, Launch((4, 2, 2), (5, 3, 1)), language, wave=wave)
    assert (flat.num_threads, flat.num_block_syncs) == (15, 0), "without syncs the others just skip it"


def test_unknown_syncs_need_whole_waves_or_verification() -> None:
    launch = Launch((40, 1, 1), (40, 1, 1), 160, ("input0", "output0", 24))
    assert convert(REVERSE, Launch((3, 1, 1), (3, 7, 1)), "cuda").num_block_syncs == 1
    assert convert(SOFTMAX, launch, "cuda").num_block_syncs == 4, "none of them is in a loop"
    looped = body("for (int i = 0; i < 3; i++) { __syncthreads(); }")
    assert convert(looped, ONE, "cuda").num_block_syncs is None
    with pytest.raises(LoweringError, match=r"40 threads are no whole waves of 32.*\n.*verify the record"):
        convert(looped, Launch((1, 1, 1), (40, 1, 1)), "cuda")


def test_two_files_do_not_meet() -> None:
    first = convert(MATMUL, Launch((2, 3, 1), (16, 16, 1), 0, SIZES), "cuda")
    second = convert(MATMUL.replace("TILE 16", "TILE 8"), Launch((3, 5, 1), (8, 8, 1), 0, SIZES), "cuda")
    defined = [{w for w in m.text.split() if w.startswith("imported_")} for m in (first, second)]
    assert defined[0] and not defined[0] & defined[1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('asm volatile("membar.gl;");', "'asm' .*inline assembly"),
        ("float x = __shfl_xor_sync(~0u, 1.0f, 1);", "'__shfl_xor_sync' .*waves of 32"),
        ("if (__any_sync(~0u, 1)) o[0] = 1;", "'__any_sync' .*waves of 32"),
        ("int w = warpSize;", "'warpSize' .*64 threads on some"),
        ("atomicAdd(o, 1.0f);", "'atomicAdd' .*the order of atomics"),
        ("__threadfence();", "'__threadfence' .*must not talk to each other"),
        ("cooperative_groups::this_grid().sync();", "'cooperative_groups' .*no sync of a whole grid"),
        ("other<<<1, 1>>>(o);", "'<<<' .*cannot launch others"),
        ("cudaDeviceSynchronize();", "'cudaDeviceSynchronize' .*no kernels that launch others"),
        ("__shared__ float s[n];", "'__shared__ float s\\[n\\]' .*made of numbers"),
        ("if (o) { __shared__ float s[4]; }", "the kernel's own level"),
        ("static int calls = 0;", "'static' .*remembers nothing"),
        ("extern float other[];", "'extern' .*global of the device"),
        ("volatile float *p = o;", "'volatile' .*lock step"),
        ('printf("%d", 1);', "'printf'"),
        ("float4 v = make_float4(0, 0, 0, 0);", "'float4' .*use elements"),
        ("system(0);", "'system' .*no function of this file"),
        ("__builtin_trap();", "'__builtin_trap'"),
        ("auto f = [](int x) { return x; };", "called by name"),
        ("goto end;", "'goto'"),
        ("asm_(1);", "'asm_' .*no function"),
        ("o[0] = half(1);", "'half' .*f16"),
        ("int i = threadIdx.w;", "'threadIdx' .*only its x, y and z"),
        ("dim3 b = blockIdx;", "'dim3'"),
        ("mk_sync();", "'mk_sync' .*rammer's"),
        ("o[0] = a[0]", "'\\]' .*no ';' behind it"),
        ("if (o) else o[0] = 1;", "'else' .*no if"),
        ("int é = 1;", "'é' .*no character"),
        ("int %: = 1;", "'%:'"),
        ('o[0] = "text"[0];', "no text in a kernel"),
        ("#if 1", "'#if' .*only directive"),
        ("#define SYNC __syncthreads()", "may only be an expression"),
        ("#define A(x) x##y", "'##' .*pasted names"),
        ("for (;;) {", "'{' .*never closed"),
    ],
)
def test_what_has_no_counterpart_is_refused_with_its_line(line: str, text: str) -> None:
    where = 2 if "closed" in text else 3
    with pytest.raises(LoweringError, match=f"line {where}: (.|\n)*({text})"):
        read_source(body(line))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__constant__ float c[4];\n__global__ void k(float *o) {}", "line 1: '__constant__'"),
        ("__device__ int calls;\n__global__ void k(float *o) {}", "line 1: '__device__ int calls' .*global"),
        ("float f(float);\n__global__ void k(float *o) {}", "line 1: .*without a body"),
        ("int main() { return 0; }\n__global__ void k(float *o) {}", "line 1: .*function of the host"),
        ("template <int N> __global__ void k(float *o) {}", "line 1: 'template'"),
        ('#include "mine.h"\n__global__ void k(float *o) {}', "line 1: '#include mine.h'"),
        ("#include <cuda_fp16.h>\n__global__ void k(float *o) {}", "line 1: '#include cuda_fp16.h'"),
        ("__device__ void f() { __syncthreads(); }\n__global__ void k(float *o) {}", "line 1: '__syncthreads'"),
        ("__device__ int f() { return threadIdx.x; }\n__global__ void k(float *o) {}", "line 1: 'threadIdx'"),
        ("__device__ void f(int &n) {}\n__global__ void k(float *o) {}", "line 1: .*values and pointers"),
        ("void k(float *o) {}", "the file has 0 kernels"),
        ("__global__ void k(float *o) {}\n__global__ void l(float *o) {}", "the file has 2 kernels"),
        ("__global__ int k(float *o) {}", "line 1: .*a kernel is"),
        ("__global__ void k(float **o) {}", "line 1: .*a pointer to elements"),
        ("__global__ void k(void *o) {}", "line 1: .*tensors have elements of"),
        ("__global__ void k(struct S s) {}", "line 1: 'struct'"),
    ],
)
def test_files_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(LoweringError, match=message):
        read_source(text)


UNIFORM = [
    "int x = threadIdx.x; for (int i = 0; i < blockDim.x; i++) { o[x] = a[i]; __syncthreads(); }",
    "__syncthreads();",
    "for (int i = 0; i < 4; i++) { o[i] = a[i]; __syncthreads(); }",
    "for (int s = blockDim.x / 2; s > 0; s >>= 1) { if (threadIdx.x < s) o[threadIdx.x] = 1; __syncthreads(); }",
    "int n = 3; while (n > 0) { __syncthreads(); n--; }",
    "int n = gridDim.x; do { __syncthreads(); } while (--n);",
    "if (blockIdx.x == 0) { __syncthreads(); }",
    "int t = 0, m = 8 / 2; float x = a[t]; for (; t < m; t++) { x += a[t]; __syncthreads(); } o[0] = x;",
    "for (int t = 0; t < 4; t++) { const float *p = a + t * 4; o[t] = p[0]; __syncthreads(); }",
    "for (int t = 0; t < 4; t++) { __syncthreads(); if (t == 2) break; }",
    "__syncthreads(); if (threadIdx.x > 3) return; o[threadIdx.x] = 1;",
]
DIVERGENT = [
    "if (threadIdx.x < 4) __syncthreads();",
    "if (threadIdx.x < 4) return; __syncthreads();",
    "if (o) { } else if (a[0] > 0) { __syncthreads(); }",
    "for (int i = threadIdx.x; i < 64; i += 64) { __syncthreads(); }",
    "int n = a[0]; for (int i = 0; i < n; i++) __syncthreads();",
    "int n = 1; if (a[0] > 0) n = 2; for (int i = 0; i < n; i++) __syncthreads();",
    "int n = 1, m = 0; (n) += (int)a[0]; m = n; while (m--) { __syncthreads(); }",
    "int n = 1; int *p = &n; *p = (int)a[0]; if (n) { __syncthreads(); }",
    "int n = 1; int &r = n; r = (int)a[0]; if (n) { __syncthreads(); }",
    "int n[2] = {0, 1}; int *q = n; q[1] = (int)a[0]; if (n[1]) { __syncthreads(); }",
    "for (int i = 0; i < 4; i++) { if (a[i] > 0) break; __syncthreads(); }",
    "for (int i = 0; i < 4; i++) { __syncthreads(); if (a[i] > 0) continue; o[i] = 1; __syncthreads(); }",
    "for (int i = 0; i < 4; i++) { __syncthreads(); if (a[i] > 0) return; }",
    "switch (blockIdx.x) { case 0: __syncthreads(); break; default: break; }",
    "int k = 0; while (a[k] > 0) { k++; } for (int i = 0; i < k; i++) { __syncthreads(); }",
    "int k = 0; for (int i = 0; i < 9; i++) { if (a[i] > 0) break; k++; } if (k) { __syncthreads(); }",
    "int x = (__syncthreads(), 1);",
]


@pytest.mark.parametrize("text", UNIFORM)
def test_syncs_that_all_threads_meet(text: str) -> None:
    assert read_source(body(text)).has_syncs


@pytest.mark.parametrize("text", DIVERGENT)
def test_syncs_that_a_thread_may_miss_are_refused(text: str) -> None:
    with pytest.raises(LoweringError, match=r"line 3: '(__syncthreads|return)' cannot be converted"):
        read_source(body(text))


def test_macros_do_not_hide_the_thread() -> None:
    text = f"#define ME threadIdx.x\n#define FIRST (ME == 0)\n{body('if (FIRST) __syncthreads();')}"
    with pytest.raises(LoweringError, match="line 5: '__syncthreads'"):
        read_source(text)


def test_arguments_are_checked() -> None:
    text = body("o[0] = n;", "float *o, const float *a, int n")
    for arguments, message in (
        ((), "'int n' cannot be converted: its value is not known"),
        (("output0", "input0"), "3 parameters; 2 arguments"),
        (("output0", "input0", "input1"), "line 2: parameter 'n' cannot be 'input1'"),
        (("output0", 4, 4), "line 2: parameter 'a' cannot be 4"),
        (("input0", "output0", 4), "line 2: parameter 'a' is const"),
        (("output0", "input0", 0.5), "line 2: parameter 'n' is int"),
    ):
        with pytest.raises(LoweringError, match=message):
            convert(text, Launch((1, 1, 1), (32, 1, 1), 0, arguments), "cuda")
    with pytest.raises(LoweringError, match="2048 threads"):
        convert(body(""), Launch((1, 1, 1), (2048, 1, 1)), "cuda")
    with pytest.raises(LoweringError, match="__launch_bounds__ says 64"):
        convert("__global__ void __launch_bounds__(64) k(float *o) {}", Launch((1, 1, 1), (96, 1, 1)), "cuda")
    with pytest.raises(LoweringError, match="dynamic shared memory of unknown size"):
        convert(body("extern __shared__ float s[];"), ONE, "cuda")


def test_the_command(tmp_path: Path) -> None:
    source, record = tmp_path / "k.cu", tmp_path / "k.json"
    source.write_text(REVERSE)

    def run(*arguments: object) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["convert", *map(str, arguments)])
        return done.exit_code, " ".join(done.output.split())

    code, said = run(source, "-o", tmp_path / "k.hip", "--block", "3x7", "--grid", "3")
    assert code == 0 and "32 threads, 128 bytes of scratch, 1 block syncs" in said, said
    assert (tmp_path / "k.hip").read_text() == convert(REVERSE, Launch((3, 1, 1), (3, 7, 1)), "hip").text
    source.write_text(REVERSE.replace("__syncthreads", "__syncwarp"))
    assert run(source, "-o", tmp_path / "k.hip", "--block", "3x7")[0] == 1
    assert run(tmp_path / "no.cu", "-o", tmp_path / "k.hip")[0] != 0
    assert run(source, "-o", tmp_path / "k.hip", "--block", "3x0")[0] == 2
    record.write_text(json.dumps(matmul_data()))
    code, said = run(record, "-o", tmp_path / "out.json")
    assert code == 0 and "matmul16: key" in said, said
    again = json.loads((tmp_path / "out.json").read_text())
    assert again["grid"] == [2, 3, 1] and again["operator"][0]["inputs"] == ["input0", "input1"]
    data = matmul_data()
    (tmp_path / "beside.cu").write_text(data.pop("source"))
    record.write_text(json.dumps({**data, "file": "beside.cu"}))
    before = (tmp_path / "beside.cu").read_text()
    for source, output in ((record, "beside.cu"), (record, "k.json"), (tmp_path / "beside.cu", "beside.cu")):
        code, said = run(source, "-o", tmp_path / output)
        assert code == 1 and "it is being read as the input" in said, said
    assert (tmp_path / "beside.cu").read_text() == before
    code, said = run(tmp_path / "out.json", "-o", tmp_path / "out.cu")
    assert code == 0 and "256 threads" in said, said
