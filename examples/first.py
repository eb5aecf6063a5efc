"""Compile a model, run it, look at what was planned, save it, and load it again."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx.parser

import rammer

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
classifier (float[batch, 29] x, float[29, 75] w1, float[75, 5] w2) => (float[batch, 5] y) {
  h = MatMul(x, w1)
  a = Gelu(h)
  s = MatMul(a, w2)
  y = Softmax(s)
}
"""


def main() -> None:
    model = onnx.parser.parse_model(MODEL)
    random = np.random.default_rng(0)
    weights = {"w1": (29, 75), "w2": (75, 5)}
    constants = {name: random.standard_normal(shape, np.float32) for name, shape in weights.items()}
    program = rammer.compile(model, "cpu", dims={"batch": 3}, constants=constants)
    x = random.standard_normal((3, 29), np.float32)
    y = program(x)
    print(program.report())
    with TemporaryDirectory() as folder:
        path = Path(folder, "classifier.rammer")
        program.save(path)
        with rammer.load(path) as again:
            (same,) = again.run(["y"], {"x": x})
    program.close()
    assert np.array_equal(y, same) and np.allclose(y.sum(axis=-1), 1)


if __name__ == "__main__":
    main()
