"""Compile rKernels to machine code: emit C, compile it in batches on all cores, and keep objects in a store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rammer import config, log
from rammer.errors import DeviceError, RammerError, ToolchainError
from rammer.forkpool import computed
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.vdevice.base import Progress, silent
from rammer.vdevice.cpu.codegen.emit import EmittedKernel, emit, prelude, translation_unit
from rammer.vdevice.cpu.host import Host, find_arch
from rammer.vdevice.toolchain import (
    BackgroundWork,
    Compiler,
    c_compiler,
    fingerprint,
    headers_fingerprint,
    in_parallel,
    object_store,
    parallel_jobs,
)
from rammer.vdevice.toolchain.library import Library
from rammer.vdevice.toolchain.objects import share

logger = logging.getLogger(__name__)

BATCH = 16  # most kernels per compiler call: a start takes 30 ms, but other cores wait for the last call
# Bytes of text from which a kernel compiles in a call of its own, into its own object: it takes three times as long as
# the compiler's start, and the measured object is then also the saved one.
LONG_BYTES = 6000
KERNEL_S = 20  # limit of CPU time for one kernel: a hundred times what most take
MORE_S = 4  # for each other kernel of a call
RUNTIME, MEASURE = (
    ("runtime/system.c", "runtime/runtime.c", "runtime/steps.c", "runtime/call.c"),
    ("tune/measure.c",),
)  # C files of this backend, each tuple a library
LIBRARIES = (RUNTIME, MEASURE)  # needed by every compilation that measures kernels: compiled in the background
GROUP = 16  # kernels per object of a saved program: fixed, so that the file does not depend on the machine


@dataclass(frozen=True, slots=True)
class KernelSource:
    """C text of a kernel, and the cache key of its object."""

    key: str
    symbol: str
    emitted: EmittedKernel | None  # None: `text` is a whole translation unit
    text: str

    @property
    def isolated(self) -> bool:
        """Return whether it is always compiled into its own object."""
        return self.emitted is None or len(self.text) > LONG_BYTES

    @property
    def capacity(self) -> int:
        """Return the number of lines that an rTask can prefetch for later ones."""
        return self.emitted.capacity if self.emitted else 0

    @property
    def tickets(self) -> tuple[int, ...]:
        """Return the tickets of each rTask for work stealing."""
        return self.emitted.tickets if self.emitted else ()


class Unit(NamedTuple):
    """A C file of some kernels, and their symbols."""

    text: str
    symbols: tuple[str, ...]


Part: TypeAlias = tuple[Sequence[KernelSource], bytes | ToolchainError]  # sources, and their object or error


@dataclass(frozen=True)
class CompiledKernels:
    """For each rKernel its source, the object that holds it and its symbol; the objects by content hash."""

    sources: Mapping[RKernel, KernelSource]
    where: Mapping[RKernel, tuple[str, str]]
    objects: Mapping[str, bytes]

    @cached_property
    def _libraries(self) -> dict[str, Library]:
        return {name: Library(data) for name, data in self.objects.items()}

    def address(self, kernel: RKernel) -> int:
        """Return the address of an rKernel's function. It is valid as long as this value lives."""
        name, symbol = self.where[kernel]
        return self._libraries[name].address(symbol)


def _located(sources: Mapping[RKernel, KernelSource], found: Mapping[str, tuple[str, bytes]]) -> CompiledKernels:
    where = {kernel: (found[s.key][0], s.symbol) for kernel, s in sources.items()}
    return CompiledKernels(sources, where, dict(found.values()))


