"""Find plugins and call their hooks. The only module that uses pluggy's PluginManager."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from rammer import config, hookspecs, log
from rammer.errors import InputError, PluginError, PolicyError, RammerError, did_you_mean, has_compiler

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rammer.ir.device import VDeviceSpec
    from rammer.ir.graph import Graph
    from rammer.ir.kernel import RKernel, Tuning
    from rammer.ir.operator import Operation
    from rammer.ir.plan import ExecutionPlan
    from rammer.scheduler.policy import Policy, Problem
    from rammer.scheduler.policy_options import PolicyOption
    from rammer.vdevice.base import Availability, VDevice, VDeviceEntry

BUILTINS = {
    "policies": "rammer.scheduler.plugin",
    "interpreter": "rammer.vdevice.interpreter_plugin",
    "cpu": "rammer.vdevice.cpu.plugin",
    "kernels": "rammer.vdevice.c_kernels",
    "cuda": "rammer.vdevice.cuda.plugin",
    "rocm": "rammer.vdevice.rocm.plugin",
    "ipu": "rammer.vdevice.ipu.plugin",
}
logger = logging.getLogger(__name__)

GROUP = "rammer"  # the entry-point group of third-party plugins


@dataclass(frozen=True, slots=True)
class PluginFault:
    """A plugin that could not be used, and why; `rammer doctor` prints these."""

    plugin: str
    distribution: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A registered vDevice and whether it can run here. `emulated`: only an emulator of it runs programs here."""

    name: str
    plugin: str
    summary: str
    available: bool
    reason: str
    hint: str
    emulated: bool = False


