"""Write a model's ports and plans as C tables, for the structs of project/model.h."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rammer.ir.tensor import Array
from rammer.vdevice.base import Image, Port
from rammer.vdevice.image.arena import bound_ports

ROW = 12  # numbers per line
NAMED = re.compile("bool|u?int(8|16|32|64)|b?float(16|32|64)|complex(64|128)")  # types that rammer.h names


def text(value: str) -> str:
    """Return a C string literal. Bytes beyond ASCII are octal, so that no compiler's character set matters."""
    plain = "".join(
        c if " " <= c <= "~" and c not in '"\\?' else "".join(f"\\{b:03o}" for b in c.encode()) for c in value
    )
    return f'"{plain}"'


def array(kind: str, name: str, rows: Iterable[str], after: str = "") -> str:
    """Return the definition of a constant array; C has no empty ones."""
    listed = list(rows) or ["0" if not kind.startswith("rammer_") else "{0}"]
    lines = [", ".join(listed[n : n + ROW]) for n in range(0, len(listed), ROW)]
    return f"static const {kind} {name}[]{after} = {{\n  " + ",\n  ".join(lines) + "};\n"


def rows(values: NDArray[np.generic]) -> list[str]:
    """Return the numbers of an array of one dimension, or the rows of one of two, as initialisers."""
    if values.ndim == 1:
        return [str(v) for v in values.tolist()]
    return ["{" + ", ".join(map(str, row)) + "}" for row in values.tolist()]


def homes(image: Image, head: Mapping[str, Any], base: Array, offset: Array, direct: Collection[str] = ()) -> list[str]:
    """Return definitions of `inputs` and `outputs`, the `rammer_home` of each port.

    Arguments are given by their bases and offsets. A port in `direct` may lie in the caller's memory.
    """
    places = zip((*image.inputs, *image.outputs), (*head["inputs"], *head["outputs"]), strict=True)
    ports = [(p.name, p.type.nbytes, place) for p, place in places]
    bindings = bound_ports(ports, head["alone"], base, offset)
    parts, found = [], []
    for n, (port, _, (where, at)) in enumerate(ports):
        bound = bindings.get(port) if port in direct else None
        used = "0, 0"
        if bound is not None and len(bound.args):
            parts.append(array("rammer_arg", f"port_{n}", rows(np.stack([bound.args, bound.offsets], 1))))
            used = f"{len(bound.args)}, port_{n}"
        found.append(f"{{{{{where}, {at}}}, {used}}}")
    count = len(image.inputs)
    parts += [array("rammer_home", "inputs", found[:count]), array("rammer_home", "outputs", found[count:])]
    return parts


def places(base: Array, offset: Array) -> list[str]:
    """Return arguments as rows of `rammer_place`."""
    return rows(np.stack([base.astype(np.int64), offset], 1))


def _port(port: Port, shape: str) -> str:
    kind = port.dtype.value.upper() if NAMED.fullmatch(port.dtype.value) else "OTHER"
    return f"{text(port.name)}, RAMMER_{kind}, {len(port.shape)}, {shape}, {port.type.nbytes}u"


def model_source(name: str, image: Image, plans: Sequence[str], digest: str, weights: tuple[str, bytes, int]) -> str:
    """Return the C file that describes a model: its ports, plans and weights.

    `weights` are the project's name, the header of its file, and the bytes of the file.
    """
    project, header, nbytes = weights
    numbers = {**{o: n for n, o in enumerate(image.state)}, **{i: n for n, i in enumerate(image.state.values())}}
    parts = [f'#include "{project}.h"\n#include "model.h"\n']
    shown: dict[str, str] = {}
    for n, port in enumerate((*image.inputs, *image.outputs)):
        parts.append(array("size_t", f"shape_{n}", [*map(str, port.shape)] or ["1"]))
        shown[port.name] = _port(port, f"shape_{n}")

    def listed(which: str, ports: Iterable[str]) -> str:
        return array("rammer_port", which, [f"\n  {{{shown[p]}}}" for p in ports])

    def all_of(which: str, ports: Sequence[Port], state: Iterable[str]) -> str:
        held = set(state)
        rows = [f"\n  {{{{{shown[p.name]}}}, {numbers[p.name] if p.name in held else -1}}}" for p in ports]
        return array("rammer_model_port", which, rows)

    parts += [
        all_of("inputs", image.inputs, image.state.values()),
        all_of("outputs", image.outputs, image.state),
        listed("taken", [p.name for p in image.inputs if p.name not in image.state.values()]),
        listed("given", [p.name for p in image.outputs if p.name not in image.state]),
        listed("state", image.state.values()),
        *(f"extern const rammer_plan {plan};" for plan in plans),
        array("rammer_plan *const", "plans", (f"&{plan}" for plan in plans)),
        f"static const char header[{len(header) + 1}] = {text(header.decode())};",
        f"#ifdef RAMMER_WEIGHTS_FILE\n#define WEIGHTS 0\n#else\nextern const unsigned char {project}_weights[];\n"
        f"#define WEIGHTS {project}_weights\n#endif",
    ]
    counts = f"{len(image.inputs)}, {len(image.outputs)}, {len(image.state)}, {len(plans)}"
    parts.append(
        f"const rammer_model {name}_model = {{RAMMER_VERSION, {text(name)}, {text(digest)}, "
        f"{counts}, inputs, outputs, taken, given, state, plans, WEIGHTS, {nbytes}u, header}};"
    )
    return "\n".join(parts) + "\n"


def manifest(name: str, version: str, digest: str, images: Mapping[str, Image], arches: Sequence[str]) -> str:
    """Return the manifest as JSON. `images` are the models', the one called `name` first."""

    def ports(some: Sequence[Port]) -> list[Mapping[str, object]]:
        return [{"name": p.name, "type": p.dtype.value, "shape": list(p.shape)} for p in some]

    described = {
        model: {"inputs": ports(image.inputs), "outputs": ports(image.outputs), "state": dict(image.state)}
        for model, image in images.items()
    }
    content = {
        "format": 1,
        "name": name,
        "rammer": version,
        "sha256": digest,
        "arches": list(arches),
        **described.pop(name),
        "parts": described,
    }
    return json.dumps(content, indent=1) + "\n"
