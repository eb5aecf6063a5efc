"""Keep state between runs: outputs that are inputs of the next run stay where they were written.

Known as: recurrent state, double buffering. Each stream of runs has a state of its own.
"""

from __future__ import annotations

import copy
import re
import threading
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rammer.errors import InputError, did_you_mean
from rammer.ir.tensor import TensorType
from rammer.runtime.call import Runnable

# words for the side of a run; without them the names of a pair are equal
_BEFORE = ("past_key_values", "past", "previous", "prev", "initial", "init", "input", "in", "old")
_AFTER = ("present_key_values", "present", "updated", "current", "final", "output", "out", "next", "new", "y")


class StreamState:
    """The state of one stream of runs, by input. Its runs take turns.

    A run reads each value where the last run wrote it, and writes the next one over the value before that.
    """

    def __init__(self, pairs: Mapping[str, str], axes: Mapping[str, tuple[int, str]] | None = None) -> None:
        self.pairs = dict(pairs)  # output -> input
        self.axes = dict(axes or {})  # input longer than its value -> (dimension, symbol)
        self.lengths: dict[str, int] = {}  # true length, by symbol
        self._lock = threading.RLock()
        self.run_lock: AbstractContextManager[object] = self._lock if pairs else nullcontext()  # held during a run
        self._values: dict[str, Any] = {}
        self._spare: dict[str, Any] = {}
        self._keepers: dict[str, object] = {}

    @property
    def inputs(self) -> Collection[str]:
        return self.pairs.values()

    def part(self, pairs: Mapping[str, str]) -> StreamState:
        """Return the state of some of the pairs. Both see what the runs of the other leave, and take turns."""
        found = copy.copy(self)
        found.pairs = dict(pairs)
        return found

    def value(self, name: str) -> Any:
        """Return the value that the next run reads; None stands for zeros."""
        return self._values.get(name)

    def room(self, name: str, keeper: object) -> Any:
        """Return the value if it is in a buffer of this program (`keeper`), else None."""
        return self._values[name] if self._keepers.get(name) is keeper else None

    def spare(self, name: str, keeper: object) -> Any:
        """Return a free buffer of this program that held an earlier value, or None. It is no longer the stream's."""
        return self._spare.pop(name, None) if self._keepers.get(name) is keeper else None

    def advance(self, values: Mapping[str, Any], keeper: object = None) -> None:
        """Set the values of the next run. The stream owns them from now on.

        `keeper` is the program whose device buffers hold them; None for ordinary arrays.
        """
        for name, value in values.items():
            self._spare.pop(name, None)
            if keeper is not None and self._keepers.get(name) is keeper and value is not self._values[name]:
                self._spare[name] = self._values[name]
            self._values[name], self._keepers[name] = value, keeper

    def reset(self, values: Mapping[str, Any]) -> None:
        """Begin again from copies of these values, and from zeros for the others."""
        for name in values:
            if name not in self.inputs:
                hint = did_you_mean(name, self.inputs) or f"those are {', '.join(self.inputs) or '(none)'}"
                raise InputError(f"reset names {name!r}, which is no input with state", hint=hint)
        with self._lock:
            first = copy.deepcopy(dict(values))
            for name in self.inputs:
                for kept in (self._values, self._spare, self._keepers):
                    kept.pop(name, None)
            self._values |= first
            self.lengths = {}

    def copies(self) -> dict[str, Any]:
        """Return a copy of the state."""
        with self._lock:
            found = {name: copy.deepcopy(self._values[name]) for name in self.inputs if name in self._values}
            for name, (axis, symbol) in self.axes.items():
                if name in found and symbol in self.lengths:
                    found[name] = found[name][(slice(None),) * axis + (slice(self.lengths[symbol]),)].copy()
            return found


