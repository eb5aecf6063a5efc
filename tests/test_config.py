"""Environment flags."""

from __future__ import annotations

import warnings

import pytest

from rammer import config
from rammer.errors import RammerError


def test_flags_are_read_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMMER_POLICY", raising=False)
    assert config.get("RAMMER_POLICY") == "wavefront"
    with config.override(RAMMER_POLICY="sequential"):
        assert config.get("RAMMER_POLICY") == "sequential"
        with config.override(RAMMER_POLICY=None):
            assert config.get("RAMMER_POLICY") == "wavefront"
    assert config.get("RAMMER_POLICY") == "wavefront"


def test_an_empty_variable_counts_as_unset() -> None:
    with config.override(RAMMER_VDEVICE=""):
        assert config.get("RAMMER_VDEVICE") == "cpu"


def test_numbers_are_checked() -> None:
    with config.override(RAMMER_NUM_VEUS="4", RAMMER_SPIN_MS="0.5"):
        assert config.integer("RAMMER_NUM_VEUS", 1) == 4
        assert config.number("RAMMER_SPIN_MS") == 0.5
    for bad in ("four", "0", "-1", "4.5"):
        with config.override(RAMMER_NUM_VEUS=bad), pytest.raises(RammerError, match="RAMMER_NUM_VEUS") as caught:
            config.integer("RAMMER_NUM_VEUS", 1)
        assert "vEUs" in caught.value.hint
    for bad in ("soon", "-1", "inf", "nan"):
        with config.override(RAMMER_SPIN_MS=bad), pytest.raises(RammerError, match="RAMMER_SPIN_MS"):
            config.number("RAMMER_SPIN_MS")


def test_names_are_split() -> None:
    with config.override(RAMMER_TEST_VDEVICES="cpu, toy,,"):
        assert config.names("RAMMER_TEST_VDEVICES") == ("cpu", "toy")


def test_an_unknown_variable_is_warned_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "_warned", set())
    monkeypatch.setenv("RAMMER_POLICI", "x")
    with pytest.warns(UserWarning, match="RAMMER_POLICI; did you mean 'RAMMER_POLICY'"):
        config.get("RAMMER_CC")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config.get("RAMMER_CC")


def test_override_takes_known_flags_only() -> None:
    with pytest.raises(RammerError, match="RAMMER_CCC"), config.override(RAMMER_CCC="x"):
        pass
