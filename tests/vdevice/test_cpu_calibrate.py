"""What a machine's cores do: measured, kept, and used by specs."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from math import exp
from pathlib import Path

import pytest
from click.testing import CliRunner

from rammer import config
from rammer.cli.commands import main
from rammer.vdevice.cpu.device import CpuVDevice
from rammer.vdevice.cpu.host import choose_arch, host
from rammer.vdevice.cpu.spec import L2_SHARE, make_spec
from rammer.vdevice.cpu.tune import calibrate as calibration
from rammer.vdevice.cpu.tune.calibrate import (
    CALIBRATIONS,
    Calibration,
    Probe,
    calibrate,
    keep_calibration,
    known_calibration,
)

FOUND = Calibration(2, 111.0, 90.0, 20.0, 39.0, 9.0, 17.0, 10.0, 0.7, 8.0, 0.3, 3.5, 80.0, 25.0, 11.0)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that tests share must not know numbers that nobody measured."""
    monkeypatch.setenv("RAMMER_CACHE_DIR", str(tmp_path))


class Slow:
    """A probe that knows what it would measure, by the bytes that it is to read."""

    def __init__(self, l2: int, l3: int) -> None:
        self._l2, self._l3 = l2, l3

    def gflops(self, cores: int) -> float:
        return FOUND.gflops * cores

    def read_gbps(self, nbytes: int, cores: int) -> float:
        if nbytes <= self._l2:
            return FOUND.own_gbps
        if nbytes == self._l3:  # a loop over all of it, of which a plan may fill a part
            missed = 0.5
            for _ in range(200):
                missed = 1 - exp(-missed / FOUND.shared_share)
            return 1 / ((1 - missed) / FOUND.shared_gbps + missed / FOUND.memory_gbps)
        if nbytes * cores <= self._l3:
            return FOUND.shared_gbps if cores == 1 else FOUND.shared_all_gbps
        return FOUND.memory_gbps if cores == 1 else FOUND.memory_all_gbps

    def read_once_gbps(self, nbytes: int) -> float:
        return FOUND.memory_once_gbps

    def write_gbps(self, nbytes: int, cores: int) -> float:
        if nbytes <= self._l2:
            return FOUND.own_write_gbps
        return FOUND.shared_all_write_gbps if nbytes * cores <= self._l3 else FOUND.memory_all_write_gbps

    def ghz(self) -> float:
        return FOUND.ghz

    def written_gbps(self, nbytes: int) -> float:
        assert nbytes < self._l2
        return FOUND.written_gbps

    def handover_us(self) -> float:
        return FOUND.handover_us


@pytest.mark.parametrize("caches", [(48 << 10, 2 << 20, 36 << 20), (32 << 10, 1 << 20, 16 << 20)])
def test_every_level_is_read_by_as_much_as_only_it_holds(caches: tuple[int, int, int]) -> None:
    assert calibrate(Slow(*caches[1:]), caches, 2) == FOUND  # type: ignore[arg-type]
    alone = calibrate(Slow(*caches[1:]), caches, 1)  # type: ignore[arg-type]
    assert (alone.written_gbps, alone.handover_us) == (0.0, 0.0)


def test_numbers_are_kept_by_machine_and_specs_have_them() -> None:
    here = host()
    arch = choose_arch(None, here)
    usual = CpuVDevice().spec
    assert known_calibration(here.name) is None
    keep_calibration("another", replace(FOUND, gflops=1.0))
    assert known_calibration(here.name) is None and CpuVDevice().spec == usual
    keep_calibration(here.name, FOUND)
    assert known_calibration(here.name) == FOUND and known_calibration("another") == replace(FOUND, gflops=1.0)
    spec = CpuVDevice(device=2).spec
    assert spec == make_spec(arch, 2, here, FOUND)
    assert spec.barrier_us == FOUND.handover_us and spec.clock_ghz == FOUND.ghz
    assert spec.peak_gflops == pytest.approx(FOUND.gflops * min(spec.lanes / CpuVDevice().spec.lanes, 1))
    assert [level.write_gbps for level in spec.memory[1:]] == [80.0, 25.0, 11.0]
    assert spec.non_temporal and not make_spec(arch, 2, here, replace(FOUND, memory_once_gbps=4.0)).non_temporal
    assert [level.usable for level in spec.memory] == [1.0, L2_SHARE, FOUND.shared_share, 1.0]
    assert [level.veu_gbps for level in spec.memory] == [0.0, 0.0, FOUND.shared_gbps, FOUND.memory_gbps]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"m": 3}']
    + [
        json.dumps({"m": {**asdict(FOUND), "gflops": value}}) for value in (-1.0, float("nan"), float("inf"), "1", None)
    ],
)
def test_a_damaged_file_knows_nothing_and_is_replaced(text: str) -> None:
    (config.cache_dir() / CALIBRATIONS).write_text(text)
    with pytest.warns(RuntimeWarning, match="usual numbers count") if text != "[]" else nullcontext():
        assert known_calibration("m") is None
    keep_calibration("m", FOUND)
    assert known_calibration("m") == FOUND


def test_who_was_calibrated_by_an_older_version_is_told() -> None:
    older = {name: value for name, value in asdict(FOUND).items() if name != "memory_once_gbps"}
    (config.cache_dir() / CALIBRATIONS).write_text(json.dumps({"m": older}))
    with pytest.warns(RuntimeWarning, match="m was calibrated without memory_once_gbps, seal"):
        assert known_calibration("m") is None
    assert known_calibration("another") is None


def test_lines_are_read_once_where_that_is_known_to_be_quick() -> None:
    """Where nobody measured: on AMD's cores, and on no others."""
    here = host()
    arch = choose_arch(None, here)
    for name, quick in (("AMD EPYC 9B45", True), ("Intel(R) Xeon(R) Processor", False), ("Neoverse-N1", False)):
        assert make_spec(arch, 2, replace(here, name=f"{name} 2.6 GHz")).non_temporal == quick


def test_the_loops_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "SEARCH_S", 0.01)
    monkeypatch.setattr(calibration, "TURNS", 20)
    probe: Probe = CpuVDevice().probe()
    assert probe.gflops(2) > 0 and probe.read_gbps(1 << 16, 2) > 0 and probe.write_gbps(1 << 16, 2) > 0
    assert probe.ghz() > 0 and probe.read_gbps(1 << 16, 1) > 0 and probe.read_gbps((8 << 20) + 1, 1) > 0
    assert probe.read_once_gbps((8 << 20) + 1) > 0
    if len(host().cpus) > 1:  # else nobody is there to hand over to, and `calibrate` does not ask
        assert probe.written_gbps((1 << 16) + 1) > 0 and probe.handover_us() > 0


def test_doctor_shows_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    _, l2, l3 = host().caches
    monkeypatch.setattr(CpuVDevice, "probe", lambda self: Slow(l2, l3))
    done = CliRunner().invoke(main, ["doctor", "--calibrate"])
    assert done.exit_code == 0 and "gflops" in done.output and "111" in done.output
    assert known_calibration(host().name) is not None
