"""Define every operator once, as a tensor expression."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rammer.ir.operator import OpDef
from rammer.ir.ops import (
    block_weights,
    complex_numbers,
    conv,
    elementwise,
    layout,
    matmul,
    normalize,
    pool,
    probe,
    recurrent,
    reduce,
    resample,
    sort,
    transforms,
    update,
)

_MODULES = (
    elementwise,
    matmul,
    block_weights,
    conv,
    pool,
    reduce,
    resample,
    sort,
    transforms,
    normalize,
    layout,
    recurrent,
    probe,
    update,
    complex_numbers,
)

OPS: Mapping[str, OpDef] = MappingProxyType({d.name: d for module in _MODULES for d in module.DEFINITIONS})