class PluginRegistry:
    """Built-in and third-party plugins. An object, not a global: tests build their own.

    `to_run`: only vDevices, opened to run saved programs, without policies or anything that compiles. Where only the
    runtime is installed, it is always so.
    """

    def __init__(self, *, third_party: bool = True, to_run: bool = False) -> None:
        self._to_run = to_run = to_run or not has_compiler()
        self.faults: list[PluginFault] = []
        self._origins: dict[str, str] = {}  # origin of a plugin's rKernels, by its name
        self._manager = pluggy.PluginManager("rammer")
        self._manager.add_hookspecs(hookspecs)
        log.listen()
        self._trace = logger.isEnabledFor(logging.DEBUG)
        self._blocked = blocked = config.names("RAMMER_DISABLE_PLUGINS")
        for name, module in BUILTINS.items():
            if name not in blocked and not (to_run and name == "policies"):
                self.register(importlib.import_module(module), name)
        if third_party:
            from importlib.metadata import entry_points  # slow to import, and saved programs seldom need it

            for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):  # in a fixed order
                if entry.name not in blocked:
                    self._load(entry)
            for file in (Path(name).absolute() for name in config.names("RAMMER_PLUGINS")):
                if file.stem not in blocked:
                    self._load_file(file)

    def _load(self, entry: EntryPoint) -> None:
        """Load one entry point; its failure must not affect other plugins."""
        distribution = entry.dist.name if entry.dist else "an unknown distribution"
        try:
            self.register(entry.load(), entry.name, f"{distribution} {entry.dist.version}" if entry.dist else "")
        except Exception as error:  # a plugin may raise anything at import
            if _by_signal(error, f"plugin {entry.name!r} was imported"):
                raise
            self.faults.append(PluginFault(entry.name, distribution, f"{type(error).__name__}: {error}"))

    def _load_file(self, file: Path) -> None:
        """Load a file as a plugin named like it. Raises PluginError if that fails, since the user named this file."""
        with _blamed(file.stem, f"the file {file}", advice=""):
            version = hashlib.sha256(file.read_bytes()).hexdigest()[:12]  # verdicts on rKernels depend on it
            self.register(_module_of(file), file.stem, version)

    def register(self, plugin: object, name: str, version: str = "") -> None:
        """Add a plugin object, with the `version` of its distribution.

        Raises PluginError for a hook that does not exist or has other arguments.
        """
        try:
            self._manager.register(plugin, name)
            self._manager.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._manager.is_registered(plugin):
                self._manager.unregister(plugin)
            raise PluginError(f"plugin {name!r}: {error}", hint="compare the hook with docs/hooks.md") from error
        built_in = BUILTINS.get(name) == getattr(plugin, "__name__", "")
        self._origins[name] = "" if built_in else f"{name} {version}".strip()

    def _ask(self, hook: str, **arguments: object) -> Iterator[tuple[str, Any]]:
        """Yield every plugin's name and answer. Raises PluginError, naming the plugin, if its hook raises."""
        for implementation in getattr(self._manager.hook, hook).get_hookimpls():
            call: Callable[..., Any] = implementation.function
            with _blamed(implementation.plugin_name, hook, advice=""):
                answer = call(**{a: arguments[a] for a in implementation.argnames})
                if hook != "rammer_policies":
                    answer = list(answer)
                elif not isinstance(answer, Mapping):
                    answer = dict(answer)
            if self._trace:
                logger.debug("%s.%s -> %r", implementation.plugin_name, hook, answer)
            yield implementation.plugin_name, answer

    def vdevices(self) -> dict[str, tuple[str, VDeviceEntry]]:
        """Return vDevices by name, each with the plugin that announced it."""
        found: dict[str, tuple[str, VDeviceEntry]] = {}
        for plugin, entries in self._ask("rammer_vdevices"):
            for entry in entries:
                if entry.name in found:
                    raise PluginError(
                        f"vDevice {entry.name!r} is announced by plugins {found[entry.name][0]!r} and {plugin!r}",
                        hint=f"RAMMER_DISABLE_PLUGINS={plugin} removes the second",
                    )
                found[entry.name] = (plugin, entry)
        return found

    def devices(self) -> list[DeviceInfo]:
        """Return every vDevice, probed."""
        return [DeviceInfo(name, by, entry.summary, *_probe(entry)) for name, (by, entry) in self.vdevices().items()]

    def open(self, target: str, *, arch: str | None = None, device: str | int | None = None) -> VDevice:
        """Open a vDevice by name. Raises RammerError for an unknown name, DeviceError if it is not available."""
        known = self.vdevices()
        if target not in known:
            raise RammerError(
                f"no vDevice named {target!r}; registered: {', '.join(sorted(known))}{self._missing()}",
                hint=_meant(target, [entry for _, entry in known.values()]),
            )
        plugin, entry = known[target]
        with _blamed(plugin, f"vDevice {target!r}"):
            return (entry.runs if self._to_run and entry.runs else entry.open)(arch=arch, device=device)

    def policy(self, text: str, options: Mapping[str, str] | None = None) -> Policy:
        """Return a new policy by name. Options are in the text (`wavefront:beyond=off`) or in `options`.

        Raises PolicyError.
        """
        from rammer.scheduler.policy_options import check_options, parse_policy

        name, given = parse_policy(text)
        known = self._policies()
        if name not in known:
            raise PolicyError(
                f"no policy named {name!r}; registered: {', '.join(sorted(known))}{self._missing()}",
                hint=did_you_mean(name, known) or "policies come from plugins; see `rammer doctor`",
            )
        options = {} if options is None else options
        if not isinstance(options, Mapping):
            raise PolicyError(f"options= is {options!r}, not a mapping", hint='for example {"beyond": "off"}')
        if twice := given.keys() & options.keys():
            raise PolicyError(f"policy {text!r}: options= gives {min(twice)!r} once more", hint="give it once")
        plugin, announced = known[name]
        with _blamed(plugin, f"policy {name!r}"):
            make = announced[name]
            check_options(name, make, {**given, **options})
            return _Blamed(plugin, name, make(**given, **options))

    def _missing(self) -> str:
        """Return a text with the plugins that may have what is missing, and why they are not loaded."""
        faults = [f"plugin {f.plugin!r} of {f.distribution} cannot be used: {f.reason}" for f in self.faults]
        blocked = [f"plugin {name!r} is switched off by RAMMER_DISABLE_PLUGINS" for name in self._blocked]
        return "".join(f"; {what}" for what in (*faults, *blocked))

    def policies(self) -> dict[str, Callable[..., Policy]]:
        """Return scheduling policies by name."""
        return {name: announced[name] for name, (_, announced) in self._policies().items()}

    def policy_options(self) -> dict[str, tuple[PolicyOption, ...]]:
        """Return the options of every policy, by its name."""
        from rammer.scheduler.policy_options import options_of

        found = {}
        for name, (plugin, announced) in self._policies().items():
            with _blamed(plugin, f"policy {name!r}"):
                found[name] = options_of(announced[name])
        return found

    def _policies(self) -> dict[str, tuple[str, Mapping[str, Callable[..., Policy]]]]:
        """Return, by policy name, the plugin that announced it, and all policies of that plugin."""
        found: dict[str, tuple[str, Mapping[str, Callable[..., Policy]]]] = {}
        for plugin, answer in self._ask("rammer_policies"):
            if twice := found.keys() & answer.keys():
                raise PluginError(f"plugin {plugin!r} announces policies that exist already: {sorted(twice)}")
            found |= dict.fromkeys(answer, (plugin, answer))
        return found

    def rkernels(self, operation: Operation, spec: VDeviceSpec, tuning: Tuning | None = None) -> list[RKernel]:
        """Return candidates of all plugins in order of registration, each plugin's in its own order; may be empty.

        Policies prefer the first on ties: the generator's first choice. `tuning`: see `hookspecs.rammer_rkernels`.
        """
        from rammer.ir.kernel import USUAL

        found: list[RKernel] = []
        wanted = {"tuning": tuning or USUAL, "finer": (tuning or USUAL).task_multiples}
        for plugin, kernels in self._ask("rammer_rkernels", operation=operation, spec=spec, **wanted):
            origin = self._origins[plugin]
            with _blamed(plugin, "rammer_rkernels"):
                found += [replace(kernel, origin=origin) if origin else kernel for kernel in kernels]
        return found


