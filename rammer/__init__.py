"""Compile neural networks into static plans of tile-sized tasks, placed and ordered ahead of time.

Names are imported when they are first used: a machine that only runs saved programs never loads the compiler.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pkgutil import get_data
from typing import Any

from rammer import moved
from rammer.config import VERSION

__version__ = VERSION

_MODULES = {  # of each public name: the stub says where it is
    alias.name: str(node.module)
    for node in ast.parse(get_data(__name__, "__init__.pyi") or b"").body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_MODULES)

moved.install(moved.MOVED)


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, on first use."""
    if name in _MODULES:
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found
    if name.startswith("_") or not name.isidentifier() or find_spec(f"rammer.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"rammer.{name}")


def __dir__() -> list[str]:
    """Return public names, imported or not."""
    return sorted({*globals(), *__all__})
