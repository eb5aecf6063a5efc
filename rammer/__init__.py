"""Compile neural networks into static plans of tile-sized tasks, placed and ordered ahead of time.

Names are imported when they are first used. The stub beside this file says from where.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

from rammer import moved
from rammer.about import VERSION
from rammer.errors import NotInstalledError, require_posix
from rammer.lazily import exports

__version__ = VERSION

_get, __all__ = exports(__name__, "__init__.pyi", globals())

moved.install(moved.MOVED)


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, on first use."""
    if name in __all__:
        require_posix()
        return _get(name)
    try:
        if not name.startswith("_") and name.isidentifier() and find_spec(f"rammer.{name}"):
            return import_module(f"rammer.{name}")
    except NotInstalledError as error:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r} here: {error}") from None
    return _get(name)


def __dir__() -> list[str]:
    """Return public names and modules, imported or not."""
    modules = (module.name for module in iter_modules(__path__))
    return sorted({*__all__, *modules, *(name for name in globals() if name.startswith("__"))} - {"__main__"})
