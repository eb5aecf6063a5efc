"""Define the exceptions. Every error says what failed, what was seen, and what to do about it."""

from __future__ import annotations

import copyreg
import difflib
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rammer.about import COMPILER, RUNTIME

NAME_LENGTH = 400  # characters of a name, or of other text without spaces, that a message shows
MESSAGE_LENGTH = 1 << 14  # characters of a message
_LONG = re.compile(rf"\S{{{NAME_LENGTH + 1},}}")


def shown(name: str | bytes) -> str:
    """Return a name from a model or a file as messages show it: on one line, escaped, at most NAME_LENGTH long."""
    return _shortened(_escaped(text_of(name), keep=""), NAME_LENGTH)


def text_of(name: str | bytes) -> str:
    """Return a string of protobuf as text; bytes that are not UTF-8 are escaped."""
    return name.decode(errors="backslashreplace") if isinstance(name, bytes) else name


def message(text: str) -> str:
    """Return a text that may contain names from models, without control characters, and with long names shortened.

    Line breaks and tabs stay. Every RammerError does this to `what` and `hint`; warnings call it.
    """
    words = _LONG.sub(lambda word: _shortened(word[0], NAME_LENGTH), _escaped(text, keep="\n\t"))
    return _shortened(words, MESSAGE_LENGTH)


def duration(us: float, total_us: float = 0.0) -> str:
    """Return a time in the unit that suits it, or the whole that it is a part of: in ms from 10 ms on."""
    return f"{us / 1e3:.4g} ms" if max(us, total_us) >= 1e4 else f"{us:.4g} µs"


def size(nbytes: float, most: float = 0.0) -> str:
    """Return a number of bytes in the unit that suits it, or the whole that it is a part of."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if max(nbytes, most) >= unit:
            return f"{nbytes / unit:.1f} {name}"
    return f"{nbytes:.0f} B"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is one."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith(('s', 'ch')) else 's'}"


def _escaped(text: str, *, keep: str) -> str:
    """Escape what is not printable, as repr does: control and bidirectional characters, and lone surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)


def _shortened(text: str, length: int) -> str:
    """Replace the middle of a text that is longer than `length`."""
    if len(text) <= length:
        return text
    kept = length // 2 - 16
    return f"{text[:kept]}…({len(text)} characters)…{text[-kept:]}"


class RammerError(Exception):
    """Base of every error that rammer raises on purpose.

    `what` names the object and the failure; `hint` says what to do. Both are made printable: names come from models.
    """

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what = message(what)
        self.hint = message(hint)
        super().__init__(f"{self.what}\n  hint: {self.hint}" if hint else self.what)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the attributes, not the constructor's arguments: subclasses have parameters of their own."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ModelError(RammerError):
    """A model that cannot be imported: malformed, unsupported, or over a limit.

    `node` is the node's name in the model, `op` its operator, `path` the file.
    """

    def __init__(self, what: str, *, node: str = "", op: str = "", path: str = "", hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.node = self.op = self.path = ""
        self._problem = self.what
        self.locate(node=node, op=op, path=path)

    def locate(self, *, node: str = "", op: str = "", path: str = "") -> ModelError:
        """Add where it happened, unless the error says so already; return the error itself."""
        if not (self.node or self.op):
            self.node, self.op = node, op
        self.path = self.path or path
        op, node, path = shown(self.op), _shortened(self.node, NAME_LENGTH), shown(self.path)
        place = f"{op or 'node'} {node!r}: " if node else f"{op}: " if op else ""
        self.what = f"{path}: {place}{self._problem}" if path else f"{place}{self._problem}"
        self.args = (f"{self.what}\n  hint: {self.hint}" if self.hint else self.what,)
        return self


class ModelWarning(UserWarning):
    """A wrong declaration in a model. The text names it; the computed value is used instead."""


class FallbackWarning(UserWarning):
    """A part of a PyTorch model that runs in eager PyTorch; the text names it."""


class TypeMismatch(RammerError):
    """Operand types that an operator does not accept."""


class LoweringError(RammerError):
    """A schedule that does not fit its expression."""


class PolicyError(RammerError):
    """A scheduling policy, an option of one, or an option's value that does not exist."""


class ScheduleError(RammerError):
    """A policy that could not produce a legal plan."""


class VerificationError(RammerError):
    """A plan that breaks a rule of docs/semantics.md; `rule` is its id, such as R103."""

    def __init__(self, rule: str, what: str, *, hint: str = "") -> None:
        self.rule = rule
        super().__init__(f"{rule}: {what}", hint=hint)


class ToolchainError(RammerError):
    """A compiler that is missing, failed, or ran out of time."""


class DeviceError(RammerError):
    """A device that is missing, unusable, or failed while running."""


class InputError(RammerError):
    """Run-time inputs that do not match the program's signature."""


class ClosedError(InputError):
    """A program or session that was closed."""


def closed(what: str = "program", hint: str = "compile or load it again") -> ClosedError:
    """Return the error for using a program or session that was closed."""
    return ClosedError(f"the {what} is closed", hint=hint)


class ArtifactError(RammerError):
    """A saved program that is damaged, unsafe, or made for something else."""

    def __init__(self, what: str, *, hint: str = "compile the model again") -> None:
        super().__init__(what, hint=hint)


class UnsuitableError(ArtifactError):
    """A saved program that is valid, but for another machine."""


class PluginError(RammerError):
    """A plugin that failed to load or broke its contract."""


class NotInstalledError(RammerError, ModuleNotFoundError):
    """A module of the compiler, in an environment where only the runtime is installed."""


def installing(extra: str = "") -> str:
    """Return the command that installs the compiler, with an extra."""
    return f"pip install '{COMPILER}[{extra}]'" if extra else f"pip install {COMPILER}"


def require_posix() -> None:
    """Raise RammerError on Windows."""
    if sys.platform == "win32":
        raise RammerError(
            "rammer needs a POSIX system: threads, memory maps and file locks",
            hint="use Linux or WSL; exported C projects run on Windows",
        )


def has_compiler() -> bool:
    """Check whether the compiler is installed beside the runtime, to which this module belongs."""
    return Path(__file__).with_name("compiler").joinpath("__init__.py").is_file()


def not_installed(what: str) -> NotInstalledError:
    """Return the error for what needs the compiler, if only the runtime is installed."""
    return NotInstalledError(f"{what} needs {COMPILER}; {RUNTIME} only runs saved programs", hint=installing())


def did_you_mean(name: str, known: Iterable[str], *, closeness: float = 0.6) -> str:
    """Return the closest known name as a question, or "". `closeness`: the least similarity, up to 1."""
    lowered = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=closeness)
    return f"did you mean {lowered[close[0]]!r}?" if close else ""
