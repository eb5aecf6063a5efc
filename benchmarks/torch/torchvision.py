"""Compare all of torchvision's classifiers with eager PyTorch: `python -m benchmarks.torch.torchvision [MODEL…]`.

Each has a process of its own and seeded weights. It runs by `rammer.from_torch`, and by
`torch.compile(backend="rammer")`.
"""

from __future__ import annotations

import json
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.compare.apart import Answer, Apart
from rammer import files
from rammer.errors import FallbackWarning, RammerError, did_you_mean

TOLERANCE = 1e-3  # of the largest output
LEAST_REACH = 0.02  # another image must change the output by so much of it: else nothing was compared
WAYS = ("from_torch", "torch_compile")
LIMIT_S = 900.0


def checker(name: str, size: int, threads: int) -> Callable[[str], Answer]:
    """Answers a way with its seconds and its error over the largest output, for two images, and with what fell back.

    Beside it what eager PyTorch's own rounding is: its error against itself in float64.
    """
    import torch

    import rammer
    from benchmarks.torch.modules import classifier, image

    torch.set_num_threads(threads)
    module, images = classifier(name, size), [image(size, seed) for seed in (1, 2)]
    options: dict[str, Any] = {"device": threads, "tune_seconds": 0.0}
    with torch.no_grad():
        wanted = [module(x) for x in images]
        exact = [module.double()(x.double()) for x in images]
    module.float()
    top = max(float(y.abs().max()) for y in wanted)
    reach = float((wanted[0] - wanted[1]).abs().max()) / top

    rounding = max(float((y - z).abs().max()) for y, z in zip(wanted, exact, strict=True)) / top

    def error(run: Callable[[Any], Any]) -> float:
        return max(float((run(x) - y).abs().max()) for x, y in zip(images, wanted, strict=True)) / top

    def answer(way: str) -> Answer:
        start = time.perf_counter()
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if way == "from_torch":
                with rammer.compile(rammer.from_torch(module, images[0]), **options) as program:
                    seconds = time.perf_counter() - start
                    far = error(lambda x: torch.from_dlpack(program(x)))
            else:
                run = torch.compile(module, backend="rammer", options=options)
                run(images[0])
                seconds = time.perf_counter() - start
                far = error(run)
        fell = [str(w.message) for w in said if issubclass(w.category, FallbackWarning)]
        gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return {way: far, f"{way}_s": seconds, "rounding": rounding, "reach": reach, "fell_back": fell, "gib": gib}

    return answer


def checked(name: str, size: int, threads: int, limit_s: float) -> Answer:
    """What both ways give; a way that fails, or takes longer than `limit_s`, keeps what the other one gave."""
    found: Answer = {"size": size, "fell_back": []}
    with Apart(checker, name, size, threads) as process:
        for way in WAYS:
            try:
                answer = process.ask(way, limit_s)
            except RammerError as failure:
                return found | {"failed": f"{way}: {failure.what}"}
            found |= answer | {"fell_back": found["fell_back"] + answer["fell_back"]}
    return found


def verdict(found: Answer) -> str:
    """Empty, or what is wrong."""
    if "failed" in found:
        return str(found["failed"])
    if not found["reach"] > LEAST_REACH:
        return f"the output hardly depends on the image: {found['reach']:.1e}"
    if wrong := [f"{way}: {found[way]:.1e}" for way in WAYS if not found[way] < TOLERANCE]:
        return f"wrong by {', '.join(wrong)}"
    return "; ".join(found["fell_back"])


@click.command()
@click.argument("models", nargs=-1)
@click.option("--size", default=0, help="Of images; else the least that the architecture admits, from 64 on.")
@click.option("--threads", default=2, show_default=True)
@click.option("--limit", "limit_s", default=LIMIT_S, show_default=True, help="Seconds for each way.")
@click.option(
    "--json", "output", type=click.Path(path_type=Path), help="Keep results; what is in it is not made again."
)
def main(models: tuple[str, ...], size: int, threads: int, limit_s: float, output: Path | None) -> None:
    """Check MODELS, or all. Exits with 1 if one is wrong, fails, or falls back to eager PyTorch."""
    from benchmarks.torch.modules import classifiers, least_size

    known = classifiers()
    for name in models:
        if name not in known:
            raise click.BadParameter(f"no model named {name!r}; {did_you_mean(name, known)}")
    results: dict[str, Answer] = json.loads(output.read_text()) if output and output.exists() else {}
    bad = 0
    for name in models or known:
        key = f"{name}:{size}" if size else name
        if key not in results:
            results[key] = checked(name, size or least_size(name), threads, limit_s)
            if output:
                files.write(output, json.dumps(results, indent=1))
        found = results[key]
        if wrong := verdict(found):
            bad += 1
            click.echo(f"{key:24} WRONG: {wrong}")
        else:
            ways = "  ".join(f"{way} {found[way]:.1e} in {found[f'{way}_s']:5.1f} s" for way in WAYS)
            click.echo(f"{key:24} {found['size']:4d} px  {ways}  {found['gib']:4.1f} GiB")
    click.echo(f"{len(models or known) - bad} of {len(models or known)} are right")
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    main()
