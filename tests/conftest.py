"""Options and fixtures for all tests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import hypothesis
import pytest
from goldens import Golden

hypothesis.settings.register_profile("shared", deadline=None)  # machines are shared: no example may take too long
hypothesis.settings.load_profile("shared")
pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests run when asked for with -m."""
    if config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="slow: run with -m slow")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares text with tests/golden/<test file>/<test name>.txt."""
    return Golden(request.node, request.config.getoption("--update-golden"))


@pytest.fixture(scope="session", autouse=True)
def _own_cache() -> object:
    """Tests never touch the user's cache and imported kernels, but share a cache among runs: it is keyed by content."""
    if "RAMMER_CACHE_DIR" not in os.environ:
        os.environ["RAMMER_CACHE_DIR"] = str(Path(tempfile.gettempdir()) / f"rammer-test-cache-{os.getuid()}")
    os.environ.setdefault("RAMMER_KERNELS_DIR", str(Path(tempfile.gettempdir(), f"rammer-test-kernels-{os.getuid()}")))
    return None
