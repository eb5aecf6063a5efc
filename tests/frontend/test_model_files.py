"""Files of models: external data stays in its folder, paths are no code, and fields of tensors agree."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnx_models import external, model, node

from rammer.errors import ModelError
from rammer.frontend.onnx import Limits, load
from rammer.frontend.onnx.tensors import ELEMENT_TYPES, ExternalData, decode
from rammer.ir.tensor import DType

F32 = np.float32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    inside = tmp_path / "model"
    inside.mkdir()
    (inside / "data.bin").write_bytes(np.arange(4, dtype=F32).tobytes())
    (tmp_path / "secret.bin").write_bytes(np.full(2, 42, F32).tobytes())
    return inside


def save(folder: Path, made: ModelProto) -> str:
    path = folder / "model.onnx"
    path.write_bytes(made.SerializeToString())
    return os.fspath(path)


def test_external_data_is_read_from_the_model_folder(folder: Path) -> None:
    made = external(location="data.bin", offset="8", length="8", invented="ignored")
    for graph in (
        load(save(folder, made)),
        load(made, base_dir=folder),
        load(made.SerializeToString(), base_dir=folder),
    ):
        (value,) = graph.constants.values()
        assert value.tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret.bin"}, "relative path inside"),
        ({"location": "sub/../../secret.bin"}, "relative path inside"),
        ({"location": "/etc/passwd"}, "relative path inside"),
        ({"location": ""}, "relative path inside"),
        ({}, "relative path inside"),
        ({"location": "missing.bin"}, "cannot open"),
        ({"location": "link.bin"}, "cannot open"),
        ({"location": "linked/secret.bin"}, "cannot open"),
        ({"location": "hard.bin"}, "not a plain file"),
        ({"location": "pipe"}, "not a plain file"),
        ({"location": "sub"}, "not a plain file"),
        ({"location": "data.bin", "offset": "-8"}, "non-negative decimal"),
        ({"location": "data.bin", "offset": "12"}, "is outside"),
        ({"location": "data.bin", "offset": "9" * 30}, "non-negative decimal"),
        ({"location": "data.bin", "length": "1099511627776"}, "shape and element type need 8"),
        ({"location": "data.bin", "length": "4"}, "shape and element type need 8"),
        ({"location": "data.bin", "checksum": "00"}, "checksum"),
    ],
)
def test_external_data_stays_in_its_place(folder: Path, entries: dict[str, str], message: str) -> None:
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "linked").symlink_to(folder.parent)
    os.link(folder.parent / "secret.bin", folder / "hard.bin")
    os.mkfifo(folder / "pipe")
    (folder / "sub").mkdir()
    with pytest.raises(ModelError, match=message) as caught:
        load(save(folder, external(**entries)))
    assert caught.value.path.endswith("model.onnx")


@pytest.mark.parametrize("path", ["missing.onnx", ".", "pipe", "nul\0.onnx"])
def test_paths_that_are_no_model(folder: Path, path: str) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ModelError):
        load(os.path.join(folder, path))


def test_names_in_a_model_are_only_names() -> None:
    """Hostile names import; they are for people, and never reach code."""
    hostile = 'x"); system("true"); //\n'
    made = model([node("Relu", [hostile], ["../../y"], name="`id`")], {hostile: (2,)}, ["../../y"])
    assert load(made).outputs == ("../../y",)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 9])
def test_raw_and_typed_fields_agree(dtype: DType, count: int) -> None:
    """Also where elements of fewer than 8 bits end in the middle of a byte."""
    values = np.resize(np.array([0, 1, -2 if dtype.value.startswith("i") else 1, 1], np.float32), count)
    values = values.astype(dtype.numpy)
    code = next(c for c, found in ELEMENT_TYPES.items() if found is dtype)
    raw = numpy_helper.from_array(values, "w")
    typed = helper.make_tensor(
        "w", code, [count], values.tolist() if dtype.is_complex else values.astype(np.float32).tolist()
    )
    assert raw.data_type == code and raw.HasField("raw_data") and not typed.HasField("raw_data")
    for weight in (raw, typed):
        value = decode(weight, ExternalData(None, Limits()))
        assert value.dtype == values.dtype
        assert value.astype(np.complex128).tobytes() == values.astype(np.complex128).tobytes()
        if dtype in (DType.I2, DType.I4):
            np.testing.assert_array_equal(value.view(np.int8), values.astype(np.int8))  # a sign fills its byte
