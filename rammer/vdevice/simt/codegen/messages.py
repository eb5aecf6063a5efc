"""Emit messages between the blocks of a cluster: who sends which part of a result where, and when it has arrived.

Known as: distributed shared memory, one-sided communication. A place has a box before it, an mbarrier that counts the
bytes which have arrived. A box is used again and again: its parity says for which time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from string import Template

from rammer.ir.analysis.messages import BOX_BYTES, WORD_BYTES, deliveries, last_barrier
from rammer.ir.analysis.order import HappensBefore
from rammer.ir.plan import ExecutionPlan
from rammer.ir.program import RTask, TaskUid
from rammer.vdevice.ctext.files import text_of
from rammer.vdevice.image.arena import ARENA, SCRATCH

RECEIVE_ARGS = 5  # place, bytes that others send, parity, and vEU and order of a slot that sends
SEND_ARGS = 5  # first byte of the part, its words, ranks that receive it, its place, where it is copied to

Argument = tuple[int, int]  # base and offset, as in `Streams.arg_base`


@dataclass(frozen=True)
class Messages:
    """The arguments of receives and of sends, by the rTask before which, or behind which, they happen."""

    cluster: int = 1
    boxes: tuple[int, ...] = ()  # bytes from the scratch
    received: dict[TaskUid, list[Argument]] = field(default_factory=dict)
    sent: dict[TaskUid, list[Argument]] = field(default_factory=dict)
    note: str = ""

    def arguments(self, uid: TaskUid) -> tuple[tuple[Argument, ...], int, int]:
        """Return the arguments of an rTask's messages, and how many it receives and sends."""
        received, sent = self.received.get(uid, []), self.sent.get(uid, [])
        return (*received, *sent), len(received) // RECEIVE_ARGS, len(sent) // SEND_ARGS


def messages_of(plan: ExecutionPlan) -> Messages:
    """Return what the rTasks of a plan receive and send."""
    memory, cluster = plan.memory, plan.spec.cluster
    if memory is None or cluster is None:
        return Messages()
    order = HappensBefore(plan.programs)
    tasks = {slot: uid for uid, slot in order.task_slots.items()}
    found = Messages(cluster.group, tuple(sorted({at - BOX_BYTES for at in memory.messages.values()})))
    arrivals: list[tuple[int, ...]] = []  # vEU, barrier, place, bytes, vEU and order of a sender
    for one in deliveries(plan, order, memory.messages):
        place = memory.messages[one.tensor]
        for veu, slot in one.receives.items():
            last = int(one.sources[veu][-1, 0])
            sender = int(order.veu[last]), int(order.order[last])
            arrivals.append((*last_barrier(plan, order, slot), place, one.nbytes(veu), *sender))
        for slot, first, end in one.parts.tolist():
            ranks = one.ranks(slot, cluster.group)
            begin = first * WORD_BYTES
            copy = (ARENA, memory.offsets[one.tensor] + begin) if one.outside else (SCRATCH, 0)
            part = (place + begin, end - first, ranks, place)
            found.sent.setdefault(tasks[slot], []).extend([*((SCRATCH, n) for n in part), copy])
    times: dict[tuple[int, int], int] = {}
    for veu, barrier, place, nbytes, *whose in sorted(arrivals):
        follower = plan.programs[0].lanes[veu][barrier + 1]
        assert isinstance(follower, RTask)
        time = times[veu, place] = times.get((veu, place), -1) + 1
        awaited = (place, nbytes, time & 1, *whose)
        found.received.setdefault(follower.uid, []).extend((SCRATCH, n) for n in awaited)
    count = sum(map(len, found.sent.values())) // SEND_ARGS
    note = f"messages: {len(memory.messages)} results in {count} parts, to blocks of clusters of {cluster.group}"
    return Messages(found.cluster, found.boxes, found.received, found.sent, note if count else "")


def messages_text(messages: Messages, wave: int) -> str:
    """Return the functions that receive and send; an empty text if nothing is sent. `wave`: threads of a subgroup."""
    if not messages.boxes:
        return ""
    step = messages.boxes[1] - messages.boxes[0] if len(messages.boxes) > 1 else BOX_BYTES
    numbers = {"FIRST": messages.boxes[0], "COUNT": len(messages.boxes), "STEP": step, "CLUSTER": messages.cluster}
    numbers |= {"BOX": BOX_BYTES, "RECEIVE": RECEIVE_ARGS, "SEND": SEND_ARGS, "WAVE": wave}
    return Template(TEXT).safe_substitute(numbers)  # others are the megakernel's


def message_calls(call: str, first: int, received: int, sent: int) -> str:
    """Return the call of a task between its receives and its sends; `first`: the first argument of these."""
    if received:
        call = f"mk_receive(run, argv + {first}, {received}, scratch, now->order, tid, stop + 1 + (pc & 1)); {call}"
    if sent:
        call += f" mk_sync(); mk_send(argv + {first + received * RECEIVE_ARGS}, {sent}, scratch, tid);"
    return call


TEXT = text_of("rammer.vdevice.simt.codegen", "text", "messages.h")