class Stateful(Runnable):
    """A network that may have state: its own runs are one stream, and `stream()` makes others.

    State outputs are returned only by name, because that copies them.
    """

    _memory: StreamState

    @abstractmethod
    def evaluate(self, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """Run once on the stream that owns `memory`, and return these outputs. The caller holds `memory.run_lock`."""

    def _evaluate(self, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        if not self._memory.pairs:  # no state, no turns
            return self.evaluate(self._memory, inputs, outputs)
        with self._memory.run_lock:
            return self.evaluate(self._memory, inputs, outputs)

    def _named_only(self) -> Sequence[str]:
        return tuple(self._memory.pairs)

    def stream(self) -> Stream:
        """Return an independent stream of runs: the same code and weights, with a new state of its own."""
        return Stream(self, StreamState(self._memory.pairs, self._memory.axes))

    def reset(self, **values: Any) -> None:
        """Drop the state. The next run begins with these values, and with zeros for the others."""
        self._memory.reset(values)

    def state(self) -> dict[str, Any]:
        """Return a copy of the state that the next run reads, by input; before the first run, zeros are left out."""
        return self._memory.copies()


class Stream(Stateful):
    """A stream of runs of a Program or a Session, with a state of its own. Streams may run in several threads."""

    def __init__(self, owner: Stateful, memory: StreamState) -> None:
        self._owner, self._memory = owner, memory

    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        return self._owner._names()

    def evaluate(self, memory: StreamState, inputs: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        return self._owner.evaluate(memory, inputs, outputs)

    def stream(self) -> Stream:
        return self._owner.stream()

    def __repr__(self) -> str:
        return f"<Stream of {self._owner!r}>"


def checked_pairs(
    given: Mapping[str, str] | bool | None, inputs: Mapping[str, object], outputs: Mapping[str, object]
) -> dict[str, str]:
    """Return the pairs that `state=` means: output -> input; True finds them by name.

    `inputs` and `outputs` map names to types, which are equal in a pair that is found. Raises InputError.
    """
    if given is True:
        return _found(inputs, outputs)
    pairs = dict(given or {})
    for known, names, what in ((outputs, pairs.keys(), "output"), (inputs, pairs.values(), "input")):
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f"{what}s are {', '.join(known)}"
                raise InputError(f"state= names {name!r}, which is no {what} of the model", hint=hint)
    if len(set(pairs.values())) < len(pairs):
        raise InputError("state= names an input twice", hint="each input takes one output")
    if same := [name for name, taker in pairs.items() if name == taker]:
        raise InputError(f"state= names {same[0]!r} as its own next value", hint="it never changes: leave it out")
    return pairs


def same_types(
    pairs: dict[str, str], inputs: Mapping[str, TensorType], outputs: Mapping[str, TensorType]
) -> dict[str, str]:
    """Return the pairs. Raises InputError unless each output has the shape and type of its input."""
    for output, taker in pairs.items():
        if outputs[output] != inputs[taker]:
            raise InputError(
                f"state= makes {output!r}, {outputs[output]}, the next {taker!r}, {inputs[taker]}",
                hint="rammer.Session takes state whose shape changes",
            )
    return pairs


def _found(inputs: Mapping[str, object], outputs: Mapping[str, object]) -> dict[str, str]:
    """Find pairs of one type whose names differ only in words such as "past" and "present", and only if unambiguous."""
    stems = [{name: _stem(name, words) for name in names} for names, words in ((inputs, _BEFORE), (outputs, _AFTER))]
    pairs = {}
    for output, stem in stems[1].items():
        takers = [name for name, other in stems[0].items() if other == stem and inputs[name] == outputs[output]]
        givers = [name for name, other in stems[1].items() if other == stem]
        if len(takers) == len(givers) == 1 and takers[0] != output:
            pairs[output] = takers[0]
    if not pairs:
        raise InputError(
            f"state=True finds no pair among inputs {', '.join(inputs)} and outputs {', '.join(outputs)}",
            hint='name them: state={"h_out": "h_in"}; their types must be equal',
        )
    return pairs


def _stem(name: str, words: Sequence[str]) -> str:
    """Return a name without the words of its side."""
    parts = "_".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()
    if torch := re.fullmatch(r"([hc])_?[0n]", parts):
        return torch[1]
    return re.sub(rf"(?:(?<=_)|^)(?:{'|'.join(words)})(?=_|$)", "", parts).strip("_").replace("__", "_")
