"""Save programs to files, and load them: one zip with a hashed manifest, the backend's files, and safetensors weights.

Known as: ahead-of-time artifacts. Members are stored uncompressed, and weights are aligned to 64 bytes. A loaded
program maps the file and uses its weights in place; loading costs one pass over the hashes. Equal programs are equal
files. Nothing is pickled, but a program contains machine code: load only files whose author you trust.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import prod
from typing import Any, BinaryIO, cast

import numpy as np

from rammer import files
from rammer.about import VERSION
from rammer.errors import ArtifactError
from rammer.ir.tensor import Array, DType, NamedArrays, TensorType
from rammer.vdevice.base import Image, Port

FORMAT = 2
MAX_MANIFEST_BYTES = 16 << 20
MAX_FILES = 4096
ALIGNMENT = 64
CHUNK_BYTES = 4 << 20  # members are hashed in chunks, so that all cores work on a large one
_WEIGHTS = "weights.safetensors"
_METADATA = "__metadata__"  # safetensors' entry for texts by name
_REPORT = "report.json"
_MANIFEST = "manifest.json"
_PROGRAMS = "programs/"  # members of a file with several
_LOCAL = struct.Struct("<4s22xHH")  # a member's own header: signature, lengths of its name and its extra field
_ZIP = b"PK\3\4"  # first bytes of a zip, and of each member
_PADDING = 0xD935  # type of extra fields for alignment; zip readers skip it
_END, _END_BYTES = b"PK\5\6", 22  # the end of a zip without a comment
_ZIP64_BYTES = 20  # the extra field of 64-bit sizes
_MODEL = "rammer.compile and `rammer compile` take models; rammer.from_onnx, from_torch and from_tensorflow import them"
# types that safetensors names as we do
_PLAIN = ("F16", "BF16", "F32", "F64", "BOOL", "U8", "U16", "U32", "U64", "I8", "I16", "I32", "I64")
_SAFETENSORS = {DType[name]: name for name in _PLAIN} | {DType.F8E4M3FN: "F8_E4M3", DType.F8E5M2: "F8_E5M2"}
_DTYPES = {name: dtype for dtype, name in _SAFETENSORS.items()}
_BYTES = _SAFETENSORS[DType.U8]  # for element types that the format lacks; the metadata name them


def is_archive(path: str | os.PathLike[str]) -> bool:
    """Check whether a file begins like a zip, whatever its name. Saved programs do, and TorchScript files."""
    return files.first_bytes(path, len(_ZIP)) == _ZIP


def save(
    image: Image,
    path: str | os.PathLike[str],
    report: Mapping[str, Any],
    *,
    sources: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Write a program. The file appears as a whole or not at all, and never replaces one of the `sources`.

    Raises ArtifactError for an image without files, and for a path that cannot be written.
    """
    if not image.files:
        raise ArtifactError(f"a program for {image.target!r} cannot be saved", hint="its programs stay in memory")
    members: dict[str, list[bytes | Array]] = {f"files/{n}": [data] for n, data in sorted(image.files.items())}
    members[_REPORT] = [json.dumps(report, sort_keys=True).encode()]
    members[_WEIGHTS] = _safetensors(image.weights)
    manifest = {
        "format": FORMAT,
        "rammer": image.writer,
        "target": image.target,
        "fingerprint": image.fingerprint,
        "inputs": [_port_json(p) for p in image.inputs],
        "outputs": [_port_json(p) for p in image.outputs],
        "chunk_bytes": CHUNK_BYTES,
    }
    if image.state:
        manifest["state"] = dict(image.state)
    if image.in_place:
        manifest["in_place"] = sorted(image.in_place)
    if image.signature is not None:
        manifest["signature"] = [[_port_json(p) for p in ports] for ports in image.signature]
    with files.new_file(path, sources=sources, raises=ArtifactError) as file:
        _write(file, manifest, members)


