"""Operators beyond the everyday ones, family by family, at odd sizes: against ONNX's reference or ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx_models import CODES, model, node

import rammer
from rammer.errors import ModelError
from rammer.frontend.onnx import load
from rammer.ir.semantics.evaluate import evaluate_graph
from rammer.ir.tensor import Array


def by_reference(made: ModelProto, values: dict[str, Array]) -> list[Array]:
    return [np.asarray(v) for v in ReferenceEvaluator(made).run(None, values)]


def by_runtime(made: ModelProto, values: dict[str, Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, values))


def compare(made: ModelProto, values: dict[str, Array], wanted: list[Array], rtol: float = 2e-5, *, cpu: bool) -> None:
    """The meaning of the graph, and of the program for the CPU."""
    graph = load(made)
    names = [v.name for v in made.graph.output]
    found = [evaluate_graph(graph, values)]
    if cpu:
        with rammer.compile(graph, target="cpu", tune_seconds=0) as program:
            found.append(program.run(values))
    for results in found:
        for name, want in zip(names, wanted, strict=True):
            assert results[name].shape == want.shape and results[name].dtype == want.dtype
            np.testing.assert_allclose(results[name], want, rtol=rtol, atol=rtol)


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_bits_of_integers(dtype: str) -> None:
    info, random = np.iinfo(dtype), np.random.default_rng(1)
    x = random.integers(info.min, info.max, (3, 37), dtype, endpoint=True)
    y = random.integers(info.min, info.max, (37,), dtype, endpoint=True)
    y[:24] = random.integers(max(info.min, -3), info.bits + 3, 24)
    nodes = [
        *(node(f"Bitwise{op}", ["x", "y"], [op]) for op in ("And", "Or", "Xor")),
        node("BitwiseNot", ["x"], ["Not"]),
        *(node("BitShift", ["x", "y"], [way], direction=way) for way in ("LEFT", "RIGHT")),
    ]
    made = model(nodes, {"x": (dtype, x.shape), "y": (dtype, y.shape)}, [n.output[0] for n in nodes], opset=28)
    compare(made, {"x": x, "y": y}, by_reference(made, {"x": x, "y": y}), 0, cpu=True)


@pytest.mark.parametrize(("number", "whole"), [("float32", "int32"), ("float64", "int64"), ("float16", "int16")])
def test_bits_of_numbers(number: str, whole: str) -> None:
    x = np.array([0.0, -0.0, 1.5, -np.inf, 6e-8, -6e4, np.pi], number)
    nodes = [node("BitCast", ["x"], ["b"], to=CODES[whole]), node("BitCast", ["b"], ["y"], to=CODES[number])]
    made = model(nodes, {"x": (number, x.shape)}, ["b", "y"], opset=28)
    compare(made, {"x": x}, [x.view(whole), x], 0, cpu=True)
    assert np.signbit(evaluate_graph(load(made), {"x": x})["y"][1])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_inverses_of_angles(dtype: str) -> None:
    """They lose nothing near 0 and near 1."""
    near = np.geomspace(1e-4, 0.5, 40)
    x = np.concatenate([near, -near, 1 - near, near - 1, [0.0, -0.0, 1.0, -1.0, 1.5, np.nan]]).astype(dtype)
    nodes = [node(op, ["x"], [op]) for op in ("Asin", "Acos", "Atan")]
    made = model(nodes, {"x": (dtype, x.shape)}, ["Asin", "Acos", "Atan"])
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted = [f(wide).astype(dtype) for f in (np.arcsin, np.arccos, np.arctan)]
    compare(made, {"x": x}, wanted, 4 * float(np.finfo(dtype).eps), cpu=True)


@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize(("shape", "axis"), [((37,), 0), ((3, 1, 5), 1), ((2, 9, 3), -2), ((0, 3), 0)])
def test_products_of_all_before(shape: tuple[int, ...], axis: int, exclusive: int, reverse: int) -> None:
    attrs = {"exclusive": exclusive, "reverse": reverse}
    made = model([node("CumProd", ["x", "a"], **attrs)], {"x": shape}, constants={"a": np.array(axis)}, opset=26)
    compare(made, {"x": draw(*shape)}, by_reference(made, {"x": draw(*shape)}), cpu=shape == (2, 9, 3))


@pytest.mark.parametrize("time_axis", [0, 1])
def test_sequences_are_reversed_by_their_lengths(time_axis: int) -> None:
    shape = (7, 3, 5) if time_axis == 0 else (3, 7, 5)
    attrs = {"time_axis": time_axis, "batch_axis": 1 - time_axis}
    made = model([node("ReverseSequence", ["x", "l"], **attrs)], {"x": shape, "l": ("int64", (3,))})
    values = {"x": draw(*shape), "l": np.array([7, 0, 4])}
    compare(made, values, by_reference(made, values), 0, cpu=True)
    for wrong in (-1, 8):
        with pytest.raises(rammer.errors.InputError, match="outside"):
            evaluate_graph(load(made), values | {"l": np.array([wrong, 0, 4])})


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize("axis", [1, -2])
def test_a_cache_takes_an_update(mode: str, axis: int) -> None:
    shape, part = [2, 9, 11, 3], [2, 9, 11, 3]
    part[axis] = 4
    at = np.array([2, 8 if mode == "circular" else 5])
    shapes = {"x": tuple(shape), "u": tuple(part), "w": ("int64", (2,))}
    made = model([node("TensorScatter", ["x", "u", "w"], mode=mode, axis=axis)], shapes, opset=24)
    values = {"x": draw(*shape), "u": draw(*part), "w": at}
    compare(made, values, by_reference(made, values), 0, cpu=True)
    if mode == "linear":
        with pytest.raises(rammer.errors.InputError, match="outside"):
            evaluate_graph(load(made), values | {"w": np.array([0, shape[axis] - 3])})


@pytest.mark.parametrize("axis", [None, 0, -1])
@pytest.mark.parametrize("ordered", [0, 1])
def test_known_values_decide_shapes(axis: int | None, ordered: int) -> None:
    """What is known is computed at once; what is not is asked for by name."""
    x = np.array([[2, 1, 1, 3], [2, 1, 1, 3], [0, 2, 2, 3]], np.float32)
    attrs = {"sorted": ordered} | ({} if axis is None else {"axis": axis})
    made = model([node("Unique", ["x"], ["y", "i", "r", "c"], **attrs)], {"x": x.shape}, ["y", "i", "r", "c"])
    with pytest.raises(ModelError, match=r"X\) is not known at compile time[\s\S]*constants=\{'x'"):
        load(made)
    wanted = by_runtime(made, {"x": x})
    seen = evaluate_graph(load(made, constants={"x": x}), {})
    for name, want in zip(("y", "i", "r", "c"), wanted, strict=True):
        np.testing.assert_array_equal(seen[name], want)


@pytest.mark.parametrize("centred", [0, 1])
def test_boxes_that_overlap_are_dropped(centred: int) -> None:
    random = np.random.default_rng(3)
    boxes, scores = random.random((2, 30, 4), np.float32), random.random((2, 3, 30), np.float32).round(1)
    made = model(
        [node("NonMaxSuppression", ["b", "s", "m", "i", "t"], center_point_box=centred)],
        {"b": boxes.shape, "s": scores.shape},
        constants={"m": np.array([5]), "i": np.array([0.3], np.float32), "t": np.array([0.2], np.float32)},
    )
    (wanted,) = by_runtime(made, {"b": boxes, "s": scores})
    seen = evaluate_graph(load(made, constants={"b": boxes, "s": scores}), {})
    np.testing.assert_array_equal(seen["y"], wanted)


@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_images_are_sampled_anywhere(mode: str, padding: str, corners: int) -> None:
    """Also far outside, and in images of one row. ONNX's evaluator keeps points at the border, and not each tap."""
    for shape in ((2, 3, 5, 7), (1, 1, 1, 4), (1, 2, 2, 2), (1, 1, 3, 1)):
        grid = np.random.default_rng(5).uniform(-2.7, 2.7, (shape[0], 4, 3, 2)).astype(np.float32)
        attrs = {"mode": mode, "padding_mode": padding, "align_corners": corners}
        made = model([node("GridSample", ["x", "g"], **attrs)], {"x": shape, "g": grid.shape}, opset=20)
        values = {"x": draw(*shape), "g": grid}
        compare(made, values, by_runtime(made, values), cpu=(mode, corners) == ("linear", 0))


