"""rKernels to machine code: emitted as C, compiled in batches over all cores, kept in the object store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from rammer import config, log
from rammer.errors import DeviceError, RammerError, ToolchainError
from rammer.forkpool import computed
from rammer.ir.device import VDeviceSpec
from rammer.ir.kernel import ForeignSource, RKernel
from rammer.vdevice.base import Progress, silent
from rammer.vdevice.cpu.codegen.emit import EmittedKernel, emit, prelude, translation_unit
from rammer.vdevice.cpu.host import Host, find_arch
from rammer.vdevice.toolchain import (
    Beside,
    Compiler,
    c_compiler,
    fingerprint,
    headers_fingerprint,
    in_parallel,
    object_store,
    parallel_jobs,
)
from rammer.vdevice.toolchain.objects import share

BATCH = 16  # kernels of one compiler call, at most: to start one takes 30 ms, and the last one ends alone
# Of text: such a kernel takes the compiler three times as long as its start. It has a call and an object of its own, so
# that the one which was measured is the one which is saved.
LONG_BYTES = 6000
KERNEL_S = 20  # of computing, for one kernel: a hundred times what most take
MORE_S = 4  # for each other kernel of a call
RUNTIME, MEASURE = (
    ("runtime/runtime.c", "runtime/call.c"),
    ("tune/measure.c",),
)  # C files of this backend, each tuple a library
LIBRARIES = (RUNTIME, MEASURE)  # what every compilation needs that tries kernels: compiled beside the first
GROUP = 16  # kernels of one object of a saved program: a fixed number, as the file must not depend on the machine


@dataclass(frozen=True, slots=True)
class Source:
    """C text of a kernel, and what its object is cached under."""

    key: str
    symbol: str
    emitted: EmittedKernel | None  # None: `text` is a whole translation unit
    text: str

    @property
    def alone(self) -> bool:
        """Whether it has an object of its own wherever it is compiled."""
        return self.emitted is None or len(self.text) > LONG_BYTES


Part: TypeAlias = tuple[Sequence[Source], bytes | ToolchainError]  # of a compiler's work, and what was made of it


@dataclass(frozen=True)
class CompiledKernels:
    """For each rKernel its cache key, the object that holds it and its symbol; the objects by content hash.

    `capacity`: the lines that an rTask can ask for ahead of their use. `tickets`: how many parts of each others may do.
    """

    keys: Mapping[RKernel, str]
    where: Mapping[RKernel, tuple[str, str]]
    objects: Mapping[str, bytes]
    capacity: Mapping[RKernel, int]
    tickets: Mapping[RKernel, tuple[int, ...]]


def _located(sources: Mapping[RKernel, Source], found: Mapping[str, tuple[str, bytes]]) -> CompiledKernels:
    where = {kernel: (found[s.key][0], s.symbol) for kernel, s in sources.items()}
    capacity = {kernel: s.emitted.capacity if s.emitted else 0 for kernel, s in sources.items()}
    tickets = {kernel: s.emitted.tickets if s.emitted else () for kernel, s in sources.items()}
    return CompiledKernels({k: s.key for k, s in sources.items()}, where, dict(found.values()), capacity, tickets)


class KernelCompiler:
    """Compiles for one spec with the C compiler of this process."""

    def __init__(self, spec: VDeviceSpec, host: Host) -> None:
        self.spec = spec
        self._compiler: Compiler = c_compiler()
        self._flags = arch_flags(spec.arch, self._compiler.family, host)
        self.toolchain = f"{self._compiler.version} {' '.join(self._flags)}"
        self._context = fingerprint(
            self._compiler.version, self._compiler.family, *self._compiler.flags, *self._flags, headers_fingerprint()
        )
        self._prelude = fingerprint(self._context, prelude(spec))
        self._beside: Beside[list[Source], list[Part]] | None = None
        self._begun: set[str] = set()  # keys of what is compiled beside
        self._sources: dict[RKernel, Source] = {}  # since the latest build: what is built was tried out and measured

    def begin(self) -> None:
        """Begin to compile, beside this thread, what every compilation needs that measures. Raises nothing of it."""
        libraries = {source.key: source for source in map(self._library, LIBRARIES)}
        known = object_store().find(libraries)
        if missing := [[source] for key, source in libraries.items() if key not in known]:
            self._begun = {source.key for [source] in missing}
            self._beside = Beside(self._compile_apart, missing, parallel_jobs())
            self._beside.begin()

    def end(self) -> None:
        """End what was begun and not asked for."""
        if self._beside is not None:
            self._beside.end()
        self._beside, self._begun = None, set()

    def runtime(self) -> bytes:
        """The runtime as a shared object. Raises ToolchainError."""
        return self.library(*RUNTIME)

    def library(self, *names: str) -> bytes:
        """C files of this backend as a shared object. Raises ToolchainError."""
        source = self._library(names)
        found, refused = self._compile([source], silent)
        if refused:
            raise refused[source.key]
        return found[source.key][1]

    def _library(self, names: Sequence[str]) -> Source:
        text = "\n".join(files("rammer.vdevice.cpu").joinpath(n).read_text(encoding="utf-8") for n in names)
        return Source(fingerprint(self._context, text), "", None, text)

    def keys(self, kernels: Sequence[RKernel]) -> dict[RKernel, str]:
        """What identifies each kernel's machine code: its text, the compiler and its flags."""
        return {k: source.key for k, source in self._emitted(kernels).items()}

    def symbols(self, kernels: Sequence[RKernel]) -> dict[RKernel, str]:
        """What each kernel's function is called."""
        return {k: source.symbol for k, source in self._emitted(kernels).items()}

    def parts(self, kernels: Sequence[RKernel]) -> dict[RKernel, tuple[int, ...]]:
        """How many parts of each of a kernel's rTasks others may do, as its text says."""
        return {k: source.emitted.tickets for k, source in self._emitted(kernels).items() if source.emitted}

    def forget(self, but: Iterable[RKernel]) -> None:
        """Drop the texts of all other kernels."""
        self._sources = {k: self._sources[k] for k in but if k in self._sources}

    def compile(self, kernels: Sequence[RKernel], progress: Progress = silent) -> CompiledKernels:
        """Machine code of all kernels, from the cache where it has them. Raises ToolchainError, DeviceError.

        The objects may hold other kernels as well: what is missing in the cache is compiled together.
        """
        sources = self._emitted(kernels)
        distinct = list({s.key: s for s in sources.values()}.values())
        _show(distinct)
        found, refused = self._compile(distinct, progress)
        if refused:
            key, error = next(iter(refused.items()))
            error.add_note(f"while compiling rKernel {next(k.name for k, s in sources.items() if s.key == key)!r}")
            raise error
        return _located(sources, found)

    def refused(self, kernels: Sequence[RKernel], progress: Progress = silent) -> dict[RKernel, str]:
        """The kernels that the C compiler does not take within its limits, and why; the others are compiled.

        Raises ToolchainError where it takes none: then it is not for the kernels' sake.
        """
        sources = self._emitted(kernels)
        distinct = list({s.key: s for s in sources.values()}.values())
        found, refused = self._compile([*map(self._library, LIBRARIES), *distinct], progress)
        if refused and not any(s.key in found for s in distinct):
            raise next(iter(refused.values()))
        return {k: str(refused[s.key]).partition(": ")[0] for k, s in sources.items() if s.key in refused}

    def compile_only(self, kernels: Sequence[RKernel], progress: Progress = silent) -> CompiledKernels:
        """As `compile`, in objects that hold these kernels and no others, the same wherever they are compiled."""
        sources = self._emitted(kernels)
        distinct = sorted({s.key: s for s in sources.values()}.values(), key=lambda s: s.key)
        together = [s for s in distinct if not s.alone]
        batches = [together[n : n + GROUP] for n in range(0, len(together), GROUP)]
        batches += [[s] for s in distinct if s.alone]
        named = {_only(batch): batch for batch in batches}
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

    def _emitted(self, kernels: Sequence[RKernel]) -> dict[RKernel, Source]:
        texts = {id(k.body): source for k, source in self._sources.items()}
        fresh = list({id(k.body): k for k in kernels if id(k.body) not in texts}.values())
        texts |= {id(k.body): source for k, source in zip(fresh, computed(self._source, fresh), strict=True)}
        found = {k: texts[id(k.body)] for k in dict.fromkeys(kernels)}
        self._sources |= found
        return found

    def _source(self, kernel: RKernel) -> Source:
        body = kernel.body
        if not isinstance(body, ForeignSource):
            emitted = emit(kernel, self.spec)
            return Source(
                fingerprint(self._prelude, emitted.symbol, emitted.text), emitted.symbol, emitted, emitted.text
            )
        if body.language != "c":
            raise DeviceError(
                f"rKernel {kernel.name!r} is written in {body.language!r}", hint="the CPU vDevice takes kernels in 'c'"
            )
        # Foreign texts may use any names: each is a translation unit of its own, its symbol made unique.
        key = fingerprint(self._context, body.symbol, body.text)
        symbol = f"{body.symbol}_{key[:16]}"
        text = f'#define {body.symbol} {symbol}\n#line 1 "{body.symbol}"\n{body.text}\n'
        return Source(key, symbol, None, text)

    def _compile(
        self, sources: Sequence[Source], progress: Progress
    ) -> tuple[dict[str, tuple[str, bytes]], dict[str, ToolchainError]]:
        """key -> (content hash, bytes) of the object that holds it; and what was not compiled."""
        store = object_store()
        found = store.find(s.key for s in sources)
        begun = self._begun.intersection(s.key for s in sources)
        missing = [s for s in sources if s.key not in found and s.key not in begun]
        jobs = parallel_jobs()
        batches = [[s] for s in sorted(missing, key=lambda s: -len(s.text)) if s.alone]
        costs = {s.key: len(s.text) + 2000 for s in missing if not s.alone}
        by_key = {s.key: s for s in missing}
        calls = -(-len(costs) // (BATCH * jobs)) * jobs  # as many for each job: none ends alone
        batches += [[by_key[k] for k in group] for group in share(costs, calls if len(costs) > jobs else len(costs))]

        done, total = 0, len(missing) + len(begun)
        if batches:
            progress("compile", 0, total)
        refused: dict[str, ToolchainError] = {}
        made_beside = self._results_of_begun() if begun else ()
        for batch, parts in chain(in_parallel(self._compile_apart, batches, jobs), made_beside):
            for part, made in parts:
                if isinstance(made, ToolchainError):
                    refused |= {s.key: made for s in part}
                    continue
                keys = [s.key for s in part]
                saved = [_only(part)] if part[0].alone and part[0].emitted else []  # what `compile_only` will look for
                name = store.add([*keys, *saved], made)
                found |= {s.key: name for s in part}
            done += len(batch)
            progress("compile", done, total)
        objects = {name: self._read(name) for name in set(found.values())}
        return {key: (name, objects[name]) for key, name in found.items()}, refused

    def _results_of_begun(self) -> Iterator[tuple[list[Source], list[Part]]]:
        try:
            if self._beside is not None:
                yield from self._beside.results()
        finally:
            self.end()

    def _compile_apart(self, batch: Sequence[Source]) -> list[Part]:
        """One object of all; if that cannot be made, one of each kernel, so that a single one is the culprit."""
        try:
            return [(batch, self._compile_together(batch))]
        except ToolchainError as error:
            if len(batch) == 1:
                return [(batch, error)]
        return [part for source in batch for part in self._compile_apart([source])]

    def _compile_together(self, batch: Sequence[Source]) -> bytes:
        emitted = [s.emitted for s in batch if s.emitted is not None]
        text = translation_unit(emitted, self.spec) if emitted else batch[0].text
        cpu_s = KERNEL_S + MORE_S * (len(batch) - 1)
        return self._compiler.compile_shared(text, self._flags, timeout_s=120 + 10 * len(batch), cpu_s=cpu_s)

    def _read(self, name: str) -> bytes:
        data = object_store().read(name)
        if data is None:
            raise DeviceError(
                f"the cached object {name[:16]} disappeared while it was needed",
                hint="another process cleared the cache; run again",
            )
        return data


def in_c(kernels: Iterable[RKernel]) -> list[RKernel]:
    """The distinct rKernels that this vDevice runs: tile programs, and foreign texts in C."""
    return [k for k in dict.fromkeys(kernels) if not isinstance(k.body, ForeignSource) or k.body.language == "c"]


def _only(batch: Sequence[Source]) -> str:
    """What an object of these kernels, in this order, and of no others is called."""
    return fingerprint("only", *(s.key for s in batch))


def _show(sources: Sequence[Source]) -> None:
    """Log C texts, which RAMMER_DEBUG=4 shows, and write them for RAMMER_DUMP_DIR; cached ones too."""
    log.listen()
    for source in sources if log.hears(log.COMPILE, log.SOURCE) else ():
        log.say(log.COMPILE, log.SOURCE, f"C text\n// {source.symbol}\n{source.text}")
    if folder := config.get("RAMMER_DUMP_DIR"):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for source in sources:
                Path(folder, f"{source.symbol}.c").write_text(source.text, encoding="utf-8")
        except OSError as error:
            raise RammerError(f"cannot write to RAMMER_DUMP_DIR={folder!r}: {error.strerror}") from error


def arch_flags(arch: str, family: str, host: Host) -> tuple[str, ...]:
    """Compiler flags for an arch; with zig also for another machine than this one."""
    target = find_arch(arch)
    if family != "zig":
        if target.machine != host.machine:
            raise DeviceError(
                f"arch {arch!r} on a {host.machine} machine needs a cross compiler", hint="unset RAMMER_CC"
            )
        return target.cc
    if target.machine != host.machine:
        return ("-target", f"{target.machine}-linux", *target.zig)
    return target.zig
