"""Define products with weights of 2, 4 or 8 bits, in blocks along the sum that have a scale and a zero point each.

Known as: block-wise quantization. Weights lie in words of 32 bits. Consecutive terms lie in consecutive bytes of a
word, the first four in the low bits, so that bits of equal rank are neighbours in the sum. Zero points of consecutive
blocks share a byte.
"""

from __future__ import annotations

from rammer.ir.expr import Call, Cast, Const, Iota, Load, Scalar, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, listed, require
from rammer.ir.tensor import DType, TensorType

BYTES = 4  # of a word
MOST = 127.0  # of a signed byte
LEAST = 1e-30  # least magnitude by which a block is divided


def _block_matmul(
    x: TensorType,
    words: TensorType,
    scales: TensorType,
    *zeros: TensorType,
    bits: int,
    block: int,
    narrow: bool = False,
) -> TensorExpr:
    """Build a product of x with quantized weights.

    out[…, j] = sum over blocks g of scales[g, j] · sum over k of x[…, g·block + k] (weight[g·block + k, j] - zero).
    `words`: int32[terms·bits/32, columns]. `zeros`: uint8[blocks·bits/8, columns]; without them, all are the middle of
    the range of `bits` bits. `narrow`: blocks of x are rounded as by `round_blocks`, and products are those of bytes.
    """
    blocks, columns = _blocks("block_matmul", (words, scales, *zeros), bits, block)
    _whole_blocks("block_matmul", x, block, blocks)
    rows = _rows(x)
    lead, g, j = tuple(var(a) for a, _ in rows), var("g"), var("j")
    middle = 1 << (bits - 1)
    axes = (*rows, ("j", columns), ("g", blocks))
    part: Scalar = Load("part", (*lead, j, g))
    sums = Load("sums", (*lead, g))
    if narrow:
        before = _bytes(rows, blocks, block)
        terms = (("w", block * bits // 32), ("r", 8 // bits))
        first = (var("w") * (8 // bits) + var("r")) * BYTES
        four = (Cast(Load("rounded", (*lead, g, first + n)), DType.I32) for n in range(BYTES))
        weight = _bits(Load("words", (g * (block * bits // 32) + var("w"), j)), var("r") * bits, bits, each_byte=True)
        products = Call("dot_bytes", (weight, Call("join_bytes", (*four,))))
        parts = Stage("part", axes, products, terms, dtype=DType.I32)
        zero = _zero(g, j, bits) if zeros else Const(middle, DType.I32)
        part = Cast(Call("sub", (part, Call("mul", (zero, sums)))), DType.F32)
        scale: Scalar = Load("largest", (*lead, g)) * (1 / MOST) * Load("scales", (g, j))
    else:
        term, k = Load("x", (*lead, g * block + var("k"))), (("k", block),)
        before = (Stage("sums", (*rows, ("g", blocks)), term, k),) if zeros else ()
        parts = Stage("part", axes, term * (Cast(_weight(g, var("k"), bits, block), DType.F32) - float(middle)), k)
        if zeros:
            part = part - Cast(call("sub", _zero(g, j, bits), middle), DType.F32) * sums
        scale = Load("scales", (g, j))
    total = part * scale
    out = Stage("out", (*rows, ("j", columns)), total, (("g", blocks),))
    given = [("x", x), ("words", words), ("scales", scales), *(("zeros", kind) for kind in zeros)]
    return expression("block_matmul", given, (*before, parts, out))


def _unpack_blocks(words: TensorType, scales: TensorType, *zeros: TensorType, bits: int, block: int) -> TensorExpr:
    """Build the weights of a `block_matmul`: (weight - zero) * scale, float32[blocks, block, columns]."""
    operands = (words, scales, *zeros)
    blocks, columns = _blocks("unpack_blocks", operands, bits, block)
    axes, g, j = (("g", blocks), ("k", block), ("j", columns)), var("g"), var("j")
    zero = _zero(g, j, bits) if zeros else Const(1 << (bits - 1), DType.I32)
    value = Cast(call("sub", _weight(g, var("k"), bits, block), zero), DType.F32) * Load("scales", (g, j))
    given = zip(("words", "scales", "zeros"), operands, strict=False)
    return expression("unpack_blocks", [*given], (Stage("out", axes, value),))


def _round_blocks(x: TensorType, *, block: int) -> TensorExpr:
    """Build x with each block along the last dimension rounded to multiples of 1/127 of its largest magnitude."""
    blocks = x.shape[-1] // block if x.rank and block > 0 else 0
    _whole_blocks("round_blocks", x, block, blocks)
    rows = _rows(x)
    lead, d = tuple(var(a) for a, _ in rows), var("d")
    largest = _largest(rows, blocks, block)
    rounded = _rounded(lead, d, d // block) * (Load("largest", (*lead, d // block)) * (1 / MOST))
    return expression("round_blocks", [("x", x)], (largest, Stage("out", (*rows, ("d", x.shape[-1])), rounded)))


def _unpack_bits(x: TensorType, *, dtype: DType, extent: int) -> TensorExpr:
    """Build the `extent` integers below 8 bits that bytes of the last dimension hold, the first in the low bits."""
    small = dtype.bits < 8 and not dtype.is_float and x.dtype is DType.U8 and extent >= 0
    per = max(8 // dtype.bits, 1)
    require(small and x.rank > 0 and x.shape[-1] == -(-extent // per), f"unpack_bits: {x} to {extent} of {dtype.value}")
    axes = (*((f"b{p}", n) for p, n in enumerate(x.shape[:-1])), ("d", extent))
    lead, d = tuple(var(a) for a, _ in axes[:-1]), var("d")
    value = _bits(Cast(Load("x", (*lead, d // per)), DType.I32), d % per * dtype.bits, dtype.bits)
    return expression("unpack_bits", [("x", x)], (Stage("out", axes, Cast(value, dtype), dtype=dtype),))


def _rows(x: TensorType) -> tuple[tuple[str, int], ...]:
    return (*((f"b{p}", n) for p, n in enumerate(x.shape[:-2])), *((("i", x.shape[-2]),) if x.rank > 1 else ()))


def _whole_blocks(kind: str, x: TensorType, block: int, blocks: int) -> None:
    whole = x.rank > 0 and x.dtype is DType.F32 and block > 0 and x.shape[-1] == blocks * block
    require(whole, f"{kind}: {x} in {blocks} blocks of {block} terms", "pad x with zeros up to whole blocks")


def _blocks(kind: str, types: tuple[TensorType, ...], bits: int, block: int) -> tuple[int, int]:
    """Return the number of blocks, and of columns. Raises TypeMismatch."""
    words, scales, *zeros = types
    known = bits in (2, 4, 8) and block > 0
    per = 8 * BYTES // bits if known else 1
    require(known and block % per == 0, f"{kind}: blocks of {block} weights of {bits} bits")
    fits = scales.rank == 2 and scales.dtype is DType.F32
    fits = fits and (words.dtype, words.shape) == (DType.I32, (scales.shape[0] * block // per, scales.shape[1]))
    wanted = (-(-scales.shape[0] * bits // 8), scales.shape[1]) if fits else ()
    fits = fits and all((z.dtype, z.shape) == (DType.U8, wanted) for z in zeros)
    require(fits and len(zeros) < 2, f"{kind}: {listed(types)}, {bits} bits in blocks of {block}")
    return scales.shape[0], scales.shape[1]


def _largest(rows: tuple[tuple[str, int], ...], blocks: int, block: int) -> Stage:
    """Build the largest magnitude of each block."""
    at = (*(var(a) for a, _ in rows), var("g") * block + var("k"))
    return Stage("largest", (*rows, ("g", blocks)), call("abs", Load("x", at)), (("k", block),), "max")


def _rounded(lead: tuple[Index, ...], d: Index, g: Index) -> Scalar:
    """Return an element of x in 127ths of the largest magnitude of its block, rounded."""
    by = call("div", MOST, call("max", Load("largest", (*lead, g)), LEAST))
    return call("min", call("max", call("round", Load("x", (*lead, d)) * by), -MOST), MOST)


def _bytes(rows: tuple[tuple[str, int], ...], blocks: int, block: int) -> tuple[Stage, ...]:
    """Build the stages that round blocks of x to bytes, and sum each block."""
    lead, g, k = tuple(var(a) for a, _ in rows), var("g"), var("k")
    value = Cast(_rounded(lead, g * block + k, g), DType.I8)
    rounded = Stage("rounded", (*rows, ("g", blocks), ("k", block)), value, dtype=DType.I8)
    term = Cast(Load("rounded", (*lead, g, k)), DType.I32)
    sums = Stage("sums", (*rows, ("g", blocks)), term, (("k", block),), dtype=DType.I32)
    return _largest(rows, blocks, block), rounded, sums


def _weight(g: Index, k: Index, bits: int, block: int) -> Scalar:
    """Return the weight of term k of block g, in int32."""
    per = 8 * BYTES // bits
    word = Load("words", (g * (block // per) + k // per, var("j")))
    return _bits(word, k % BYTES * 8 + k % per // BYTES * bits, bits)


def _zero(g: Index, j: Index, bits: int) -> Scalar:
    """Return the zero point of block g, in int32."""
    per = 8 // bits
    return _bits(Cast(Load("zeros", (g // per, j)), DType.I32), g % per * bits, bits)


def _bits(value: Scalar, first: Index, bits: int, *, each_byte: bool = False) -> Scalar:
    """Extract `bits` bits of an int32, or of each of its bytes, from bit `first` on."""
    mask = ((1 << bits) - 1) * (0x01010101 if each_byte else 1)
    shifted = Call("shift_right", (value, Cast(Iota(first), DType.I32))) if first.terms else value
    return call("bit_and", shifted, mask if mask < 1 << 31 else mask - (1 << 32))


DEFINITIONS = (
    OpDef("block_matmul", _block_matmul),
    OpDef("round_blocks", _round_blocks),
    OpDef("unpack_blocks", _unpack_blocks, folds=False),
    OpDef("unpack_bits", _unpack_bits),
)
