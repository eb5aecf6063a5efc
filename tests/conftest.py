"""Options and fixtures for all tests."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest
from caches import CACHE, MOST_BYTES, nbytes
from goldens import Golden
from longest import LONGEST

hypothesis.settings.register_profile("shared", deadline=None)  # machines are shared: no example may take too long
hypothesis.settings.load_profile("shared")
pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


def pytest_configure(config: pytest.Config) -> None:
    """Share caches among workers, processes that tests start, and runs. What grew too large begins anew."""
    if not hasattr(config, "workerinput") and nbytes(CACHE) > MOST_BYTES:
        shutil.rmtree(CACHE, ignore_errors=True)
    os.environ.setdefault("RAMMER_CACHE_DIR", str(CACHE / "programs"))
    os.environ.setdefault("RAMMER_KERNELS_DIR", str(Path(tempfile.gettempdir(), f"rammer-test-kernels-{os.getuid()}")))
    # Without bytecode, every process that a test starts compiles all of rammer's modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each core has a worker already


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the longest files, so that no worker waits at the end. Slow tests run when asked for with -m."""
    place = {name: n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0], len(place)))
    if config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="slow: run with -m slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Take what was collected out of the garbage collector's sight, also in the many children that programs fork.

    It runs rarely, as compilers make much and drop little.
    """
    freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.hookimpl(trylast=True)  # after the fixtures of that file
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Likewise what a file of tests leaves, or a test that collects garbage looks through all of it."""
    if nextitem and nextitem.path != item.path:
        freeze()


def freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares text with tests/golden/<test file>/<test name>.txt."""
    return Golden(request.node, request.config.getoption("--update-golden"))
