"""Measure errors of functions in units in the last place: `python -m benchmarks.micro.functions [--arch A] [--step N]`.

Every N-th float32 is an argument, which covers all binades and special numbers. NumPy's functions of float64 are the
reference. Subnormal numbers are left out, because programs flush them. The time is that of an element in an L1 cache.
"""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click
import numpy as np

from rammer.ir.semantics.functions import FUNCTIONS
from rammer.ir.tensor import Array
from rammer.vdevice.cpu.codegen.emit import prelude
from rammer.vdevice.cpu.host import choose_arch, host
from rammer.vdevice.cpu.spec import make_spec
from rammer.vdevice.toolchain import c_compiler

UNARY = ("exp", "log", "sigmoid", "tanh", "erf", "sqrt", "sin", "cos", "asin", "acos", "atan")
NAMES = (*UNARY, "pow")
ULP = {"sigmoid": 3.0, "tanh": 5.0, "erf": 6.0, "pow": 3.0}  # the largest errors, by `test_functions.py`
LEAST_ULP = 2.0  # of the others
TINY = np.float32(2.0**-126)
CHUNK = 1 << 20  # arguments at a time
POWERS = np.array(
    [*(0.5, 2, -1, 3, 1.7, -0.3, -np.inf, np.inf, np.nan, -0.0, 16777217, -2.5, 1e-30, -127, 128, 1 / 3)], np.float32
)
TEXT = """
void NAME_all(const float *x, const float *y, float *to, long count, long times) {
  for (; times; times--)
    for (long i = 0; i < count; i += LANES) { vf a = V(x[i]), b = V(y[i]); V(to[i]) = vNAME(ARGUMENTS); }
}
void NAME_one(const float *x, const float *y, float *to, long count, long times) {
  for (long i = 0; i < count; i++) { float a = x[i], b = y[i]; to[i] = sNAME(ARGUMENTS); }
}
"""


@dataclass(frozen=True, slots=True)
class Error:
    """How far a function is off: ULP at the most and on average, where it is worst, and special results that differ."""

    worst: float
    mean: float
    at: float
    wrong: tuple[float, ...]


class Library:
    """The functions of an arch, compiled as kernels have them."""

    def __init__(self, arch: str | None = None) -> None:
        chosen = choose_arch(arch, host())
        spec = make_spec(chosen, 1, host())
        texts = [
            TEXT.replace("NAME", name).replace("ARGUMENTS", "a, b" if name == "pow" else "a").replace("LANES", "%d")
            % spec.lanes
            for name in NAMES
        ]
        compiler = c_compiler()
        flags = chosen.zig if compiler.family == "zig" else chosen.cc
        data = compiler.compile_shared(prelude(spec) + "\n".join(texts), flags)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "functions.so"
            path.write_bytes(data)
            self._library = ctypes.CDLL(str(path))
        self.arch = chosen.name

    def apply(self, name: str, x: Array, y: Array, *, one: bool = False, times: int = 1) -> Array:
        """Results of a function, in vectors or (`one`) number by number. A count of 64 and its multiples fits all."""
        found = np.empty_like(x)
        pointers = [a.ctypes.data_as(ctypes.c_void_p) for a in (x, y, found)]
        getattr(self._library, f"{name}_{'one' if one else 'all'}")(
            *pointers, ctypes.c_long(x.size), ctypes.c_long(times)
        )
        return found

    def error(self, name: str, step: int, *, one: bool = False) -> Error:
        """Compare a function with NumPy's at every `step`-th float32."""
        worst = total = 0.0
        at, count, wrong = 0.0, 0, list[float]()
        for x, y in _arguments(name, step):
            with np.errstate(all="ignore"):
                wide = [a.astype(np.float64) for a in ((x, y) if name == "pow" else (x,))]
                wanted = np.asarray(FUNCTIONS[name](*wide), np.float64)
                found = self.apply(name, x, y, one=one)
                rounded = wanted.astype(np.float32)
                normal = np.isfinite(rounded) & (np.abs(rounded) >= TINY)
                special = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
                special |= (np.abs(rounded) < TINY) & (np.abs(found) <= TINY)
                right = np.where(normal, np.isfinite(found), special)
                off = np.abs(found - wanted)[normal & right] / np.exp2(np.frexp(wanted)[1] - 24.0)[normal & right]
            wrong += [float(v) for v in x[~right][:3]]
            if off.size and off.max() > worst:
                worst, at = float(off.max()), float(x[normal & right][off.argmax()])
            total, count = total + float(off.sum()), count + off.size
        return Error(worst, total / max(count, 1), at, tuple(wrong))

    def seconds(self, name: str) -> float:
        """The least time of an element, of 1024 from -0.85 to 0.85 (`pow`: positive ones to the power of 1.3)."""
        x = np.linspace(-0.85, 0.85, 1024, dtype=np.float32)
        x, y = np.abs(x) if name == "pow" else x, np.full(1024, 1.3, np.float32)
        best = np.inf
        for _ in range(50):
            begun = time.perf_counter()
            self.apply(name, x, y, times=200)
            best = min(best, (time.perf_counter() - begun) / 200 / 1024)
        return float(best)


def _arguments(name: str, step: int) -> Iterator[tuple[Array, Array]]:
    """Every `step`-th float32 that is not subnormal, in chunks, with exponents for `pow` of all kinds."""
    bits = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    for n in range(0, len(bits), CHUNK):
        x = bits[n : n + CHUNK].view(np.float32)
        x = x[(np.abs(x) >= TINY) | (x == 0) | np.isnan(x)]
        x = np.append(x, np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32))
        x = np.append(x, np.ones(-len(x) % 64, np.float32))
        for exponents in POWERS.reshape(2, -1) if name == "pow" else POWERS[None, :1]:
            y = np.resize(exponents, x.size)
            if name == "pow":  # and half of them finite: 2^-120 … 2^120
                with np.errstate(all="ignore"):
                    finite = (np.arange(x.size) % 241 - 120) / np.log2(np.abs(x))
                y = np.where(np.isfinite(finite) & (np.arange(x.size) % 2 == 0), finite, y).astype(np.float32)
            yield np.ascontiguousarray(x), np.ascontiguousarray(y)


@click.command()
@click.option("--arch", help="an arch of the CPU that runs here; by default its own")
@click.option("--step", default=257, show_default=True, help="every so many float32 numbers")
def main(arch: str | None, step: int) -> None:
    """Print errors and times by function."""
    library = Library(arch)
    print(f"{library.arch}, every {step}th float32\n\n| function | form | ULP, most | mean | at | ns an element |")
    print("|---|---|---|---|---|---|")
    for name, one in product(NAMES, (False, True)):
        error = library.error(name, step, one=one)
        took = "" if one else f"{library.seconds(name) * 1e9:.2f}"
        form = "scalar" if one else "vector"
        print(f"| {name} | {form} | {error.worst:.2f} | {error.mean:.3f} | {error.at:.8g} | {took} |", flush=True)
        if error.wrong:
            raise SystemExit(f"{name}: results of {error.wrong} are wrong")


if __name__ == "__main__":
    main()
