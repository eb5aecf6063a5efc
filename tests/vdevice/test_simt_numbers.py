"""Half floats and scalar functions of the SIMT prelude on the host, against NumPy."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

from rammer.vdevice.simt.codegen.prelude import CUDA, prelude
from rammer.vdevice.simt.emulator.compile import part
from rammer.vdevice.toolchain import c_compiler
from rammer.vdevice.toolchain.library import Library

PROBE = """
#define EXPORT extern "C" __attribute__((visibility("default")))
extern "C" simt_thread *simt_self() { return 0; }
extern "C" void simt_sync(int, int) {}
extern "C" void simt_pause() {}
extern "C" void simt_progress() {}
extern "C" char *simt_arena() { return 0; }
extern "C" unsigned long long simt_now_ns() { return 0; }
EXPORT void widen(const f16 *a, float *o, long n) { for (long i = 0; i < n; i++) o[i] = (float)a[i]; }
EXPORT void narrow(const float *a, f16 *o, long n) { for (long i = 0; i < n; i++) o[i] = (f16)a[i]; }
EXPORT void narrow64(const double *a, f16 *o, long n) { for (long i = 0; i < n; i++) o[i] = (f16)a[i]; }
EXPORT void widen_b(const bf16 *a, float *o, long n) { for (long i = 0; i < n; i++) o[i] = from_bf16(a[i]); }
EXPORT void narrow_b(const float *a, bf16 *o, long n) { for (long i = 0; i < n; i++) o[i] = to_bf16(a[i]); }
EXPORT void tanh_of(const float *a, float *o, long n) { for (long i = 0; i < n; i++) o[i] = stanh(a[i]); }
EXPORT void sigmoid_of(const float *a, float *o, long n) { for (long i = 0; i < n; i++) o[i] = ssigmoid(a[i]); }
EXPORT void vectors(const float *a, float *o, long n) {
  for (long i = 0; i < n; i++) {
    vf v = vload(a, (int)i);
    vstore(o + 4 * i, vmaxc(v * 2.0f + splat(1.0f), splat(0.0f)), 4);
  }
  o[4 * n] = fold_add(vload(a, 4));
}
"""


@pytest.fixture(scope="module")
def library() -> Library:
    text = f"{part('simt.h')}\n{prelude(CUDA)}\n{PROBE}"
    flags = ("-x", "c++", "-std=gnu++17", "-O1", "-fno-exceptions", "-fno-rtti")
    return Library(c_compiler().compile_shared(text, flags))


def apply(
    library: Library, name: str, given: np.ndarray, dtype: np.dtype | type, count: int | None = None
) -> np.ndarray:
    given = np.ascontiguousarray(given)
    out = np.zeros(count or len(given), dtype)
    library.function(name, None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long)(
        given.ctypes.data, out.ctypes.data, len(given)
    )
    return out


def floats(seed: int = 0) -> np.ndarray:
    bits = np.random.default_rng(seed).integers(0, 2**32, 1 << 16, np.uint32).view(np.float32)
    near = np.linspace(-70000, 70000, 4097, dtype=np.float32)
    return np.concatenate([bits, near, np.array([0.0, -0.0, 1e-8, np.inf, np.nan], np.float32)])


def test_every_half_float_widens(library: Library) -> None:
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):  # NumPy on aarch64 mentions signalling NaNs
        wanted = every.astype(np.float32)
    np.testing.assert_array_equal(apply(library, "widen", every, np.float32), wanted)
    brain = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(apply(library, "widen_b", brain, np.float32), brain.astype(np.float32))


def test_floats_narrow_to_the_nearest(library: Library) -> None:
    given = floats()
    with np.errstate(over="ignore", invalid="ignore"):
        wanted, wanted_b = given.astype(np.float16), given.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(apply(library, "narrow", given, np.float16), wanted)
    found = apply(library, "narrow_b", given, np.uint16).view(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(found.astype(np.float32), wanted_b.astype(np.float32))


def test_doubles_never_round_twice(library: Library) -> None:
    halves = np.arange(0x3C00, 0x4000, dtype=np.uint16).view(np.float16).astype(np.float64)
    ties = (halves[:-1] + halves[1:]) / 2
    given = np.concatenate([ties, ties + 1e-12, ties - 1e-12, [np.inf, -np.inf, np.nan, 1e300]])
    with np.errstate(over="ignore"):
        wanted = given.astype(np.float16)
    np.testing.assert_array_equal(apply(library, "narrow64", given, np.float16), wanted)


@pytest.mark.parametrize("name", ["tanh_of", "sigmoid_of"])
def test_functions(library: Library, name: str) -> None:
    given = np.concatenate([np.linspace(-100, 100, 10001), np.linspace(-1, 1, 1001), [np.inf, -np.inf, np.nan]])
    given = given.astype(np.float32)
    exact = np.tanh(given.astype(np.float64)) if name == "tanh_of" else 1 / (1 + np.exp(-given.astype(np.float64)))
    np.testing.assert_allclose(apply(library, name, given, np.float32), exact, rtol=4e-7, atol=1e-12)


def test_vectors_and_their_tails(library: Library) -> None:
    given = np.array([1.5, -2.0, 3.0, -4.0], np.float32)
    found = apply(library, "vectors", given, np.float32, 17)
    for n in range(4):
        lanes = np.where(np.arange(4) < max(n, 1), given, 0)
        np.testing.assert_array_equal(found[4 * n : 4 * n + 4], np.maximum(lanes * 2 + 1, 0))
    assert found[16] == given.sum()
