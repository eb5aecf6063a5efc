"""Run several models that were compiled together: all in one plan, or sets of them in plans that share memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rammer import files
from rammer.errors import ArtifactError, InputError, did_you_mean
from rammer.runtime import artifact
from rammer.runtime.program import Program, identifier
from rammer.runtime.report import Report
from rammer.runtime.state import Stateful, Stream, StreamState
from rammer.vdevice.base import Executable, Image, Progress, VDevice, silent


class PartImage(NamedTuple):
    """The plan of some models, built. The first part of a program has all models."""

    models: tuple[str, ...]
    image: Image
    report: Report


class JointProgram(Program):
    """Several models as one program: a run computes all of them, by one plan. Ports are named MODEL.PORT.

    `part("vad")` is a Program of one model or several, if `together` named that set when the models were compiled. Each
    part has a plan of its own. Parts take turns, and share state; on CPUs also their arena, and weights of equal
    content. Links exist only in parts that have both models: in others, their ports are inputs and outputs. `export`
    writes the models NAME, and NAME_vad for a part.
    """

    def __init__(self, parts: Sequence[PartImage], vdevice: VDevice, *, sources: Sequence[str] = ()) -> None:
        kinds = [{port.name: port.type for port in part.image.ports[0]} for part in parts]
        state = [{(o, i, k[i]) for o, i in part.image.state.items()} for part, k in zip(parts, kinds, strict=True)]
        if not all(pairs <= state[0] for pairs in state) or len({part.image.target for part in parts}) > 1:
            raise ArtifactError("the parts are of different programs: their state or target differs")
        loaded = vdevice.load_together([part.image for part in parts])
        self.models = parts[0].models
        super().__init__(loaded[0][0], vdevice, parts[0].report, sources=sources, executable=loaded[0][1])
        self._name = identifier("_".join(self.models))
        self._parts = {
            frozenset(part.models): _Part(self, part, image, executable, sources)
            for part, (image, executable) in zip(parts[1:], loaded[1:], strict=True)
        }

    @property
    def parts(self) -> tuple[tuple[str, ...], ...]:
        """The sets of models that can be run, beginning with all."""
        return (self.models, *(part.models for part in self._parts.values()))

    def part(self, *models: str) -> Program:
        """Return the program of these models. Its runs are of the same stream as those of the whole.

        Raises InputError if no plan for them was compiled.
        """
        wanted = frozenset(models)
        if wanted == {*self.models}:
            return self
        if wanted in self._parts:
            return self._parts[wanted]
        if unknown := [name for name in models if name not in self.models]:
            hint = did_you_mean(str(unknown[0]), self.models) or f"models are {', '.join(self.models)}"
            raise InputError(f"there is no model named {unknown[0]!r}", hint=hint)
        raise InputError(
            f"no plan was compiled for {' and '.join(map(repr, models)) or 'no model'} alone",
            hint=f"compile with together=[…, {(*models,)!r}]; there are {', '.join(map(repr, self.parts))}",
        )

    def run_together(self, models: Sequence[str], inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run these models once, by one plan, and return their outputs by name."""
        return self.part(*models).run(inputs)

    def stream(self) -> JointStream:
        """Return an independent stream of runs, of the whole and of parts: with a new state of its own."""
        return JointStream(self, StreamState(self._memory.pairs))

    def save(self, path: str | os.PathLike[str], *, progress: Progress = silent) -> None:
        """Write the program with all parts to one file that `rammer.load` loads. Raises ArtifactError."""
        if not self._parts:
            return super().save(path, progress=progress)
        files.check_new(path, sources=self._sources, raises=ArtifactError)
        with tempfile.TemporaryDirectory() as folder:
            saved = [os.path.join(folder, str(n)) for n in range(len(self.parts))]
            super().save(saved[0], progress=progress)
            for part, file in zip(self._parts.values(), saved[1:], strict=True):
                part.save(file, progress=progress)
            artifact.save_together(saved, path, self.parts, sources=self._sources)

    def _models(self, name: str, others: Sequence[Program]) -> dict[str, list[tuple[VDevice, Image]]]:
        """Return the programs of all models, and of each part, to export."""
        found = super()._models(name, others)
        for part in self._parts.values():
            same = [other.part(*part.models) for other in others if isinstance(other, JointProgram)]
            mine = part._models(f"{name}_{part._name}", same)
            if clash := mine.keys() & found.keys():
                raise InputError(f"two parts would be called {clash.pop()!r} in C", hint="rename a model")
            found |= mine
        return found

    def close(self) -> None:
        """Free the device's threads and memory, also those of all parts."""
        for part in self._parts.values():
            part.close()
        super().close()


class JointStream(Stream):
    """A stream of runs of several models, and of parts of them, with a state of its own."""

    def __init__(self, owner: JointProgram, memory: StreamState) -> None:
        super().__init__(owner, memory)
        self._program = owner

    def part(self, *models: str) -> Stateful:
        """Return this stream's runs of these models alone. Raises InputError if no plan for them was compiled."""
        program = self._program.part(*models)
        return Stream(program, self._memory.part(program.state_pairs))


class _Part(Program):
    """A program of some models of another program, which owns the device."""

    def __init__(
        self, whole: JointProgram, part: PartImage, image: Image, executable: Executable, sources: Sequence[str]
    ) -> None:
        super().__init__(image, whole._vdevice, part.report, sources=sources, executable=executable)
        self.models = part.models
        self._name = identifier("_".join(part.models))
        self._owns_device = False
        self._memory = whole._memory.part(image.state)
