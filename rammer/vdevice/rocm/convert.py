"""CUDA kernels to HIP in the form that vEUs run: the paper's hipify step for imported kernels (§4.2.1).

A kernel `__global__ void name(float *out, const float *in)` becomes a device function whose block is the rTask. What
has no counterpart is refused with its line, not passed on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rammer.errors import LoweringError

# What is not converted, and why.
REFUSED = {
    r"\basm\b": "inline assembly is for NVIDIA's machine",
    r"\b(__shfl\w*|__ballot\w*|__any_sync|__all_sync|__activemask|__syncwarp|__reduce\w*_sync)\b": (
        "it counts on waves of 32 threads"
    ),
    r"\bwarpSize\b": "waves have 64 threads on some AMD GPUs, 32 on others",
    r"\b(wmma|mma_sync|nvcuda)\b": "tensor cores have another interface",
    r"\b(cooperative_groups|cg::)": "a vEU has block syncs only",
    r"\b(tex[123]D\w*|texture|surface|cudaTextureObject_t)\b": "there are no textures",
    r"<<<": "a kernel cannot launch others: an rTask is one block",
    r"\batomic\w+\s*\(": "rTasks share nothing while they run",
    r"\bcuda[A-Z]\w*": "only kernels are converted, not the host's side",
    r"\b(__half2?|half2?|__nv_bfloat16\w*)\b": "half floats are f16 here",
    r"\b(__constant__|__managed__)": "constants are tensors",
    r"\bextern\s+__shared__": "scratch must have a size: __shared__ float name[256]",
    r"\b(threadIdx|blockIdx|blockDim|gridDim)\.[yz]\b": "threads and rTasks are counted in x only",
    r"\bgridDim\.x\b": "an rTask does not know how many there are: write the number",
    r"\b(printf|assert)\s*\(": "nothing prints from a GPU here",
    r"^\s*#\s*include\b": "there are no headers",
}
RENAMED = {
    r"\bthreadIdx\.x\b": "tid",
    r"\bblockIdx\.x\b": "rtask",
    r"\b__syncthreads\s*\(\s*\)": "mk_sync()",
    r"\b__expf\b": "expf",
    r"\b__logf\b": "logf",
    r"\b__fdividef\b": "MK_DIVIDE",
    r"\b__ldg\s*\(": "*(",
    r"\bfmaxf\b": "smax",
    r"\bfminf\b": "smin",
    r"\btanhf\b": "stanh",
    r"\s*\b__restrict__\b": "",
}
_KERNEL = re.compile(
    r'(?:extern\s+"C"\s+)?__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?void\s+'
    r"(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)\s*\{"
)
_SHARED = re.compile(r"__shared__\s+(float|double|int|unsigned)\s+(\w+)\s*((?:\[\s*\d+\s*\])+)\s*;")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_SIZES = {"float": 4, "int": 4, "unsigned": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class Converted:
    """HIP text, and what a `ForeignSource` says of it. `num_block_syncs` is None where a loop or branch has one."""

    text: str
    symbol: str
    num_threads: int
    scratch_bytes: int
    num_block_syncs: int | None


def convert(text: str, threads: int) -> Converted:
    """Convert the one kernel of a CUDA file, launched with blocks of `threads`. Raises LoweringError with the line."""
    bare = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)  # as long as before: lines keep their numbers
    kernels = list(_KERNEL.finditer(bare))
    if len(kernels) != 1:
        raise LoweringError(
            f"the file has {len(kernels)} kernels", hint="one `__global__ void name(...)` with pointers, in each file"
        )
    kernel = kernels[0]
    for pattern, why in REFUSED.items():
        if found := re.search(pattern, bare, re.M):
            raise _refusal(bare, found.start(), found[0].strip(), why)
    end = _closing(bare, kernel.end() - 1)
    body = bare[kernel.end() : end]
    syncs = [m.start() for m in re.finditer(r"\b__syncthreads\b", body)]
    early = re.search(r"\breturn\b", body)
    if early and syncs and early.start() < syncs[-1]:
        raise _refusal(
            bare, kernel.end() + early.start(), "return", "threads that leave would miss a block sync: use if instead"
        )
    counted = all(_depth(body, at) == 0 and not _conditional(body, at) for at in syncs)
    body, scratch = _scratch(bare, kernel.end(), body)
    body = _renamed(body.replace("blockDim.x", str(threads)))
    tensors = "".join(f"\n  {line}" for line in _parameters(bare, kernel))
    head = f"static __device__ void {kernel[1]}(void *const *args, char *scratch, int rtask, int tid, int *status) {{"
    before, after = _renamed(bare[: kernel.start()]), _renamed(bare[end:])
    made = f"{before}{head}{tensors}{body}{after}"
    return Converted(made, kernel[1], threads, scratch, len(syncs) if counted else None)


def _renamed(text: str) -> str:
    for pattern, name in RENAMED.items():
        text = re.sub(pattern, name, text)
    return text


def _parameters(text: str, kernel: re.Match[str]) -> list[str]:
    """Declarations of the tensors: outputs come first, as in every rTask."""
    lines, inputs = [], False
    for n, parameter in enumerate(p.strip() for p in kernel[2].split(",")):
        found = re.fullmatch(r"(const\s+)?(\w+)\s*\*\s*(?:__restrict__\s*)?(\w+)", parameter)
        if not found:
            raise _refusal(text, kernel.start(2), parameter, "parameters are tensors: constants belong into the text")
        if inputs and not found[1]:
            raise _refusal(text, kernel.start(2), parameter, "outputs come before inputs, and inputs are const")
        inputs = inputs or bool(found[1])
        kind = f"{'const ' if found[1] else ''}{found[2]} *"
        lines.append(f"{kind}{found[3]} = MK_TENSOR({kind}, args, {n});")
    return lines


def _scratch(text: str, start: int, body: str) -> tuple[str, int]:
    """Shared arrays become places in the scratch that the vEU hands to the rTask."""
    at = 0

    def place(m: re.Match[str]) -> str:
        nonlocal at
        kind, name, sizes = m[1], m[2], [int(n) for n in re.findall(r"\d+", m[3])]
        rest = "".join(f"[{n}]" for n in sizes[1:])
        pointer = f"{kind} (*{name}){rest}" if rest else f"{kind} *{name}"
        cast = f"{kind} (*){rest}" if rest else f"{kind} *"
        declaration = f"{pointer} = ({cast})(scratch + {at});"
        count = _SIZES[kind]
        for n in sizes:
            count *= n
        at += -(-count // 64) * 64
        return declaration

    made = _SHARED.sub(place, body)
    if left := re.search(r"__shared__[^;]*", made):
        where = body.find(left[0])
        raise _refusal(text, start + where, left[0].strip(), "a shared array is of a plain type, its sizes are numbers")
    return made, at


def _closing(text: str, opening: int) -> int:
    """Behind the brace that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    raise _refusal(text, opening, "{", "it is never closed")


def _depth(body: str, at: int) -> int:
    return body.count("{", 0, at) - body.count("}", 0, at)


def _conditional(body: str, at: int) -> bool:
    """Whether the statement at `at` belongs to an `if`, `for` or `while` without braces."""
    statement = body[max(body.rfind(c, 0, at) for c in ";{}") + 1 : at]
    return bool(re.search(r"\b(if|for|while|else|do)\b", statement)) or body[:at].rstrip().endswith(")")


def _refusal(text: str, at: int, what: str, why: str) -> LoweringError:
    return LoweringError(f"line {text.count(chr(10), 0, at) + 1}: {what!r} cannot be converted: {why}")
