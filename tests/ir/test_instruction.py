"""Instructions of all backends: their layouts, which proofs and texts rely on."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest

from rammer.ir.index import evaluate, var
from rammer.ir.instruction import Instruction, padded, place
from rammer.ir.tensor import Digit, Layout
from rammer.vdevice.cpu.codegen.amx import AMX
from rammer.vdevice.cpu.codegen.dots import AVX512_BF16
from rammer.vdevice.cpu.codegen.vnni import AVX2, AVX512, VNNI
from rammer.vdevice.rocm.matrix_cores import MATRIX_CORES
from rammer.vdevice.simt.codegen.mma import SM_80

WAVES = {f"{arch} {i.name}": i for arch, found in {"sm_80": SM_80, **MATRIX_CORES}.items() for i in found}
TABLES = {"AMX": AMX, "AVX512-BF16": AVX512_BF16, "AVX512-VNNI": VNNI, "AVX512": AVX512, "AVX2": AVX2}
ALONE = {f"{cpu} {i.name}": i for cpu, found in TABLES.items() for i in found}


@pytest.mark.parametrize("name", WAVES)
def test_every_element_is_held_by_one_thread_in_one_register(name: str) -> None:
    unit = WAVES[name]
    for tensor, kind in unit.tensors:
        registers = unit.registers(tensor)
        assert registers * unit.threads == prod(kind.shape)
        element = unit.held(tensor, var("thread"), var("register"))
        holder = unit.holder(tensor, element)
        seen = set()
        for thread, register in product(range(unit.threads), range(registers)):
            env = {"thread": thread, "register": register}
            assert [evaluate(i, env) for i in holder] == [thread, register]
            seen.add(tuple(int(evaluate(i, env)) for i in element))
        assert seen == set(product(*map(range, kind.shape)))


@pytest.mark.parametrize("name", WAVES)
def test_digits_of_the_thread_are_the_same_in_all_operands(name: str) -> None:
    """`kernels.lower.multiply` takes the digit of one for that of another."""
    unit = WAVES[name]
    sizes = {tuple(k.physical_shape[: len(unit.digits(t)[0])]) for t, k in unit.tensors}
    assert len(sizes) == 1 and prod(sizes.pop()) == unit.threads


@pytest.mark.parametrize("name", ALONE)
def test_blocks_lie_one_after_another(name: str) -> None:
    """Where an instruction is repeated along an axis, its layouts have a place for each element, and encoded blocks."""
    unit = ALONE[name]
    for times in (1, 3):
        for tensor, kind in unit.types({axis: times * extent for axis, extent in unit.axes}):
            digits = kind.layout.digits if kind.layout else ()
            if times > 1 and {d.dim for d in digits if not d.mod} != {d.dim for d in digits}:
                continue  # a panel has the columns of one, or the rows
            if unit.copies and tensor != unit.meaning.root.name:
                continue  # its source lies as it is told
            index = place(kind.layout, kind.shape, [var(a) for a in unit.axes_of(tensor)])
            axes = unit.axes_of(tensor)
            places = {int(evaluate(index, dict(zip(axes, at, strict=True)))) for at in product(*map(range, kind.shape))}
            assert places == set(range(prod(kind.shape)))
            encoding = kind.layout.encoding if kind.layout else None
            assert encoding is None or len(places) % encoding.block == 0


def test_what_a_layout_pads_is_written_too() -> None:
    layout = Layout((Digit(0, 16), Digit(1), Digit(0, 1, 16)))
    assert padded(layout, (17, 5)) == (32, 5)
    assert padded(None, (17, 5)) == (17, 5)


@pytest.mark.parametrize("unit", [*WAVES.values(), *ALONE.values()], ids=[*WAVES, *ALONE])
def test_an_instruction_multiplies_or_copies(unit: Instruction) -> None:
    assert unit.multiplies != unit.copies
