"""Matrix products with weights of a few bits, in blocks along the sum that have a scale and a zero point each.

Weights lie in words of 32 bits: in each of its four bytes a word has one term after another, the first in the low bits,
so that bytes of equal rank are neighbours in the sum. Zero points of consecutive blocks share a byte.
"""

from __future__ import annotations

from rammer.ir.expr import Call, Cast, Const, Iota, Load, Scalar, Stage, TensorExpr
from rammer.ir.index import Index, var
from rammer.ir.operator import OpDef
from rammer.ir.ops.operands import call, expression, listed, require
from rammer.ir.tensor import DType, TensorType

BYTES = 4  # of a word


def _block_matmul(
    x: TensorType, words: TensorType, scales: TensorType, *zeros: TensorType, bits: int, block: int
) -> TensorExpr:
    """out[…, j] = sum over blocks g of scales[g, j] · sum over k of x[…, g·block + k] (weight[g·block + k, j] - zero).

    `words`: int32[terms·bits/32, columns], see `word_of`. `zeros`: uint8, see `zero_of`; if not given all are the
    middle of what `bits` bits hold.
    """
    blocks, columns = _blocks("block_matmul", (x, words, scales, *zeros), bits, block)
    require(
        x.rank > 0 and x.dtype is DType.F32 and x.shape[-1] == blocks * block,
        f"block_matmul: {x} times {blocks} blocks of {block} terms",
        "pad x with zeros up to whole blocks",
    )
    rows = tuple((f"b{p}", extent) for p, extent in enumerate(x.shape[:-2]))
    rows += (("i", x.shape[-2]),) if x.rank > 1 else ()
    lead, g, j, k = tuple(var(a) for a, _ in rows), var("g"), var("j"), var("k")
    weight = Cast(_element(g, k, bits, block), DType.F32)
    zero = Cast(zero_of(g, j, bits), DType.F32) if zeros else Const(float(1 << (bits - 1)))
    part = Load("x", (*lead, g * block + k)) * Call("sub", (weight, zero))
    parts = Stage("part", (*rows, ("j", columns), ("g", blocks)), part, (("k", block),))
    total = Load("part", (*lead, j, g)) * Load("scales", (g, j))
    out = Stage("out", (*rows, ("j", columns)), total, (("g", blocks),))
    given = [("x", x), ("words", words), ("scales", scales), *(("zeros", kind) for kind in zeros)]
    return expression("block_matmul", given, (parts, out))


def _blocks(kind: str, types: tuple[TensorType, ...], bits: int, block: int) -> tuple[int, int]:
    """How many blocks there are, and columns. Raises TypeMismatch."""
    _, words, scales, *zeros = types
    per = 8 * BYTES // bits
    require(bits in (2, 4, 8) and block % per == 0, f"{kind}: blocks of {block} weights of {bits} bits")
    fits = scales.rank == 2 and scales.dtype is DType.F32
    fits = fits and (words.dtype, words.shape) == (DType.I32, (scales.shape[0] * block // per, scales.shape[1]))
    wanted = (-(-scales.shape[0] * bits // 8), scales.shape[1]) if fits else ()
    fits = fits and all((z.dtype, z.shape) == (DType.U8, wanted) for z in zeros)
    require(fits and len(zeros) < 2, f"{kind}: {listed(types)}, {bits} bits in blocks of {block}")
    return scales.shape[0], scales.shape[1]


def _element(g: Index, k: Index, bits: int, block: int) -> Scalar:
    """The weight of term k of block g, in int32."""
    per = 8 * BYTES // bits
    word = Load("words", (g * (block // per) + k // per, var("j")))
    return _bits_of(word, k % BYTES * 8 + k % per // BYTES * bits, bits)


def zero_of(g: Index, j: Index, bits: int) -> Scalar:
    """The zero point of block g, in int32."""
    per = 8 // bits
    return _bits_of(Cast(Load("zeros", (g // per, j)), DType.I32), g % per * bits, bits)


def _bits_of(value: Scalar, first: Index, bits: int) -> Scalar:
    """Some bits of an int32, the lowest of them `first`."""
    return call("bit_and", Call("shift_right", (value, Cast(Iota(first), DType.I32))), (1 << bits) - 1)


DEFINITIONS = (OpDef("block_matmul", _block_matmul),)