def _write(file: BinaryIO, manifest: dict[str, Any], members: Mapping[str, list[bytes | Array]]) -> None:
    """Write the members, then the manifest with their hashes, which are computed from the file itself."""
    places: dict[str, tuple[int, int]] = {}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, parts in members.items():
            info, begin = _aligned(name, file.tell())
            with archive.open(info, "w", force_zip64=True) as member:
                for part in parts:
                    member.write(part.reshape(-1).view(np.uint8).data if isinstance(part, np.ndarray) else part)
            places[name] = (begin, info.file_size)
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            hashes = _hashes(data, places.values())
        listed = {n: {"bytes": places[n][1], "sha256": found} for n, found in zip(places, hashes, strict=True)}
        manifest["members"] = listed
        archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps(manifest, sort_keys=True).encode())
    file.flush()


def _aligned(name: str, at: int) -> tuple[zipfile.ZipInfo, int]:
    """Return the header of a member that begins at this offset of a file, and the offset of its data, aligned."""
    info = zipfile.ZipInfo(name)  # with a fixed date: equal programs are equal files
    begin = at + _LOCAL.size + len(name.encode()) + _ZIP64_BYTES + 4
    info.extra = struct.pack("<HH", _PADDING, -begin % ALIGNMENT) + bytes(-begin % ALIGNMENT)
    return info, begin + -begin % ALIGNMENT


def save_together(
    programs: Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    parts: Sequence[Sequence[str]] = (),
    *,
    sources: Iterable[str | os.PathLike[str]] = (),
) -> None:
    """Write saved programs into one file, the best first. A machine loads the first one that it can run.

    With `parts`, they are the parts of one program: the models of each. The file appears as a whole or not at all, and
    never replaces one of the `sources`. Raises ArtifactError.
    """
    manifest = {"format": FORMAT, "rammer": VERSION, "programs": len(programs)} | (
        {"parts": list(map(list, parts))} if parts else {}
    )
    with files.new_file(path, sources=[*programs, *sources], raises=ArtifactError) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for n, program in enumerate(programs):
                with (
                    files.open_plain(program) as source,
                    archive.open(_aligned(f"{_PROGRAMS}{n}", file.tell())[0], "w", force_zip64=True) as member,
                ):
                    shutil.copyfileobj(source, member, CHUNK_BYTES)
            archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps(manifest))
        file.flush()


def ends(path: str | os.PathLike[str]) -> tuple[list[int], list[tuple[str, ...]]]:
    """Return the offset at which each program of a file ends, for `load`, and if they are parts the models of each.

    A single program ends where the file does.
    """
    where = os.fspath(path)
    with _opened(where, 0) as (archive, data):
        names = [name for name in archive.namelist() if name.startswith(_PROGRAMS)]
        if not names or len(names) > MAX_FILES:
            return [len(data)], []
        infos = [archive.getinfo(name) for name in names]
        found = [sum(_place(info, data, info.file_size, where)) for info in infos]
        try:
            if archive.getinfo(_MANIFEST).file_size > MAX_MANIFEST_BYTES:
                raise ArtifactError(f"{where}: the manifest is over {MAX_MANIFEST_BYTES} bytes")
            parts = [tuple(map(str, models)) for models in json.loads(archive.read(_MANIFEST)).get("parts", ())]
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(f"{where}: the manifest is damaged: {error}") from error
        if parts and (len(parts) != len(found) or not all({*models} <= {*parts[0]} for models in parts)):
            raise ArtifactError(f"{where}: the manifest is damaged: lists {len(parts)} parts of {len(found)} programs")
        return found, parts


@contextmanager
def _opened(where: str, end: int) -> Iterator[tuple[zipfile.ZipFile, mmap.mmap]]:
    """Open a file as a zip and map it, up to byte `end` (0: all of it).

    Raises ArtifactError, also for errors while reading.
    """
    try:
        with files.open_plain(where) as file:
            data = _Mapped(file.fileno(), end, access=mmap.ACCESS_READ)
            if data[-_END_BYTES:][: len(_END)] != _END:  # zipfile would search backwards for one
                raise zipfile.BadZipFile("its end is missing")
            with zipfile.ZipFile(cast(BinaryIO, data)) as archive:  # bytes before a zip do not matter
                yield archive, data
    except FileNotFoundError:
        raise ArtifactError(f"{where}: no such file", hint="write one with `rammer compile MODEL -o FILE`") from None
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        if (begin := files.first_bytes(where, len(_ZIP))) and begin != _ZIP:
            raise ArtifactError(f"{where}: this is no saved program", hint=_MODEL) from None
        raise ArtifactError(f"{where}: not a readable program: {error}") from error


