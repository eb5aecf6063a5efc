"""GPUs that are none, for tests of what drives them."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_gpus import FakeCuda, FakeGpu, FakeRocm, stub_library
from fake_hip import FakeHip

from rammer.vdevice.rocm import driver


@pytest.fixture(scope="session")
def hip_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    """The stub, and hip-python or its stand-in on it."""
    folder = tmp_path_factory.mktemp("rocm")
    library = stub_library(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROCM_PATH", str(folder))
        if importlib.util.find_spec("hip") is None:
            patch.setitem(sys.modules, "hip", SimpleNamespace(hip=FakeHip(library)))  # type: ignore[misc]
        driver._module.cache_clear()
        if driver.find_gpu(0).name != "Stub MI50":
            pytest.skip("hip-python has loaded a real library")
        yield library
    driver._module.cache_clear()


@pytest.fixture
def rocm_gpu(hip_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRocm]:
    fake = FakeRocm(monkeypatch, hip_library, tmp_path)
    yield fake
    fake.fail()
    for what in ("memory", "modules", "events", "streams", "graphs"):
        assert fake.cell(what).value == 0, f"{what} were left behind"


@pytest.fixture
def cuda_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


@pytest.fixture(params=["cuda", "rocm"])
def gpu(request: pytest.FixtureRequest) -> FakeGpu:
    """Each platform in turn."""
    return request.getfixturevalue(f"{request.param}_gpu")  # type: ignore[no-any-return]
