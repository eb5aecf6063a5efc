"""Define a bug: a function of rammer that is replaced, in a child process, by one that errs."""

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
Plant = Callable[[Any, Hit], Any]  # (the original, to be called when something was changed) -> what replaces it
HOST, SIMT, IPU = ("cpu", "amx"), ("cuda",), ("ipu",)
EVERYWHERE = (*HOST, *SIMT, *IPU)


@dataclass(frozen=True)
class Bug:
    """A bug at a stage of the compiler. `at` is `module:attribute`, where the module's own code looks it up.

    `targets` are the devices whose programs pass that stage. A bug may replace several functions.
    """

    stage: str
    name: str
    places: tuple[tuple[str, Plant], ...]
    targets: tuple[str, ...] = EVERYWHERE


def bug(stage: str, name: str, at: str, plant: Plant, targets: tuple[str, ...] = EVERYWHERE) -> Bug:
    """A bug in one function."""
    return Bug(stage, name, ((at, plant),), targets)


NONE = Bug("none", "nothing is injected", ())  # what is stopped then is sound


@dataclass
class Hits:
    """Counts changes, also those that forked children make."""

    memory: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 1))

    def __call__(self) -> None:
        self.memory[0] = 1

    def __bool__(self) -> bool:
        return self.memory[0] != 0


def plant(bug: Bug, hits: Hits) -> None:
    """Replace what the bug replaces, for the rest of this process, and forget what was made before."""
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
    """Change what a function returns, where `change` finds something: it returns None else."""

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
    """The change, made the first time only that it is possible."""
    done: list[bool] = []

    def changed(made: Made) -> Made | None:
        found = None if done else change(made)
        if found is not None:
            done.append(True)
        return found

    return changed


def replaced(old: str, new: str | Callable[[re.Match[str]], str]) -> Plant:
    """Replace a pattern in the text that a function returns."""

    def change(text: str) -> str | None:
        found = re.sub(old, new, text)
        return found if found != text else None

    return afterwards(change)


def instead(answer: Callable[..., Any]) -> Plant:
    """Another function instead, with the same parameters."""

    def planted(original: Any, hit: Hit) -> Any:
        @functools.wraps(original)
        def erring(*positional: Any, **named: Any) -> Any:
            hit()
            return answer(*positional, **named)

        return erring

    return planted
