"""Compile a real network, run it, time it, see what bounds it, save it, and load it again."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from onnx.backend import test

import rammer

MODEL = Path(test.__file__).with_name("data") / "light" / "light_squeezenet.onnx"  # it comes with the onnx package

program = rammer.compile(MODEL)
x = np.random.default_rng(0).standard_normal(program.inputs[0].shape, np.float32)
y = program(x)  # or by name: program.run({"data_0": x})
seconds = []
for _ in range(20):
    begin = perf_counter()
    program(x)
    seconds.append(perf_counter() - begin)
print(f"{MODEL.name}: {median(seconds) * 1e3:.2f} ms a run, {program.report().estimated_us / 1e3:.2f} ms estimated")
print(program.explain())

with TemporaryDirectory() as folder:
    path = Path(folder, "squeezenet.rammer")
    program.save(path)
    with rammer.load(path) as again:  # in milliseconds, with no compiler
        assert np.array_equal(again(x), y)
program.close()
