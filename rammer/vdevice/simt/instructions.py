"""Instructions of waves on the host: text for the emulator, made from what each one says of itself."""

from __future__ import annotations

from rammer.ir.index import Div, Index, simplify, var
from rammer.ir.instruction import Instruction

ROUND = {"fp32": "", "tf32": "simt_tf32", "bf16": "simt_bf16"}  # by precision


def emulated(unit: Instruction) -> str:
    """A product of a wave: threads lay down their operands, meet, and each computes the sums that it holds."""
    (sums, _), (a, _), (b, _) = unit.tensors
    wave, size = unit.threads, unit.registers(a)
    env = {axis: (0, extent - 1) for axis, extent in (*unit.axes, ("lane", wave), ("r", unit.registers(sums)))}

    def text(*indices: Index) -> list[str]:
        return [_text(simplify(index, env)) for index in indices]

    row, column = text(*unit.held(sums, var("lane"), var("r")))
    from_a, at_a = text(*unit.holder(a, (var("row"), var("term"))))
    from_b, at_b = text(*unit.holder(b, (var("term"), var("column"))))
    fn = ROUND[unit.precision]
    return f"""\
INLINE void mk_{unit.name}(float *c, const float *a, const float *b) {{
  const int tid = (int)threadIdx.x, lane = tid % {wave}, first = tid - lane;
  for (int r = 0; r < {size}; r++) simt_fragment(tid)[r] = {fn}(a[r]);
  for (int r = 0; r < {unit.registers(b)}; r++) simt_fragment(tid)[{size} + r] = {fn}(b[r]);
  simt_sync(2 + tid / {wave}, {wave});
  for (int r = 0; r < {unit.registers(sums)}; r++) {{
    const int row = {row}, column = {column};
    for (int term = 0; term < {unit.extent("term")}; term++) {{
      const float x = simt_fragment(first + {from_a})[{at_a}], y = simt_fragment(first + {from_b})[{size} + {at_b}];
      c[r] += x * y;
    }}
  }}
  simt_sync(2 + tid / {wave}, {wave});
}}
"""


def _text(index: Index) -> str:
    """C of an index that is never negative."""
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
