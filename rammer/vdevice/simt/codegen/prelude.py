"""Emit the text that precedes all kernels of a SIMT program: types, vectors and functions, without any header.

Most of it is the same for every device. A `Dialect` holds the primitives that differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rammer.ir.device import VDeviceSpec
from rammer.ir.instruction import Instruction
from rammer.vdevice.ctext import functions, minifloats
from rammer.vdevice.ctext.files import text_of
from rammer.vdevice.simt.codegen import mma, wgmma
from rammer.vdevice.simt.codegen.units import FOLDS, emulated

_text = partial(text_of, "rammer.vdevice.simt.codegen", "text")


@dataclass(frozen=True, slots=True)
class Dialect:
    """A C++ for GPUs, as data.

    `primitives` defines what the contract below lists, and the functions of <math.h> that the compiler lacks.
    `partial_sync`: some threads of a block can synchronise without the others. `counted_sync`: where they cannot, the
    other threads run as many block syncs as the task has (§4.2.1 of the paper). `restrict_arguments`: a task's tensors
    may be declared restrict although other blocks write them during this launch. `asks_ahead`: `mk_ahead` exists.
    """

    language: str  # of `VDeviceSpec.languages`
    primitives: str
    partial_sync: bool
    counted_sync: bool = False
    restrict_arguments: bool = True
    asks_ahead: bool = False
    subgroup_size: int = 32  # threads that run in step
    veus_per_sm: int = 1  # blocks on a multiprocessor, which share its registers
    fits: int = 0  # words of sums per thread that surely leave registers for the rest, if operands are staged
    inline_limit: int = 200_000  # characters of tasks; more are called, to save registers and compile time
    instructions: tuple[Instruction, ...] = ()
    units: str = ""  # defines `mk_NAME` of each instruction, over registers of its output and inputs
    uncached: bool = False  # `mk_release` counts on memory that no cache holds back


# The contract of a dialect: what its primitives define.
#
# unsigned mk_load_relaxed(const unsigned *), mk_load_acquire(const unsigned *)   // device scope
# void mk_store_relaxed(unsigned *, unsigned), mk_store_release(unsigned *, unsigned)
# unsigned mk_exchange(unsigned *, unsigned old, unsigned)  // compare and swap: what was there
# float mk_swap<D>(float)  // what the thread of the wave has whose number differs in the bit D
# unsigned mk_arrive(unsigned *)  // add 1, acquire and release: what was there
# void mk_sync(), mk_sync_part(int threads)  // of a block, of its first threads
# void mk_release(), mk_acquire()  // of every thread, before and after a block sync, where the sync is not enough
# void mk_pause()  // in a spin
# void mk_copy_later<BYTES>(void *, const void *, bool)  // see `Store.later`; false: zeros
# void mk_await<GROUPS>()  // see `Sync.pending`
# void mk_show_units()  // staged instructions see what this thread has stored in scratch, behind a block sync
# unsigned mk_scratch_at(const void *)  // where in the block's memory
# void mk_put_ENCODING(type *, int at, vf)  // four elements, as parts in scratch
# void mk_cluster_sync()  // of all blocks of a cluster
# void mk_open_box(char *)  // before messages are sent to it
# void mk_expect(char *box, int bytes)  // of the next messages
# bool mk_arrived(char *box, int parity)  // whether all their bytes are there: each thread sees them then
# void mk_put(const float *at, const char *box, unsigned rank, float)  // store in another block of the cluster
# MK_CLUSTER(n)  // of the program's function: blocks of a cluster
# void mk_ahead(const char *)  // soon this will be read: a hint, if the dialect asks ahead
# unsigned long long mk_now_ns(), mk_clock()  // the same everywhere; as fine as can be, but each vEU's own
# float mk_half_to_float(unsigned short); unsigned short mk_float_to_half(float)
# MK_COLD  // of a function that is hardly ever called
# MK_WAVE(tid)  // the first thread of the wave, where some of its threads could go another way: the whole wave branches
# MK_HERE(tid)  // tid; a compiler may be kept from computing with it outside of the task, in the loop over all tasks
# MK_TENSOR(type, args, n)  // args[n], a pointer to global memory
# MK_ARENA  // char *: the block's shared memory
# MK_SHARED  // of a pointer: it points into that
# MK_DIVIDE(a, b)  // about a / b, where |b| is no extreme
# MK_PATIENCE  // polls between two looks at a clock, 2^n - 1

# Of every GPU.
TYPES = _text("types.h")

# Of a matrix in scratch, without a swizzle.
DESCRIPTOR = _text("descriptor.h")

# An exchange between threads of a subgroup of $SUBGROUP.
EMULATED_SWAP = _text("emulated_swap.h")

# As late as possible: code that does not await a copy reads the old content.
EMULATED_COPIES = _text("emulated_copies.h")

# For units that read scratch by themselves.
EMULATED_STAGED = _text("emulated_staged.h")

CUDA = Dialect(
    "cuda",
    _text("specials.h") + TYPES + _text("cuda.h"),
    partial_sync=True,
    asks_ahead=True,
    fits=48,  # 68 such tiles of densenet121, chosen at random, need at most 187 of 255 registers
    inline_limit=40_000,
    instructions=(*mma.SM_80, mma.SM_80_FP32, *wgmma.SM_90, *wgmma.SM_90_FP32),
    units=_text("mma.h") + _text("wgmma.h") + DESCRIPTOR + wgmma.TEXT,
)

HALF = _text("halves.h")

# Approximations by the exponential and an inexact division.
QUICK = _text("quick.h")

COMPLEX128 = _text("complex128.h")

# Functions of vectors apply those of scalars to every lane, so that tails equal bodies.
VECTORS = _text("vectors.h")


# One text for all devices.
COMMON = (
    "typedef uint16_t bf16;\n"
    + functions.BITS
    + functions.COMPLEX
    + COMPLEX128
    + HALF
    + functions.HALF_BITS.replace("HALF", "f16")
    + functions.library(("floor", "ceil", "round", "sqrt", "abs", "exp", "log", "erf", "sin", "cos"))
    + functions.instance(functions.SIMPLE + functions.ARCS + minifloats.TEMPLATES)
    + QUICK
    + functions.POW
    + functions.REMAINDER
    + functions.DOUBLES
    + functions.INTEGERS
    + functions.indices("int64_t", "T", "int").replace("INLINE T", "template <class T> INLINE T")
    + VECTORS
)


def cuda(spec: VDeviceSpec) -> Dialect:
    """Return the dialect of NVIDIA's GPUs: the same for all of them."""
    return CUDA


def prelude(dialect: Dialect) -> str:
    """Return the text before all kernels. The emulator defines the primitives itself."""
    host = EMULATED_SWAP.replace("$SUBGROUP", str(dialect.subgroup_size)) + EMULATED_COPIES
    text = f"#ifndef SIMT_HOST\n{dialect.primitives}#else\n{host}#endif\n{COMMON}{FOLDS}"
    if units := [i for i in dialect.instructions if i.multiplies]:
        host = "".join(map(emulated, units))
        if any(i.staged for i in units):
            host = EMULATED_STAGED + DESCRIPTOR + host
        text += f"#ifdef SIMT_HOST\n{host}#else\n{dialect.units}#endif\n"
    return text
