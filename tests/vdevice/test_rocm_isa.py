"""The machine's own words: what AMD's instructions do around every publication and every wait, and own mathematics."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from math import erf
from unittest.mock import patch

import numpy as np
import pytest
from simt_plans import chain, mirror, placed
from test_rocm_build import in_hip
from test_simt_polls import FAR, NEAR

import rammer
from rammer.ir.operator import Operations
from rammer.ir.ops import OPS
from rammer.ir.tensor import Array, TensorType
from rammer.ir.tile import Apply, TileProgram, statements
from rammer.kernels import candidates
from rammer.vdevice.rocm.build import hip_compiler
from rammer.vdevice.rocm.prelude import MATH, hip
from rammer.vdevice.rocm.spec import FAMILIES, choose_gpu, make_spec
from rammer.vdevice.simt.codegen import megakernel
from rammer.vdevice.simt.codegen.image import make_program
from rammer.vdevice.simt.codegen.megakernel import COMMON, program_text, task_call
from rammer.vdevice.simt.codegen.prelude import prelude
from rammer.vdevice.simt.codegen.printer import emit
from rammer.vdevice.simt.runtime.streams import SOURCE
from rammer.vdevice.toolchain import c_compiler
from rammer.vdevice.toolchain.library import Library
from rammer_viz.demo import lstm_stack

MEET, MET = r"s_barrier(_signal)?\b", r"s_barrier(_wait)?\b"  # two instructions from gfx12 on
GRAPH = chain(2)
ACROSS = [[0], [[(0, 0)], 1]]
# arch -> what every thread does before the block sync of a publication; after that of a wait
PROTOCOL = {
    "gfx906": (("s_waitcnt vmcnt(0)",), ("buffer_wbinvl1_vol",)),
    "gfx908": (("s_waitcnt vmcnt(0)",), ("buffer_wbinvl1_vol",)),
    "gfx90a": (("s_waitcnt vmcnt(0)",), ("buffer_wbinvl1_vol",)),
    "gfx942": (("buffer_wbl2 sc1", "s_waitcnt vmcnt(0)"), ("buffer_inv sc1",)),
    "gfx1100": (("s_waitcnt_vscnt null, 0x0",), ("buffer_gl1_inv", "buffer_gl0_inv")),
    "gfx1201": (("s_wait_storecnt 0x0",), ("global_inv scope:SCOPE_DEV",)),
}


REVERSE = """
static __device__ void mirror_{threads}(void *const *args, char *scratch, int rtask, int tid, int *status) {{
  float *s = (float *)scratch, *o = (float *)args[0]; const float *a = (const float *)args[1];
  s[tid] = a[tid]; mk_sync();
  o[tid] = s[tid] + 2 * s[{last} - tid]; mk_sync();
}}
"""


# Two vEUs, one branch each: Figure 9 of the paper.
STRAIGHT = """\
MK_TASK void mk_wait_once(Run run, const Wait *waits, int n, int order, int tid,
                    volatile MK_SHARED int *stop) {
  mk_wait(run, 0, waits, n, order, tid, stop);
  mk_sync();
}
#define WAIT(first, n, order) \\
  mk_wait_once(run, waits + first, n, order, tid, stop); if (*stop) goto end; mk_acquire();
#define TASK(order, call) { int status = 0; call if (status) mk_bad_index(run, order); }
#define DONE(step) if (step) mk_release(); mk_sync(); \\
  if (step && tid == 0) mk_store_release(state + $LINE * (1 + veu), run.base + step);

