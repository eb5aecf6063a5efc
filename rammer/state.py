"""State of a session: outputs that are inputs of the next run."""

from __future__ import annotations

import copy
import threading
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rammer.errors import InputError, did_you_mean


class State:
    """Values that stay between runs, by the input that takes them. Runs of a session with state take turns."""

    def __init__(self, pairs: Mapping[str, str], inputs: Collection[str], outputs: Collection[str]) -> None:
        for known, names, what in ((outputs, pairs.keys(), "output"), (inputs, pairs.values(), "input")):
            for name in names:
                if name not in known:
                    hint = did_you_mean(name, known) or f"{what}s are {', '.join(known)}"
                    raise InputError(f"state= names {name!r}, which is no {what} of the model", hint=hint)
        if len(set(pairs.values())) < len(pairs):
            raise InputError("state= names an input twice", hint="each input takes one output")
        self._pairs = dict(pairs)
        self._lock = threading.RLock()
        self._values: dict[str, Any] = {}

    @property
    def inputs(self) -> Collection[str]:
        return self._pairs.values()

    def turn(self) -> AbstractContextManager[object]:
        """Held during a run, if there is state."""
        return self._lock if self._pairs else nullcontext()

    def with_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a run: what is given goes before what was kept."""
        return {**self._values, **inputs}

    def keep(self, outputs: Mapping[str, Any]) -> None:
        """Remember a run's outputs for the next one; whoever has them may write to them."""
        self._values = {taker: copy.deepcopy(outputs[output]) for output, taker in self._pairs.items()}

    def reset(self, values: Mapping[str, Any]) -> None:
        """Start again from these values."""
        for name in values:
            if name not in self.inputs:
                hint = did_you_mean(name, self.inputs) or f"those are {', '.join(self.inputs) or '(none)'}"
                raise InputError(f"reset names {name!r}, which is no input with state", hint=hint)
        with self._lock:
            self._values = copy.deepcopy(dict(values))
