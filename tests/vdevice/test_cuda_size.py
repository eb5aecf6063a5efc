"""Machine code does not grow with the number of rTasks, and stays small for whole models at full size."""

from __future__ import annotations

import json

import pytest

import rammer
from rammer.vdevice.simt.runtime.streams import RESOURCES, SOURCE
from rammer_viz.demo import lstm_stack

MIB = 1 << 20


def test_more_steps_need_no_more_text() -> None:
    """Nine times the steps are another table; the product of all inputs has another tile.

    Three steps are the least with all the cells there are: the first, one between, and the last.
    """
    texts, rtasks = [], []
    for steps in (3, 27):
        with rammer.compile(lstm_stack(1, steps, 16), "cuda", device="emulator:2", tune_seconds=0) as program:
            texts.append(program.executable._text)  # type: ignore[attr-defined]
            rtasks.append(program.report().num_rtasks)
    assert len(texts[1]) < 1.2 * len(texts[0]) and rtasks[1] > 4 * rtasks[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm_tc_unrolled", "nasnet_cifar"])
def test_models_at_full_size(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LSTM-TC and NASNet for an H200: under 1 MiB of machine code, no spills."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-bindings and NVRTC are not installed")
    pytest.importorskip("torch", reason="torch, which builds the model, is not installed")
    from benchmarks.models.build import build

    monkeypatch.setenv("RAMMER_VERIFY", "0")  # verified elsewhere; here it would take most of the time
    with rammer.compile(build(name).path, "cuda", arch="sm_90", tune_seconds=0) as program:
        image = program.image
        resources = json.loads(image.files[RESOURCES])
        assert resources["spill_bytes"] == 0
        assert 0 < resources["code_bytes"] < MIB
        assert len(image.files[SOURCE]) < MIB
        assert program.report().num_rtasks > 1000
