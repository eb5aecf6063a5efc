"""Convert a checked CUDA kernel to the text of an rTask: indices follow from the rTask's number and vEU threads.

Known as: source-to-source translation. The same text serves CUDA and HIP, which is the paper's hipify step. Paper:
§4.1.4, §4.2.1, Figure 10.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from rammer.errors import LoweringError
from rammer_legacy_kernels.functions import HELPERS, PART, RENAMED
from rammer_legacy_kernels.source import INDICES, Source, read_source
from rammer_legacy_kernels.statements import SYNC
from rammer_legacy_kernels.tokens import Token, text_of

MAX_THREADS = 1024
ALIGNMENT = 64  # of shared arrays in the scratch
COUNTING = "counting"  # the language of the host text that counts syncs

Dims = tuple[int, int, int]
_PLACES = {name: f"mk_{name}" for name in INDICES}


@dataclass(frozen=True, slots=True)
class Launch:
    """How a kernel is launched. `arguments`: place of each parameter among outputs and inputs, or a number.

    Empty `arguments`: pointers to const are the inputs, others the outputs, in order, and there are no numbers.
    """

    grid: Dims
    block: Dims
    dynamic_bytes: int = 0
    arguments: tuple[str | int | float, ...] = ()

    @property
    def threads(self) -> int:
        return prod(self.block)


@dataclass(frozen=True, slots=True)
class Converted:
    """Text of `void symbol(void *const *args, char *scratch, int rtask, int tid, int *status)`, and its needs.

    `num_threads` may be rounded up to whole waves. `num_block_syncs` is None if only execution can count them.
    `own_syncs`: syncs are among its own threads, even if the block has more.
    """

    text: str
    symbol: str
    num_threads: int
    scratch_bytes: int
    num_block_syncs: int | None
    own_syncs: bool


def argument_places(source: Source, launch: Launch) -> list[tuple[str, int | float]]:
    """Return for each parameter ("output", n), ("input", n) or ("number", value). Raises LoweringError."""
    found: list[tuple[str, int | float]] = []
    if launch.arguments:
        if len(launch.arguments) != len(source.parameters):
            raise LoweringError(
                f"{source.name} has {len(source.parameters)} parameters; {len(launch.arguments)} arguments are given"
            )
        for p, argument in zip(source.parameters, launch.arguments, strict=True):
            if isinstance(argument, str) != p.tensor:
                raise LoweringError(f"line {p.line}: parameter {p.name!r} cannot be {argument!r}")
            if not isinstance(argument, str):
                if isinstance(argument, float) and p.ctype not in ("float", "double"):
                    raise LoweringError(f"line {p.line}: parameter {p.name!r} is {p.ctype}, and cannot be {argument!r}")
                found.append(("number", argument))
                continue
            role = argument.rstrip("0123456789")
            if role == "output" and p.const:
                raise LoweringError(f"line {p.line}: parameter {p.name!r} is const, and cannot be {argument!r}")
            found.append((role, int(argument[len(role) :])))
        return found
    counts = {"output": 0, "input": 0}
    for p in source.parameters:
        if not p.tensor:
            raise LoweringError(
                f"line {p.line}: '{p.ctype} {p.name}' cannot be converted: its value is not known",
                hint='a record gives it: "arguments": ["output0", "input0", 64]',
            )
        role = "input" if p.const else "output"
        found.append((role, counts[role]))
        counts[role] += 1
    return found


def convert(text: str, launch: Launch, language: str, *, wave: int = 32, syncs: int | None = None) -> Converted:
    """Convert the one kernel of a CUDA file to "cuda", "hip", or the host's text that counts its block syncs.

    `syncs`: how many every thread runs, if known from execution. Raises LoweringError with the line.
    """
    return convert_source(read_source(text), launch, language, wave=wave, syncs=syncs)


def convert_source(
    source: Source, launch: Launch, language: str, *, wave: int = 32, syncs: int | None = None
) -> Converted:
    """Convert a file that was read already. See `convert`."""
    places = argument_places(source, launch)
    threads = launch.threads
    if not 1 <= threads <= MAX_THREADS:
        raise LoweringError(f"a block has {threads} threads; 1 to {MAX_THREADS} are possible")
    if source.bounds and threads > source.bounds:
        raise LoweringError(f"a block has {threads} threads, and the kernel's __launch_bounds__ says {source.bounds}")
    syncs = source.fixed_syncs if syncs is None else syncs
    scratch, declared = _scratch(source, launch)
    whole = -(-threads // wave) * wave
    ragged = source.has_syncs and whole != threads and language != COUNTING
    if ragged and syncs is None:
        raise LoweringError(
            f"{threads} threads are no whole waves of {wave}, and it is not known how many block syncs the others run",
            hint="verify the record: that counts them",
        )
    sync = {"cuda": f"{'rk' if ragged else 'mk'}_sync_part({whole})", COUNTING: "mk_counted_sync()"}.get(
        language, "mk_sync()"
    )
    digest = hashlib.sha256(repr((source.digest, launch, language, whole, syncs)).encode())
    symbol = f"imported_{digest.hexdigest()[:16]}"
    names = _names(source, symbol)
    parameters, numbers, arguments = [], [], []
    num_outputs = len({n for role, n in places if role == "output"})
    for p, (role, n) in zip(source.parameters, places, strict=True):
        if role == "number":
            numbers.append(f"  {RENAMED.get(p.ctype, p.ctype)} {names.get(p.name, p.name)} = {_number(n, p.ctype)};")
            continue
        kind = f"{'const ' if p.const else ''}{RENAMED.get(p.ctype, p.ctype)} *"
        quiet = "__restrict__ " if p.restrict and language == "cuda" else ""
        parameters.append(f"{kind}{quiet}{names.get(p.name, p.name)}, ")
        arguments.append(f"MK_TENSOR({kind}, args, {int(n) + (num_outputs if role == 'input' else 0)}), ")
    body = text_of(_rewritten(source.body, names, sync))
    macros = "".join(
        f"#define {names[m.name]}{'' if m.parameters is None else '(' + ', '.join(m.parameters) + ')'} "
        f"{' '.join(t.text for t in _rewritten(m.body, names, sync))}\n"
        for m in source.macros.values()
    )
    helpers = "".join(f"INLINE {text_of(_rewritten(h, names, sync)).strip()}\n" for h in source.helpers.values())
    (gx, gy, gz), (bx, by, bz) = launch.grid, launch.block
    lines = [
        f"INLINE void {symbol}_body({''.join(parameters)}char *mk_scratch, unsigned mk_rtask, unsigned mk_tid) {{",
        *numbers,
        *declared,
        "  struct mk_index { unsigned x, y, z; };",
        f"  const mk_index mk_gridDim = {{{gx}, {gy}, {gz}}}, mk_blockDim = {{{bx}, {by}, {bz}}};",
        f"  const mk_index mk_blockIdx = {{mk_rtask % {gx}, mk_rtask / {gx} % {gy}, mk_rtask / {gx * gy}}};",
        f"  const mk_index mk_threadIdx = {{mk_tid % {bx}, mk_tid / {bx} % {by}, mk_tid / {bx * by}}};",
        "  (void)mk_gridDim, (void)mk_blockDim, (void)mk_blockIdx, (void)mk_threadIdx, (void)mk_scratch;",
        body.strip("\n"),
        "}",
        f"MK_TASK void {symbol}(void *const *args, char *scratch, int rtask, int tid, int *status) {{",
        f"  {_entry(symbol, ''.join(arguments), threads, whole, ragged, language, syncs or 0)}",
        "}",
    ]
    part = PART if ragged and language == "cuda" else ""
    made = "\n".join([HELPERS + part + macros + helpers + lines[0], *lines[1:]]) + "\n"
    return Converted(
        made, symbol, whole if ragged else threads, scratch, syncs, language == "cuda" and source.has_syncs
    )


def _entry(symbol: str, arguments: str, threads: int, whole: int, ragged: bool, language: str, syncs: int) -> str:
    """Return the call of the body.

    If threads do not fill whole waves, the extra ones of the last run only the syncs.
    """
    call = f"{symbol}_body({arguments}scratch, (unsigned)rtask, (unsigned)MK_HERE(tid));"
    if not ragged:
        return call
    if language == "cuda":
        return f"if (tid < {threads}) {call}\n  else for (int n = 0; n < {syncs}; n++) rk_sync_part({whole});"
    # An AMD wave reaches a sync as a whole, including inactive threads.
    return (
        f"if (MK_WAVE(tid) < {threads}) {{ if (tid < {threads}) {call} }}\n"
        f"  else for (int n = 0; n < {syncs}; n++) mk_sync();"
    )


def _names(source: Source, symbol: str) -> Mapping[str, str]:
    """Return new names: of the file's own definitions, to keep files distinct, and of CUDA's functions."""
    own = {name: f"{symbol}_{name}" for name in (*source.macros, *source.helpers)}
    return {**RENAMED, **own}


def _rewritten(tokens: Sequence[Token], names: Mapping[str, str], sync: str) -> list[Token]:
    made: list[Token] = []
    skip = 0
    for n, token in enumerate(tokens):
        if skip:
            skip -= 1
            continue
        member = bool(made) and made[-1].text in (".", "->")
        if token.kind != "name" or member:
            made.append(token)
        elif token.text == SYNC:
            made.append(token.named(sync))
            skip = 2
        elif token.text == "__ldg" and tokens[n + 1 : n + 2]:
            made.append(token.named("*"))
        elif token.text in ("__restrict__", "__restrict"):
            made.append(token.named(""))
        elif token.text in _PLACES:
            made.append(token.named(_PLACES[token.text]))
        else:
            made.append(token.named(names.get(token.text, token.text)))
    return made


def _number(value: int | float, ctype: str) -> str:
    if isinstance(value, int):
        return f"({ctype})({value}ll)" if abs(value) > 2**31 - 1 else str(int(value))
    return f"{value!r}{'f' if ctype == 'float' else ''}"


def _scratch(source: Source, launch: Launch) -> tuple[int, list[str]]:
    """Return the bytes of scratch, and declarations of the shared arrays in it; the dynamic one comes last."""
    at, lines = 0, []
    for array in sorted(source.shared, key=lambda a: a.dynamic):
        kind = RENAMED.get(array.ctype, array.ctype)
        if array.dynamic:
            lines.append(f"  {kind} *{array.name} = ({kind} *)(mk_scratch + {at});")
        elif not array.dims:
            lines.append(f"  {kind} &{array.name} = *({kind} *)(mk_scratch + {at});")
        else:
            rest = "".join(f"[{n}]" for n in array.dims[1:])
            pointer, cast = (f"(*{array.name}){rest}", f"{kind} (*){rest}") if rest else (f"*{array.name}", f"{kind} *")
            lines.append(f"  {kind} {pointer} = ({cast})(mk_scratch + {at});")
        at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    dynamic = any(a.dynamic for a in source.shared)
    if dynamic and launch.dynamic_bytes <= 0:
        raise LoweringError(
            "the kernel has dynamic shared memory of unknown size", hint='a record gives it: "dynamic_bytes": 4096'
        )
    if launch.dynamic_bytes and not dynamic:
        raise LoweringError(f"{launch.dynamic_bytes} dynamic bytes are given, and the kernel has no extern __shared__")
    return at + launch.dynamic_bytes, lines
