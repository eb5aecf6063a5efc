"""Keep former names working, with a DeprecationWarning: of modules, and of attributes that others read or pass.

`import rammer` adds a finder behind Python's own. It makes an old name the same module object as the new one, so that
classes, pickles and `python -m` see one definition. Delete an entry when it is no longer used.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pkgutil import walk_packages
from types import CodeType, ModuleType
from typing import Any, TypeVar

from rammer.errors import has_compiler, installing, not_installed

T = TypeVar("T")

MOVED = {  # modules of public names, and modules that documentation has named
    "rammer.distributed": "rammer_dask",
    "rammer.integrations.dask": "rammer_dask",
    "rammer.dynamo": "rammer_torch.dynamo",
    "rammer.frontend.torch": "rammer_torch",
    "rammer.integrations.torch_dynamo": "rammer_torch.dynamo",
    "rammer.demo": "rammer_viz.demo",
    "rammer.given": "rammer.session.inputs",
    "rammer.inference_session": "rammer.session.onnxruntime",
    "rammer.ir.evaluate": "rammer.ir.semantics.evaluate",
    "rammer.ir.execute": "rammer.ir.semantics.execute",
    "rammer.ir.memory": "rammer.planner.memory",
    "rammer.program": "rammer.runtime.program",
    "rammer.report": "rammer.runtime.report",
    "rammer.session_report": "rammer.session.report",
    "rammer.state": "rammer.runtime.state",
    "rammer.usage": "rammer.runtime.usage",
    "rammer.viz": "rammer_viz",
    "rammer.vdevice.cfamily": "rammer.vdevice.ctext.cfamily",
}
STAY = ("rammer.distributed", "rammer.dynamo")  # names that other projects' settings hold: no warning


class _Alias(Loader):
    """Load a module by registering it under one more name."""

    def __init__(self, real: ModuleSpec) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(self._real.name)

    def exec_module(self, module: ModuleType) -> None:
        old, module.__spec__ = module.__spec__, self._real  # the import system has put the alias's there
        for _, name, _ in walk_packages(self._real.submodule_search_locations or (), f"{self._real.name}."):
            sys.modules[str(old and old.name) + name.removeprefix(self._real.name)] = import_module(name)

    def get_code(self, name: str) -> CodeType | None:
        """Return the module's code, for `python -m`, which runs it as `__main__`."""
        assert isinstance(self._real.loader, InspectLoader)
        return self._real.loader.get_code(self._real.name)


class Finder(MetaPathFinder):
    """Find modules of `table` by their old names. It comes last, so other imports cost nothing more.

    Where only the runtime is installed, it raises NotInstalledError for any other module of rammer.
    """

    def __init__(self, table: dict[str, str]) -> None:
        self._table = table

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (new := self._table.get(name)) is None:
            if name.startswith(("rammer.", "rammer_viz")) and not has_compiler():
                raise not_installed(f"the module {name}")
            return None
        try:
            real = find_spec(new)
        except ModuleNotFoundError:
            real = None
        if real is None:
            extra = "torch" if new.startswith("rammer_torch") else "distributed"
            raise ModuleNotFoundError(f"{name} is {new} now, which is not installed: {installing(extra)}", name=new)
        if name not in STAY:
            # of the importing line: warnings skip the frames of the import system
            warnings.warn(f"{name} is {new} now", DeprecationWarning, stacklevel=2)
        spec = ModuleSpec(name, _Alias(real), origin=real.origin)
        spec.has_location = True  # so that `python -m` knows `__file__`
        return spec


def install(table: dict[str, str]) -> None:
    """Make modules importable by the old names in `table`."""
    sys.meta_path.append(Finder(table))


def renamed(**new: str) -> Callable[[type[T]], type[T]]:
    """Let a class have attributes by old names, also as keywords, with a DeprecationWarning."""

    def wrap(kind: type[T]) -> type[T]:
        def current(name: str) -> str:
            warnings.warn(f"{kind.__name__}.{name} is {new[name]} now", DeprecationWarning, stacklevel=3)
            return new[name]

        method = "__new__" if issubclass(kind, tuple) else "__init__"
        make = getattr(kind, method)

        @wraps(make)
        def made(self: Any, *positional: Any, **named: Any) -> Any:
            for old in named.keys() & new.keys():
                named[current(old)] = named.pop(old)
            return make(self, *positional, **named)

        def attribute(self: object, name: str) -> Any:
            if name in new:
                return getattr(self, current(name))
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")

        setattr(kind, method, made)
        kind.__getattr__ = attribute  # type: ignore[attr-defined]
        return kind

    return wrap
