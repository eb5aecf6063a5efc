"""Put together the C text of instructions on matrices and bytes. Programs that only run need their tables alone."""

from rammer.vdevice.cpu.codegen.amx import AMX, TERMS
from rammer.vdevice.cpu.codegen.dots import AVX512_BF16
from rammer.vdevice.cpu.codegen.text import c_text
from rammer.vdevice.cpu.codegen.vnni import BLOCKS, LANES, PAIRS, PLACES, VNNI

COLUMNS = c_text("bf16_columns")  # for vectors of 16 numbers; `rounded` converts a vector to bf16
ODD = ", ".join(str(n) for n in range(1, 2 * TERMS, 2))
BYTES = c_text("vnni").replace(
    "BLOCKS\n",
    "".join(f"BY_WEIGHTS({rows}, {LANES * vectors}, {vectors})\n" for rows, vectors, _ in (*BLOCKS, *PAIRS))
    + "".join(f"BY_PLACES({rows}, {LANES * vectors}, {vectors})\n" for rows, vectors, _ in (*PLACES, *PAIRS)),
)
TEXTS = (
    (AMX, c_text("amx_unit") + COLUMNS + c_text("amx_operands").replace("ODD", ODD)),
    (AVX512_BF16, c_text("dots_unit") + COLUMNS + c_text("dots_blocks")),
    (VNNI, BYTES),
)
