"""Outputs that are the next run's inputs stay in the program; every stream has its own."""

import numpy as np
import onnx.parser

import rammer

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
smooth (float[75] x, float[75] mean_in, float decay) => (float[75] y, float[75] mean_out) {
  rest = Sub(x, mean_in)
  step = Mul(rest, decay)
  mean_out = Add(mean_in, step)
  y = Sub(x, mean_out)
}
"""

constants = {"decay": np.array(0.5, np.float32)}
with rammer.compile(onnx.parser.parse_model(MODEL), "cpu", constants=constants, state=True) as program:
    left, right = program.stream(), program.stream()
    for number in range(3):
        one = np.ones(75, np.float32)
        assert np.allclose(left(one), 0.5 ** (number + 1))
        assert np.allclose(right(-one), -(0.5 ** (number + 1)))
    (mean,) = left.run(["mean_out"], {"x": np.zeros(75, np.float32)})  # state comes when it is named
    assert np.allclose(mean, 0.875 / 2)
    left.reset(mean_in=np.ones(75, np.float32))
    assert np.allclose(left(np.ones(75, np.float32)), 0)
