"""Define the wgmma instructions of sm_90: four warps multiply operands that the unit reads from shared memory.

In PTX a descriptor holds where a matrix begins, and the strides between its pieces along the terms and along the
rows (or columns). A piece is eight rows of 16 bytes, terms innermost: 128 contiguous bytes without swizzle.
"""

from __future__ import annotations

from rammer.ir.instruction import Instruction, multiply
from rammer.ir.tensor import Digit, DType, Encoding, Layout

GROUP = 128  # threads
ROWS = 64
COLUMNS = (64, 128, 256)  # of any multiple of 8 up to 256
PIECE = 8, 16  # rows, and bytes of each


def _wgmma(columns: int, name: str, precision: str, encoding: Encoding, gain: float) -> Instruction:
    """Return the instruction sums[64, columns] += a[64, terms] b[terms, columns] of 128 threads.

    Thread 4g + t of wave w holds rows 16w + g and 16w + g + 8, and pairs of columns 8n + 2t.
    """
    line = PIECE[1] // encoding.dtype.itemsize
    sums = Layout((Digit(0, 16), Digit(0, 1, 8), Digit(1, 2, 4), Digit(1, 8), Digit(0, 8, 2), Digit(1, 1, 2)))
    a, b = (Layout((Digit(k, line), Digit(1 - k, 8), Digit(1 - k, 1, 8), Digit(k, 1, line)), encoding) for k in (1, 0))
    return multiply(
        f"wgmma_{name}_n{columns}",
        (ROWS, columns, 2 * line),
        (sums, a, b),
        threads=GROUP,
        accumulates=True,
        precision=precision,
        gain=gain,
        staged=True,
    )


def _each(name: str, precision: str, encoding: Encoding, gain: float) -> tuple[Instruction, ...]:
    return tuple(_wgmma(columns, name, precision, encoding, gain) for columns in COLUMNS)


SM_90 = (
    *_each("bf16", "bf16", Encoding(DType.BF16, 1, 64), 16.0),
    *_each("tf32", "tf32", Encoding(DType.F32, 1, 32), 8.0),
)
# As `mma.SM_80_FP32`; a piece of first parts lies before one of second parts.
SM_90_FP32 = _each("tf32x2", "fp32", Encoding(DType.F32, 2, 32), 8.0 / 3)


def _text(unit: Instruction) -> str:
    """Return the text for all terms of a chunk. Fences order it after writes and before reads of the sums."""
    count = unit.registers("sums")
    held = ", ".join(f"%{n}" for n in range(count))
    encoding = unit.encoding
    assert encoding is not None
    kind, transposes = ("bf16", ", 0, 0") if encoding.dtype is DType.BF16 else ("tf32", "")
    shape = f"m{ROWS}n{unit.extent('column')}k{unit.extent('term')}.f32.{kind}.{kind}"
    # A second part lies 128 bytes behind the first; the small products come first.
    products = (("", ""),) if encoding.parts == 1 else ((" + 8", ""), ("", " + 8"), ("", ""))
    steps = "".join(
        f"""
    asm volatile(
        "{{ .reg .pred adds; setp.eq.b32 adds, 0, 0;\\n"
        "wgmma.mma_async.sync.aligned.{shape} {{{held}}}, %{count}, %{count + 1}, adds, 1, 1{transposes}; }}"
        : MK_SUMS_{count} : "l"(x + n * (A_TERMS >> 3){more}), "l"(y + n * (B_TERMS >> 3){other}) : "memory");"""
        for more, other in products
    )
    return f"""\
template <int STEPS, int A_TERMS, int A_LINES, int B_TERMS, int B_LINES>
INLINE void mk_{unit.name}(float *c, const void *a, const void *b) {{
  const uint64_t x = mk_matrix<A_TERMS, A_LINES>(a), y = mk_matrix<B_TERMS, B_LINES>(b);
  asm volatile("wgmma.fence.sync.aligned;" : MK_SUMS_{count} :: "memory");
#pragma unroll
  for (int n = 0; n < STEPS; n++) {{{steps}
  }}
  asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" : MK_SUMS_{count} :: "memory");
}}
"""


def _macros() -> str:
    """Return macros that list the sums of a thread as operands of assembly."""
    text, before = "", 0
    for count in (columns // 2 for columns in COLUMNS):
        shorter = f"MK_SUMS_{before}, " if before else ""
        registers = ", ".join(f'"+f"(c[{n}])' for n in range(before, count))
        text += f"#define MK_SUMS_{count} {shorter}{registers}\n"
        before = count
    return text


# Behind `text/wgmma.h` and `text/descriptor.h`.
TEXT = _macros() + "".join(map(_text, (*SM_90, *SM_90_FP32))) + "#endif\n"
