"""Operators of the domain com.microsoft against ONNX Runtime, which defines them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto
from onnx_models import model, node
from rammer_testing.runtime import run_runtime

import rammer
from rammer.errors import ModelError
from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array

DOMAIN = "com.microsoft"


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


def whole(low: int, high: int, *shape: int, dtype: str = "uint8") -> Array:
    return np.random.default_rng((low, high, *shape)).integers(low, high, shape, dtype)


def contrib(
    op: str, values: Mapping[str, Array], outputs: Sequence[str], fixed: Mapping[str, Array], **attrs: Any
) -> ModelProto:
    """One node; operands are named in order, an empty name is one left out."""
    names = attrs.pop("inputs", [*values, *fixed])
    kinds = {name: (v.dtype.name, v.shape) for name, v in values.items()}
    return model(
        [node(op, names, outputs, domain=attrs.pop("domain", DOMAIN), **attrs)],
        kinds,
        [o for o in outputs if o],
        fixed,
        17,
        domains={DOMAIN: 1},
    )


def agrees(
    op: str,
    values: Mapping[str, Array],
    fixed: Mapping[str, Array] | None = None,
    outputs: Sequence[str] = ("y",),
    atol: float = 2e-5,
    *,
    cpu: bool = False,
    **attrs: Any,
) -> None:
    """The node means the same to ONNX Runtime; and compiled for the CPU, if asked for."""
    made = contrib(op, values, outputs, fixed or {}, **attrs)
    wanted = run_runtime(made, values)
    graph = load(made)
    found = [evaluate_graph(graph, values)]
    if cpu:
        with rammer.compile(graph, target="cpu", tune_seconds=0) as program:
            found.append(program.run(dict(values)))
    for results in found:
        for name, want in zip((o for o in outputs if o), wanted, strict=True):
            assert results[name].shape == want.shape and results[name].dtype == want.dtype
            np.testing.assert_allclose(results[name], want, rtol=1e-4, atol=atol)


@pytest.mark.parametrize(
    ("op", "values", "attrs"),
    [
        ("Gelu", {"x": draw(3, 37)}, {}),
        ("BiasGelu", {"x": draw(3, 37), "b": draw(37)}, {}),
        ("FastGelu", {"x": draw(3, 37)}, {}),
        ("FastGelu", {"x": draw(3, 37), "b": draw(37)}, {}),
        ("QuickGelu", {"x": draw(3, 37)}, {"alpha": 1.3}),
        ("FusedMatMul", {"a": draw(2, 5, 7), "b": draw(2, 9, 7)}, {"transB": 1, "alpha": 0.5}),
        ("FusedMatMul", {"a": draw(5, 2, 7), "b": draw(2, 7, 9)}, {"transBatchA": 1}),
    ],
)
def test_activations_and_products(op: str, values: dict[str, Array], attrs: dict[str, Any]) -> None:
    agrees(op, values, **attrs)


@pytest.mark.parametrize("parts", [3, 4, 5])
def test_sums_are_normalized(parts: int) -> None:
    values = {
        "x": draw(2, 5, 33),
        "s": draw(2, 5, 33, seed=1),
        "g": draw(33),
        "b": draw(33, seed=1),
        "c": draw(33, seed=2),
    }
    chosen = dict(list(values.items())[:parts])
    agrees("SkipLayerNormalization", chosen, outputs=["y", "", "", "t"], epsilon=1e-5, cpu=parts == 5)
    if parts < 5:
        agrees("SkipSimplifiedLayerNormalization", chosen, outputs=["y", "", "", "t"], epsilon=1e-5)


def test_what_onnx_runtime_has_in_the_domain_of_the_standard() -> None:
    """As its optimizer and its builder of language models write it."""
    values = {"x": draw(2, 5, 33), "g": draw(33)}
    agrees("SimplifiedLayerNormalization", values, domain="", axis=-1, stash_type=1, epsilon=1e-5, cpu=True)


@pytest.mark.parametrize("segments", [False, True])
def test_words_are_embedded(segments: bool) -> None:
    values = {"i": whole(0, 50, 2, 6, dtype="int32")} | ({"s": whole(0, 2, 2, 6, dtype="int32")} if segments else {})
    fixed = {"w": draw(50, 16), "p": draw(9, 16), "t": draw(2, 16), "g": draw(16), "b": draw(16, seed=1)}
    if not segments:
        del fixed["t"]
    mask = {"m": np.array([[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)}
    inputs = ["i", "s" * segments, "w", "p", "t" * segments, "g", "b", "m"]
    agrees("EmbedLayerNormalization", values | mask, fixed, ["y", "n"], inputs=inputs)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("offset", [False, True])
def test_heads_are_turned(interleaved: int, offset: bool) -> None:
    at = np.array([3]) if offset else whole(0, 12, 2, 5, dtype="int64")
    values = {"x": draw(2, 5, 24), "p": at, "c": draw(12, 4), "s": draw(12, 4, seed=1)}
    agrees("RotaryEmbedding", values, interleaved=interleaved, cpu=not offset)
    agrees("RotaryEmbedding", values | {"x": draw(2, 3, 5, 8)}, interleaved=interleaved)


MASKS = {
    "none": None,
    "lengths": np.array([4, 7], np.int32),
    "words": np.array([[1, 1, 0, 1, 1, 0, 0], [1, 1, 1, 1, 0, 1, 1]], np.int32),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("bias", [False, True])
def test_heads_attend(mask: str, bias: bool) -> None:
    values = {"q": draw(2, 5, 24), "k": draw(2, 7, 24), "v": draw(2, 7, 12)}
    more: dict[str, Array] = {"b": draw(60), "a": draw(2, 3, 5, 7)} if bias else {}
    if (kept := MASKS[mask]) is not None:
        more["m"] = kept
    inputs = ["q", "k", "v", *(name if name in more else "" for name in ("b", "m", "a"))]
    agrees("MultiHeadAttention", values | more, num_heads=3, inputs=inputs, cpu=mask == "words" and bias)


def test_heads_attend_to_what_was_before() -> None:
    values = {"q": draw(2, 3, 24), "k": draw(2, 3, 24, seed=1), "v": draw(2, 3, 24, seed=2)}
    past = {"pk": draw(2, 3, 4, 8), "pv": draw(2, 3, 4, 8, seed=1)}
    inputs = ["q", "k", "v", "", "", "", "pk", "pv"]
    agrees("MultiHeadAttention", values | past, None, ["y", "nk", "nv"], num_heads=3, unidirectional=1, inputs=inputs)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention_of_one_product(mask: str, unidirectional: int) -> None:
    values = {"x": draw(2, 7, 10), "w": draw(10, 60), "b": draw(60)}
    more = {} if (kept := MASKS[mask]) is None else {"m": kept}
    sizes = [24, 24, 12]
    agrees("Attention", values | more, num_heads=3, unidirectional=unidirectional, qkv_hidden_sizes=sizes)


@pytest.mark.parametrize("past", [0, 6, 9])
@pytest.mark.parametrize("rotary", [0, 1])
@pytest.mark.parametrize("packed", [False, True])
def test_grouped_heads_attend_into_a_cache(past: int, rotary: int, packed: bool) -> None:
    """A prompt, a step where the cache grows, and one into a cache that has room."""
    heads, groups, size = 4, 2, 16
    length = 5 if not past else 1
    total = length if not past else 7
    rows = [draw(2, length, many * size, seed=n) for n, many in enumerate((heads, groups, groups))]
    values = {"q": np.concatenate(rows, 2)} if packed else dict(zip(("q", "k", "v"), rows, strict=True))
    if past:
        values |= {"pk": draw(2, groups, past, size), "pv": draw(2, groups, past, size, seed=1)}
    values["n"] = np.array([total - 1, total - 1 if not past else total - 3], np.int32)
    if rotary:
        values |= {"c": draw(16, size // 2), "s": draw(16, size // 2, seed=1)}
    inputs = [name if name in values or name == "t" else "" for name in ("q", "k", "v", "pk", "pv", "n", "t", "c", "s")]
    attrs = {
        "num_heads": heads,
        "kv_num_heads": groups,
        "do_rotary": rotary,
        "local_window_size": 4 if past == 9 else -1,
    }
    made = contrib(
        "GroupQueryAttention", values, ["y", "nk", "nv"], {"t": np.array([total], np.int32)}, inputs=inputs, **attrs
    )
    wanted = run_runtime(made, values)
    seen = evaluate_graph(load(made), values)
    np.testing.assert_allclose(seen["y"], wanted[0], rtol=1e-4, atol=2e-5)
    for name, want in zip(("nk", "nv"), wanted[1:], strict=True):
        assert seen[name].shape == want.shape
        for batch, end in enumerate(values["n"] + 1):  # behind the end anything may lie
            np.testing.assert_allclose(seen[name][batch, :, :end], want[batch, :, :end], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("bits", "zeros"), [(4, "none"), (4, "packed"), (4, "numbers"), (8, "none"), (8, "packed")])
def test_weights_of_few_bits(bits: int, zeros: str) -> None:
    depth, columns, block = 96, 9, 32
    values = {"x": draw(2, 3, depth)}
    fixed = {"w": whole(0, 256, columns, 3, block * bits // 8), "s": draw(columns, 3)}
    if zeros == "packed":
        fixed["z"] = whole(0, 256, columns, -(-3 * bits // 8))
    elif zeros == "numbers":
        fixed["z"] = draw(columns, 3) * 4
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block}
    agrees("MatMulNBits", values, fixed, atol=1e-3 * 2 ** (bits - 4), cpu=bits == 4 and zeros == "packed", **attrs)


SCALE, ZERO = np.array(0.05, np.float32), np.array(120, np.uint8)


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
def test_quantized_pairs(op: str) -> None:
    values = {"a": whole(0, 256, 3, 37), "b": whole(0, 256, 37)}
    fixed = {"as": SCALE, "az": ZERO, "bs": SCALE * 2, "bz": ZERO + 3, "ys": SCALE * 3, "yz": ZERO - 9}
    inputs = ["a", "as", "az", "b", "bs", "bz", "ys", "yz"]
    agrees(op, values, fixed, atol=1, inputs=inputs)


@pytest.mark.parametrize(
    ("op", "shape", "attrs"),
    [
        ("QLinearSigmoid", (3, 37), {}),
        ("QLinearLeakyRelu", (3, 37), {"alpha": 0.3}),
        ("QLinearGlobalAveragePool", (2, 3, 5, 7), {}),
    ],
)
def test_quantized_functions(op: str, shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    fixed = {"xs": SCALE, "xz": ZERO, "ys": SCALE / 4, "yz": ZERO - 100}
    agrees(op, {"x": whole(0, 256, *shape)}, fixed, atol=1, **attrs)


def test_quantized_rest() -> None:
    values = {"a": whole(0, 256, 3, 5), "b": whole(0, 256, 3, 4)}
    fixed = {"ys": SCALE * 3, "yz": ZERO, "as": SCALE, "az": ZERO - 9, "bs": SCALE * 2, "bz": ZERO}
    agrees("QLinearConcat", values, fixed, atol=1, axis=1, inputs=["ys", "yz", "a", "as", "az", "b", "bs", "bz"])
    agrees("DequantizeLinear", {"x": whole(0, 256, 3, 37)}, {"s": SCALE, "z": ZERO})
    agrees("QuantizeLinear", {"x": draw(3, 37) * 4}, {"s": SCALE, "z": ZERO}, atol=1)
    fixed = {"as": SCALE, "bs": draw(6) ** 2, "az": ZERO, "bz": whole(0, 9, 6), "c": draw(6)}
    agrees("MatMulIntegerToFloat", {"a": whole(0, 256, 3, 37), "b": whole(0, 256, 37, 6)}, fixed, atol=1e-2)


@pytest.mark.parametrize(
    ("op", "values", "attrs", "message"),
    [
        ("Gelu", {"x": draw(2)}, {"slope": 1.0}, "attribute 'slope' is not supported"),
        ("QuickGelu", {"x": draw(2)}, {"alpha": 1}, "attribute 'alpha' is 1, which is no float"),
        ("Gelu", {"x": draw(2), "b": draw(2)}, {}, "has 2 inputs"),
        (
            "MultiHeadAttention",
            {"q": draw(1, 2, 4), "k": draw(1, 2, 4), "v": draw(1, 2, 4)},
            {"num_heads": -1},
            "-1 heads",
        ),
        (
            "MultiHeadAttention",
            {"q": draw(1, 2, 4), "k": draw(1, 2, 4), "v": draw(1, 2, 4)},
            {"num_heads": 3},
            "3 heads",
        ),
        ("Attention", {"x": draw(1, 2, 4), "w": draw(4, 6)}, {"num_heads": 1, "qkv_hidden_sizes": [9, -9, 6]}, "sizes"),
        (
            "RotaryEmbedding",
            dict(zip("xpcs", [draw(1, 2, 4), np.array([0]), *[draw(9, 4)] * 2], strict=True)),
            {},
            "heads of",
        ),
        (
            "MatMulNBits",
            {"x": draw(2, 8), "w": whole(0, 9, 2, 1, 8), "s": draw(2)},
            {"K": 8, "N": 2, "block_size": 3},
            "blocks of 3",
        ),
        (
            "MatMulNBits",
            {"x": draw(2, 8), "w": whole(0, 9, 2, 1, 8), "s": draw(2)},
            {"K": 1 << 40, "N": 2, "block_size": 16},
            "fit",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(op: str, values: dict[str, Array], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load(contrib(op, values, ["y"], {}, **attrs))


@pytest.mark.parametrize(("axis", "opset"), [(-1, 13), (1, 13), (1, 12), (2, 12)])
def test_quantized_softmax(axis: int, opset: int) -> None:
    fixed = {"xs": SCALE, "xz": ZERO, "ys": SCALE / 12, "yz": ZERO - ZERO}
    agrees("QLinearSoftmax", {"x": whole(0, 256, 2, 5, 7)}, fixed, atol=1, axis=axis, opset=opset)


def test_quantized_choices() -> None:
    values = {"c": whole(0, 2, 3, 1, dtype="int64") > 0, "a": whole(0, 256, 3, 5), "b": whole(0, 256, 3, 5)}
    fixed = {"as": SCALE, "az": ZERO - 9, "bs": SCALE * 2, "bz": ZERO, "ys": SCALE * 3, "yz": ZERO}
    agrees("QLinearWhere", values, fixed, atol=1, inputs=["c", "a", "as", "az", "b", "bs", "bz", "ys", "yz"])


@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 0, 1, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER"},
    ],
)
def test_quantized_pools(attrs: dict[str, Any]) -> None:
    fixed = {"xs": SCALE, "xz": ZERO, "ys": SCALE / 2, "yz": ZERO - 3}
    agrees("QLinearAveragePool", {"x": whole(0, 256, 2, 3, 9, 8)}, fixed, atol=1, **attrs)


@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"activation": "Relu", "pads": [1, 1, 1, 1]},
        {"activation": "LeakyRelu", "activation_params": [0.3], "strides": [2, 1]},
        {"activation": "Clip", "activation_params": [-0.5, 0.25], "auto_pad": "SAME_LOWER"},
        {"activation": "HardSigmoid", "activation_params": [0.2, 0.4], "dilations": [2, 1]},
        {"activation": "Tanh", "group": 2},
        {"activation": "Sigmoid"},
    ],
)
def test_fused_convolutions(attrs: dict[str, Any]) -> None:
    weight = draw(6, 4 // attrs.get("group", 1), 3, 3, seed=1) / 4
    agrees("FusedConv", {"x": draw(2, 4, 9, 8)}, {"w": weight, "b": draw(6)}, cpu=True, **attrs)


def test_fused_convolutions_that_add() -> None:
    values = {"x": draw(2, 4, 9, 8), "z": draw(2, 6, 7, 6)}
    fixed = {"w": draw(6, 4, 3, 3, seed=1) / 4, "b": draw(6)}
    agrees("FusedConv", values, fixed, inputs=["x", "w", "b", "z"], activation="Relu")
    for attrs, what in (({"activation": "Swish"}, "activation 'Swish'"), ({"activation": "Clip"}, "of 0 param")):
        with pytest.raises(ModelError, match=what):
            load(contrib("FusedConv", {"x": draw(2, 4, 9, 8)}, ["y"], {"w": fixed["w"]}, **attrs))


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("attrs", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}])
def test_quantized_products(quantized: bool, attrs: dict[str, Any]) -> None:
    a, b = (
        whole(0, 256, *((7, 3) if attrs.get("transA") else (3, 7))),
        whole(0, 256, *((5, 7) if attrs.get("transB") else (7, 5))),
    )
    fixed = {
        "as": SCALE,
        "az": ZERO,
        "b": b,
        "bs": SCALE / 2,
        "bz": ZERO - 7,
        "c": whole(0, 900, 5, dtype="int32") - 450,
    }
    more = {"ys": SCALE * 3, "yz": ZERO} if quantized else {}
    names = ["a", "as", "az", "b", "bs", "bz", "c", *more]
    agrees("QGemm", {"a": a}, {**fixed, **more}, atol=1 if quantized else 1e-3, inputs=names, **attrs)


@pytest.mark.parametrize("names", [["bs"], ["bs", "bz"], ["bs", "", "c"], ["bs", "bz", "c"]])
def test_products_with_an_operand_that_is_quantized_by_its_range(names: list[str]) -> None:
    fixed = {"b": whole(0, 256, 37, 6), "bs": np.array([0.03], np.float32), "bz": whole(99, 130, 1), "c": draw(6)}
    given = ["x", "b", *names]
    for x in (draw(2, 3, 37), np.abs(draw(2, 3, 37)), -np.abs(draw(2, 3, 37))):
        agrees("DynamicQuantizeMatMul", {"x": x}, {n: fixed[n] for n in given if n in fixed}, atol=2e-2, inputs=given)


RECURRENT: dict[str, dict[str, Any]] = {
    "plain": {},
    "bidirectional": {"direction": "bidirectional"},
    "reverse, peepholes": {"direction": "reverse", "peepholes": True},
    "clipped, others": {"clip": 0.5, "activations": ["HardSigmoid", "Tanh", "Softsign"]},
    "coupled gates": {"input_forget": 1},
}


@pytest.mark.parametrize("columns", [False, True], ids=["", "scales of columns"])
@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers_of_bytes(kind: str, columns: bool) -> None:
    """ONNX Runtime may cut a batch in parts, each with its own range: so it has one row here."""
    attrs = dict(RECURRENT[kind])
    directions, steps, inputs, hidden = 1 + (attrs.get("direction") == "bidirectional"), 5, 37, 24
    width = 4 * hidden
    per = (directions, width) if columns else (directions,)
    scales = np.linspace(0.002, 0.004, directions * (width if columns else 1), dtype=np.float32).reshape(per)
    fixed = {
        "w": (whole(1, 256, directions, inputs, width, dtype="int16") - 128).astype("int8"),
        "r": (whole(1, 256, directions, hidden, width, dtype="int16") - 128).astype("int8"),
        "b": draw(directions, 2 * width),
        "h": draw(directions, 1, hidden),
        "c": draw(directions, 1, hidden, seed=1),
        "p": draw(directions, 3 * hidden),
        "ws": scales,
        "wz": np.zeros(per, np.int8),
        "rs": scales[..., ::-1].copy() if columns else scales,
        "rz": np.zeros(per, np.int8),
    }
    names = ["x", "w", "r", "b", "", "h", "c", "p" if attrs.pop("peepholes", False) else "", "ws", "wz", "rs", "rz"]
    fixed = {name: value for name, value in fixed.items() if name in names}
    results = ("y", "last_h", "last_c")
    given = {"x": draw(steps, 1, inputs)}
    agrees("DynamicQuantizeLSTM", given, fixed, results, 2e-2, cpu=True, inputs=names, hidden_size=hidden, **attrs)


def test_a_recurrent_layer_of_bytes_without_a_state_begins_with_zeros() -> None:
    fixed = {name: whole(0, 256, 1, 8, 32, dtype="uint8") for name in ("w", "r")}
    fixed |= {f"{n}{k}": v for n in "wr" for k, v in (("s", np.float32([0.003])), ("z", np.uint8([131])))}
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    agrees("DynamicQuantizeLSTM", {"x": draw(4, 1, 8)}, fixed, atol=2e-2, cpu=True, inputs=names, hidden_size=8)


@pytest.mark.parametrize(
    "attrs",
    [
        {"activation": "Relu", "transB": 1},
        {"activation": "LeakyRelu", "activation_alpha": 0.3, "alpha": 0.5},
        {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4},
        {"activation": "Elu", "activation_alpha": 1.0},
        {"activation": "Selu", "activation_alpha": 1.6, "activation_gamma": 1.1},
        {"activation": "Softplus", "beta": 0.25},
    ],
)
def test_products_with_an_activation(attrs: dict[str, Any]) -> None:
    fixed = {"b": draw(6, 37) if attrs.get("transB") else draw(37, 6), "c": draw(6)}
    agrees("FusedGemm", {"a": draw(5, 37)}, fixed, **attrs)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("past", [False, True])
def test_attention_of_one_product_of_bytes(mask: str, past: bool) -> None:
    width, heads = 24, 3
    fixed = {
        "w": whole(0, 256, 10, 3 * width),
        "b": draw(3 * width),
        "xs": np.array(0.02, np.float32),
        "ws": np.array(0.01, np.float32),
        "xz": np.array(120, np.uint8),
        "wz": np.array(131, np.uint8),
    }
    values: dict[str, Array] = {"x": whole(0, 256, 2, 7, 10)}
    if (kept := MASKS[mask]) is not None:
        values["m"] = np.concatenate([np.ones((2, 4), np.int32), kept], 1) if past and kept.ndim == 2 else kept
    if past and mask != "lengths":
        values["p"] = draw(2, 2, heads, 4, width // heads)
    inputs = ["x", "w", "b", "xs", "ws", "m" if "m" in values else "", "xz", "wz", "p" if "p" in values else ""]
    outputs = ["y", "now"] if "p" in values else ["y"]
    agrees("QAttention", values, fixed, outputs, 1e-4, num_heads=heads, unidirectional=int(past), inputs=inputs)


def test_channels_last() -> None:
    """Pools and convolutions of bytes that ONNX Runtime's optimizer turns around."""
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x = whole(0, 256, 2, 9, 8, 5)
    agrees("NhwcMaxPool", {"x": x}, atol=0, cpu=True, **window)
    scales = {"xs": SCALE, "xz": ZERO, "ys": SCALE * 2, "yz": ZERO - 3}
    agrees("QLinearAveragePool", {"x": x}, scales, atol=1, channels_last=1, **window)
    agrees("QLinearGlobalAveragePool", {"x": x}, scales, atol=1, channels_last=1)
    fixed = {
        "xs": SCALE,
        "xz": ZERO,
        "w": whole(0, 256, 6, 5, 3, 3),
        "ws": SCALE / 9,
        "wz": ZERO + 7,
        "ys": SCALE * 3,
        "yz": ZERO,
        "b": whole(0, 900, 6, dtype="int32") - 450,
    }
    agrees("QLinearConv", {"x": x}, fixed, atol=1, channels_last=1, cpu=True, **window)


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_norms_give_their_statistics(op: str) -> None:
    """ONNX Runtime computes them in training only, so NumPy is the reference."""
    values = {"x": draw(2, 5, 33), "s": draw(2, 5, 33, seed=1), "g": draw(33)}
    results = evaluate_graph(load(contrib(op, values, ["y", "mean", "inverse", "sum"], {}, epsilon=1e-3)), values)
    total = (values["x"] + values["s"]).astype(np.float64)
    centre = total.mean(-1, keepdims=True) if op == "SkipLayerNormalization" else 0.0
    inverse = 1 / np.sqrt(((total - centre) ** 2).mean(-1, keepdims=True) + 1e-3)
    np.testing.assert_allclose(results["sum"], total, rtol=1e-6)
    np.testing.assert_allclose(results["inverse"], inverse, rtol=1e-5)
    np.testing.assert_allclose(results["y"], (total - centre) * inverse * values["g"], rtol=1e-4, atol=1e-5)
    if op == "SkipLayerNormalization":
        np.testing.assert_allclose(results["mean"], centre, atol=1e-6)


