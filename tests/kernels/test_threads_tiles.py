"""Tiles of products on many threads: ranked before they are lowered as their counted work ranks them afterwards."""

from __future__ import annotations

import random
from dataclasses import replace
from math import prod
from types import ModuleType

import pytest
from kernel_harness import operation

from rammer.cost.estimate import estimated_us
from rammer.ir.device import VDeviceSpec
from rammer.ir.index import Index
from rammer.ir.operator import Operation
from rammer.ir.tensor import TensorType
from rammer.kernels import candidates
from rammer.kernels.problem import KernelProblem
from rammer.kernels.threads import product as threads_product
from rammer.kernels.threads import tensor as threads_tensor
from rammer.kernels.threads.product import Staging, padded, sides
from rammer.vdevice.cuda import spec as cuda
from rammer.vdevice.rocm import spec as rocm

SPECS = {
    "v100": cuda.make_spec(cuda.choose_gpu("v100")),
    "h100": cuda.make_spec(cuda.choose_gpu("h100")),
    "mi50": rocm.make_spec(rocm.choose_gpu("mi50")),
}
DRAWN = 24


def t(*shape: int) -> TensorType:
    return TensorType(shape)


OPERATIONS = {
    "square": operation("matmul", t(512, 512), t(512, 512), static=("b",)),
    "flat": operation("matmul", t(16, 1024), t(1024, 1024), static=("b",)),
    "odd": operation("matmul", t(100, 300), t(300, 77)),
    "conv": operation("conv", t(1, 64, 28, 28), t(64, 64, 3, 3), t(64), static=("w", "bias"), pads=(1, 1, 1, 1)),
    "groups": operation("conv", t(1, 64, 14, 14), t(64, 8, 3, 3), static=("w",), pads=(1, 1, 1, 1), group=8),
}


def staging(op: Operation, spec: VDeviceSpec) -> Staging:
    problem = padded(KernelProblem.of(op, spec, flat=False))
    p = sides(problem)
    assert p is not None
    return Staging(problem, p)


def drawn(found: Staging, seed: int) -> list[tuple[float, float]]:
    """Some of all tiles: how long the operation takes alone, by the tile and by its program."""
    draw, spec = random.Random(seed), found.problem.spec
    ways = list(threads_product._divided(found))
    prices = []
    for points, threads, split in draw.sample(ways, min(DRAWN, len(ways))):
        steps = found.steps(points[0] * threads[0], points[1] * threads[1])
        tile = threads_product._fitted(found, steps, points, split, draw.choice(threads_product.chunks(found, split)))
        if tile is not None:
            kernel = found.problem.kernel(threads_product.schedule(found, tile))
            rounds = -(-kernel.num_rtasks // spec.num_veus)
            prices.append((rounds * tile.us, rounds * estimated_us(kernel, spec)))
    return prices


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("gpu", SPECS)
def test_no_drawn_tile_is_better_than_the_first_candidate(gpu: str, name: str) -> None:
    op, spec = OPERATIONS[name], SPECS[gpu]
    us = [estimated_us(k, spec) * -(-k.num_rtasks // spec.num_veus) for k in candidates(op, spec)]
    prices = drawn(staging(op, spec), seed=len(name))
    assert len(prices) >= DRAWN // 6
    assert us[0] <= min(us) * (1 + 1e-9) and us[0] <= 1.05 * min(counted for _, counted in prices)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_a_tile_would_issue_is_what_its_program_does(name: str) -> None:
    """Nearly, for every tile: bank conflicts and guards are known of programs alone."""
    for believed, counted in drawn(staging(OPERATIONS[name], SPECS["h100"]), seed=7):
        assert 0.4 < believed / counted < 1.6


@pytest.mark.parametrize("name", ["square", "conv"])
def test_gaps_keep_a_waves_threads_in_different_banks(name: str) -> None:
    """Of 32 threads no two read one bank, whatever rows a tile has."""
    spec = replace(SPECS["h100"], precision="tf32")
    found = staging(OPERATIONS[name], spec)
    unit = threads_tensor.instruction_for(found)
    assert unit is not None
    for tile in threads_tensor.tiles(found, unit):
        kernel = found.problem.kernel(threads_tensor.schedule(found, tile))
        gaps = threads_tensor.gaps(found, tile)
        for dim, (operand, (tensor, _)) in enumerate(zip(found.copies, unit.meaning.inputs, strict=True)):
            *outer, last = found.rows(operand, tile.steps, tile.chunk)
            row = (last + gaps[dim]) * prod(outer)
            places = {unit.held(tensor, Index(n), Index(0)) for n in range(32)}
            banks = {(place[dim].const + place[1 - dim].const * row) % 32 for place in places}
            assert len(banks) == len(places), (kernel.name, tensor, gaps)


@pytest.mark.parametrize("ways", [threads_product, threads_tensor], ids=["product", "tensor"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_pipeline_has_the_longest_chunk_of_which_three_fit(name: str, ways: ModuleType) -> None:
    found = staging(OPERATIONS[name], SPECS["h100"])
    unit = threads_tensor.instruction_for(found)
    if ways is threads_tensor and unit is None:
        pytest.skip("no instruction multiplies this")
    for tile in ways.tiles(found, unit) if ways is threads_tensor else ways.tiles(found):
        every = [way for way in ways.chunked(found, tile) if way is not None]
        fits = {
            way.chunk: 3 * way.chunk <= found.terms and 3 * found.nbytes(way.steps, way.chunk) <= found.room
            for way in every
        }
        made = threads_product.shorter(found, tile, every, 3)
        longest = max((chunk for chunk in fits if fits[chunk]), default=None)
        assert [way.chunk for way in made] == ([] if fits[tile.chunk] or longest is None else [longest])
        assert all((way.steps, way.blocks, way.groups) == (tile.steps, tile.blocks, tile.groups) for way in made)
