"""A session takes inputs of any shape, and compiles a program for each when it first comes."""

import numpy as np
import onnx.parser

import rammer

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
scores (float[batch, length, 29] x) => (float[batch, length, 29] y) {
  s = Softmax <axis = -1> (x)
  y = Mul(s, x)
}
"""

with rammer.Session(onnx.parser.parse_model(MODEL), "cpu", buckets={"batch": [1, 8]}) as session:
    print(session.get_inputs())
    session.warm([{"batch": 8, "length": 5}])
    for batch in (1, 3, 8):  # 3 is filled up to 8, where that is proven to change nothing
        x = np.ones((batch, 5, 29), np.float32)
        (y,) = session.run(None, {"x": x})
        assert y.shape == x.shape and np.allclose(y, 1 / 29)
    print(session.report())
