"""Run-time inputs are refused before anything runs, with a text that says how to do it right."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import rammer
from rammer.errors import InputError, RammerError
from rammer_viz.demo import lstm_stack


@pytest.fixture(scope="module")
def program() -> Iterator[rammer.Program]:
    with rammer.compile(lstm_stack(1, 4, 16), "cpu", device=2, tune_seconds=0) as compiled:
        yield compiled


GOOD = np.zeros((4, 1, 16), np.float32)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"X": GOOD}, "no input named 'X'; inputs are x\n  hint: did you mean 'x'?"),
        ({}, "missing inputs: x"),
        ({"x": GOOD.astype(np.float64)}, "input 'x': dtype float64, the program takes float32"),
        ({"x": GOOD[0]}, "input 'x': rank 2, the program takes rank 3"),
        ({"x": GOOD[:3]}, "input 'x': axis 0 is 3, the program takes 4"),
        ({"x": "text"}, "input 'x': dtype"),
        ({"x": [[1.0], [1.0, 2.0]]}, "input 'x': not an array"),
        ({"x": None}, "input 'x': dtype object"),
    ],
)
def test_wrong_inputs(program: rammer.Program, inputs: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=re.escape(text)):
        program.run(inputs)


def test_wrong_number_of_positional_inputs(program: rammer.Program) -> None:
    with pytest.raises(InputError, match="2 arrays given, the program takes 1: x"):
        program(GOOD, GOOD)


def test_accepts_what_is_an_array(program: rammer.Program) -> None:
    x = np.random.default_rng(0).standard_normal((4, 1, 16)).astype(np.float32)
    wanted = program(x)
    np.testing.assert_array_equal(program(np.asfortranarray(x)), wanted)
    np.testing.assert_array_equal(program(np.repeat(x, 2, axis=2)[:, :, ::2]), wanted)
    torch = pytest.importorskip("torch", reason="DLPack from torch needs the torch extra")
    np.testing.assert_array_equal(program(torch.from_numpy(x)), wanted)


def test_any_order_of_bytes(program: rammer.Program) -> None:
    """As files of other machines have it."""
    x = np.random.default_rng(0).standard_normal((4, 1, 16)).astype(np.float32)
    np.testing.assert_array_equal(program(x.astype(">f4")), program(x))


def test_threads_take_turns(program: rammer.Program) -> None:
    random = np.random.default_rng(0)
    batches = [random.standard_normal((4, 1, 16)).astype(np.float32) for _ in range(8)]
    wanted = [program(x) for x in batches]
    wrong: list[int] = []

    def work(n: int) -> None:
        for _ in range(50):
            if not np.array_equal(program(batches[n]), wanted[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"target": "cdua"},
            "no vDevice named 'cdua'; registered: cpu, cuda, interpreter, ipu, rocm\n  hint: did you mean 'cuda'?",
        ),
        ({"target": "gpu"}, "\n  hint: 'gpu' may be 'cuda' or 'rocm'"),
        ({"target": "GPU"}, "\n  hint: 'GPU' may be 'cuda' or 'rocm'"),
        ({"target": "npu"}, "\n  hint: `rammer doctor` lists devices and plugins"),
        ({"policy": "wavefrnt"}, "did you mean 'wavefront'?"),
        (
            {"policy": "wavefront:selecton=fastest"},
            "has no option 'selecton', but selection, beyond, sync\n",
        ),
        ({"policy": "wavefront:selecton=fastest"}, "did you mean 'selection'?"),
        ({"policy": "wavefront:selection=fast"}, "'interplay' or 'fastest' or 'efficient', not 'fast'\n"),
        ({"policy": "wavefront:selection=fast"}, "did you mean 'fastest'?"),
        (
            {"policy": "wavefront", "options": {"beyond": False}},
            "policy 'wavefront': beyond is 'on' or 'off', not False\n",
        ),
        (
            {"policy": "wavefront", "options": {"beyond": ["on"]}},
            "policy 'wavefront': beyond is 'on' or 'off', not ['on']\n",
        ),
        ({"options": "beyond=off"}, "options= is 'beyond=off', not a mapping"),
        (
            {"policy": "round_robin", "options": {"beyond": "on"}},
            "'round_robin' has no option 'beyond', but none at all\n",
        ),
        ({"policy": "wavefront:fastest"}, "'fastest' is no OPTION=VALUE\n  hint: for example wavefront:"),
        ({"policy": "wavefront:"}, "'' is no OPTION=VALUE"),
        ({"policy": "wavefront:sync=fine,sync=fine"}, "option 'sync' is given twice"),
        ({"policy": "wavefront:sync=fine", "options": {"sync": "fine"}}, "options= gives 'sync' once more"),
        ({"target": "cuda", "arch": "sm_1"}, "no NVIDIA arch 'sm_1'; known: sm_75"),
        ({"target": "cuda", "device": "emulator:many"}, "no emulator 'emulator:many'"),
        ({"target": "cuda", "device": "first"}, "no CUDA device 'first'"),
        ({"target": "rocm", "arch": "gfx90b"}, "no AMD arch 'gfx90b'; known: gfx906"),
        ({"target": "rocm", "device": "emulator:many"}, "no emulator 'emulator:many'"),
        ({"target": "rocm", "device": "first"}, "no ROCm device 'first'"),
        ({"target": "ipu", "arch": "gc3"}, "did you mean 'gc2'?"),
        ({"target": "ipu", "device": "emulater"}, "did you mean 'emulator'?"),
        ({"device": "many"}, "many"),
        ({"arch": "z80"}, "z80"),
        ({"shapes": {"nosuch": (1,)}}, "nosuch"),
    ],
)
def test_wrong_compile_arguments(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(RammerError, match=re.escape(text)):
        rammer.compile(lstm_stack(1, 4, 16), **arguments)
