"""Random shapes, attributes and specs, seeds fixed: every access of every candidate inside, every value right."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from cpus import runnable
from kernel_harness import SLOW_SPEC, check_compiled, compile_all, operation

from rammer.ir.device import VDeviceSpec
from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorType, channel_blocked
from rammer.kernels import candidates


def draw(r: random.Random, lanes: int) -> Operation:
    c = r.randint
    blocked = channel_blocked(4, lanes)

    def t(*shape: int, layout: object = None) -> TensorType:
        return TensorType(shape, layout=layout)  # type: ignore[arg-type]

    kind = r.choice(
        ["conv", "conv", "conv", "matmul", "matmul", "max_pool", "softmax", "lstm_cell", "transpose", "reduce"]
    )
    if kind == "matmul":
        batch = (c(1, 3),) if r.random() < 0.4 else ()
        m, k, n = c(1, 40), c(1, 70), c(1, 90)
        swap = r.random() < 0.3
        a, b = t(*batch, m, k), t(*batch, *((n, k) if swap else (k, n)))
        return operation("matmul", a, b, static=("b",) if r.random() < 0.6 else (), trans_b=swap)
    if kind == "softmax":
        return operation(kind, t(c(1, 5), c(1, 40), c(1, 40)), axis=c(0, 2))
    if kind == "reduce":
        return operation(
            kind, t(c(1, 5), c(1, 40), c(1, 70)), fn=r.choice(["sum", "max", "mean"]), axes=(c(0, 2),), keepdims=False
        )
    if kind == "lstm_cell":
        b, h = c(1, 5), c(1, 70)
        return operation(kind, t(b, 4, h), t(b, h), t(b, h), t(4, h, h), static=("r",))
    if kind == "transpose":
        perm = [0, 1, 2]
        r.shuffle(perm)
        return operation(kind, t(c(1, 20), c(1, 50), c(1, 50)), perm=tuple(perm))
    layouts = [blocked if r.random() < 0.6 else None for _ in range(2)]
    size = c(1, 4)
    image = c(size, 14), c(size, 20)
    window = {"strides": (c(1, 2), c(1, 2)), "pads": tuple(c(0, size - 1) for _ in range(4))}
    if kind == "max_pool":
        x = t(c(1, 2), c(1, 40), *image, layout=layouts[0])
        return operation(kind, x, kernel=(size, size), out_layout=layouts[1], **window)
    group = r.choice([1, 1, 1, 2, 3, 16])
    into, out = group * c(1, 24), group * c(1, 40)
    if r.random() < 0.2:
        group = out = into
    x = t(c(1, 2), into, *image, layout=layouts[0])
    w, bias = t(out, into // group, size, size), t(out)
    static = ("w", "bias") if r.random() < 0.8 else ()
    return operation("conv", x, w, bias, static=static, out_layout=layouts[1], group=group, **window)


ARCHS = {16: runnable("x86-64-avx512"), 8: runnable("x86-64-avx2"), 4: runnable("x86-64-sse4")}


def spec_for(lanes: int, num_veus: int) -> VDeviceSpec:
    return replace(SLOW_SPEC, arch=ARCHS[lanes], lanes=lanes, registers=32 if lanes == 16 else 16, num_veus=num_veus)


def check_seeds(seeds: range) -> None:
    by_lanes: dict[int, dict[str, tuple[Operation, list]]] = {}
    for seed in seeds:
        r = random.Random(seed)
        spec = spec_for(r.choice([16, 16, 8, 4]), r.choice([1, 2, 3, 5]))
        op = draw(r, spec.lanes)
        by_lanes.setdefault(spec.lanes, {})[f"seed {seed}"] = (op, candidates(op, spec))
    for lanes, cases in by_lanes.items():
        built = compile_all(cases, spec_for(lanes, 1), check=True)
        for name in cases:
            check_compiled(built, name)


def test_random_operations() -> None:
    check_seeds(range(24))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 40))
def test_more_random_operations(first: int) -> None:
    check_seeds(range(first, first + 40))
