"""Import public names when they are first used: a machine that only runs saved programs never loads the compiler."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pkgutil import get_data
from typing import Any


def exports(module: str, stub: str, namespace: dict[str, Any]) -> tuple[Callable[[str], Any], list[str]]:
    """Return `__getattr__` and `__all__` of a module whose stub imports its public names from others.

    `stub` is a file beside this one: type checkers and this function read the same text.
    """
    tree = ast.parse(get_data(__package__ or "", stub) or b"")
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    places = {alias.name: str(node.module) for node in imports for alias in node.names}

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        found = namespace[name] = getattr(import_module(places[name]), name)
        return found

    return get, sorted(places)
