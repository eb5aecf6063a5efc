"""Compile models into Programs, in stages that are values. Known as: a compiler driver.

`compile` runs all stages; `Compilation` stops at a stage, or continues from one. `CompileOptions` has the options.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Unpack, overload

from rammer.compiler.compilation import Compilation
from rammer.compiler.gcpause import seldom
from rammer.compiler.joint import compile_jointly
from rammer.compiler.models import Model, from_torch, load
from rammer.compiler.options import CompileOptions, Keywords
from rammer.compiler.progress import progress_bar
from rammer.compiler.stages import Built, CandidateSet, Optimized, Planned, Profiled, Proven
from rammer.plugins import PluginRegistry
from rammer.runtime.joint import JointProgram
from rammer.runtime.program import Program
from rammer.vdevice.base import Progress


@overload
def compile(
    model: Mapping[str, Any],
    target: str | None = None,
    *,
    how: CompileOptions | None = None,
    progress: Progress | None = None,
    registry: PluginRegistry | None = None,
    **keywords: Unpack[Keywords],
) -> JointProgram: ...


@overload
def compile(
    model: Model,
    target: str | None = None,
    *,
    how: CompileOptions | None = None,
    progress: Progress | None = None,
    registry: PluginRegistry | None = None,
    **keywords: Unpack[Keywords],
) -> Program: ...


@seldom()
def compile(
    model: Model,
    target: str | None = None,
    *,
    how: CompileOptions | None = None,
    progress: Progress | None = None,
    registry: PluginRegistry | None = None,
    **keywords: Unpack[Keywords],
) -> Program:
    """Compile a model for a vDevice into a Program. Raises a RammerError that names what failed.

    Keywords are the fields of CompileOptions; those that are not given are taken from `how`.

    * `target` is a vDevice ("cpu") and `policy=` a scheduling policy ("auto"), by default those of RAMMER_VDEVICE and
      RAMMER_POLICY. `options=` are the policy's: {"beyond": "off"} is the same as "wavefront:beyond=off".
    * `device=` selects among devices of a target; for "cpu" it is the number of vEUs. `arch=` names another CPU or GPU.
    * `shapes=`, `dims=` and `constants=` fix dimensions and values of inputs. `example=` is the input with which a
      torch.nn.Module is traced, as for `load`.
    * `state={"h_out": "h_in"}` makes outputs inputs of the next run, which stay in the program. True finds such pairs
      by their names.
    * `tune_seconds=` bounds the time for measuring rKernels, and once more for operators that a policy makes.
    * `precision=` is the precision to which products of float32 may be rounded: "fp32" (the default: exact), or where
      the vDevice offers them "tf32" and "bf16", for its matrix units.
    * `progress` is called with (what, done, total). By default, a terminal or a notebook shows a bar.
    * `numerics="strict"` takes only rKernels that propagate infinities and NaNs exactly as the formula does, with the
      rounding errors of direct sums. "fast" (the default) also takes Winograd's forms and matrix units.

    Several models, `{"vad": "vad.onnx", …}`, become one JointProgram with ports MODEL.PORT, and one plan for all.

    * `links={"denoiser.x": "vad.y"}` passes an output of one model to an input of another. Neither is a port then.
    * `together=[("vad",), ("vad", "denoiser")]` compiles plans for these sets of models besides, by default one for
      each model: `program.part("vad")`.
    """
    options = CompileOptions.of({"target": target, **keywords}, "compile()", how)
    with progress_bar() if progress is None else nullcontext(progress) as show:
        if isinstance(model, Mapping):
            return compile_jointly(model, options, registry or PluginRegistry(), show)
        with Compilation.of(model, options, registry=registry, progress=show) as compilation:
            return compilation.program()


__all__ = [
    "Built",
    "CandidateSet",
    "Compilation",
    "CompileOptions",
    "Model",
    "Optimized",
    "Planned",
    "Profiled",
    "Proven",
    "compile",
    "from_torch",
    "load",
]
