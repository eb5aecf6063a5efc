"""Norms, softmax and the like that several outputs are computed of: none is stored beyond the rTask's own rows."""

from __future__ import annotations

import onnx
import pytest
from cpus import runnable

import rammer
from rammer.compiler import Compilation
from rammer.ir.verify.kernel import proven
from rammer.plugins import PluginRegistry

BODIES = {
    "norm": "n = LayerNormalization(x, s) y = Mul(n, a) z = Mul(n, b)",
    "norm, shown": "y = LayerNormalization(x, s) z = Mul(y, b)",
    "norm and moments": "y, m, i = LayerNormalization(x, s) c = Mul(y, b) d = Add(c, m) z = Mul(d, i)",
    "softmax": "n = Softmax(x) y = Mul(n, a) z = Add(n, b)",
    "softmax of rows shown": "n = Softmax(x) c = Mul(n, a) y = Softmax(c) z = Add(n, y)",
    "logarithm of softmax": "n = LogSoftmax(x) y = Exp(n) z = Mul(n, b)",
    "softmax over rows": "n = Softmax<axis=1>(x) y = Mul(n, a) z = Add(n, b)",
    "norm of a product": "q = MatMul(x, w) n = LayerNormalization(q, s) y = Mul(n, a) z = Mul(n, b)",
}
DEVICES = (
    ("cpu", {"arch": runnable("x86-64-avx512"), "device": 2}),
    ("cpu", {"arch": runnable("x86-64-avx2"), "device": 3}),
    ("cuda", {"device": "emulator:4"}),
)


@pytest.mark.parametrize(("target", "options"), DEVICES, ids=[f"{t} {o}" for t, o in DEVICES])
def test_every_candidate_keeps_to_its_rows(target: str, options: dict[str, object]) -> None:
    registry = PluginRegistry(third_party=False)
    device = registry.open(target, **options)
    pieces = 0
    for name, body in BODIES.items():
        for rows, columns in ((29, 96), (57, 200)) if target == "cpu" else ((29, 96),):
            row = f"float[{columns}]"
            w = f", float[{columns},{columns}] w" if "w)" in body else ""
            ports = f"float[1,{rows},{columns}] x, {row} a, {row} b, {row} s{w}"
            results = f"float[1,{rows},{columns}] y, float[1,{rows},{columns}] z"
            text = f'<ir_version: 10, opset_import: ["" : 17]> g ({ports}) => ({results}) {{ {body} }}'
            graph = rammer.from_onnx(onnx.parser.parse_model(text))
            for kernels in Compilation(graph, device, registry=registry).candidates.kernels.values():
                broken = {k.name: str(f) for k in kernels for f in proven(k)[1] if f.broken}
                assert not broken, name
                pieces += sum("/8s" in k.schedule for k in kernels)
    assert target != "cpu" or pieces, "rows in pieces of eight, of which a task's last one is shorter"
