"""Estimate the speed-up on a Graphcore IPU: recurrent models with 4 layers, as in §5.3.2 of the paper, emulated.

Run `python -m benchmarks.gpu.ipu [--arch gc2] [--policies sequential,wavefront] [--json FILE] [MODEL…]`. Models of
other suites keep their layers. Nothing runs on an IPU: cycles are the emulator's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import rammer
from benchmarks.models import catalog, rnn
from benchmarks.models.build import find
from rammer import files
from rammer.errors import RammerError
from rammer.scheduler.policy_options import split_policies
from rammer.vdevice.ipu.codegen.build import emit
from rammer.vdevice.ipu.spec import parse_arch

LAYERS = 4  # so that the models fit a GC2
PAPER = "up to 5.37"  # Figure 20, against RammerBase
MODELS = ("lstm_tc_unrolled", "deepspeech2_unrolled", "seq2seq_unrolled")


def model_with_layers(name: str, layers: int, steps: int | None = None) -> tuple[bytes, dict[str, Any], dict[str, Any]]:
    """A model of full width with another number of layers (and steps): ONNX bytes, an input, and torch's output."""
    tc, speech, translation = rnn.TC["full"], rnn.SPEECH["full"], rnn.TRANSLATION["full"]
    tc = replace(tc, layers=layers, steps=steps or tc.steps)
    speech = replace(speech, layers=layers, length=4 * steps if steps else speech.length)
    translation = replace(
        translation,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_steps=steps or translation.encoder_steps,
        decoder_steps=steps or translation.decoder_steps,
    )
    with (
        mock.patch.dict(rnn.TC, full=tc),
        mock.patch.dict(rnn.SPEECH, full=speech),
        mock.patch.dict(rnn.TRANSLATION, full=translation),
    ):
        spec = find(name)
        module = spec.build_module("full")
        example = spec.example_inputs("full", 1)
        with torch.no_grad():
            output = module(example["input"])
        model = spec.to_onnx(module, example)
    return model.SerializeToString(), {"input": example["input"].numpy()}, {"output": output.numpy()}


def model_of(name: str, steps: int | None) -> tuple[bytes | Path, dict[str, Any], dict[str, Any]]:
    """The paper's with 4 layers; any other by NAME or NAME:BATCH as it is."""
    if name in MODELS:
        return model_with_layers(name, LAYERS, steps)
    built = catalog.named(name).built
    return built.path, built.inputs, built.outputs


@click.command()
@click.argument("names", nargs=-1)
@click.option("--arch", default="gc2", show_default=True, help="gc2, gc200 or bow, with :tiles behind.")
@click.option("--steps", type=int, help="Time steps, in place of the paper's.")
@click.option("--policies", default="sequential,wavefront", show_default=True, help="The first one is the base.")
@click.option("--json", "result", type=click.Path(path_type=Path), help="Add the figures to this file, model by model.")
def main(names: tuple[str, ...], arch: str, steps: int | None, policies: str, result: Path | None) -> None:
    """Compile NAMES (all three when empty) under each policy and print estimated times."""
    console = Console(width=190)
    table = Table("model", "policy", "estimated ms", "cycles", "supersteps", "compute", "exchange", "sync",
                  "bytes exchanged", "rTasks", "vertices", "tiles busy", "fullest tile, bytes", "C++ kB", "build s",
                  "largest error", "speed-up", box=None)  # fmt: skip
    figures: dict[str, Any] = json.loads(result.read_text()) if result and result.exists() else {}
    for name in names or MODELS:
        model, inputs, wanted = model_of(name, steps)
        base = 0.0
        for policy in split_policies(policies):
            try:
                program = rammer.compile(model, target="ipu", device="emulator", arch=arch, policy=policy)
            except RammerError as error:
                console.print(f"{name}, {policy}: {error}", highlight=False, markup=False)
                continue
            with program:
                found = program.run(inputs)
                profile = program.executable.profile()  # type: ignore[attr-defined]
                placed, _ = emit(program.plan, parse_arch(arch))
                row = {
                    "arch": arch,
                    "estimated_us": profile.estimated_us,
                    **profile.totals,
                    "utilisation": profile.utilisation,
                    "rtasks": program.plan.num_rtasks,
                    "graph_vertices": placed.num_vertices,
                    "source_bytes": program.executable.source_bytes,  # type: ignore[attr-defined]
                    "build_seconds": program.report().phases_s["build"],
                    "largest_error": max(float(np.abs(found[k] - v).max()) for k, v in wanted.items()),
                }
            base = base or profile.estimated_us
            row["speedup"] = base / profile.estimated_us
            figures.setdefault(name, {})[policy] = row
            if result:
                files.write(result, json.dumps(figures, indent=1) + "\n")
            parts = (f"{row[f'{part}_cycles'] / row['cycles']:.1%}" for part in ("compute", "exchange", "sync"))
            table.add_row(
                name, policy, f"{profile.estimated_us / 1e3:.3f}", str(row["cycles"]), str(row["supersteps"]), *parts,
                str(row["exchange_bytes"]), str(row["rtasks"]), str(row["graph_vertices"]),
                f"{profile.utilisation:.1%}", str(row["peak_tile_bytes"]), f"{row['source_bytes'] / 1e3:.0f}",
                f"{row['build_seconds']:.0f}", f"{row['largest_error']:.1e}", f"{row['speedup']:.2f}",
            )  # fmt: skip
    console.print(table)
    console.print(f"The paper reports {PAPER} times over RammerBase. All figures here are estimates of an emulator.")


if __name__ == "__main__":
    main()
