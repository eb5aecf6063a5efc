"""Write a program's schedule and ports as C tables, for the structs of project/model.h."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rammer.ir.tensor import DType
from rammer.vdevice.base import Image, Port
from rammer.vdevice.cpu.host import Arch
from rammer.vdevice.cpu.runtime.table import Table
from rammer.vdevice.image.arena import bound_ports

ROW = 12  # numbers per line
TYPES = {
    DType.F32: "FLOAT32",
    DType.U8: "UINT8",
    DType.I8: "INT8",
    DType.U16: "UINT16",
    DType.I16: "INT16",
    DType.I32: "INT32",
    DType.I64: "INT64",
    DType.BOOL: "BOOL",
    DType.F16: "FLOAT16",
    DType.F64: "FLOAT64",
    DType.U32: "UINT32",
    DType.U64: "UINT64",
    DType.C64: "COMPLEX64",
    DType.C128: "COMPLEX128",
    DType.BF16: "BFLOAT16",
}
# Leaf, subleaf, register (EAX to EDX) and bit of CPUID, by the names of /proc/cpuinfo.
CPU_BITS = {  # by leaf, subleaf and register of CPUID
    (1, 0, 2): {
        "ssse3": 9,
        "fma": 12,
        "sse4_1": 19,
        "sse4_2": 20,
        "movbe": 22,
        "popcnt": 23,
        "osxsave": 27,
        "f16c": 29,
    },
    (7, 0, 1): {"bmi1": 3, "avx2": 5, "bmi2": 8}
    | {"avx512f": 16, "avx512dq": 17, "avx512cd": 28, "avx512bw": 30, "avx512vl": 31},
    (7, 0, 2): {"avx512_vnni": 11},
    (7, 0, 3): {"amx_bf16": 22, "amx_tile": 24},
    (7, 1, 0): {"avx512_bf16": 5},
}
STATES = {"avx2": 0x6, "avx512f": 0xE6, "amx_tile": 0x60000}  # of registers, which the system must save


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


def in_order(table: Table) -> list[tuple[int, int]]:
    """Return all rTasks as (slot, vEU), in an order in which one thread can run them: none before what it waits for."""
    num_veus = int(table.header["num_veus"])
    found: list[tuple[int, int]] = []
    for program in range(int(table.header["num_programs"])):
        bounds = table.bounds[program * num_veus : (program + 1) * num_veus + 1].tolist()
        at = list(bounds[:-1])
        while at != bounds[1:]:
            for veu in range(num_veus):
                while at[veu] < bounds[veu + 1]:
                    kernel, count, first, *_ = table.slots[at[veu]].tolist()
                    if kernel >= 0:
                        found.append((at[veu], veu))
                    elif any(at[on] - bounds[on] <= order for on, order in table.waits[first : first + count].tolist()):
                        break
                    at[veu] += 1
    return found


def kernel_names(name: str, table: Table) -> dict[str, str]:
    """Return the function of each symbol in a project. Kernels with equal bodies share a symbol."""
    symbols = dict.fromkeys(symbol for _, symbol, _ in table.header["kernels"])
    return {symbol: f"{name}_k{n}" for n, symbol in enumerate(symbols)}


def plan_source(name: str, image: Image, table: Table, arch: Arch, constants: Sequence[int]) -> str:
    """Return the C file of one schedule, `name`. `constants` has the offset of each weight in weights.bin."""
    header = table.header
    names = kernel_names(name, table)
    places = zip((*image.inputs, *image.outputs), (*header["inputs"], *header["outputs"]), strict=True)
    ports = [(p.name, p.type.nbytes, place) for p, place in places]
    homes, bindings = [], bound_ports(ports, header["alone"], table.arg_base, table.arg_offset)
    parts = ['#include "model.h"\n']
    parts += [f"void {k}(char *const *, char *, long long, int *);" for k in names.values()]
    for n, (port, _, (base, offset)) in enumerate(ports):
        bound = bindings.get(port) if port in header["direct"] else None
        if bound is not None and len(bound.args):
            parts.append(array("rammer_arg", f"port_{n}", rows(np.stack([bound.args, bound.offsets], 1))))
        used = f"{len(bound.args)}, port_{n}" if bound is not None and len(bound.args) else "0, 0"
        homes.append(f"{{{{{base}, {offset}}}, {used}}}")
    bits_of = {feature: (*word, bit) for word, bits in CPU_BITS.items() for feature, bit in bits.items()}
    bits = [bits_of[f] for f in sorted(arch.features)]
    xcr0 = 0
    for feature, states in STATES.items():
        xcr0 |= states if feature in arch.features else 0
    bits += [bits_of["osxsave"]] if xcr0 else []
    ahead = [f"{{{{{base}, {offset}}}, {lines}}}" for base, offset, lines in table.aheads.tolist()]
    steps = np.array(in_order(table), np.int64).reshape(-1, 2)
    parts += [
        array("rammer_cpu_bit", "bits", [*(f"{{{', '.join(map(str, b))}}}" for b in bits), "{0}"]),
        array("long long", "bounds", rows(table.bounds)),
        array("rammer_slot", "slots", rows(table.slots)),
        array("rammer_position", "waits", rows(table.waits)),
        array("rammer_kernel", "kernels", (names[symbol] for _, symbol, _ in header["kernels"])),
        array("rammer_place", "args", rows(np.stack([table.arg_base.astype(np.int64), table.arg_offset], 1))),
        array("rammer_prefetch", "prefetches", ahead),
        array("long long", "constants", map(str, constants)),
        array("long long", "steps", rows(steps) or ["{0}"], "[2]"),
        array("int", "operators", rows(table.operators)),
        array("char *const", "names", map(text, header["operators"])),
        array("rammer_home", "inputs", homes[: len(image.inputs)]),
        array("rammer_home", "outputs", homes[len(image.inputs) :]),
    ]
    numbers = (
        *(header["num_veus"], header["num_programs"], len(table.arg_base), len(ahead), len(constants), len(steps)),
        "bounds, slots, waits, kernels, args, prefetches, constants, steps, operators, names, inputs, outputs",
        *(header["arena_bytes"], header["scratch_stride"], int(bool(header.get("keeps_subnormals")))),
    )
    fields = ", ".join([text(arch.name), "bits", f"{xcr0}u", *map(str, numbers)])
    parts.append(f"extern const rammer_plan {name};\nconst rammer_plan {name} = {{{fields}}};")
    return "\n".join(parts) + "\n"


def _port(port: Port, shape: str) -> str:
    kind = TYPES.get(port.dtype, "OTHER")
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
