"""Emit one persistent kernel per plan: every distinct task once, and a loop in which each block walks its stream.

Known as: persistent threads, megakernel. A vEU is a thread block that runs for the whole rProgram. Paper: §4.1.2,
§4.1.3, Figure 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template

from rammer.vdevice.ctext.files import text_of
from rammer.vdevice.simt.codegen.messages import Messages, message_calls, messages_text
from rammer.vdevice.simt.codegen.prelude import Dialect, prelude
from rammer.vdevice.simt.codegen.printer import EmittedFunction
from rammer.vdevice.simt.codegen.table import ABI, AHEAD, END, ENTRY, KEEP, LINE, header_bytes

NO_MESSAGES = Messages()
# Where blocks send each other messages: none leaves while another one may still send to it.
MESSAGES = {
    "CLUSTERED": "MK_CLUSTER($CLUSTER) ",
    "OPENING": "  if (tid < 2) stop[1 + tid] = 0;\n  mk_open_boxes(scratch, tid);\n",
    "LEAVING": "    if (stop[1 + (pc & 1)]) break;\n",  # a fast thread may be in the next slot already
    "CLOSING": "  mk_cluster_sync();\n",
}


def program_text(
    kernels: Sequence[EmittedFunction],
    dialect: Dialect,
    block: int,
    max_args: int,
    *,
    copies: bool = False,
    messages: Messages = NO_MESSAGES,
) -> str:
    """Return the table-driven program. Its size does not depend on the number of rTasks. `copies`: KEEPs occur."""
    calls = (message_calls(task_call(k, "argv", "now->rtask"), *k.messages) for k in kernels)
    cases = "".join(f"      case {n}: {call} break;\n" for n, call in enumerate(calls))
    if copies:
        cases += f"      case {KEEP}: mk_keep(argv, scratch, tid); break;\n"
    prefetching = [(n, k.prefetch) for n, k in enumerate(kernels) if k.prefetch]
    asks = "".join(f" case {n}: {prefetch}(argv, now->rtask, tid); break;" for n, prefetch in prefetching)
    asking = f"      switch (fn) {{{asks} }}\n" if asks else ""
    sends, loop = messages_text(messages, dialect.subgroup_size), LOOP.replace("CASES", cases).replace("ASKING", asking)
    for name, text in MESSAGES.items():
        loop = loop.replace(name, text if sends else "")
    texts = {k.symbol: k.text for k in kernels}
    asked = {k.prefetch: k.prefetch_text for k in kernels if k.prefetch}
    inlined = sum(map(len, texts.values())) <= dialect.inline_limit
    numbers = {"ENTRY": ENTRY, "THREADS": block, "MAX_ARGS": max_args, "LINE": LINE, "END": END}
    numbers |= {"SHARES": dialect.veus_per_sm, "AHEAD": min(AHEAD, block), "CLUSTER": messages.cluster}
    # The last thread that does so waits for the fence, the first polls.
    numbers |= {"HEADER": header_bytes(max_args), "LAST": max(block - dialect.subgroup_size, 0)}
    parts = [
        f"// rammer, {dialect.language}, ABI {ABI}: {len(texts)} tasks, {block} threads per vEU\n",
        prelude(dialect),
        f"{INLINED if inlined else CALLED}\n",
        "\n".join([*texts.values(), *asked.values()]),
        "\n",
        Template(COMMON + (COPY if copies else "") + sends + loop).substitute(numbers),
    ]
    return "".join(parts)


def other_calls(text: str) -> str:
    """Return the text of a program with its tasks inlined, if they are called, or called, if they are inlined."""
    return text.replace(*((INLINED, CALLED) if INLINED in text else (CALLED, INLINED)))


def task_call(kernel: EmittedFunction, args: str, rtask: str) -> str:
    """Return the call of a task, guarded so that only its own threads run it."""
    tid = "MK_WAVE(tid)" if kernel.extra_syncs else "tid"
    guard = f"if ({tid} < {kernel.num_threads}) " if kernel.guarded else ""
    rest = f" else for (int n = 0; n < {kernel.extra_syncs}; n++) mk_sync();" if kernel.extra_syncs else ""
    return f"{guard}{kernel.symbol}({args}, scratch, {rtask}, tid, &status);{rest}"


INLINED, CALLED = (f"#define MK_TASK static __device__ {how}\n" for how in ("__forceinline__", "__noinline__"))

# `state`: line 0 is [epoch, blocks done, stop, bad index, report …]; then a line per vEU with the slots it completed,
# counted on from the epoch; then a line per vEU with [order + 1 and program of its first bad index, slot where it
# stopped]. Counters only grow: no reset, no stale value, and a recorded launch reads the epoch from memory.
COMMON = text_of("rammer.vdevice.simt.codegen", "text", "waits.h")

# Only in programs in which something is copied.
COPY = text_of("rammer.vdevice.simt.codegen", "text", "copies.h")

LOOP = text_of("rammer.vdevice.simt.codegen", "text", "loop.h")
