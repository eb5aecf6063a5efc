"""Compile the emitted text to a shared object for this machine, and cache it."""

from __future__ import annotations

import platform
from functools import partial

from rammer.vdevice.ctext.files import text_of
from rammer.vdevice.toolchain import Compiler, c_compiler, fingerprint, object_store

part = partial(text_of, "rammer.vdevice.simt.emulator")  # a half of the emulator
# No contraction: two forms of a program must not differ because the host's compiler unrolled one of them.
FLAGS = ("-x", "c++", "-std=gnu++17", "-O1", "-fno-exceptions", "-fno-rtti", "-ffp-contract=off")


def host_text(text: str) -> str:
    """Return the program between the two halves of the emulator."""
    return f"{part('simt.h')}\n{text}\n{part('later.h')}\n{part('runtime.h')}"


def compile_host(text: str) -> bytes:
    """Return a shared object with `simt_run`. Raises ToolchainError."""
    compiler: Compiler = c_compiler()
    whole = host_text(text)
    # No flag names the machine, and a cache may lie in a home directory that x86-64 and aarch64 machines share.
    flags = *compiler.flags, *FLAGS
    key = fingerprint("simt", platform.machine(), compiler.version, compiler.family, *flags, whole)
    return object_store().made(key, lambda: compiler.compile_shared(whole, FLAGS, timeout_s=600))
