"""Loops and branches that only run time decides: models in parts, bodies as programs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
from onnx import ModelProto

import rammer

F32 = np.float32


def parsed(text: str, **weights: Any) -> ModelProto:
    """A model from ONNX's text form, of opset 18; `weights` are initializers."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 18]>\n{text}')
    for name, value in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


def session(model: ModelProto, **options: Any) -> rammer.Session:
    return rammer.Session(model, "cpu", device=2, tune_seconds=0, **options)


def draw(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(F32)


def agrees(s: rammer.Session, model: ModelProto, feeds: Sequence[dict[str, Any]]) -> None:
    """Both give the same for all feeds."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    peer = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for given in feeds:
        for found, wanted in zip(s.run(None, given), peer.run(None, given), strict=True):
            if not isinstance(wanted, list):
                assert found.dtype == wanted.dtype
            for part, other in zip(_listed(found), _listed(wanted), strict=True):
                assert part.shape == other.shape
                np.testing.assert_allclose(part, other, rtol=1e-4, atol=1e-5)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def settling() -> ModelProto:
    """Steps until a vector is short; what every step had is collected, and goes on behind the loop."""
    return parsed(
        """settle (float[n, 7] x, float limit) => (float[n, 7] z, float[t, n, 7] all, float total) {
          start = Relu(x)
          y, all = Loop <body = step (int64 i, bool c, float[n, 7] h)
              => (bool again, float[n, 7] g, float[n, 7] minus) {
            p = MatMul(h, w)
            g = Tanh(p)
            most = ReduceMax <keepdims = 0> (g)
            again = Less(limit, most)
            minus = Neg(g)
          }> ("", "", start)
          z = Add(y, x)
          total = ReduceSum <keepdims = 0> (all)
        }""",
        w=draw(7, 7) / F32(6),
    )


def test_a_loop_runs_until_its_condition_says() -> None:
    with session(settling()) as s:
        feeds = [{"x": draw(n, 7), "limit": np.array(limit, F32)} for n in (3, 1, 5) for limit in (0.5, 0.1, 1e-3, 0.1)]
        agrees(s, settling(), feeds)
        bodies = [text for text, _, _ in s.report().programs if "body" in text]
        assert len(bodies) == 3  # one for each shape, however many steps it takes
        assert s.report().hits > 30
