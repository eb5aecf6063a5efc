"""Saved programs: one zip with a manifest of hashes, the backend's files, and the weights as safetensors.

Nothing in it is pickled. Its code objects are code: loading a program means trusting whoever made it.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from rammer.errors import ArtifactError
from rammer.ir.tensor import Array, DType, TensorType
from rammer.vdevice.base import Image, Port

FORMAT = 1
MAX_MANIFEST_BYTES = 16 << 20
MAX_FILES = 4096
_WEIGHTS = "weights.safetensors"
_MANIFEST = "manifest.json"


def save(image: Image, path: str | os.PathLike[str], report: dict[str, Any]) -> None:
    """Write a program; the file appears whole or not at all. Raises ArtifactError for an image with no files."""
    if not image.files:
        raise ArtifactError(
            f"a program for {image.target!r} cannot be saved", hint="this vDevice keeps its program in memory only"
        )
    weights = save_tensors({n: _plain(a) for n, a in image.weights.items()})
    members = {**{f"files/{n}": data for n, data in image.files.items()}, _WEIGHTS: weights}
    hashes = dict(zip(members, _hashes(members.values()), strict=True))
    manifest = {
        "format": FORMAT,
        "target": image.target,
        "fingerprint": image.fingerprint,
        "inputs": [_port_json(p) for p in image.inputs],
        "outputs": [_port_json(p) for p in image.outputs],
        "weights": {n: DType(a.dtype.name).value for n, a in image.weights.items()},
        "members": {n: {"bytes": len(d), "sha256": hashes[n]} for n, d in members.items()},
        "report": report,
    }
    target = Path(path)
    try:
        _write(target, manifest, members)
    except OSError as error:
        raise ArtifactError(f"{target}: cannot be written: {error.strerror or error}") from error


def _write(target: Path, manifest: dict[str, Any], members: dict[str, bytes]) -> None:
    with tempfile.NamedTemporaryFile(dir=target.parent or ".", prefix=f".{target.name}.", delete=False) as file:
        try:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, data in [(_MANIFEST, json.dumps(manifest, sort_keys=True).encode()), *members.items()]:
                    archive.writestr(zipfile.ZipInfo(name), data)  # a fixed date: equal programs are equal files
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o644)
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise


def load(path: str | os.PathLike[str]) -> tuple[Image, dict[str, Any]]:
    """The image and the report of a saved program. Raises ArtifactError naming what is wrong."""
    where = os.fspath(path)
    try:
        with zipfile.ZipFile(where) as archive:
            manifest, members = _read(archive, where)
    except FileNotFoundError:
        raise ArtifactError(f"{where}: no such file", hint="write one with `rammer compile MODEL -o FILE`") from None
    except (OSError, zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise ArtifactError(f"{where}: not a readable program: {error}", hint="compile the model again") from error
    try:
        packed = load_tensors(members.pop(_WEIGHTS))
        weights = {n: packed[n].view(DType(kind).numpy) for n, kind in manifest["weights"].items()}
        image = Image(
            str(manifest["target"]),
            str(manifest["fingerprint"]),
            tuple(_port(p) for p in manifest["inputs"]),
            tuple(_port(p) for p in manifest["outputs"]),
            {n.removeprefix("files/"): data for n, data in members.items()},
            weights,
        )
        return image, dict(manifest["report"])
    except (KeyError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise ArtifactError(f"{where}: damaged: {type(error).__name__}: {error}", hint="compile it again") from error


def _read(archive: zipfile.ZipFile, where: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and every member, checked against its size and hash before anything is used."""
    infos = {i.filename: i for i in archive.infolist()}
    if len(infos) != len(archive.infolist()) or len(infos) > MAX_FILES or _MANIFEST not in infos:
        raise ArtifactError(f"{where}: no manifest, or doubled or too many members", hint="compile the model again")
    if infos[_MANIFEST].file_size > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{where}: the manifest is over {MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = json.loads(archive.read(_MANIFEST))
        version, listed = manifest["format"], manifest["members"]
        sizes = {str(n): int(m["bytes"]) for n, m in listed.items()}
        hashes = [str(listed[n]["sha256"]) for n in sizes]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where}: the manifest is damaged: {error}", hint="compile the model again") from error
    if version != FORMAT:
        raise ArtifactError(f"{where}: format {version}, this rammer reads {FORMAT}", hint="compile the model again")
    if sizes.keys() != infos.keys() - {_MANIFEST} or _WEIGHTS not in sizes:
        raise ArtifactError(f"{where}: members differ from the manifest", hint="compile the model again")
    for name, size in sizes.items():
        stored = infos[name]
        if stored.compress_type != zipfile.ZIP_STORED or stored.file_size != size or stored.compress_size != size:
            raise ArtifactError(f"{where}: member {name!r} is not {size} plain bytes", hint="compile the model again")
    members = {name: archive.read(name) for name in sizes}
    for name, wanted, found in zip(members, hashes, _hashes(members.values()), strict=True):
        if wanted != found:
            raise ArtifactError(f"{where}: member {name!r} does not have its hash", hint="compile the model again")
    return manifest, members


def _hashes(blobs: Iterable[bytes]) -> list[str]:
    with ThreadPoolExecutor() as pool:  # hashlib releases the GIL
        return list(pool.map(lambda data: hashlib.sha256(data).hexdigest(), blobs))


def _plain(array: Array) -> Array:
    """safetensors' NumPy side has no bfloat16: keep its bits, the manifest has the type."""
    return array.view(np.uint16) if array.dtype == DType.BF16.numpy else np.ascontiguousarray(array)


def _port_json(port: Port) -> dict[str, Any]:
    return {"name": port.name, "shape": list(port.type.shape), "dtype": port.type.dtype.value}


def _port(data: dict[str, Any]) -> Port:
    return Port(str(data["name"]), TensorType(tuple(int(d) for d in data["shape"]), DType(data["dtype"])))
