"""Every operator's kernels with NEON: cross-compiled by ziglang, and run by qemu-user."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import CHECK, SLOW_SPEC, buffers, checked_emit, compare, random_inputs
from test_every_operator import cases

from rammer.ir.kernel import RKernel
from rammer.ir.semantics.evaluate import evaluate_expr
from rammer.ir.tensor import Array, unpack
from rammer.kernels import candidates
from rammer.vdevice import toolchain
from rammer.vdevice.cpu.codegen.emit import EmittedKernel, translation_unit
from rammer.vdevice.cpu.host import ARCHES

QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() in ("aarch64", "arm64"), reason="the other tests of kernels run here"),
    pytest.mark.skipif(QEMU is None, reason="no qemu-aarch64: apt install qemu-user"),
]

SPEC = replace(SLOW_SPEC, arch="aarch64-neon", lanes=4)
# Reads, for every kernel: rTasks, bytes of scratch, outputs, arguments, the bytes of each; and then these.
# Writes the kernel's status and its outputs.
MAIN = """
#include <stdio.h>
#include <stdlib.h>
typedef void kernel(char *const *, char *, long, int *);
static kernel *const kernels[] = { %s };
static void *block(long bytes) { return aligned_alloc(64, (bytes + 127) / 64 * 64); }
int main(int argc, char **argv) {
  FILE *in = fopen(argv[1], "rb");
  int64_t head[4], sizes[64];
  for (unsigned n = 0; n < sizeof kernels / sizeof *kernels; n++) {
    if (fread(head, 8, 4, in) != 4 || head[3] > 64 || fread(sizes, 8, head[3], in) != head[3]) return 1;
    char *args[64], *scratch = block(head[1]);
    memset(scratch, 0xff, head[1]);
    for (long a = 0; a < head[3]; a++)
      if (fread(args[a] = block(sizes[a]), 1, sizes[a], in) != sizes[a]) return 2;
    rammer_context context = { 0, { scratch, 0 } };
    for (long task = 0; task < head[0]; task++) kernels[n](args, scratch, task, &context.status);
    fwrite(&context.status, 4, 1, stdout);
    for (long a = 0; a < head[2]; a++) fwrite(args[a], 1, sizes[a], stdout);
  }
  return 0;
}
"""


def run(kernels: list[tuple[RKernel, dict[str, Array]]], folder: Path) -> list[tuple[int, list[Array]]]:
    """The status and outputs of each kernel, run to its end on its inputs."""
    emitted = [checked_emit(kernel, SPEC) for kernel, _ in kernels]
    unit = translation_unit([EmittedKernel("", CHECK), *emitted], SPEC)
    (folder / "kernels.c").write_text(unit + MAIN % ", ".join(e.symbol for e in emitted))
    compiler = toolchain.c_compiler()
    flags = ("-target", "aarch64-linux-musl", "-static", "-O1", "-w", *ARCHES["aarch64-neon"].zig)
    toolchain.run([*compiler.command, *flags, "kernels.c", "-o", "kernels", "-lm"], folder=str(folder), timeout_s=1800)
    memory = [buffers(kernel, inputs) for kernel, inputs in kernels]
    with (folder / "data").open("wb") as file:
        for (kernel, _), (outputs, arrays) in zip(kernels, memory, strict=True):
            blocks = [*outputs, *arrays]
            head = [kernel.num_rtasks, max(kernel.scratch_bytes, 64), len(outputs), len(blocks)]
            file.write(np.array([*head, *(b.nbytes for b in blocks)], np.int64).tobytes())
            for block in blocks:
                file.write(block.tobytes())
    argv = [str(QEMU), str(folder / "kernels"), str(folder / "data")]
    data = subprocess.run(argv, capture_output=True, timeout=300, check=True).stdout
    found, at = [], 0
    for (kernel, _), (outputs, _) in zip(kernels, memory, strict=True):
        status = int.from_bytes(data[at : at + 4], "little")
        at += 4
        values = []
        for block, kind in zip(outputs, kernel.operation.outputs, strict=True):
            value = np.frombuffer(data[at : at + block.nbytes], block.dtype)
            values.append(unpack(value, kind.layout, kind.shape) if kind.layout else value.reshape(kind.shape))
            at += block.nbytes
        found.append((status, values))
    assert at == len(data)
    return found


def test_kernels_of_every_operator_compute_the_expression(tmp_path: Path) -> None:
    found = cases(SPEC.lanes)
    operations = [(name, kernel) for name, op in found.items() for kernel in candidates(op, SPEC)]
    inputs = {name: random_inputs(op) for name, op in found.items()}
    results = run([(kernel, inputs[name]) for name, kernel in operations], tmp_path)
    for (name, kernel), (status, values) in zip(operations, results, strict=True):
        assert status == 0, f"{name} {kernel.name}"
        for got, want in zip(values, evaluate_expr(kernel.operation.expr, inputs[name]), strict=True):
            compare(got, want, 2e-5, f"{name} {kernel.name}")
