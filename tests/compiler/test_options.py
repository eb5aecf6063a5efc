"""CompileOptions: one value for Python, sessions, torch.compile and Dask, with the same errors."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import rammer
from rammer import CompileOptions, config
from rammer.compiler.options import DEVICE_OPTIONS, NAMES, Keywords
from rammer.errors import DeviceError, InputError, PolicyError, RammerError
from rammer_viz.demo import lstm_stack

MODEL = lstm_stack(1, 2, 16)


def test_keywords_are_the_fields() -> None:
    assert {"target", *Keywords.__annotations__} == set(NAMES) and set(DEVICE_OPTIONS) < set(NAMES)


def test_options_are_a_value() -> None:
    how = CompileOptions(target="cpu", options={"beyond": "off"}, policy="wavefront", dims={"batch": 2})
    with pytest.raises(FrozenInstanceError):
        how.target = "cuda"  # type: ignore[misc]
    same = pickle.loads(pickle.dumps(how))
    assert same == how and hash(same) == hash(how) and how.but(target="ipu") != how
    assert str(how) == "target='cpu', policy='wavefront', options={'beyond': 'off'}, dims={'batch': 2}"
    assert str(CompileOptions()) == "defaults"


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"tune_seconds": -1}, RammerError, "tune_seconds=-1: it should be"),
    ({"tune_seconds": "fast"}, RammerError, "tune_seconds='fast': it should be"),
    ({"options": ["beyond"]}, PolicyError, "not a mapping"),
    ({"policy": "wavefont"}, PolicyError, "no policy named 'wavefont'"),
    ({"target": "cpus"}, RammerError, "no vDevice named 'cpus'"),
    ({"precision": "bf61"}, DeviceError, "does not compute in 'bf61'"),
    ({"numerics": "exact"}, DeviceError, "numerics is 'exact'"),
    ({"workers": 2}, TypeError, "got an unexpected keyword argument 'workers'"),
    ({"devise": 2}, TypeError, "did you mean 'device'"),
]


@pytest.mark.parametrize("door", ["compile", "session"])
@pytest.mark.parametrize(
    ("options", "error", "text"), REFUSED, ids=[next(iter(o)) + str(n) for n, (o, *_) in enumerate(REFUSED)]
)
def test_what_is_wrong_is_named_at_every_door(
    door: str, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        rammer.compile(MODEL, **options) if door == "compile" else rammer.Session(MODEL, **options)


def test_a_session_takes_what_chooses_a_device() -> None:
    with pytest.raises(TypeError, match=r"Session\(\) got an unexpected keyword argument 'form'"):
        rammer.Session(MODEL, form="branches")  # type: ignore[call-arg]
    with pytest.raises(InputError, match=r"takes no shapes= in how="):
        rammer.Session(MODEL, how=CompileOptions(shapes={"x": (1, 2, 16)}))
    with rammer.Session(MODEL, how=CompileOptions(target="interpreter")) as session:
        assert session.target == "interpreter"


def test_keywords_count_more_than_the_value() -> None:
    how = CompileOptions(target="interpreter", policy="sequential", device=3)
    with rammer.compile(MODEL, how=how, policy="wavefront", tune_seconds=0) as program:
        assert (program.target, program.plan.policy, program.plan.spec.num_veus) == ("interpreter", "wavefront", 3)


def test_flags_are_read_when_a_model_is_compiled() -> None:
    how = CompileOptions(tune_seconds=0)
    flags = config.override(RAMMER_VDEVICE="interpreter", RAMMER_POLICY="sequential")
    with flags, rammer.compile(MODEL, how=how) as program:
        assert (program.target, program.plan.policy) == ("interpreter", "sequential")
