"""All of torchvision's classification models beside eager PyTorch: `python -m benchmarks.torchvision [MODEL…]`.

Each in a process of its own, with seeded weights: by `rammer.from_torch`, and by `torch.compile(backend="rammer")`.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmarks.apart import Answer, Apart
from rammer import files
from rammer.errors import FallbackWarning, RammerError, did_you_mean

TOLERANCE = 1e-3  # of the largest output
LEAST_REACH = 0.02  # another image must change the output by so much of it: else nothing was compared
MODEL_S = 900.0


def checker(name: str, size: int, threads: int) -> Callable[[str], Answer]:
    """Answers with the errors of both ways over the largest output, for two images, and with what fell back."""

    def answer(_: str) -> Answer:
        import torch

        import rammer
        from benchmarks.torch_modules import classifier, image, least_size

        torch.set_num_threads(threads)
        extent = size or least_size(name)
        module, images = classifier(name, extent), [image(extent, seed) for seed in (1, 2)]
        options: dict[str, Any] = {"device": threads, "tune_seconds": 0.0}
        found: Answer = {"size": extent}
        with torch.no_grad(), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            wanted = [module(x) for x in images]
            top = max(float(y.abs().max()) for y in wanted)
            found["reach"] = float((wanted[0] - wanted[1]).abs().max()) / top

            def error(run: Callable[[Any], Any]) -> float:
                return max(float((run(x) - y).abs().max()) for x, y in zip(images, wanted, strict=True)) / top

            start = time.perf_counter()
            with rammer.compile(rammer.from_torch(module, images[0]), **options) as program:
                found["from_torch_s"] = time.perf_counter() - start
                found["from_torch"] = error(lambda x: torch.from_dlpack(program(x)))
            start = time.perf_counter()
            run = torch.compile(module, backend="rammer", options=options)
            run(images[0])
            found["torch_compile_s"] = time.perf_counter() - start
            found["torch_compile"] = error(run)
        found["fell_back"] = [str(w.message) for w in said if issubclass(w.category, FallbackWarning)]
        return found

    return answer


def verdict(found: Answer) -> str:
    """Empty, or what is wrong."""
    if "failed" in found:
        return str(found["failed"])
    if not found["reach"] > LEAST_REACH:
        return f"the output hardly depends on the image: {found['reach']:.1e}"
    if wrong := [f"{way}: {found[way]:.1e}" for way in ("from_torch", "torch_compile") if not found[way] < TOLERANCE]:
        return f"wrong by {', '.join(wrong)}"
    return "; ".join(found["fell_back"])


@click.command()
@click.argument("models", nargs=-1)
@click.option("--size", default=0, help="Of images; else the least that the architecture admits, from 64 on.")
@click.option("--threads", default=2, show_default=True)
@click.option(
    "--json", "output", type=click.Path(path_type=Path), help="Keep results; what is in it is not made again."
)
def main(models: tuple[str, ...], size: int, threads: int, output: Path | None) -> None:
    """Check MODELS, or all. Exits with 1 if one is wrong, fails, or falls back to eager PyTorch."""
    from benchmarks.torch_modules import classifiers

    known = classifiers()
    for name in models:
        if name not in known:
            raise click.BadParameter(f"no model named {name!r}; {did_you_mean(name, known)}")
    results: dict[str, Answer] = json.loads(output.read_text()) if output and output.exists() else {}
    bad = 0
    for name in models or known:
        key = f"{name}:{size}" if size else name
        if key not in results:
            with Apart(checker, name, size, threads) as process:
                try:
                    results[key] = process.ask("", MODEL_S)
                except RammerError as failure:
                    results[key] = {"failed": failure.what}
            if output:
                files.write(output, json.dumps(results, indent=1))
        found = results[key]
        if wrong := verdict(found):
            bad += 1
            click.echo(f"{key:24} WRONG: {wrong}")
        else:
            ways = "  ".join(
                f"{way} {found[way]:.1e} in {found[f'{way}_s']:5.1f} s" for way in ("from_torch", "torch_compile")
            )
            click.echo(f"{key:24} {found['size']:4d} px  {ways}")
    click.echo(f"{len(models or known) - bad} of {len(models or known)} are right")
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    main()
