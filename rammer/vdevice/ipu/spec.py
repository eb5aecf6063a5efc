"""Describe IPU models as data. Rates are published, costs are those of a planner's model; none is measured here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rammer.errors import DeviceError, did_you_mean
from rammer.ir.device import Issue, MemoryLevel, SyncModel, VDeviceSpec

WORKERS = 6  # hardware contexts of a tile; each issues once in 6 cycles
SYNC_CYCLES, EXCHANGE_SETUP_CYCLES, EXCHANGE_BYTES_PER_CYCLE = 90, 100, 4
CYCLES_PER_MAC = 4.2  # thread instructions of a multiply-add in plain C++, from a measured matrix-vector product


@dataclass(frozen=True, slots=True)
class Model:
    """One generation of the chip. `reserve`: bytes of a tile for stacks, control and exchange code."""

    name: str
    version: str  # as IPUModel and popc know it
    tiles: int
    tile_bytes: int
    clock_ghz: float
    reserve: int


MODELS = {
    m.name: m
    for m in (
        Model("gc2", "ipu1", 1216, 256 << 10, 1.6, 32 << 10),
        Model("gc200", "ipu2", 1472, 624 << 10, 1.33, 64 << 10),
        Model("bow", "ipu2", 1472, 624 << 10, 1.85, 64 << 10),
    )
}


@dataclass(frozen=True, slots=True)
class IpuModel:
    """A model, the number of its tiles in use, and the vEUs per tile: one, or one per worker."""

    model: Model
    tiles: int
    veus_per_tile: int = 1

    @property
    def name(self) -> str:
        """Return the name that `parse_arch` reads."""
        size = "" if self.tiles == self.model.tiles else f":{self.tiles}"
        return f"{self.model.name}{size}{'' if self.veus_per_tile == 1 else f'x{self.veus_per_tile}'}"

    @property
    def num_veus(self) -> int:
        return self.tiles * self.veus_per_tile

    def tile(self, veu: int) -> int:
        """Return the tile of a vEU; neighbouring vEUs lie on different tiles."""
        return veu % self.tiles

    def microseconds(self, cycles: float) -> float:
        return cycles / (1e3 * self.model.clock_ghz)


def parse_arch(text: str | None) -> IpuModel:
    """Parse `gc2`, `gc200:64` (64 of its tiles), `gc2x6` (a vEU per worker). Raises DeviceError."""
    found = re.fullmatch(r"([a-z0-9]+?)(?::(\d+))?(?:x(\d+))?", text or "gc2")
    name = found.group(1) if found else ""
    if found is None or name not in MODELS:
        raise DeviceError(
            f"no IPU arch {text!r}; known: {', '.join(MODELS)}, with :tiles and x6 behind, such as gc2:64x6",
            hint=did_you_mean(name or str(text), MODELS),
        )
    model = MODELS[name]
    tiles, veus = int(found.group(2) or model.tiles), int(found.group(3) or 1)
    if not 1 <= tiles <= model.tiles or veus not in (1, WORKERS):
        raise DeviceError(
            f"arch {text!r}: {model.name} has {model.tiles} tiles of {WORKERS} workers",
            hint=f"tiles are 1 … {model.tiles}, vEUs per tile 1 or {WORKERS}",
        )
    return IpuModel(model, tiles, veus)


def make_spec(arch: IpuModel) -> VDeviceSpec:
    """Return the spec that kernels and policies see. A vEU is a tile, or one worker of it."""
    model = arch.model
    macs = 1 / (CYCLES_PER_MAC * arch.veus_per_tile)  # of a vEU in a cycle, all its workers together
    sync_us = arch.microseconds(SYNC_CYCLES + EXCHANGE_SETUP_CYCLES)
    return VDeviceSpec(
        name="ipu",
        num_veus=arch.num_veus,
        languages=("poplar",),
        arch=arch.name,
        lanes=1,
        registers=16,
        scratch_bytes=model.tile_bytes // (4 * arch.veus_per_tile),
        memory=(
            MemoryLevel(
                "tile",
                model.tile_bytes,
                "veu",
                8 * model.clock_ghz,
                "scratch",
                usable=1 - model.reserve / model.tile_bytes,
            ),
            MemoryLevel(
                "exchange",
                model.tile_bytes * arch.tiles,
                "device",
                EXCHANGE_BYTES_PER_CYCLE * model.clock_ghz * arch.tiles,
                "scratch",
            ),
        ),
        sync=SyncModel.GLOBAL,
        has_float64=False,
        has_int64=False,
        updates=False,  # a vertex writes fields that are known when it is compiled
        clock_ghz=model.clock_ghz,
        issue=Issue(macs, macs, macs / 2, latency=8 / macs),
        # Both end a compute set and cost the same. The difference breaks ties: an rProgram's end needs no list of
        # all vEUs for each of them.
        launch_us=sync_us,
        barrier_us=sync_us * 1.001,
    )