extern "C" __global__ void __launch_bounds__($THREADS, $SHARES)
$ENTRY(const Instr *stream, const int *bounds, const Wait *waits, void *const *args, unsigned *state, int program,
       int span, unsigned long long limit_ns) {
  const int tid = threadIdx.x, veu = blockIdx.x;
  char *arena = MK_ARENA, *scratch = arena + $HEADER;
  volatile MK_SHARED int *stop = (volatile MK_SHARED int *)arena;
  const Run run = {state, mk_load_relaxed(state), program, veu, limit_ns};
  if (tid == 0) *stop = 0;
  mk_sync();
  if (program == 0 && veu == 0) {
    TASK(0, FIRST)
    DONE(1)
  } else if (program == 0 && veu == 1) {
    WAIT(0, 1, 0)
    TASK(1, SECOND)
    DONE(0)
  }
end:
  mk_sync();
  mk_finish(run, span, tid);
}
"""


def instructions(arch: str, *, quiet: bool = False, uncached: bool = False) -> list[str]:
    """A program in which vEU 0 publishes and vEU 1 waits, without a loop, with blocks of several waves.

    Instructions then lie in the order in which they run.
    """
    dialect = replace(hip(FAMILIES[arch].wavefront_size, uncached=uncached), restrict_arguments=quiet)
    plan = placed(GRAPH, [in_hip(mirror(GRAPH, 256))] * 2, ACROSS)
    kernels = [function.emitted for function in make_program(plan, dialect).functions]
    first, second = (task_call(k, f"args + {2 * n}", "0") for n, k in enumerate(kernels * (2 // len(kernels))))
    body = STRAIGHT.replace("FIRST", first).replace("SECOND", second)
    everywhere = {"LOOP": body, "COMMON": COMMON.replace(NEAR, FAR)}  # no list of waits lies in shared memory
    with patch.multiple(megakernel, **everywhere):
        text = program_text(kernels, dialect, 256, 0)
    assembly = hip_compiler().assembly(text, arch)
    body = assembly[assembly.index("\nrammer_run:") : assembly.index(".Lfunc_end0")]
    lines = (re.sub(r"\s+", " ", line.split(";")[0].split("//")[0].strip()) for line in body.splitlines())
    return [line for line in lines if line and not line.startswith(".p2align")]


def index_of(lines: list[str], pattern: str, start: int, step: int) -> int:
    at = start
    while not re.match(pattern, lines[at]):
        at += step
    return at


@pytest.mark.parametrize(("arch", "uncached"), [*((arch, False) for arch in FAMILIES), ("gfx942", True)])
def test_all_waves_finish_their_stores_before_anybody_publishes(arch: str, uncached: bool) -> None:
    """In uncached memory, a finished store is visible to all: no cache is written back."""
    before = ("s_waitcnt vmcnt(0)",) if uncached else PROTOCOL[arch][0]
    lines = instructions(arch, uncached=uncached)
    published = [n for n, line in enumerate(lines) if re.match(r"global_store_(dword|b32) .* offset:128\b", line)]
    assert len(published) == 1, "the counter of vEU 0 is line 1 of the state"
    barrier = index_of(lines, MEET, published[0], -1)
    data = index_of(lines, r"(flat|global)_store", barrier, -1)
    between = lines[data + 1 : barrier]
    found = [next((n for n, line in enumerate(between) if _does(line, part)), -1) for part in before]
    assert found == sorted(found) and -1 not in found, f"{before} missing in {between}"
    assert not uncached or not any(line.startswith("buffer_wbl2") for line in lines[data : published[0]])


def _does(line: str, wanted: str) -> bool:
    """`s_waitcnt vmcnt(0) lgkmcnt(0)` waits for vmcnt(0) too; `s_wait_loadcnt_dscnt` is no store's."""
    return line.startswith(wanted.split(" ")[0]) and wanted.split(" ", 1)[-1] in line


@pytest.mark.parametrize("arch", FAMILIES)
def test_waits_poll_past_the_cache_and_then_empty_it(arch: str) -> None:
    _, after = PROTOCOL[arch]
    lines = instructions(arch)
    polls = [n for n, line in enumerate(lines) if line.startswith("s_sleep")]
    assert polls
    for at in polls:
        barrier = index_of(lines, MET, at, 1)
        assert not any(re.match(r"buffer_(wbinvl1|inv|gl1)", line) for line in lines[at:barrier]), "a fence per poll"
        following = lines[barrier + 1 : index_of(lines, MET, barrier + 1, 1)]
        assert all(any(line.startswith(part) for line in following) for part in after), following


