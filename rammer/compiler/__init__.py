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
from rammer.compiler.models import Model, from_onnx, from_tensorflow, from_torch, import_model
from rammer.compiler.options import AllKeywords, CompileOptions, Keywords, Target
from rammer.compiler.progress import progress_bar
from rammer.compiler.stages import Built, CandidateSet, Optimized, Planned, Profiled, Proven
from rammer.plugins import PluginRegistry
from rammer.runtime.joint import JointProgram
from rammer.runtime.program import Program
from rammer.vdevice.base import Progress


@overload
def compile(
    model: Mapping[str, Any], target: Target | None = None, **keywords: Unpack[AllKeywords]
) -> JointProgram: ...


@overload
def compile(model: Model, target: Target | None = None, **keywords: Unpack[AllKeywords]) -> Program: ...


@seldom()
def compile(
    model: Model,
    target: Target | None = None,
    *,
    how: CompileOptions | None = None,
    progress: Progress | None = None,
    registry: PluginRegistry | None = None,
    **keywords: Unpack[Keywords],
) -> Program:
    """Compile a model for a vDevice into a Program.

    Args:
        model: A path to an ONNX or TensorFlow model, its bytes, a ModelProto, a torch.nn.Module with `example=`, an
            ExportedProgram, or a Graph. Several models, `{"vad": "vad.onnx", …}`, become one JointProgram with ports
            MODEL.PORT, and one plan for all.
        target: The vDevice: "cpu" by default, or that of RAMMER_VDEVICE.
        how: Options as one value. Those that are given as keywords count before these.
        progress: Called with what is done, how much of it, and of how many. By default a terminal or a notebook shows
            a bar.
        registry: The plugins to use; by default all that are installed.
        policy (str): The scheduling policy: "auto" by default, or that of RAMMER_POLICY. It may have options:
            "wavefront:beyond=off".
        options (Mapping[str, str]): Options of the policy: {"beyond": "off"}.
        threads (int): Number of vEUs on a CPU; by default one for each core that the process may use.
        device (str | int): Which device of the target: the number of a GPU, "emulator"; on a CPU the same as `threads`.
        arch (str): Another CPU or GPU to compile for: "x86-64-avx2", "sm_90".
        precision ("fp32" | "tf32" | "bf16"): To what operands of float32 products may be rounded, for matrix units.
        numerics ("fast" | "strict"): "strict": infinities, NaNs and rounding errors are those of direct sums. "fast",
            the default, also takes Winograd's forms and matrix units.
        tune_seconds (float): Time for measuring rKernels, and once more for operators that a policy makes.
        shapes (Mapping[str, Sequence[int]]): Shapes of inputs that the model leaves open: {"x": (1, 3, 8, 8)}.
        dims (Mapping[str, int]): Extents of dimensions that the model names: {"batch": 1}.
        constants (Mapping[str, Array]): Values of inputs, which then are not inputs of the program.
        state (Mapping[str, str] | bool): Outputs that are inputs of the next run: {"h_out": "h_in"}. They stay in the
            program. True finds such pairs by their names.
        example (Any): The input with which a torch.nn.Module is traced, as for `from_torch`.
        input_names (Sequence[str]): Names of the program's inputs, in order; by default the model's.
        output_names (Sequence[str]): Names of its outputs, in order.
        links (Mapping[str, str]): Of several models: {"denoiser.x": "vad.y"} passes an output of one to an input of
            another. Neither is a port then.
        together (Sequence[Sequence[str]]): Of several models: the sets that get a plan besides, for
            `program.part("vad")`; by default each model.

    Returns:
        The program, ready to run.

    Raises:
        ModelError: The model is malformed, over a limit, or has operators that rammer lacks.
        InputError: An argument names what the model does not have.
        DeviceError: The vDevice is unavailable, or does not offer an option.
        PolicyError: The policy or an option of it does not exist.
        ToolchainError: A compiler is missing, failed or took too long.
        VerificationError: A plan or an image broke a rule: a fault of rammer or of a plugin.
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
    "from_onnx",
    "from_tensorflow",
    "from_torch",
    "import_model",
]
