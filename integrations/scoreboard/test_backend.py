"""Run ONNX's backend suite as its scoreboard does: `pytest integrations/scoreboard/test_backend.py -k 'not _cuda'`.

ONNX_BACKEND names the backend's module. A model that the backend does not support is skipped, so it does not count as
passed.
"""

from __future__ import annotations

import functools
import importlib
import os
import unittest
from collections.abc import Callable, Iterable
from typing import Any

from onnx.backend.test import BackendTest
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt

BACKEND = importlib.import_module(os.environ.get("ONNX_BACKEND", "rammer_testing.onnx_backend"))


def skipping(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a case that is skipped where the backend does not support its model."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return test(*args, **kwargs)
        except BackendIsNotSupposedToImplementIt as error:
            raise unittest.SkipTest(str(error)) from error

    return run


class Scoreboard(BackendTest):
    """ONNX's suite, in which an unsupported model is a skipped case and not a passed one."""

    def _add_test(
        self,
        category: str,
        test_name: str,
        test_func: Callable[..., Any],
        report_item: Any,
        devices: Iterable[str] = ("CPU", "CUDA"),
        **kwargs: Any,
    ) -> None:
        super()._add_test(category, test_name, skipping(test_func), report_item, devices, **kwargs)


globals().update(Scoreboard(BACKEND, __name__).test_cases)  # type: ignore[arg-type]
