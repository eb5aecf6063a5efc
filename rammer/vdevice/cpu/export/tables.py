"""Write the programs of CPUs into a C project: schedules as tables, rKernels as C."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

import numpy as np

from rammer.ir.verify.replay import in_order
from rammer.vdevice.cpu.codegen.compile import Unit
from rammer.vdevice.cpu.host import Arch, find_arch
from rammer.vdevice.cpu.runtime.table import TABLE, Table
from rammer.vdevice.export.project import ExportedPlan
from rammer.vdevice.export.tables import array, homes, places, rows, text

_LONG = re.compile(r"\b(?<!long )(unsigned )?long\b(?! long)")  # 32 bits on Windows and WebAssembly
# Leaf, subleaf, register (EAX to EDX) and bit of CPUID, by the names of /proc/cpuinfo.
CPU_BITS = {  # by leaf, subleaf and register of CPUID
    (1, 0, 2): {"ssse3": 9, "fma": 12, "sse4_1": 19, "sse4_2": 20, "movbe": 22, "popcnt": 23}
    | {"osxsave": 27, "f16c": 29},
    (7, 0, 1): {"bmi1": 3, "avx2": 5, "bmi2": 8}
    | {"avx512f": 16, "avx512dq": 17, "avx512cd": 28, "avx512bw": 30, "avx512vl": 31},
    (7, 0, 2): {"avx512_vnni": 11},
    (7, 0, 3): {"amx_bf16": 22, "amx_tile": 24},
    (7, 1, 0): {"avx512_bf16": 5},
}
STATES = {"avx2": 0x6, "avx512f": 0xE6, "amx_tile": 0x60000}  # of registers, which the system must save


@dataclass(frozen=True)
class CpuExport(ExportedPlan):
    """A program of a CPU to be exported. `units` are the C files of its rKernels."""

    units: Sequence[Unit]

    @cached_property
    def table(self) -> Table:
        return Table.from_bytes(self.image.file(TABLE))

    def files(self, name: str, offsets: Sequence[int]) -> dict[str, str | bytes]:
        """Return the plan's files by path; `offsets` are those of the weights in weights.bin."""
        names = kernel_names(name, self.table)
        arch = find_arch(self.plan.spec.arch)
        found: dict[str, str | bytes] = {f"src/{name}.c": plan_source(name, self, arch, offsets)}
        for n, unit in enumerate(self.units):
            found[f"src/{name}_kernels_{n}.c"] = _unit(unit, {s: names[s] for s in unit.symbols})
        return found

    def cmake(self, name: str) -> str:
        """Return CMake lines that compile the plan's rKernels for its arch."""
        arch, paths = find_arch(self.plan.spec.arch), [f"src/{name}_kernels_{n}.c" for n in range(len(self.units))]
        return (
            f"set(ARCH_FLAGS {' '.join(arch.cc)})\nif(ZIG)\n  set(ARCH_FLAGS {' '.join(arch.zig)})\nendif()\n"
            f"set_source_files_properties(\n  {' '.join(paths)}\n"
            '  PROPERTIES COMPILE_OPTIONS "${KERNEL_FLAGS};${ARCH_FLAGS}")'
        )


def _unit(unit: Unit, names: Mapping[str, str]) -> str:
    """Return a translation unit that exports its kernels under the project's names, with 64-bit integers everywhere."""
    renamed = "".join(f"#define {symbol} {name}\n" for symbol, name in names.items())
    text = _LONG.sub(lambda m: "uint64_t" if m[1] else "int64_t", unit.text)
    helpers = '\n#include "half.h"\n' if "_Float16" in text else ""
    return f"#include <stdint.h>\n{renamed}{text}{helpers}"


def steps(exported: CpuExport) -> list[tuple[int, int]]:
    """Return all rTasks as (slot, vEU), in an order in which one thread can run them: none before what it waits for."""
    lanes, num_veus = exported.table.bounds.tolist(), exported.table.header["num_veus"]
    return [
        (lanes[n * num_veus + at.veu] + at.order, at.veu)
        for n, program in enumerate(exported.plan.programs)
        for at, _ in in_order(program)
    ]


def kernel_names(name: str, table: Table) -> dict[str, str]:
    """Return the function of each symbol in a project. Kernels with equal bodies share a symbol."""
    symbols = dict.fromkeys(symbol for _, symbol, _ in table.header["kernels"])
    return {symbol: f"{name}_k{n}" for n, symbol in enumerate(symbols)}


def plan_source(name: str, exported: CpuExport, arch: Arch, constants: Sequence[int]) -> str:
    """Return the C file of one schedule, `name`. `constants` has the offset of each weight in weights.bin."""
    table, header = exported.table, exported.table.header
    names = kernel_names(name, table)
    parts = ['#include "model.h"\n']
    parts += [f"void {k}(char *const *, char *, long long, int *);" for k in names.values()]
    parts += homes(exported.image, header, table.arg_base, table.arg_offset, header["direct"])
    bits_of = {feature: (*word, bit) for word, bits in CPU_BITS.items() for feature, bit in bits.items()}
    bits = [bits_of[f] for f in sorted(arch.features)]
    xcr0 = reduce(or_, (states for feature, states in STATES.items() if feature in arch.features), 0)
    bits += [bits_of["osxsave"]] if xcr0 else []
    ahead = [f"{{{{{base}, {offset}}}, {lines}}}" for base, offset, lines in table.aheads.tolist()]
    order = np.array(steps(exported), np.int64).reshape(-1, 2)
    parts += [
        array("rammer_cpu_bit", "bits", [*(f"{{{', '.join(map(str, b))}}}" for b in bits), "{0}"]),
        array("long long", "bounds", rows(table.bounds)),
        array("rammer_slot", "slots", rows(table.slots)),
        array("rammer_position", "waits", rows(table.waits)),
        array("rammer_kernel", "kernels", (names[symbol] for _, symbol, _ in header["kernels"])),
        array("rammer_place", "args", places(table.arg_base, table.arg_offset)),
        array("rammer_prefetch", "prefetches", ahead),
        array("long long", "constants", map(str, constants)),
        array("long long", "steps", rows(order) or ["{0}"], "[2]"),
        array("int", "operators", rows(table.operators)),
        array("char *const", "names", map(text, header["operators"])),
    ]
    numbers = (
        *(header["num_veus"], header["num_programs"], len(table.arg_base), len(ahead), len(order)),
        "bounds, slots, waits, kernels, args, prefetches, constants, steps, operators, names, inputs, outputs",
        *(header["arena_bytes"], header["scratch_stride"], int(bool(header.get("keeps_subnormals"))), "&rammer_cpu", 0),
    )
    fields = ", ".join([text(arch.name), "bits", f"{xcr0}u", *map(str, numbers)])
    parts.append(f"extern const rammer_plan {name};\nconst rammer_plan {name} = {{{fields}}};")
    return "\n".join(parts) + "\n"