def device_of(target: str, device: str | int | None, threads: int | None) -> str | int | None:
    """Return `device=`, for which a CPU also has the name `threads=`. Raises InputError if both or others are given."""
    if threads is None:
        return device
    if target == "cpu" and device in (None, threads):
        return threads
    what = f"the target is {target!r}" if target != "cpu" else f"device= is {device!r}"
    raise InputError(f"threads= is {threads}, and {what}", hint="threads= is for the CPU, instead of device=")


class _Blamed:
    """A policy whose exceptions name it and its plugin."""

    def __init__(self, plugin: str, name: str, policy: Policy) -> None:
        from rammer.scheduler.policy_options import described

        self._plugin, self._policy = plugin, policy
        self.name = described(policy, getattr(policy, "name", name))

    def tuning(self, graph: Graph, spec: VDeviceSpec) -> Tuning:
        from rammer.scheduler.policy_options import tuning_of

        with _blamed(self._plugin, f"policy {self.name!r}"):
            return tuning_of(self._policy, graph, spec)

    def schedule(self, problem: Problem) -> ExecutionPlan:
        with _blamed(self._plugin, f"policy {self.name!r}"):
            plan = self._policy.schedule(problem)
        if not hasattr(plan, "programs"):
            made = type(plan).__name__
            raise PluginError(
                f"plugin {self._plugin!r}: policy {self.name!r} made a {made} instead of an ExecutionPlan",
                hint="see docs/plugin-author.md",
            )
        return replace(plan, policy=self.name) if plan.policy == getattr(self._policy, "name", "") else plan


@contextmanager
def _blamed(plugin: str, what: str, advice: str = "report it to the plugin's author; ") -> Iterator[None]:
    """Turn exceptions of a plugin into a PluginError that names it; pass on a RammerError."""
    try:
        yield
    except RammerError:
        raise
    except Exception as error:  # a plugin may raise anything
        if _by_signal(error, f"{what} of plugin {plugin!r} ran"):
            raise
        raise PluginError(
            f"plugin {plugin!r}: {what} raised {type(error).__name__}: {error}",
            hint=f"{advice}RAMMER_DISABLE_PLUGINS={plugin} runs without it",
        ) from error


def _by_signal(error: Exception, meanwhile: str) -> bool:
    """Return whether a signal handler raised an error, not the plugin; if so, add a note to the error."""
    handlers = {_code(signal.getsignal(number)): number for number in signal.valid_signals()}
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if number := handlers.get(frame.f_code):
            error.add_note(f"raised by the handler of {signal.Signals(number).name} while {meanwhile}")
            return True
    return False


def _code(handler: Any) -> object:
    """Return the code of a handler: a function, a method, a partial, or a callable object."""
    handler = getattr(handler, "func", handler)
    called = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(getattr(called, "__func__", called), "__code__", None)


def _module_of(file: Path) -> ModuleType:
    """Import a file as a module named like it, once. Raises PluginError if the name is another module's."""
    name, util = file.stem, importlib.util
    spec = util.find_spec(name) or util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or spec.origin != str(file):
        what = f"the plugin {file} is not a Python file, or a module is named {name!r} already"
        raise PluginError(what, hint="rename the file")
    if name not in sys.modules:
        sys.modules[name] = module = util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _meant(target: str, entries: Sequence[VDeviceEntry]) -> str:
    """Return a hint for a vDevice that does not exist. The names are short, so only a close one is suggested."""
    if fitting := [repr(entry.name) for entry in entries if target.lower() in entry.words]:
        return f"{target!r} may be {' or '.join(fitting)}"
    names = [entry.name for entry in entries]
    return did_you_mean(target, names, closeness=0.7) or "`rammer doctor` lists devices and plugins"


def _probe(entry: VDeviceEntry) -> tuple[bool, str, str, bool]:
    try:
        answer: Availability = entry.probe()
    except RammerError as error:
        return False, error.what, error.hint, False
    except Exception as error:  # the contract says never; a plugin may break it
        if _by_signal(error, "a vDevice was probed"):
            raise
        return False, f"its probe raised {type(error).__name__}: {error}", "report this to the plugin's author", False
    return answer.ok, answer.reason, answer.hint, answer.emulated