def test_other_waves_run_the_syncs_of_a_task_by_branches_of_whole_waves() -> None:
    """A wave that runs both sides of a branch would meet the others twice."""
    kernels = [
        in_hip(mirror(GRAPH, 64, text=REVERSE), num_block_syncs=2, scratch_bytes=256),
        in_hip(mirror(GRAPH, 256)),
    ]
    made = make_program(placed(GRAPH, kernels, [[0, 1], []]), hip(64))
    assert "if (MK_WAVE(tid) < 64) mirror_64(" in made.text and "n < 2; n++) mk_sync();" in made.text
    assembly = hip_compiler().assembly(made.text, "gfx906")
    guard = re.search(r"v_readfirstlane_b32 (s\d+), v0\n\ts_cmp_\w+ \1, (64|63)\n(.*\n)?\ts_cbranch_scc", assembly)
    assert guard, "no branch on the wave's first thread"
    syncs = assembly[guard.end() :].split("s_cbranch", 1)[0]
    assert syncs.count("\ts_barrier") == 2, syncs  # the other side's


def test_only_constants_are_restrict() -> None:
    """With restrict on what another block wrote in this launch, the compiler may read it through the scalar cache."""
    made = Operations(OPS).define("matmul", (TensorType((8, 32)), TensorType((32, 64))))
    operation = replace(made, static=(False, True))
    for kernel in candidates(operation, make_spec(choose_gpu("gfx906"), 2)):
        names = [b.name for b in kernel.body.arguments]  # type: ignore[union-attr]
        assert re.findall(r"__restrict__ (\w+)", emit(kernel, hip(64), 256).text) == [names[-1]]


@pytest.mark.parametrize(
    ("arch", "precision", "wanted"),
    [
        ("gfx908", "fp32", "v_mfma_f32_16x16x4f32"),
        ("gfx90a", "fp32", "v_mfma_f32_16x16x4f32"),
        ("gfx90a", "bf16", "v_mfma_f32_16x16x16bf16_1k"),
        ("gfx942", "fp32", "v_mfma_f32_16x16x4_f32"),
        ("gfx942", "bf16", "v_mfma_f32_16x16x16_bf16"),
        ("gfx1201", "bf16", "v_wmma_f32_16x16x16_bf16"),
    ],
)
def test_machine_code_has_matrix_instructions(arch: str, precision: str, wanted: str) -> None:
    spec = replace(make_spec(choose_gpu(arch)), precision=precision)
    made = Operations(OPS).define("matmul", (TensorType((512, 512)), TensorType((512, 512))))
    found = candidates(replace(made, static=(False, True)), spec)
    kernels = [
        k
        for k in found
        if isinstance(k.body, TileProgram)
        and any(isinstance(s, Apply) and s.instruction.multiplies for s in statements(k.body.body))
    ]
    assert kernels and len(kernels) < len(found)
    dialect = hip(spec.subgroup_size, spec.instructions)
    emitted = [emit(k, dialect, k.num_threads) for k in kernels]
    text = prelude(dialect) + "#define MK_TASK static __device__ __forceinline__\n"
    for n, e in enumerate(emitted):
        text += e.text + (
            f'extern "C" __global__ __launch_bounds__({e.num_threads}, 1) void entry_{n}(void *const *args, int rtask, '
            f"int *status) {{ {e.symbol}(args, mk_arena, rtask, threadIdx.x, status); }}\n"
        )
    assembly = hip_compiler().assembly(text, arch)
    entries = re.split(r"^entry_\d+:", assembly, flags=re.MULTILINE)[1:]
    assert len(entries) == len(kernels) and all(f"\t{wanted} " in entry for entry in entries)
    spilled = re.findall(r"^    \.vgpr_spill_count: (\d+)", assembly, flags=re.MULTILINE)
    assert spilled == ["0"] * len(kernels)