class KernelCompiler:
    """Compiles for one spec with the C compiler of this process."""

    def __init__(self, spec: VDeviceSpec, host: Host) -> None:
        self.spec = spec
        self._compiler: Compiler = c_compiler()
        self._flags = arch_flags(spec.arch, self._compiler.family, host)
        self.toolchain = f"{self._compiler.version} {' '.join((*self._compiler.flags, *self._flags))}"
        self._context = fingerprint(
            self._compiler.version, self._compiler.family, *self._compiler.flags, *self._flags, headers_fingerprint()
        )
        self._prelude = fingerprint(self._context, prelude(spec))
        self._beside: BackgroundWork[list[KernelSource], list[Part]] | None = None
        self._begun: set[str] = set()  # keys of sources that compile in the background
        self._sources: dict[
            RKernel, KernelSource
        ] = {}  # emitted since the last build: trials, timing and build share them

    def begin(self) -> None:
        """Start compiling, in the background, the libraries that measuring needs. Raises none of its errors."""
        libraries = {source.key: source for source in map(self._library, LIBRARIES)}
        known = object_store().find(libraries)
        if missing := [[source] for key, source in libraries.items() if key not in known]:
            self._begun = {source.key for [source] in missing}
            self._beside = BackgroundWork(self._compile_separately, missing, parallel_jobs())
            self._beside.begin()

    def end(self) -> None:
        """Cancel background work whose results were not requested."""
        if self._beside is not None:
            self._beside.end()
        self._beside, self._begun = None, set()

    def runtime(self) -> bytes:
        """Return the runtime as a shared object. Raises ToolchainError."""
        return self.library(*RUNTIME)

    def library(self, *names: str) -> bytes:
        """Return C files of this backend as a shared object. Raises ToolchainError."""
        source = self._library(names)
        found, refused = self._compile([source], silent)
        if refused:
            raise refused[source.key]
        return found[source.key][1]

    def _library(self, names: Sequence[str]) -> KernelSource:
        text = "\n".join(files("rammer.vdevice.cpu").joinpath(n).read_text(encoding="utf-8") for n in names)
        return KernelSource(fingerprint(self._context, text), "", None, text)

    def forget(self, but: Iterable[RKernel]) -> None:
        """Drop the texts of all other kernels."""
        self._sources = {k: self._sources[k] for k in but if k in self._sources}

    def compile(self, kernels: Sequence[RKernel], progress: Progress = silent) -> CompiledKernels:
        """Return machine code of all kernels, cached where possible. Raises ToolchainError, DeviceError.

        The objects may hold other kernels as well, because kernels missing in the cache are compiled in batches.
        """
        sources = self.sources(kernels)
        distinct = list({s.key: s for s in sources.values()}.values())
        _show(distinct)
        found, refused = self._compile(distinct, progress)
        if refused:
            key, error = next(iter(refused.items()))
            error.add_note(f"while compiling rKernel {next(k.name for k, s in sources.items() if s.key == key)!r}")
            raise error
        return _located(sources, found)

    def refused(self, kernels: Sequence[RKernel], progress: Progress = silent) -> dict[RKernel, str]:
        """Compile kernels; return those that the C compiler rejects or cannot compile within its limits, and why.

        Raises ToolchainError if it compiles none: then the compiler is at fault, not the kernels.
        """
        sources = self.sources(kernels)
        distinct = list({s.key: s for s in sources.values()}.values())
        found, refused = self._compile([*map(self._library, LIBRARIES), *distinct], progress)
        if refused and not any(s.key in found for s in distinct):
            raise next(iter(refused.values()))
        return {k: str(refused[s.key]).partition(": ")[0] for k, s in sources.items() if s.key in refused}

    def compile_only(self, kernels: Sequence[RKernel], progress: Progress = silent) -> CompiledKernels:
        """Compile into objects that hold exactly these kernels and are the same on every machine. Else as `compile`."""
        sources = self.sources(kernels)
        named = {_only(batch): batch for batch in _in_groups(sources.values())}
        store = object_store()
        found = store.find(named)
        names = {id(batch): name for name, batch in named.items()}
        missing = [batch for name, batch in named.items() if name not in found]
        for done, (batch, data) in enumerate(in_parallel(self._compile_together, missing, parallel_jobs())):
            name = names[id(batch)]
            found[name] = store.add([name], data)
            progress("compile", done + 1, len(missing))
        objects = {name: self._read(name) for name in set(found.values())}
        return _located(sources, {s.key: (found[n], objects[found[n]]) for n, batch in named.items() for s in batch})

    def units(self, kernels: Sequence[RKernel]) -> list[Unit]:
        """Return the C files of exactly these kernels, as `compile_only` compiles them."""
        batches = _in_groups(self.sources(kernels).values())
        return [Unit(self._text(batch), tuple(s.symbol for s in batch)) for batch in batches]

    def sources(self, kernels: Sequence[RKernel]) -> dict[RKernel, KernelSource]:
        """Emit kernels; return their texts, symbols and keys."""
        texts = {id(k.body): source for k, source in self._sources.items()}
        fresh = list({id(k.body): k for k in kernels if id(k.body) not in texts}.values())
        texts |= {id(k.body): source for k, source in zip(fresh, computed(self._source, fresh), strict=True)}
        found = {k: texts[id(k.body)] for k in dict.fromkeys(kernels)}
        self._sources |= found
        return found

    def _source(self, kernel: RKernel) -> KernelSource:
        body = kernel.body
        if not isinstance(body, ForeignSource):
            emitted = emit(kernel, self.spec)
            if find_arch(self.spec.arch).machine == "wasm32" and "_Float16" in emitted.text:
                raise DeviceError(
                    f"rKernel {kernel.name!r} has float16 numbers, and C for WebAssembly has none",
                    hint="export a float32 model",
                )
            return KernelSource(
                fingerprint(self._prelude, emitted.symbol, emitted.text), emitted.symbol, emitted, emitted.text
            )
        if body.language != "c":
            raise DeviceError(f"rKernel {kernel.name!r} is written in {body.language!r}", hint="this vDevice takes 'c'")
        # Foreign texts may use any names: each is its own translation unit, with a unique symbol.
        key = fingerprint(self._context, body.symbol, body.text)
        symbol = f"{body.symbol}_{key[:16]}"
        text = f'#define {body.symbol} {symbol}\n#line 1 "{body.symbol}"\n{body.text}\n'
        return KernelSource(key, symbol, None, text)

    def _compile(
        self, sources: Sequence[KernelSource], progress: Progress
    ) -> tuple[dict[str, tuple[str, bytes]], dict[str, ToolchainError]]:
        """Compile sources. Returns key -> (content hash, bytes) of the object that holds each, and errors by key."""
        store = object_store()
        found = store.find(s.key for s in sources)
        begun = self._begun.intersection(s.key for s in sources)
        missing = [s for s in sources if s.key not in found and s.key not in begun]
        jobs = parallel_jobs()
        batches = [[s] for s in sorted(missing, key=lambda s: -len(s.text)) if s.isolated]
        costs = {s.key: len(s.text) + 2000 for s in missing if not s.isolated}
        by_key = {s.key: s for s in missing}
        calls = -(-len(costs) // (BATCH * jobs)) * jobs  # equally many for each job
        batches += [[by_key[k] for k in group] for group in share(costs, calls if len(costs) > jobs else len(costs))]

        done, total = 0, len(missing) + len(begun)
        if batches:
            progress("compile", 0, total)
        refused: dict[str, ToolchainError] = {}
        made_beside = self._results_of_begun() if begun else ()
        for batch, parts in chain(in_parallel(self._compile_separately, batches, jobs), made_beside):
            for part, made in parts:
                if isinstance(made, ToolchainError):
                    refused |= {s.key: made for s in part}
                    continue
                keys = [s.key for s in part]
                saved = [_only(part)] if part[0].isolated and part[0].emitted else []  # as `compile_only` looks up
                name = store.add([*keys, *saved], made)
                found |= {s.key: name for s in part}
            done += len(batch)
            progress("compile", done, total)
        objects = {name: self._read(name) for name in set(found.values())}
        return {key: (name, objects[name]) for key, name in found.items()}, refused

    def _results_of_begun(self) -> Iterator[tuple[list[KernelSource], list[Part]]]:
        try:
            if self._beside is not None:
                yield from self._beside.results()
        finally:
            self.end()

    def _compile_separately(self, batch: Sequence[KernelSource]) -> list[Part]:
        """Compile a batch into one object; on an error compile each kernel alone, to find the faulty one."""
        try:
            return [(batch, self._compile_together(batch))]
        except ToolchainError as error:
            if len(batch) == 1:
                return [(batch, error)]
        return [part for source in batch for part in self._compile_separately([source])]

    def _text(self, batch: Sequence[KernelSource]) -> str:
        emitted = [s.emitted for s in batch if s.emitted is not None]
        return translation_unit(emitted, self.spec) if emitted else batch[0].text

    def _compile_together(self, batch: Sequence[KernelSource]) -> bytes:
        cpu_s = KERNEL_S + MORE_S * (len(batch) - 1)
        patience = 120 + 10 * len(batch)
        return self._compiler.compile_shared(self._text(batch), self._flags, timeout_s=patience, cpu_s=cpu_s)

    def _read(self, name: str) -> bytes:
        data = object_store().read(name)
        if data is None:
            raise DeviceError(
                f"the cached object {name[:16]} disappeared while it was needed",
                hint="another process cleared the cache; run again",
            )
        return data


def in_c(kernels: Iterable[RKernel]) -> list[RKernel]:
    """Return the distinct rKernels that this vDevice runs: tile programs, and foreign texts in C."""
    return [k for k in dict.fromkeys(kernels) if not isinstance(k.body, ForeignSource) or k.body.language == "c"]


def _in_groups(sources: Iterable[KernelSource]) -> list[list[KernelSource]]:
    """Return the distinct sources in the groups that are compiled together, in a fixed order."""
    distinct = sorted({s.key: s for s in sources}.values(), key=lambda s: s.key)
    together = [s for s in distinct if not s.isolated]
    return [together[n : n + GROUP] for n in range(0, len(together), GROUP)] + [[s] for s in distinct if s.isolated]


def _only(batch: Sequence[KernelSource]) -> str:
    """Return the name of an object of exactly these kernels in this order."""
    return fingerprint("only", *(s.key for s in batch))


def _show(sources: Sequence[KernelSource]) -> None:
    """Log C texts for RAMMER_DEBUG=4 and write them to RAMMER_DUMP_DIR, cached ones included."""
    log.listen()
    for source in sources if logger.isEnabledFor(log.SOURCE) else ():
        logger.log(log.SOURCE, "C text\n// %s\n%s", source.symbol, source.text)
    if folder := config.get("RAMMER_DUMP_DIR"):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for source in sources:
                Path(folder, f"{source.symbol}.c").write_text(source.text, encoding="utf-8")
        except OSError as error:
            raise RammerError(f"cannot write to RAMMER_DUMP_DIR={folder!r}: {error.strerror}") from error


def arch_flags(arch: str, family: str, host: Host) -> tuple[str, ...]:
    """Return compiler flags for an arch. Zig also compiles for other machines."""
    target = find_arch(arch)
    if family != "zig":
        if target.machine != host.machine:
            raise DeviceError(f"arch {arch!r} needs a cross compiler on a {host.machine}", hint="unset RAMMER_CC")
        return target.cc
    if target.machine != host.machine:
        system = {"wasm32": "wasi", "thumb": "linux-eabihf"}.get(target.machine, "linux")
        return ("-target", f"{target.machine}-{system}", *target.zig)
    return target.zig