def test_what_onnx_runtimes_optimizer_saves_is_loaded(tmp_path: Path) -> None:
    """Extended optimizations: norms of the standard in an old opset, products and convolutions with activations."""
    nodes = [
        node("Conv", ["x", "k"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["a"], ["b"], name="leaky", alpha=0.1),
        node("GlobalAveragePool", ["b"], ["c"], name="pool"),
        node("Flatten", ["c"], ["d"], name="flat"),
        node("ReduceMean", ["d"], ["mean"], name="mean", axes=[-1]),
        node("Sub", ["d", "mean"], ["e"], name="centre"),
        node("Pow", ["e", "two"], ["f"], name="square"),
        node("ReduceMean", ["f"], ["var"], name="var", axes=[-1]),
        node("Add", ["var", "eps"], ["g"], name="eps"),
        node("Sqrt", ["g"], ["h"], name="root"),
        node("Div", ["e", "h"], ["i"], name="scale"),
        node("Mul", ["i", "gamma"], ["j"], name="gamma"),
        node("Add", ["j", "beta"], ["l"], name="beta"),
        node("Gemm", ["l", "w", "v"], ["m"], name="gemm"),
        node("Elu", ["m"], ["y"], name="elu"),
    ]
    constants = {
        "k": draw(12, 3, 3, 3),
        "two": np.array(2, np.float32),
        "eps": np.array(1e-5, np.float32),
        "gamma": draw(12),
        "beta": draw(12, seed=1),
        "w": draw(12, 7),
        "v": draw(7),
    }
    made = model(nodes, {"x": (2, 3, 9, 9)}, ("y",), constants, 13)
    made.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values = {"x": draw(2, 3, 9, 9)}
    saved = onnx.load(options.optimized_model_filepath)
    assert {n.op_type for n in saved.graph.node} >= {"FusedConv", "LayerNormalization", "FusedGemm"}
    found = evaluate_graph(load(saved), values)["y"]
    np.testing.assert_allclose(found, session.run(None, values)[0], rtol=1e-4, atol=1e-5)


def test_what_is_as_in_the_standard() -> None:
    x = draw(3, 5)
    agrees("GatherND", {"x": x, "i": np.array([[0, 1], [2, 4]])})
    agrees("Pad", {"x": x}, {"p": np.array([1, 0, 0, 2]), "v": np.array(7, np.float32)})
    agrees("Pad", {"x": x}, {"p": np.array([1, 0, 0, 2])}, mode="reflect")
    agrees("Trilu", {"x": x}, {"k": np.array(1)}, upper=0)
    agrees("GridSample", {"x": draw(1, 2, 5, 6), "g": draw(1, 3, 4, 2) / 2}, mode="bilinear", align_corners=1)


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_distances_of_rows(metric: str) -> None:
    for rows, columns, length in ((7, 5, 11), (75, 40, 33), (128, 70, 96)):
        agrees("CDist", {"a": draw(rows, length), "b": draw(columns, length)}, metric=metric, atol=1e-4, cpu=True)
    with pytest.raises(ModelError, match="metric 'chebyshev'"):
        load(contrib("CDist", {"a": draw(7, 11), "b": draw(5, 11)}, ["y"], {}, metric="chebyshev"))
