"""A cluster of processes on this machine: what it computes, what it keeps, and what a killed worker costs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from rammer_dask import _compiled, connect, infer, recipe, sweep

import rammer
from rammer import config
from rammer.errors import RammerError

if TYPE_CHECKING:
    from dask.distributed import Client

# Not imported here: each worker collects this file, and every fork copies the page tables of what is imported.
missing = find_spec("distributed") is None
pytestmark = pytest.mark.skipif(missing, reason="Dask is not installed: ./plugins/dask requires it")

ROWS, WIDTH = 75, 200


@pytest.fixture(scope="module")
def model() -> bytes:
    """A product, a bias and a ReLU."""
    weights = np.random.default_rng(0).standard_normal((WIDTH, WIDTH), np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (ROWS, WIDTH)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "product", ports[:1], ports[1:], [numpy_helper.from_array(weights, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    content: bytes = made.SerializeToString()
    return content


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with config.override(RAMMER_TUNE_SECONDS="0"), connect(workers=2) as client:
        yield client


def batches(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((ROWS, WIDTH), np.float32)} for _ in range(count)]


def kill_one(client: Client, busy: bool) -> int:
    """Kill a worker's process, which is named; a `busy` one, as soon as there is one."""
    pids = client.run(os.getpid)
    victim = next(iter(pids))
    while busy and not (working := [w for w, tasks in client.processing().items() if tasks and w in pids]):
        time.sleep(0.01)
    pid: int = pids[working[0] if busy else victim]
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_killed_worker_loses_nothing(client: Client, model: bytes) -> None:
    """Neither what it was about to do, nor results that only it had."""
    from dask.distributed import wait

    given = batches(24)
    with rammer.compile(model, "cpu", tune_seconds=0, device=1) as program:
        expected = [program.run(inputs)["y"] for inputs in given]
    futures = infer(client, recipe(model, target="cpu", device=1), given)
    killed = kill_one(client, busy=True)
    wait(futures, timeout=300)
    for future, value in zip(futures, expected, strict=True):
        np.testing.assert_array_equal(future.result()["y"], value)
    client.wait_for_workers(2, timeout=60)
    again = kill_one(client, busy=False)
    for outputs, value in zip(client.gather(futures), expected, strict=True):
        np.testing.assert_array_equal(outputs["y"], value)
    client.wait_for_workers(2, timeout=60)
    assert not {killed, again} & set(client.run(os.getpid).values())


def test_a_worker_compiles_a_model_once(client: Client, model: bytes) -> None:
    """Equal content and options are one program, however often they are sent."""
    client.run(_compiled.cache_clear)
    for _ in range(2):
        made = infer(client, recipe(bytes(model), target="cpu", device=1), batches(8))
        assert len(client.gather(made)) == 8
    kept = client.run(_compiled.cache_info).values()
    assert sum(info.hits + info.misses for info in kept) == 16 and max(info.misses for info in kept) == 1


def test_a_sweep_reports_every_combination_as_it_is_ready(client: Client, model: bytes) -> None:
    from dask.distributed import as_completed

    policies, devices = ("sequential", "wavefront:beyond=off"), (1, 2)
    asked = sweep(client, [recipe(model, target="cpu")], policy=policies, device=devices)
    found = {(asked[f][1]["policy"], asked[f][1]["device"]): f.result() for f in as_completed(asked)}
    assert set(found) == {(p, d) for p in policies for d in devices}
    for (policy, device), report in found.items():
        assert report["policy"] == policy and report["num_veus"] == device and report["estimated_us"] > 0


def test_an_error_of_a_worker_is_the_callers(client: Client, model: bytes) -> None:
    (future,) = infer(client, recipe(model, target="cpu", policy="wavefont"), batches(1))
    with pytest.raises(RammerError, match="wavefront") as caught:
        future.result()
    assert "no policy named" in str(caught.value)


def test_what_cannot_be_reached_is_named(tmp_path: Path) -> None:
    from dask import config as dask_config

    with pytest.raises(RammerError, match=r"missing\.onnx"):
        recipe(tmp_path / "missing.onnx")
    with (
        dask_config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(RammerError, match=r"no scheduler at tcp://127\.0\.0\.1:9"),
        connect("tcp://127.0.0.1:9"),
    ):
        pass
