"""Models whose weights alone are quantised: they stay as narrow as the file has them, and what does not is named."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from pairwise import pairs

import rammer
from rammer.ir.tensor import Array
from tests.weights import ARCHES, DOMAIN, Constant, close, draw, few_bits, in_bytes, model, run, scales


def packed_product(x: Array, columns: int, block: int, bits: int, zeros: bool, level: int) -> tuple[Any, Array]:
    """MatMulNBits, and what ONNX Runtime makes of it."""
    depth = x.shape[-1]
    blocks = -(-depth // block)
    constants = {"w": in_bytes(columns, blocks, block * bits // 8), "s": scales(columns, blocks)}
    if zeros:
        constants["z"] = in_bytes(columns, -(-blocks * bits // 8))
    attrs = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": level}
    nodes = [helper.make_node("MatMulNBits", ["x", *constants], ["y"], domain=DOMAIN, **attrs)]
    made = model(nodes, {"x": x}, constants)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return made, np.asarray(session.run(None, {"x": x})[0])


PACKED = [  # shape of the operand, columns, block, bits, whether there are zero points
    ((1, 256), 96, 32, 4, False),
    ((1, 256), 96, 128, 4, True),
    ((75, 100), 33, 32, 4, True),  # the last block is cut
    ((3, 5, 48), 33, 16, 4, False),
    ((3, 96), 40, 32, 8, True),
    ((3, 32), 40, 32, 4, True),  # one block
]


@pairs(packed=PACKED, level=[0, 4], arch=ARCHES)
def test_products_of_packed_weights(packed: tuple[tuple[int, ...], int, int, int, bool], level: int, arch: str) -> None:
    """Also where the operand is rounded to bytes, as ONNX Runtime does it."""
    shape, columns, block, bits, zeros = packed
    made, wanted = packed_product(x := draw(*shape), columns, block, bits, zeros, level)
    rounds = level == 4 and bits == 4  # bytes it rounds only on some CPUs
    got, _ = run(made, {"x": x}, arch)
    close(got, wanted, 5e-6 if level == 0 or rounds else 2e-2)


def test_rounding_to_bytes_costs_what_it_costs_onnx_runtime() -> None:
    """Against the product in float32: no more than its own error."""
    x = draw(8, 576)
    (exact, wanted), (narrow, others) = (packed_product(x, 96, 32, 4, True, level) for level in (0, 4))
    size = np.abs(wanted).max()
    close(run(exact, {"x": x})[0], wanted)
    got, _ = run(narrow, {"x": x})
    assert 1e-4 < np.abs(got - wanted).max() / size <= 1.1 * np.abs(others - wanted).max() / size


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("how", ["by columns", "turned", "gemm", "by rows", "gemm of many rows"])
def test_products_with_dequantised_blocks(kind: int, zeros: bool, how: str) -> None:
    """DequantizeLinear of weights as they are multiplied, or turned; their bits are all that is stored."""
    rows, depth, columns, block = 75 if "many" in how else 3, 160, 96, 32
    axis = 0 if how == "by columns" else 1
    shape = (depth, columns) if axis == 0 else (columns, depth)
    blocks = tuple(n // block if d == axis else n for d, n in enumerate(shape))
    if how == "by rows":  # one scale for a whole sum
        blocks = (columns,)
    constants: dict[str, Constant] = {"w": few_bits(kind, *shape), "s": scales(*blocks)}
    if zeros:
        constants["z"] = few_bits(kind, *blocks, name="z")
    attrs = {"axis": 0} if how == "by rows" else {"axis": axis, "block_size": block}
    nodes = [helper.make_node("DequantizeLinear", list(constants), ["d"], **attrs)]
    if "gemm" in how:
        constants["b"] = draw(columns)
        nodes.append(helper.make_node("Gemm", ["x", "d", "b"], ["y"], transB=1))
    elif axis == 1:
        nodes += [
            helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["y"]),
        ]
    else:
        nodes.append(helper.make_node("MatMul", ["x", "d"], ["y"]))
    made = model(nodes, inputs := {"x": draw(rows, depth)}, constants)
    got, nbytes = run(made, inputs)
    close(got, np.asarray(ReferenceEvaluator(made).run(None, inputs)[0]))
    assert nbytes <= depth * columns // 2 + 4 * columns * (depth // block) * 1.25 + 4 * columns


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_packed_tables(bits: int, zeros: bool) -> None:
    """GatherBlockQuantized: exactly what ONNX Runtime gives."""
    count, width, block = 300, 96, 32
    constants: dict[str, Constant] = {"w": in_bytes(count, width * bits // 8), "s": scales(count, width // block)}
    if zeros:
        constants["z"] = in_bytes(count, -(-width // block * bits // 8))
    names = ["w", "i", *list(constants)[1:]]
    node = helper.make_node("GatherBlockQuantized", names, ["y"], domain=DOMAIN, block_size=block, bits=bits)
    made = model([node], inputs := {"i": np.array([[3, -1, 299], [0, 17, 3]])}, constants)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    got, nbytes = run(made, inputs)
    np.testing.assert_array_equal(got, session.run(None, inputs)[0])
    assert nbytes <= sum(np.asarray(value).nbytes for value in constants.values()) * 1.05


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.INT8])
def test_a_model_takes_no_more_room_than_its_file(kind: int) -> None:
    """An embedding, and layers of several widths: whole panels are all that is added."""
    count, widths, block = 500, (96, 192, 64, 33), 32
    bits = 8 if kind == TensorProto.INT8 else 4

    def weights(name: str, *shape: int) -> Constant:
        whole = np.random.default_rng(shape).integers(-128, 128, shape).astype(np.int8)
        return whole if bits == 8 else few_bits(kind, *shape, name=name)

    constants: dict[str, Constant] = {"t": weights("t", count, widths[0]), "ts": scales(count, widths[0] // block)}
    nodes = [
        helper.make_node("DequantizeLinear", ["t", "ts"], ["table"], axis=1, block_size=block),
        helper.make_node("Gather", ["table", "i"], ["h0"], axis=0),
    ]
    padded = [count * widths[0] * bits // 8 + 4 * count * widths[0] // block]
    for n, (depth, columns) in enumerate(pairwise(widths)):
        constants |= {f"w{n}": weights(f"w{n}", depth, columns), f"s{n}": scales(depth // block, columns)}
        nodes.append(helper.make_node("DequantizeLinear", [f"w{n}", f"s{n}"], [f"d{n}"], axis=0, block_size=block))
        nodes.append(helper.make_node("MatMul", [f"h{n}", f"d{n}"], ["y" if columns == widths[-1] else f"h{n + 1}"]))
        whole = -(-columns // 16) * 16
        padded.append(whole * (depth * bits // 8 + 4 * (depth // block)))
    made = model(nodes, inputs := {"i": np.array([3, 499, 7, 3])}, constants)
    got, nbytes = run(made, inputs)
    close(got, np.asarray(ReferenceEvaluator(made).run(None, inputs)[0]))
    assert nbytes <= sum(padded) * 1.02 + 4096


def test_what_becomes_float32_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """By the operator that reads it; what stays narrow is not."""
    whole = np.random.default_rng(0).integers(-128, 128, (64, 32, 3, 3)).astype(np.int8)
    constants: dict[str, Constant] = {"w": whole, "s": scales(64), "v": few_bits(TensorProto.INT4, 144, 64, name="v")}
    constants["blocks"] = scales(64, 2, 3, 3)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "blocks"], ["d"], axis=1, block_size=16),
        helper.make_node("Conv", ["x", "d"], ["c"], name="the_conv", pads=[1] * 4),
        helper.make_node("Reshape", ["c", "shape"], ["r"]),
        helper.make_node("DequantizeLinear", ["v", "s"], ["e"], axis=1),
        helper.make_node("MatMul", ["r", "e"], ["y"], name="the_product"),
    ]
    constants["shape"] = np.array([64, 144])
    made = model(nodes, {"x": draw(1, 32, 12, 12)}, constants)
    with caplog.at_level(logging.WARNING, "rammer"), rammer.compile(made, "cpu", tune_seconds=0) as program:
        assert program.plan is not None
        notes = [note for note in program.plan.notes if "take the room of float32" in note]
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == notes
    (note,) = notes
    assert note.startswith("the_conv") and "int8[64×32×3×3]" in note
