"""Define a bug: a function of rammer that a child process replaces with a faulty one."""

from __future__ import annotations

import functools
import gc
import mmap
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

Made = Any
Hit = Callable[[], None]
Plant = Callable[[Any, Hit], Any]  # (original, function to call on a change) -> replacement
HOST, SIMT, IPU = ("cpu", "amx"), ("cuda",), ("ipu",)
EVERYWHERE = (*HOST, *SIMT, *IPU)


@dataclass(frozen=True)
class Bug:
    """A bug at a stage of the compiler. `at` is `module:attribute`, where the module's own code looks it up.

    `targets`: devices whose programs pass that stage. A bug may replace several functions.
    """

    stage: str
    name: str
    places: tuple[tuple[str, Plant], ...]
    targets: tuple[str, ...] = EVERYWHERE


def bug(stage: str, name: str, at: str, plant: Plant, targets: tuple[str, ...] = EVERYWHERE) -> Bug:
    """Return a bug in one function."""
    return Bug(stage, name, ((at, plant),), targets)


NONE = Bug("none", "nothing is injected", ())  # whatever is stopped then is sound


@dataclass
class Hits:
    """A flag that a bug changed something. Forked children share it."""

    memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))

    def __call__(self) -> None:
        self.memory[0] = 1

    def __bool__(self) -> bool:
        return self.memory[0] != 0


def plant(bug: Bug, hits: Hits) -> None:
    """Replace the bug's functions for the rest of this process, and clear caches."""
    for at, change in bug.places:
        module, _, path = at.partition(":")
        owner: Any = import_module(module)
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        original = owner.__dict__[name]
        setattr(owner, name, change(original, hits))
    for cache in [o for o in gc.get_objects() if isinstance(o, functools._lru_cache_wrapper)]:
        if str(cache.__module__).startswith("rammer."):
            cache.cache_clear()


def afterwards(change: Callable[[Made], Made | None]) -> Plant:
    """Return a plant that changes a function's result where `change` applies; elsewhere `change` returns None."""

    def planted(original: Any, hit: Hit) -> Any:
        @functools.wraps(original)
        def erring(*positional: Any, **named: Any) -> Any:
            made = original(*positional, **named)
            changed = change(made)
            if changed is None:
                return made
            hit()
            return changed

        return erring

    return planted


def once(change: Callable[[Made], Made | None]) -> Callable[[Made], Made | None]:
    """Return the change, limited to the first time that it applies."""
    done: list[bool] = []

    def changed(made: Made) -> Made | None:
        found = None if done else change(made)
        if found is not None:
            done.append(True)
        return found

    return changed


def replaced(old: str, new: str | Callable[[re.Match[str]], str]) -> Plant:
    """Return a plant that replaces a pattern in the text that a function returns."""

    def change(text: str) -> str | None:
        found = re.sub(old, new, text)
        return found if found != text else None

    return afterwards(change)


def instead(answer: Callable[..., Any]) -> Plant:
    """Return a plant that substitutes another function with the same parameters."""

    def planted(original: Any, hit: Hit) -> Any:
        @functools.wraps(original)
        def erring(*positional: Any, **named: Any) -> Any:
            hit()
            return answer(*positional, **named)

        return erring

    return planted
