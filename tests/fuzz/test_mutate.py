"""Bugs that are injected into rammer are stopped, and sound programs are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from rammer_testing.mutate import BUGS
from rammer_testing.mutate.bug import NONE
from rammer_testing.mutate.networks import network
from rammer_testing.mutate.trial import HARMLESS, attempt, reference

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.mark.parametrize(
    ("target", "name", "bugs"),
    [
        # races, each of which one run alone seldom shows
        (
            "cpu",
            "attention",
            {
                "runtime: the end of a vEU's lane is not waited for": "output",
                "runtime: nothing is waited for": "output",
                "runtime: all vEUs have one scratch": "use the scratch of [0] instead of [0, 1]",
            },
        ),
        # a wrong constant that moves outputs by one step of their quantisation, and a crash of an emulator
        (
            "cuda",
            "quantized",
            {
                "pass: a constant has one wrong sign": "by what passes made of the model",
                "text: a GPU does not sync behind a wait": "it ended by SIG",
            },
        ),
    ],
)
def test_bugs_that_were_silent_are_stopped(target: str, name: str, bugs: dict[str, str], tmp_path: Path) -> None:
    made = reference(network(name), target, tmp_path)
    assert attempt(NONE, made, target, tmp_path).what == HARMLESS
    for bug in BUGS:
        if (said := bugs.pop(f"{bug.stage}: {bug.name}", None)) is not None:
            found = attempt(bug, made, target, tmp_path)
            assert found.what in ("R212", "DeviceError") and said in found.detail, found
    assert not bugs