class _Mapped(mmap.mmap):
    """A mapped file with the method that zipfile calls and mmap lacks."""

    def seekable(self) -> bool:
        return True


def load(path: str | os.PathLike[str], end: int = 0) -> tuple[Image, dict[str, Any]]:
    """Return the image and the report of a saved program. Raises ArtifactError that names the fault.

    `end` is where the program ends in a file with several; 0 is the file's end. The weights are mapped, so the file
    must not change while they are in use. `save` never changes a file: it replaces it by a new one.
    """
    where = os.fspath(path)
    with _opened(where, end) as (archive, data):
        manifest, places = _read(archive, data, where)
    try:
        weights = _tensors(data, *places.pop(_WEIGHTS))
        members = {name: data[begin : begin + size] for name, (begin, size) in places.items()}
        report = dict(json.loads(members.pop(_REPORT)))
        signature = None
        if "signature" in manifest:
            given, made = manifest["signature"]
            signature = tuple(map(_port, given)), tuple(map(_port, made))
        image = Image(
            str(manifest["target"]),
            str(manifest["fingerprint"]),
            tuple(_port(p) for p in manifest["inputs"]),
            tuple(_port(p) for p in manifest["outputs"]),
            {name.removeprefix("files/"): member for name, member in members.items()},
            weights,
            signature=signature,
            state={str(output): str(taker) for output, taker in manifest.get("state", {}).items()},
            in_place=frozenset(map(str, manifest.get("in_place", ()))),
            writer=_writer(manifest),
        )
        return image, report
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"{where}: damaged: {type(error).__name__}: {error}") from error


