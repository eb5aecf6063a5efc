"""Hold the options of a compilation as one value, shared by Python, the command line, sessions and plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from rammer import config
from rammer.errors import InputError, PolicyError, did_you_mean
from rammer.ir.tensor import Array
from rammer.plugins import device_of

if TYPE_CHECKING:
    from rammer.plugins import PluginRegistry
    from rammer.scheduler.policy import Policy
    from rammer.vdevice.base import Progress, VDevice


Target: TypeAlias = Literal["cpu", "interpreter", "cuda", "rocm", "ipu"] | str  # or of a plugin
PolicyName: TypeAlias = (  # maybe with options, or of a plugin
    Literal["auto", "wavefront", "sequential", "round_robin", "stationary", "graphturbo"] | str
)
Precision: TypeAlias = Literal["fp32", "tf32", "bf16"]
Numerics: TypeAlias = Literal["fast", "strict"]


class DeviceKeywords(TypedDict, total=False):
    """Keywords that choose a policy and a device, and how to use them."""

    policy: PolicyName | None
    options: Mapping[str, str] | None
    arch: str | None
    device: str | int | None
    threads: int | None
    precision: Precision | None
    numerics: Numerics | None
    tune_seconds: float | None


class Keywords(DeviceKeywords, total=False):
    """Keywords of `rammer.compile`: the fields of CompileOptions except `target`."""

    shapes: Mapping[str, Sequence[int]] | None
    dims: Mapping[str, int] | None
    constants: Mapping[str, Array] | None
    state: Mapping[str, str] | bool | None
    example: Any
    input_names: Sequence[str] | None
    output_names: Sequence[str] | None
    links: Mapping[str, str] | None
    together: Sequence[Sequence[str]] | None


class AllKeywords(Keywords, total=False):
    """All keywords of `rammer.compile`."""

    how: CompileOptions | None
    progress: Progress | None
    registry: PluginRegistry | None


DEVICE_OPTIONS = ("target", *DeviceKeywords.__annotations__)
"""Options for which a model need not be read again."""


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Keywords of `rammer.compile` as one value. None selects the default: a flag of docs/flags.md, or nothing.

    Attributes:
        target: The vDevice, such as "cpu".
        policy: The scheduling policy, such as "auto", maybe with options: "wavefront:beyond=off".
        options: Options of the policy: {"beyond": "off"}.
        arch: Another CPU or GPU to compile for.
        device: Which device of the target: the number of a GPU; on a CPU the number of vEUs.
        threads: Number of vEUs on a CPU, the same as `device`.
        precision: Precision to which operands of float32 products may be rounded, where the vDevice offers it.
        numerics: "strict" takes only rKernels that propagate infinities and NaNs as the formula does, with the rounding
            errors of direct sums. "fast" also takes Winograd's forms and matrix units.
        tune_seconds: Time for measuring rKernels, and once more for operators that a policy makes.
        shapes: Shapes of inputs whose dimensions the model leaves open.
        dims: Extents of dimensions that the model names.
        constants: Values of inputs, which then are not inputs of the program.
        state: Outputs that are inputs of the next run, each with its input. True finds such pairs by their names.
        example: The input with which a torch.nn.Module is traced.
        input_names: Names of the program's inputs, in order.
        output_names: Names of its outputs, in order.
        links: Of several models: inputs, each with the output of another model that it takes.
        together: Of several models: the sets that get a plan of their own; by default each model.

    Raises:
        RammerError: A time is out of its range.
        PolicyError: `options` is not a mapping.
    """

    target: Target | None = None
    policy: PolicyName | None = None
    options: Mapping[str, str] | None = field(default=None, hash=False)
    arch: str | None = None
    device: str | int | None = None
    threads: int | None = None
    precision: Precision | None = None
    numerics: Numerics | None = None
    tune_seconds: float | None = None
    shapes: Mapping[str, Sequence[int]] | None = field(default=None, hash=False)
    dims: Mapping[str, int] | None = field(default=None, hash=False)
    constants: Mapping[str, Array] | None = field(default=None, hash=False, repr=False)
    state: Mapping[str, str] | bool | None = field(default=None, hash=False)
    example: Any = field(default=None, compare=False, repr=False)
    input_names: Sequence[str] | None = field(default=None, hash=False)
    output_names: Sequence[str] | None = field(default=None, hash=False)
    links: Mapping[str, str] | None = field(default=None, hash=False)
    together: Sequence[Sequence[str]] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        config.number("RAMMER_TUNE_SECONDS", given=self.tune_seconds)
        if self.options is not None and not isinstance(self.options, Mapping):
            raise PolicyError(f"options= is {self.options!r}, not a mapping", hint='for example {"beyond": "off"}')

    def __str__(self) -> str:
        """Return the options that are set."""
        chosen = ((f.name, getattr(self, f.name)) for f in fields(self) if f.repr)
        return ", ".join(f"{name}={value!r}" for name, value in chosen if value is not None) or "defaults"

    @classmethod
    def of(
        cls,
        keywords: Mapping[str, Any],
        caller: str,
        how: CompileOptions | None = None,
        names: Sequence[str] | None = None,
    ) -> CompileOptions:
        """Return the options given as keywords, with others as in `how`.

        `names`: the only ones that the caller accepts. Raises TypeError, in the name of the caller, for another
        keyword, and InputError if `how` sets another option.
        """
        names = names or NAMES
        if unknown := [name for name in keywords if name not in names]:
            hint = did_you_mean(unknown[0], names)
            raise TypeError(f"{caller} got an unexpected keyword argument {unknown[0]!r}{hint and f'; {hint}'}")
        if how is None:
            return cls(**keywords)
        usual = cls()
        if surplus := [n for n in NAMES if n not in names and getattr(how, n) is not getattr(usual, n)]:
            raise InputError(f"{caller} takes no {surplus[0]}= in how=", hint=f"it takes {', '.join(names)}")
        return replace(how, **{name: value for name, value in keywords.items() if value is not None})

    def but(self, **changed: Any) -> CompileOptions:
        """Return these options with some changed."""
        return replace(self, **changed)

    @property
    def to_load(self) -> dict[str, Any]:
        """The options of `read` in models.py."""
        names = ("shapes", "dims", "constants", "example", "links", "input_names", "output_names")
        return {name: getattr(self, name) for name in names}

    @property
    def vdevice(self) -> str:
        """The name of the vDevice: `target`, or RAMMER_VDEVICE."""
        return self.target or config.get("RAMMER_VDEVICE")

    def open_policy(self, registry: PluginRegistry) -> Policy:
        """Find the policy. Raises PolicyError."""
        return registry.policy(self.policy or config.get("RAMMER_POLICY"), self.options)

    def open(self, registry: PluginRegistry) -> tuple[Policy, VDevice]:
        """Find the policy and open the device. The caller closes the device.

        Raises PolicyError or DeviceError for what does not exist, is not available, or is not offered.
        """
        policy = self.open_policy(registry)
        chosen = device_of(self.vdevice, self.device, self.threads)
        device = registry.open(self.vdevice, arch=self.arch, device=chosen)
        try:
            return policy, device.adapted(
                precision=self.precision or config.get("RAMMER_PRECISION"),
                numerics=self.numerics or config.get("RAMMER_NUMERICS"),
            )
        except BaseException:
            device.close()
            raise

    @property
    def budget_s(self) -> float:
        """Seconds for measuring: `tune_seconds`, or RAMMER_TUNE_SECONDS."""
        return config.number("RAMMER_TUNE_SECONDS", given=self.tune_seconds) or 0.0


NAMES = tuple(f.name for f in fields(CompileOptions))
