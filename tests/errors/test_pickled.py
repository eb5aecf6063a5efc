"""Errors that come back from another process are what they were there."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import rammer
from rammer.errors import ModelError, RammerError, VerificationError
from rammer.vdevice.interpreter import RaceError


def exception_classes() -> list[type[BaseException]]:
    """Every exception class that a module of rammer defines; modules without any are not imported."""
    root, found = Path(rammer.__file__).parent, []
    for file in sorted(root.rglob("*.py")):
        if re.search(r"^class \w+\(.*(Error|Exception|Warning|Mismatch)\)", file.read_text(encoding="utf-8"), re.M):
            name = ".".join(["rammer", *file.relative_to(root).with_suffix("").parts])
            try:
                values = vars(importlib.import_module(name)).values()
            except ImportError:  # of an extra that is not installed
                continue
            found += [v for v in values if inspect.isclass(v) and issubclass(v, BaseException) and v.__module__ == name]
    assert {VerificationError, RaceError} <= {*found}
    return found


def made(kind: type[BaseException]) -> BaseException:
    """With an argument for every parameter, so that none can be lost."""
    arguments: dict[str, Any] = {}
    positional: list[str] = []
    if kind.__init__ in (Exception.__init__, UserWarning.__init__):  # which has no signature
        return kind("the text")
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            arguments[name] = f"a {name}"
        elif parameter.kind is not parameter.VAR_KEYWORD:
            positional.append(f"the {name}")
    return kind(*positional, **arguments)


@pytest.mark.parametrize("kind", exception_classes(), ids=lambda kind: kind.__name__)
def test_every_exception_comes_back_whole(kind: type[BaseException]) -> None:
    error = made(kind)
    error.add_note("while compiling: schedule")
    for copied in (*(pickle.loads(pickle.dumps(error, p)) for p in (2, pickle.HIGHEST_PROTOCOL)), copy.copy(error)):
        assert type(copied) is kind and str(copied) == str(error) and copied.args == error.args
        assert vars(copied) == vars(error)


def test_a_located_error_keeps_its_place() -> None:
    error = ModelError("bad", hint="do this").locate(node="n", op="Conv", path="m.onnx").locate(path="other")
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == str(error) and copied.what == "m.onnx: Conv 'n': bad"
    assert str(copied.locate(path="third")) == str(error)


def refuse(rule: str) -> None:
    raise VerificationError(rule, "it is broken", hint="mend it")


def test_a_pool_of_processes_survives_an_error() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        with pytest.raises(RammerError, match="R103: it is broken") as caught:
            pool.submit(refuse, "R103").result(60)
        assert isinstance(caught.value, VerificationError) and caught.value.rule == "R103"
        assert caught.value.hint == "mend it"
        assert pool.submit(len, "abc").result(60) == 3
