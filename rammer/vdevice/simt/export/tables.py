"""Write the programs of GPUs into a C project: machine code, its text, and the streams that vEUs walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files as resources
from pathlib import PurePath

from rammer.vdevice.export.project import ExportedPlan, embedded
from rammer.vdevice.export.tables import array, homes, places, rows, text
from rammer.vdevice.simt.codegen.table import ENTRY, Streams
from rammer.vdevice.simt.runtime.streams import SOURCE, checked_streams


@dataclass(frozen=True)
class GpuExport(ExportedPlan):
    """A program of a GPU to be exported: its machine code is in the image's `code_file`, its text ends with a suffix.

    The package of the `target` has driver.c, which defines `rammer_TARGET`: how gpu.c calls the platform's driver.
    """

    target: str
    code_file: str
    text_suffix: str

    @cached_property
    def table(self) -> Streams:
        return checked_streams(self.image)

    def files(self, name: str, offsets: Sequence[int]) -> dict[str, str | bytes]:
        """Return the plan's files by path; `offsets` are those of the weights in weights.bin."""
        code = name + PurePath(self.code_file).suffix
        return {
            code: self.image.file(self.code_file),
            name + self.text_suffix: self.image.file(SOURCE),
            f"src/{name}_code.c": embedded(f"{name}_code", code),
            f"src/{name}.c": self._source(name, offsets),
            "src/gpu.c": resources("rammer.vdevice.simt.export").joinpath("gpu.c").read_text("utf-8"),
            f"src/{self.target}.c": resources(f"rammer.vdevice.{self.target}").joinpath("driver.c").read_text("utf-8"),
        }

    def _source(self, name: str, offsets: Sequence[int]) -> str:
        """Return the C file of the plan."""
        streams, header = self.table, self.table.header
        sizes = [self.image.weight(weight).nbytes for weight in self.weights]
        begin = min(offsets, default=0)
        end = max((at + size for at, size in zip(offsets, sizes, strict=True)), default=begin)
        numbers = (
            *(len(streams.instructions), len(streams.waits), header["threads"], header["shared_bytes"]),
            *(begin, end - begin),
        )
        parts = [
            '#include "model.h"\n',
            f"extern const unsigned char {name}_code[];\nextern const rammer_driver rammer_{self.target};",
            *homes(self.image, header, streams.arg_base, streams.arg_offset),
            array("char *const", "names", map(text, header["operators"])),
            array("rammer_place", "args", places(streams.arg_base, streams.arg_offset)),
            array("long long", "constants", map(str, offsets)),
            array("int", "operators", rows(streams.operators)),
            array("int", "instructions", rows(streams.instructions), "[8]"),
            array("int", "bounds", rows(streams.bounds)),
            array("rammer_position", "waits", rows(streams.waits)),
            array("int", "spans", [str(streams.span(program)) for program in range(streams.num_programs)]),
            f"static const rammer_gpu_plan gpu = {{&rammer_{self.target}, {name}_code, {text(ENTRY)}, instructions, "
            f"bounds, waits, spans, {', '.join(map(str, numbers))}}};",
        ]
        counts = streams.num_veus, streams.num_programs, len(streams.arg_base), 0, 0
        fields = (
            *(text(str(header["arch"])), "0", "0", *map(str, counts), "0, 0, 0, 0, args, 0, constants, 0, operators"),
            *("names", "inputs", "outputs", str(header["arena_bytes"]), "0", "0", "&rammer_gpu", "&gpu"),
        )
        parts.append(f"extern const rammer_plan {name};\nconst rammer_plan {name} = {{{', '.join(fields)}}};")
        return "\n".join(parts) + "\n"
