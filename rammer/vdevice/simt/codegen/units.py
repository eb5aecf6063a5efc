"""Emit folds, and the emulator's text of warp-level instructions, from their descriptions."""

from __future__ import annotations

from string import Template

from rammer.ir.index import Div, Index, simplify, var
from rammer.ir.instruction import Instruction
from rammer.ir.tensor import DType
from rammer.vdevice.ctext.files import text_of
from rammer.vdevice.simt.instructions import STEPS

ROUND = {"fp32": "", "tf32": "simt_tf32", "bf16": "simt_bf16"}  # by precision


def _template(file: str) -> Template:
    return Template(text_of("rammer.vdevice.simt.codegen", "text", file))


# `mk_swap<D>(v)` is what the thread has whose number differs in the bit D; see the contract in `codegen/prelude.py`.
FOLDS = "".join(_template("fold.h").substitute(COMBINE=combine, STEP=step) for combine, step in STEPS.items())


def emulated(unit: Instruction) -> str:
    """Return the emulator's text of a product by one subgroup or several."""
    return _emulated_staged(unit) if unit.staged else _emulated(unit)


def _emulated_staged(unit: Instruction) -> str:
    """Emit a product of staged operands: each thread computes its sums from what the descriptors point to."""
    sums, encoding = "sums", unit.encoding
    assert encoding is not None
    env = {axis: (0, extent - 1) for axis, extent in (*unit.axes, ("lane", unit.threads), ("r", unit.registers(sums)))}
    row, column = (_text(simplify(index, env)) for index in unit.held(sums, var("lane"), var("r")))
    kind = "bf16" if encoding.dtype is DType.BF16 else "float"
    parts = "{0, 0}" if encoding.parts == 1 else "{8, 0}, {0, 8}, {0, 0}"
    values: dict[str, object] = {"ROW": row, "COLUMN": column, "PARTS": parts, "TYPE": kind, "THREADS": unit.threads}
    values |= {"NAME": unit.name, "SUMS": unit.registers(sums), "TERMS": unit.extent("term")}
    return _template("emulated_staged_unit.h").substitute(values)


def _emulated(unit: Instruction) -> str:
    """Emit a product of a subgroup: threads publish their operands, synchronise, and each computes its sums."""
    (sums, _), (a, _), (b, _) = unit.tensors
    wave, size = unit.threads, unit.registers(a)
    env = {axis: (0, extent - 1) for axis, extent in (*unit.axes, ("lane", wave), ("r", unit.registers(sums)))}

    def text(*indices: Index) -> list[str]:
        return [_text(simplify(index, env)) for index in indices]

    row, column = text(*unit.held(sums, var("lane"), var("r")))
    from_a, at_a = text(*unit.holder(a, (var("row"), var("term"))))
    from_b, at_b = text(*unit.holder(b, (var("term"), var("column"))))
    fn, sums_of = ROUND[unit.precision], "c[r] += x * y;"
    if unit.split_dtype:  # in the order of its three products
        part = ROUND[unit.split_dtype]
        split = f"const float big_x = {part}(x), big_y = {part}(y);"
        products = f"{part}_cut(x - big_x) * big_y", f"big_x * {part}_cut(y - big_y)", "big_x * big_y"
        sums_of = f"{split} c[r] += step == 0 ? {products[0]} : step == 1 ? {products[1]} : {products[2]};"
    steps = 3 if unit.split_dtype else 1
    values: dict[str, object] = {"ROW": row, "COLUMN": column, "FROM_A": from_a, "AT_A": at_a}
    values |= {"FROM_B": from_b, "AT_B": at_b}
    values |= {"NAME": unit.name, "THREADS": wave, "FIRST": size, "SECOND": unit.registers(b), "STEPS": steps}
    values |= {"ROUND": fn, "SUMS": unit.registers(sums), "TERMS": unit.extent("term"), "ADD": sums_of}
    return _template("emulated_unit.h").substitute(values)


def _text(index: Index) -> str:
    """Return the C text of an index ≥ 0."""
    terms = [str(index.const)] if index.const or not index.terms else []
    for atom, factor in index.terms:
        if isinstance(atom, str):
            text = atom
        else:
            inner = _text(atom.arg)
            inner = f"({inner})" if len(atom.arg.terms) > 1 or atom.arg.const else inner
            text = f"{inner} {'/' if isinstance(atom, Div) else '%'} {atom.by}"
        terms.append(text if factor == 1 else f"{text} * {factor}")  # of equal precedence, from left to right
    return " + ".join(terms)
