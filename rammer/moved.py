"""Import modules by their former names, from before the layout of folders, with a DeprecationWarning.

`import rammer` adds a finder behind Python's own. It makes an old name the same module object as the new one, so that
classes, pickles and `python -m` see one definition. Delete an entry when it is no longer used.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType

STAY = ("rammer.backend", "rammer.distributed", "rammer.dynamo")  # names that other projects' settings hold: no warning

_TABLE = """
rammer rammer: children=forkpool
rammer rammer.compiler: candidates collector=gcpause checking once trace
rammer rammer.runtime: program artifact calling=call state outline report usage measure
rammer rammer.session: inference_session=onnxruntime program_cache=cache given=inputs padding=buckets embedding
rammer rammer.session: growing=growing_cache stages=control_flow session_report=report
rammer rammer.integrations: backend=onnx_backend dynamo=torch_dynamo distributed=dask
rammer rammer.tools: demo tables
rammer.ir rammer.planner: memory near pieces succession handover
rammer.ir rammer.ir: pipeline=software_pipeline
rammer.ir rammer.ir.analysis: access dependency footprint intervals order parts simplify
rammer.ir rammer.ir.semantics: evaluate execute expected functions rounding
rammer.ir rammer.ir.verify: proof=kernel proof_update=update flow reference reuse replay
rammer.ir rammer.ir.ops: toom_cook
rammer.kernels rammer.kernels.vectors: block_products chain channel_window contraction generic matrix_unit orders
rammer.kernels rammer.kernels.vectors: recurrent rounded_chain transforms transposed winograd_schedule
rammer.kernels rammer.kernels.threads: threads_cell=cell threads_group=group threads_moves=moves
rammer.kernels rammer.kernels.threads: threads_product=product threads_tensor=tensor threads_terms=terms
rammer.scheduler rammer.scheduler.policies: algorithm1 auto chains locality round_robin
rammer.scheduler rammer.scheduler.policies: sequential stationary wavefront waves
rammer.vdevice rammer.vdevice.ctext: cfamily definitions functions minifloats vectors
rammer.vdevice rammer.vdevice.toolchain: library objects
rammer.vdevice rammer.vdevice.image: memory placement tables
"""  # old folder, new folder: modules, `old=new` where a module has another name


def moved() -> dict[str, str]:
    """Return the new names of modules by their old names."""
    found = {}
    for line in _TABLE.strip().splitlines():
        folders, names = line.split(": ")
        old, new = folders.split()
        for name in names.split():
            before, _, after = name.partition("=")
            found[f"{old}.{before}"] = f"{new}.{after or before}"
    return found


class _Alias(Loader):
    """Load a module by registering it under one more name."""

    def __init__(self, real: ModuleSpec) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return import_module(self._real.name)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._real  # the import system has put the alias's there

    def get_code(self, name: str) -> CodeType | None:
        """Return the module's code, for `python -m`, which runs it as `__main__`."""
        assert isinstance(self._real.loader, InspectLoader)
        return self._real.loader.get_code(self._real.name)


class Finder(MetaPathFinder):
    """Find modules of `table` by their old names. It comes last, so other imports cost nothing more."""

    def __init__(self, table: dict[str, str]) -> None:
        self._table = table

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if (new := self._table.get(name)) is None:
            return None
        if name not in STAY:
            # of the importing line: warnings skip the frames of the import system
            warnings.warn(f"{name} is {new} now", DeprecationWarning, stacklevel=2)
        real = find_spec(new)
        assert real
        spec = ModuleSpec(name, _Alias(real), origin=real.origin)
        spec.has_location = True  # so that `python -m` knows `__file__`
        return spec


def install(table: dict[str, str]) -> None:
    """Make modules importable by the old names in `table`."""
    sys.meta_path.append(Finder(table))