def _read(archive: zipfile.ZipFile, data: mmap.mmap, where: str) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Return the manifest and the place of every member, after checking all sizes and hashes."""
    infos = {i.filename: i for i in archive.infolist()}
    if _MANIFEST not in infos:
        raise ArtifactError(f"{where}: a zip, but no saved program: it has no manifest", hint=_MODEL)
    if len(infos) != len(archive.infolist()) or len(infos) > MAX_FILES:
        raise ArtifactError(f"{where}: doubled or too many members")
    if infos[_MANIFEST].file_size > MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{where}: the manifest is over {MAX_MANIFEST_BYTES} bytes")
    try:
        manifest = json.loads(archive.read(_MANIFEST))
        version = manifest["format"]
        if version != FORMAT:
            raise ArtifactError(
                f"{where}: format {version!r}, written by rammer {_writer(manifest)}; "
                f"this is rammer {VERSION}, which reads format {FORMAT}"
            )
        sizes = {str(n): int(m["bytes"]) for n, m in manifest["members"].items()}
        wanted = {str(n): [str(h) for h in m["sha256"]] for n, m in manifest["members"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where}: the manifest is damaged: {error}") from error
    if sizes.keys() != infos.keys() - {_MANIFEST} or not {_WEIGHTS, _REPORT} <= sizes.keys():
        raise ArtifactError(f"{where}: members differ from the manifest")
    places = {name: _place(infos[name], data, size, where) for name, size in sizes.items()}
    for name, found in zip(places, _hashes(data, places.values()), strict=True):
        if wanted[name] != found:
            raise ArtifactError(f"{where}: member {name!r} does not have its hash")
    return manifest, places


def _writer(manifest: Mapping[str, Any]) -> str:
    """Return the release that wrote a program."""
    return str(manifest.get("rammer", "before 0.5"))


def _place(info: zipfile.ZipInfo, data: mmap.mmap, size: int, where: str) -> tuple[int, int]:
    """Return the first byte and the size of a member that is stored uncompressed.

    Raises ArtifactError for another one.
    """
    plain = info.compress_type == zipfile.ZIP_STORED and info.file_size == size == info.compress_size
    header = data[info.header_offset : info.header_offset + _LOCAL.size]
    if not plain or len(header) != _LOCAL.size or header[:4] != _ZIP:
        raise ArtifactError(f"{where}: member {info.filename!r} is not {size} plain bytes")
    _, name_bytes, extra_bytes = _LOCAL.unpack(header)
    begin = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
    if begin + size > len(data):
        raise ArtifactError(f"{where}: member {info.filename!r} goes beyond the end")
    return begin, size


def _hashes(data: mmap.mmap, places: Iterable[tuple[int, int]]) -> list[list[str]]:
    """Return the SHA-256 of every chunk of every member. All cores work on it, because hashlib releases the GIL."""
    chunks = [[(begin + n, min(CHUNK_BYTES, size - n)) for n in range(0, size, CHUNK_BYTES)] for begin, size in places]
    with memoryview(data) as view, ThreadPoolExecutor() as pool:

        def digest(chunk: tuple[int, int]) -> str:
            with view[chunk[0] : sum(chunk)] as part:
                return hashlib.sha256(part).hexdigest()

        found = pool.map(digest, [chunk for member in chunks for chunk in member])
        return [[next(found) for _ in member] for member in chunks]


def _safetensors(arrays: NamedArrays) -> list[bytes | Array]:
    """Return a safetensors file in parts. The format allows no gaps, so tensors of unaligned size come last."""
    order = sorted(arrays, key=lambda name: arrays[name].nbytes % ALIGNMENT != 0)  # stable
    header: dict[str, Any] = {}
    at = 0
    bytewise = {name: x.dtype.name for name, x in arrays.items() if DType(x.dtype.name) not in _SAFETENSORS}
    if bytewise:
        header[_METADATA] = bytewise
    for name in order:
        array = arrays[name]
        kind = _SAFETENSORS.get(DType(array.dtype.name), _BYTES)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT)
    return [len(text).to_bytes(8, "little"), text, *(np.ascontiguousarray(arrays[name]) for name in order)]


def _tensors(data: mmap.mmap, begin: int, size: int) -> dict[str, Array]:
    """Return the tensors of a safetensors file, mapped. Raises ValueError, KeyError or TypeError for any other file."""
    header = int.from_bytes(data[begin : begin + 8], "little")
    first, last = begin + 8 + header, begin + size
    if first > last:
        raise ValueError("the weights' header goes beyond their end")
    found: dict[str, Array] = {}
    entries = json.loads(data[begin + 8 : first])
    bytewise = entries.pop(_METADATA, {})
    for name, entry in entries.items():
        kind = _DTYPES[entry["dtype"]]
        if name in bytewise:
            kind = DType(bytewise[name])
            if entry["dtype"] != _BYTES or not kind.only_stored:
                raise ValueError(f"tensor {name!r} of type {kind.value} is not stored as bytes")
        dtype, shape = kind.numpy, tuple(map(int, entry["shape"]))
        low, high = (first + int(at) for at in entry["data_offsets"])
        count = prod(shape)
        if min(shape, default=0) < 0 or not first <= low <= high <= last or high - low != count * dtype.itemsize:
            raise ValueError(f"tensor {name!r} does not lie in its file")
        found[name] = np.frombuffer(data, dtype, count, low).reshape(shape) if count else np.zeros(shape, dtype)
    return found


def _port_json(port: Port) -> dict[str, Any]:
    named = {"symbols": list(port.symbols)} if any(port.symbols) else {}
    return {"name": port.name, "shape": list(port.type.shape), "dtype": port.type.dtype.value, **named}


def _port(data: dict[str, Any]) -> Port:
    symbols = tuple(None if s is None else str(s) for s in data.get("symbols", ()))
    return Port(str(data["name"]), TensorType(tuple(int(d) for d in data["shape"]), DType(data["dtype"])), symbols)
