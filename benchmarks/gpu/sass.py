"""Machine code of NVIDIA's GPUs, read: how long a warp takes through it, by latencies. An estimate, no measurement."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rammer.errors import ToolchainError

INSTALL = "pip install nvidia-cuda-nvdisasm, or put the CUDA toolkit's nvdisasm on PATH"
SCHEDULERS = 4  # of a multiprocessor: each issues an instruction per clock
# Cycles until a result can be used, of Hopper by published microbenchmarks (Luo et al. 2024), rounded; by the first
# part of the opcode. A load comes from L2, as the acquire before it has emptied L1.
LATENCY = {"LDG": 270, "LD": 270, "LDS": 29, "SHFL": 24, "MUFU": 23, "BAR": 30, "S2R": 20, "LDC": 30, "ULDC": 10}
OTHERS = 5
MEMORY = {"LDG", "LD", "LDS", "STS", "STG", "SHFL", "LDGSTS"}  # one pipe of a multiprocessor: 128 bytes in a clock
_LINE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Zx0-9_.]*)\s*([^;]*);")
_GROUP = re.compile(r"HGMMA\.64x(\d+)x")  # four waves' product: two columns in a clock, where their unit has no other
_LABEL = re.compile(r"^\s*(\.L_\w+):")
_REGISTER = re.compile(r"\b(U?R|U?P)(\d+)\b")


class Cycles(NamedTuple):
    """Clocks of one rTask from its wait on: until its last sum is there, and from there to its end; `sure`: all its
    loops are known.
    """

    compute: int
    tail: int
    sure: bool


class Instr(NamedTuple):
    """An instruction, the registers that it sets and reads, and the label that it branches to."""

    opcode: str
    sets: tuple[str, ...]
    reads: tuple[str, ...]
    target: str = ""

    @property
    def kind(self) -> str:
        return self.opcode.partition(".")[0]


@dataclass(frozen=True)
class Listing:
    """The instructions of a function, and the labels between them."""

    code: tuple[Instr, ...]
    labels: dict[str, int]

    def loops(self) -> list[tuple[int, int]]:
        """First and last instruction of every loop, outermost first."""
        found = [(self.labels.get(i.target, n + 1), n) for n, i in enumerate(self.code) if i.kind == "BRA" and i.target]
        return sorted((begin, end) for begin, end in found if begin < end)


def disassembled(cubin: bytes) -> str:
    """What nvdisasm says of machine code. Raises ToolchainError."""
    beside = [Path(p) / "nvidia" / cuda / "bin" for p in sys.path for cuda in ("cu13", "cu12")]
    command = shutil.which("nvdisasm", path=":".join(map(str, beside))) or shutil.which("nvdisasm")
    if command is None:
        raise ToolchainError("machine code cannot be read: there is no nvdisasm", hint=INSTALL)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([command, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolchainError(f"nvdisasm failed: {done.stderr.strip()[:400]}", hint=INSTALL)
    return done.stdout


def listings(text: str) -> dict[str, Listing]:
    """The functions of a disassembly by name."""
    found: dict[str, Listing] = {}
    for part in re.split(r"^//-+ \.text\.", text, flags=re.M)[1:]:
        code: list[Instr] = []
        labels: dict[str, int] = {}
        for line in part.splitlines():
            if label := _LABEL.match(line):
                labels[label[1]] = len(code)
            elif parsed := _LINE.search(line):
                code.append(_instruction(*parsed.groups()))
        found[part.split()[0]] = Listing(tuple(code), labels)
    return found


def _instruction(predicate: str | None, opcode: str, operands: str) -> Instr:
    kind, parts = opcode.partition(".")[0], operands.split(",")
    target = re.search(r"`\((\.L_\w+)\)", operands)
    stores = kind in {"ST", "STG", "STS", "STL", "BRA", "EXIT", "BAR", "MEMBAR", "RED", "NOP"}
    first = [] if stores else _registers(parts[0])
    wide = 4 if ".128" in opcode else 2 if ".64" in opcode or ".WIDE" in opcode else 1
    sets = [f"{r[0]}{int(r[1]) + n}" for r in first for n in range(wide if r[0] == "R" else 1)]
    setters = {"ISETP", "FSETP", "PLOP3", "LOP3", "UISETP"}
    if kind in setters and len(parts) > 1:
        sets += [f"{a}{b}" for a, b in _registers(parts[1]) if a.endswith("P")]
    reads = [f"{a}{int(b) + n}" for p in parts[not stores :] for a, b in _registers(p) for n in (0, ".64" in p)]
    if stores and kind != "BRA" and ".128" in opcode:
        reads += [f"R{int(b) + n}" for a, b in _registers(parts[-1]) if a == "R" for n in range(4)]
    if predicate:
        reads.append(predicate.lstrip("!"))
    return Instr(opcode, tuple(sets), tuple(reads), target[1] if target else "")


def _registers(text: str) -> list[tuple[str, str]]:
    return _REGISTER.findall(text)


def walked(listing: Listing, warps: int, trips: Sequence[int]) -> Cycles:
    """A warp's way through a function, beside the others of its block: in order, each result after its latency, one
    warp's access to memory after the other's.

    `trips`: how often the loops run, outermost first; a loop of which nothing is known is counted once.
    """
    inside = [loop for loop in listing.loops() if any(i.kind != "BRA" for i in listing.code[loop[0] : loop[1]])]
    loops = dict(zip(inside, trips, strict=False))
    ready: dict[str, int] = {}
    slot = max(warps / SCHEDULERS, 1.0)
    now, pipe, unit, sums = 0.0, 0.0, 0.0, dict[str, int]()

    def run(begin: int, end: int) -> None:
        nonlocal now, pipe, unit
        n = begin
        while n < end:
            inner = next(
                ((lp, t) for lp, t in loops.items() if lp[0] == n and lp[1] < end and (begin, end - 1) != lp), None
            )
            if inner is not None and inner[1] > 1:
                (first, last), times = inner
                del loops[first, last]
                before = now
                run(first, last + 1)
                once = now - before
                before = now
                run(first, last + 1)  # as it goes on: the first pass may wait for what comes before it
                now += (now - before or once) * (times - 2)
                loops[first, last] = times
                n = last + 1
                continue
            instr = listing.code[n]
            now = max([now + slot, *(ready.get(r, 0) for r in instr.reads)])
            done = int(now) + LATENCY.get(instr.kind, OTHERS)
            if instr.kind in MEMORY:
                pipe = max(pipe, now) + warps * (4 if ".128" in instr.opcode else 2 if ".64" in instr.opcode else 1)
                done += int(max(pipe - now - warps, 0))
            if group := _GROUP.match(instr.opcode):
                unit = max(unit, now) + int(group[1]) / 2 * warps / 4
                done = int(unit)
            elif instr.opcode.startswith("WARPGROUP.DEPBAR"):
                now = max(now, unit)
            ready.update(dict.fromkeys(instr.sets, done))
            if instr.kind == "BAR":
                now = done
            if instr.kind in ("FFMA", "SHFL", "HMMA", "HGMMA"):
                sums[instr.kind] = done
            n += 1

    code = listing.code
    run(0, next((n + 1 for n in range(len(code) - 1, -1, -1) if code[n].kind in ("EXIT", "RET")), len(code)))
    summed = min(sums.get("SHFL", max(sums.values(), default=0)), int(now))  # a fold comes last: then point by point
    return Cycles(summed, int(now) - summed, not inside or len(inside) == len(trips))
