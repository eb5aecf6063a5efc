"""The exception family. Every error says what failed, what was seen, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RammerError(Exception):
    """Base of every error that rammer raises on purpose.

    `what` names the object and the failure; `hint` says what to do.
    """

    def __init__(self, what: str, *, hint: str = "") -> None:
        self.what = what
        self.hint = hint
        super().__init__(f"{what}\n  hint: {hint}" if hint else what)


class ModelError(RammerError):
    """A model that cannot be imported: malformed, unsupported, or over a limit.

    `node` is the node's name in the model, `op` its operator, `path` the file.
    """

    def __init__(self, what: str, *, node: str = "", op: str = "", path: str = "", hint: str = "") -> None:
        self.node, self.op, self.path = node, op, path
        where = ""
        if op or node:
            where = f"{op or 'node'} {node!r}: " if node else f"{op}: "
        super().__init__(f"{path}: {where}{what}" if path else f"{where}{what}", hint=hint)


class TypeMismatch(RammerError):
    """Operand types that an operator does not accept."""


class LoweringError(RammerError):
    """A schedule that does not fit its expression."""


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


class ArtifactError(RammerError):
    """A saved program that is damaged, unsafe, or made for something else."""


class PluginError(RammerError):
    """A plugin that failed to load or broke its contract."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The closest known name as a question, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else ""