@pytest.fixture(scope="module")
def own_math() -> Library:
    """The device's functions, compiled for the host."""
    ones = ("exp", "log", "sin", "cos", "asin", "acos", "tanh", "erf")
    text = f"#define INLINE static inline\ntypedef long long int64_t;\n{MATH}\n"
    text = text.replace("INFINITY", "__builtin_inf()").replace("NAN", '__builtin_nan("")')
    text += "".join(f"double t_{f}(double x) {{ return mk_{f}(x); }}\n" for f in ones)
    text += "double t_pow(double x, double y) { return mk_pow(x, y); }\n"
    text += "double t_erff(double x) { return mk_ferf((float)x); }\n"
    return Library(c_compiler().compile_shared(text))


ORDINARY = np.concatenate([np.linspace(-30, 30, 901), np.logspace(-12, 2, 57), -np.logspace(-12, 2, 57)])
EDGES = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e308, -1e308, 5e-324, 710.5, -746.0, 1e5, 3e8])


@pytest.mark.parametrize(
    ("name", "wanted", "rtol"),
    [
        ("exp", np.exp, 1e-15),
        ("log", np.log, 1e-15),
        ("sin", np.sin, 1e-13),
        ("cos", np.cos, 1e-13),
        ("asin", np.arcsin, 1e-13),
        ("acos", np.arccos, 1e-13),
        ("tanh", np.tanh, 1e-15),
        ("erf", np.vectorize(erf), 1e-14),
        ("erff", np.vectorize(erf), 3e-7),
    ],
)
def test_functions(own_math: Library, name: str, wanted: Callable[[Array], Array], rtol: float) -> None:
    function = own_math.function(f"t_{name}", ctypes.c_double, ctypes.c_double)
    x = np.concatenate([ORDINARY, EDGES])
    if name in ("sin", "cos"):
        x = x[~(np.abs(x) > 1e6) | ~np.isfinite(x)]
    with np.errstate(all="ignore"):
        reference = wanted(x)
    found = np.array([function(v) for v in x.tolist()])
    np.testing.assert_allclose(found, reference, rtol=rtol, atol=1e-15 if name in ("sin", "cos") else 5e-324)
    if name in ("tanh", "erf", "erff"):
        np.testing.assert_array_equal(found[np.abs(x) >= 20], np.sign(x[np.abs(x) >= 20]))


def test_powers(own_math: Library) -> None:
    function = own_math.function("t_pow", ctypes.c_double, ctypes.c_double, ctypes.c_double)
    special = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, np.inf, -np.inf, np.nan, 1e10, 7.25]
    pairs = np.array([(x, y) for x in special for y in special])
    with np.errstate(all="ignore"):
        reference = np.power(pairs[:, 0], pairs[:, 1])
    found = np.array([function(x, y) for x, y in pairs.tolist()])
    np.testing.assert_allclose(found, reference, rtol=1e-13)


@pytest.mark.parametrize("arch", sorted(PROTOCOL))
def test_memory_is_named_and_block_syncs_empty_no_cache(arch: str) -> None:
    """No instruction looks for its memory; the first cache is emptied where the program waits and nowhere else, though
    where two CUs could share a block a compiler would do so at every block sync.
    """
    with rammer.compile(lstm_stack(2, 4, 128), "rocm", arch=arch, tune_seconds=0) as program:
        text = program.image.file(SOURCE).decode()
    lines = [line.strip() for line in hip_compiler().assembly(text, arch).splitlines()]
    assert not [line for line in lines if line.startswith("flat_")]
    emptied = [line for line in lines if re.match(r"buffer_gl0_inv|buffer_wbinvl1_vol|buffer_inv|global_inv", line)]
    syncs = [line for line in lines if re.match(MET, line)]
    waits = text.count("if (mk_stopped(pc")  # of rTasks that wait by themselves, beside that of the loop
    assert 1 <= len(emptied) <= 2 + waits < len(syncs), (emptied, len(syncs))