def test_volumes_are_sampled_and_nan_is_nowhere() -> None:
    shape, grid = (2, 3, 4, 3, 5), np.random.default_rng(5).uniform(-1.2, 1.2, (2, 2, 3, 2, 3)).astype(np.float32)
    made = model([node("GridSample", ["x", "g"])], {"x": shape, "g": grid.shape}, opset=20)
    values = {"x": draw(*shape), "g": grid}
    compare(made, values, by_reference(made, values), cpu=False)
    (wanted,) = by_reference(made, values)
    values["g"] = np.where(grid > 1, np.float32(np.nan), grid)
    with rammer.compile(load(made), target="cpu", tune_seconds=0) as program:
        seen = program.run(values)["y"]  # no index is outside
    known = ~np.isnan(values["g"]).any(-1)
    np.testing.assert_allclose(*(np.moveaxis(v, 1, -1)[known] for v in (seen, wanted)), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("how", ["half_pixel", "output_half_pixel"])
def test_regions_are_pooled(mode: str, how: str) -> None:
    regions = np.array([[0, 0, 5, 9], [2.5, -1.5, 7.2, 3.3], [-9, -9, -5, -5], [1, 2, 1.2, 2.1]], np.float32)
    attrs = {"output_height": 3, "output_width": 2, "sampling_ratio": 2, "spatial_scale": 0.75}
    made = model(
        [node("RoiAlign", ["x", "r", "b"], mode=mode, coordinate_transformation_mode=how, **attrs)],
        {"x": (2, 5, 9, 7), "r": regions.shape, "b": ("int64", (4,))},
        opset=16,
    )
    values = {"x": draw(2, 5, 9, 7), "r": regions, "b": np.array([1, 0, 1, 0])}
    compare(made, values, by_reference(made, values), cpu=mode == "avg")


@pytest.mark.parametrize(("scale", "pooled"), [(1.0, [3, 4]), (0.4, [3, 4]), (1.0, [7, 7]), (1.0, [1, 2])])
def test_regions_have_maxima(scale: float, pooled: list[int]) -> None:
    """As ONNX Runtime has them: of whole pixels, rounded away from zero, and 0 outside of the image."""
    corners = [[0, 0, 6, 8], [2, 1, 3, 3], [-3, -2.5, 4, 4.5], [5, 5, 5, 5], [9, 0, 30, 40], [20, 20, 30, 30]]
    corners += [[0, 0, right, bottom] for right in range(0, 37, 3) for bottom in range(0, 30, 5)]  # in sevenths, too
    values = {
        "x": draw(3, 2, 29, 37) - 3,
        "r": np.array([[n % 3, *c] for n, c in enumerate(corners)], np.float32),
    }
    made = model(
        [node("MaxRoiPool", list(values), pooled_shape=pooled, spatial_scale=scale)],
        {name: v.shape for name, v in values.items()},
        opset=17,
    )
    compare(made, values, by_runtime(made, values), cpu=True)


@pytest.mark.parametrize(
    ("pooled", "columns", "message"),
    [
        ([2, -1], 5, r"pooled_shape is \[2, -1\]"),
        ([1 << 40, 2], 5, r"pooled_shape is \[1099511627776, 2\]"),
        ([2], 5, r"pooled_shape is \[2\]"),
        ([2, 2], 4, r"regions float32\[2×4\] do not fit"),
    ],
)
def test_maxima_of_no_regions(pooled: list[int], columns: int, message: str) -> None:
    made = model([node("MaxRoiPool", ["x", "r"], pooled_shape=pooled)], {"x": (1, 1, 4, 4), "r": (2, columns)})
    with pytest.raises(ModelError, match=f"MaxRoiPool 'n': {message}"):
        load(made)


@pytest.mark.parametrize(("group", "parts", "masked"), [(1, 1, False), (2, 1, True), (1, 2, True)])
def test_windows_are_deformed(group: int, parts: int, masked: bool) -> None:
    attrs: dict[str, Any] = {"pads": [1, 0, 1, 2], "strides": [2, 1], "dilations": [1, 2]}
    shapes: dict[str, tuple[int, ...]] = {
        "x": (2, 4, 6, 7),
        "w": (6, 4 // group, 3, 2),
        "o": (2, parts * 12, 3, 7),
        "b": (6,),
    }
    shapes |= {"m": (2, parts * 6, 3, 7)} if masked else {}
    made = model([node("DeformConv", list(shapes), group=group, offset_group=parts, **attrs)], shapes, opset=19)
    values = {name: draw(*shape) for name, shape in shapes.items()}
    compare(made, values, by_reference(made, values), 2e-4, cpu=masked)


@pytest.mark.parametrize("length", [1, 7, 63, 64, 67, 97, 134, 360, 1000, 1024])
@pytest.mark.parametrize("pair", [1, 2])
def test_fourier_transforms_of_any_length(length: int, pair: int) -> None:
    """Of small ones by a matrix, of others by stages, of primes by a convolution; forth, back, and one side of each."""
    x, far = draw(2, length, 3, pair), draw(2, length // 2 + 1, 3, 2)
    nodes = [
        node("DFT", ["x", "", "a"], ["forth"]),
        node("DFT", ["x", "", "a"], ["back"], inverse=1),
        node("DFT", ["x", "l", "a"], ["side"], onesided=1),
        node("DFT", ["h", "n", "a"], ["real"], onesided=1, inverse=1),
    ]
    constants = {"a": np.array(1), "l": np.array(length + 3), "n": np.array(length)}
    outputs = [n.output[0] for n in nodes]
    made = model(nodes, {"x": x.shape, "h": far.shape}, outputs, constants=constants, opset=20)
    values = {"x": x, "h": far}
    given = x[..., 0] if pair == 1 else x[..., 0] + 1j * x[..., 1]
    wanted = [
        np.fft.fft(given, axis=1),
        np.fft.ifft(given, axis=1),
        np.fft.fft(given, length + 3, axis=1)[:, : (length + 3) // 2 + 1],
    ]
    pairs = [np.stack([w.real, w.imag], -1).astype(np.float32) for w in wanted]
    real = np.fft.irfft(far[..., 0] + 1j * far[..., 1], length, axis=1)[..., None].astype(np.float32)
    compare(made, values, [*pairs, real], 1e-5 * (length + 3) ** 0.5, cpu=length in (67, 360))
    if length >= 64:
        assert max(op.operation.inputs[1].size for op in load(made).operators if op.kind == "matmul") < 4 * 64 * 64


@pytest.mark.parametrize(("onesided", "pair"), [(1, 1), (0, 2)])
def test_transforms_of_windows(onesided: int, pair: int) -> None:
    made = model(
        [node("STFT", ["x", "s", "w"], onesided=onesided)],
        {"x": (2, 301, pair), "w": (65,)},
        constants={"s": np.array(17)},
    )
    values = {"x": draw(2, 301, pair), "w": draw(65)}
    compare(made, values, by_reference(made, values), 1e-4, cpu=onesided == 1)


@pytest.mark.parametrize(("bins", "length", "rate"), [(8, 16, 8192), (13, 400, 16000), (40, 64, 8000)])
def test_weights_of_mel_bins(bins: int, length: int, rate: int) -> None:
    constants = {"b": np.array(bins), "l": np.array(length), "r": np.array(rate)}
    constants |= {"f": np.array(20, np.float32), "t": np.array(rate / 2, np.float32)}
    made = model([node("MelWeightMatrix", list(constants))], {}, constants=constants, opset=17)
    compare(made, {}, by_reference(made, {}), cpu=False)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_scatters_to_places_that_are_not_known(reduction: str, dtype: str) -> None:
    """Places met twice, negative ones, and lines that no update meets; what lies outside is reported."""
    random = np.random.default_rng(7)
    x, rows = (random.integers(-9, 9, shape).astype(dtype) for shape in ((5, 4, 3), (2, 6, 3)))
    part = random.integers(-9, 9, (3, 4, 2)).astype(dtype)
    at, lines = random.integers(-4, 4, (2, 6, 2)), random.integers(-5, 5, (3, 4, 2))
    if reduction == "none":  # the order of equal ones is not defined
        at = np.stack([np.arange(12) // 4, np.arange(12) % 4 - 4], -1).reshape(2, 6, 2)
        lines = np.stack([random.permutation(5)[:3] for _ in range(8)], 1).reshape(3, 4, 2)
    shapes = {"x": (dtype, x.shape), "i": ("int64", at.shape), "u": (dtype, rows.shape)}
    shapes |= {"j": ("int64", lines.shape), "v": (dtype, part.shape)}
    nodes = [
        node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction),
        node("ScatterElements", ["x", "j", "v"], ["z"], axis=0, reduction=reduction),
    ]
    values = {"x": x, "i": at, "u": rows, "j": lines, "v": part}
    made = model(nodes, shapes, ["y", "z"], opset=18)
    compare(made, values, by_reference(made, values), cpu=reduction in ("none", "add", "max"))
    for name in ("i", "j"):
        with pytest.raises(rammer.errors.InputError, match="outside"):
            evaluate_graph(load(made), values | {name: values[name] + 9})


@pytest.mark.parametrize(("strides", "pads"), [([2, 2], [0, 0, 0, 0]), ([2, 1], [1, 0, 1, 1])])
def test_pooled_planes_are_put_back(strides: list[int], pads: list[int]) -> None:
    attrs = {"kernel_shape": [3, 2], "strides": strides, "pads": pads}
    nodes = [node("MaxPool", ["x"], ["m", "i"], **attrs), node("MaxUnpool", ["m", "i"], **attrs)]
    values = {"x": draw(2, 3, 9, 8)}
    made = model(nodes, {"x": (2, 3, 9, 8)})
    compare(made, values, by_reference(made, values), cpu=True)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_blocks_become_images(dtype: str) -> None:
    constants = {"i": np.array([7, 9]), "b": np.array([3, 2])}
    attrs = {"strides": [2, 1], "pads": [1, 0, 2, 1], "dilations": [1, 3]}
    x = np.random.default_rng(1).integers(-9, 9, (2, 12, 28)).astype(dtype)
    made = model([node("Col2Im", ["x", *constants], **attrs)], {"x": (dtype, x.shape)}, constants=constants, opset=18)
    compare(made, {"x": x}, by_reference(made, {"x": x}), cpu=dtype == "float32")


@pytest.mark.parametrize("shape", [(1, 1), (3, 2, 2), (2, 1, 5, 5), (17, 17)])
def test_determinants(shape: tuple[int, ...]) -> None:
    """Rows change places, and a matrix without an inverse has none."""
    x = draw(*shape)
    x[..., 0, 0] = 0
    values = {"x": np.stack([x, np.where(np.arange(shape[-1]) == 0, np.float32(0), x)])}
    made = model([node("Det")], {"x": (2, *shape)})
    wanted = np.linalg.det(values["x"].astype(np.float64)).astype(np.float32)
    compare(made, values, [wanted], 1e-3, cpu=shape == (3, 2, 2))


TRAINING = "ai.onnx.preview.training"


@pytest.mark.parametrize("turn", [0, 3])
@pytest.mark.parametrize(
    ("op", "parts", "attrs"),
    [
        ("Momentum", 3, {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": "standard"}),
        ("Momentum", 3, {"alpha": 0.9, "beta": 0.7, "norm_coefficient": 0.01, "mode": "nesterov"}),
        ("Adagrad", 3, {"norm_coefficient": 0.01, "decay_factor": 0.2, "epsilon": 1e-4}),
        (
            "Adam",
            4,
            {"norm_coefficient": 0.01, "norm_coefficient_post": 0.1, "alpha": 0.8, "beta": 0.99, "epsilon": 1e-4},
        ),
    ],
)
def test_steps_of_optimizers(op: str, parts: int, attrs: dict[str, Any], turn: int) -> None:
    shapes = [(37,), (2, 5)]
    given = {f"o{p}_{k}": np.abs(draw(*s, seed=p)) for p in range(parts) for k, s in enumerate(shapes)}
    values = {"r": np.array(0.1, np.float32), "t": np.array(turn)} | given
    outputs = [f"y{p}" for p in range(2 * (parts - 1))]
    kinds: dict[str, Any] = {name: (v.dtype.name, v.shape) for name, v in values.items()}
    made = model([node(op, list(values), outputs, domain=TRAINING, **attrs)], kinds, outputs, domains={TRAINING: 1})
    compare(made, values, by_reference(made, values), cpu=op == "Adam")


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("gap", [0, 2])
def test_runs_are_counted(mode: str, gap: int) -> None:
    attrs = {"min_gram_length": 1, "max_gram_length": 3, "max_skip_count": gap, "ngram_counts": [0, 3, 7]}
    attrs |= {"pool_int64s": [1, 2, 4, 1, 2, 2, 2, 1, 2, 1], "ngram_indexes": [5, 0, 2, 1, 4, 3]}
    weights = {} if mode == "TF" else {"weights": [0.5, 2.0, 1.5, 3.0, 1.0, 0.25]}
    x = np.random.default_rng(1).integers(0, 4, (3, 11))
    made = model([node("TfIdfVectorizer", mode=mode, **attrs, **weights)], {"x": ("int64", x.shape)})
    compare(made, {"x": x}, by_runtime(made, {"x": x}), cpu=gap == 2 and mode == "TFIDF")


def test_a_body_of_the_standard_takes_the_opset_of_its_call() -> None:
    """FlexAttention's body imports its own domain only, and uses operators of the other."""
    values = {"q": draw(1, 4, 3, 8), "k": draw(1, 2, 5, 8), "v": draw(1, 2, 5, 6)}
    preview = "ai.onnx.preview"
    kinds: dict[str, Any] = {name: v.shape for name, v in values.items()}
    made = model([node("FlexAttention", list(values), domain=preview)], kinds, opset=26, domains={preview: 1})
    wide = [np.repeat(values[name], 2, axis=1).astype(np.float64) for name in ("k", "v")]
    scores = values["q"] @ wide[0].swapaxes(2, 3) / 8**0.5
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    compare(made, values, [(weights @ wide[1]).astype(np.float32)], cpu=False)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("known", [(), ("low",), ("high",), ("low", "high")], ids=", ".join)
def test_the_upper_bound_of_clip_wins(known: tuple[str, ...], dtype: str) -> None:
    """Where bounds cross, as the standard says; whichever of them are constants."""
    bounds = {"low": np.array(1, dtype), "high": np.array(-2, dtype)}
    values = {"x": (draw(5, 37) * 3).astype(dtype), **{n: b for n, b in bounds.items() if n not in known}}
    ports = {name: (dtype, value.shape) for name, value in values.items()}
    constants = {name: bounds[name] for name in known}
    made = model([node("Clip", ["x", "low", "high"], ["y"])], ports, ["y"], constants=constants, opset=21)
    compare(made, values, by_runtime(made, values), 0, cpu=False)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("align", [0, 1])
def test_grids_of_a_batch_of_one(batch: int, align: int) -> None:
    """The standard's own body squeezes such a batch away."""
    grid = node("AffineGrid", ["t", "s"], align_corners=align)
    made = model([grid], {"t": (batch, 2, 3)}, constants={"s": np.array([batch, 3, 5, 7])})
    values = {"t": draw(batch, 2, 3)}
    compare(made, values, by_runtime(made, values), cpu=batch == 1)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("part", [0, 6])
@pytest.mark.parametrize("placed", [False, True])
def test_rotary_embeddings(interleaved: int, rank: int, part: int, placed: bool) -> None:
    width = part or 10
    shape = (3, 28, 5 * 10) if rank == 3 else (3, 5, 28, 10)
    tables = (40, width // 2) if placed else (3, 28, width // 2)
    values = {"x": draw(*shape), "c": draw(*tables), "s": draw(*tables, seed=1)}
    if placed:
        values["p"] = np.random.default_rng(2).integers(0, 40, (3, 28))
    attrs = {"interleaved": interleaved, "rotary_embedding_dim": part} | ({"num_heads": 5} if rank == 3 else {})
    kinds = {name: (str(v.dtype), v.shape) for name, v in values.items()}
    made = model([node("RotaryEmbedding", list(values), **attrs)], kinds, opset=23)
    compare(made, values, by_reference(made, values), cpu=part == 6)


def test_rotary_tables_that_do_not_fit_are_refused() -> None:
    for shape, tables, message in (((2, 7, 9), (2, 7, 2), "heads of"), ((2, 3, 7, 8), (2, 6, 4), "do not fit")):
        made = model([node("RotaryEmbedding", ["x", "c", "s"])], {"x": shape, "c": tables, "s": tables}, opset=23)
        with pytest.raises(ModelError, match=message):
            load(made)
