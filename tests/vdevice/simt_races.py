"""ThreadSanitizer on a program: every thread of every block is a thread to it, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

from simt_standalone import STALLED, program_file, program_text

from rammer.errors import DeviceError, ToolchainError
from rammer.files import temporary_folder
from rammer.ir.tensor import Array
from rammer.vdevice.base import Image

FLAGS = ("-x", "c++", "-std=gnu++17", "-O1", "-g", "-w", "-fsanitize=thread", "-fno-exceptions", "-fno-rtti")
_RACES = 66


def find_races(image: Image, inputs: Mapping[str, Array], *, seed: int = 0, compiler: str = "gcc") -> str:
    """What ThreadSanitizer says about one run; empty if it finds nothing. Slow: for small programs.

    Raises ToolchainError without a gcc that has ThreadSanitizer, DeviceError if the program stalls.
    """
    program = shutil.which(compiler)
    if program is None:
        raise ToolchainError(f"no {compiler} to build with ThreadSanitizer", hint="install gcc with libtsan")
    with temporary_folder("races", ToolchainError) as folder:
        source, binary, data = (folder / n for n in ("program.cc", "program", "program.bin"))
        source.write_text(program_text(image), encoding="utf-8")
        data.write_bytes(program_file(image, inputs, seed))
        built = subprocess.run(
            [program, *FLAGS, str(source), "-o", str(binary), "-lm", "-lpthread"],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if built.returncode:
            raise ToolchainError(
                f"{compiler} cannot build with ThreadSanitizer:\n{built.stderr[:2000]}", hint="install gcc with libtsan"
            )
        environment = os.environ | {"TSAN_OPTIONS": f"exitcode={_RACES} history_size=7"}
        done = subprocess.run(
            [str(binary), str(data)], capture_output=True, text=True, timeout=600, check=False, env=environment
        )
    if done.returncode in (0, _RACES):
        return done.stderr if done.returncode else ""
    if done.returncode == STALLED:
        raise DeviceError("the program stalled under ThreadSanitizer", hint="run it on the emulator for a report")
    raise ToolchainError(
        f"ThreadSanitizer ended with {done.returncode}:\n{done.stderr[:2000]}", hint="is ASLR too wide?"
    )
