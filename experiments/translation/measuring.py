"""The measure stage: which times are taken, on which weights, and where they are written."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from translation import timing
from translation.data import Prepared, load_prepared
from translation.model import Translator
from translation.outputs import OUTPUTS
from translation.runs import BEAMS, Folder, load_model, start_device, write_json
from translation.training import TrainingConfig, measured_tau

PARTS = ("steps", "large", "decoding", "tau")


def measure(results: Path, prepared_at: Path, config: TrainingConfig, options: Namespace) -> None:
    """Each part is written when it is done, and not done again."""
    device = start_device(options.device)
    prepared = load_prepared(prepared_at)
    path = results / "measure.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    for part in options.only or PARTS:
        if part in found:
            print(f"{part}: measured already")
            continue
        began = time.perf_counter()
        if part == "steps":
            rows: list[dict[str, Any]] = []
            for row in _steps(prepared, config, device, Folder(results), options):
                rows.append(row)
                write_json(path.with_name("measure.unfinished.json"), found | {part: rows})
            found[part] = rows
            path.with_name("measure.unfinished.json").unlink(missing_ok=True)
        elif part == "large":
            found[part] = list(_large(prepared, config, device, options))
        elif part == "decoding":
            found[part] = _decoding(prepared, config, device, Folder(results), options)
        else:
            found[part] = timing.tau_table(prepared, config, device)
        if part != "tau":  # no time is taken there
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
            found |= {"device": name, "torch": torch.__version__}
        print(f"{part}: {time.perf_counter() - began:.0f} s", flush=True)
        write_json(path, found)


def trained_models(
    prepared: Prepared, config: TrainingConfig, device: torch.device, folder: Folder
) -> tuple[dict[str, tuple[Translator, float]], str]:
    """Seed 0 of every output where it was trained; else a few hundred steps, and it says so."""
    configs = {o: replace(config, output=o, seed=0, tau=None) for o in OUTPUTS}
    if all(folder.checkpoint(c.name).is_file() for c in configs.values()):
        return {o: load_model(prepared, c, folder, device) for o, c in configs.items()}, "trained"
    steps = min(300, config.steps)
    batches = timing.fixed_batches(prepared, config, device, min(steps, 150))
    fresh = timing.fresh_models(prepared, config, device)
    tau = measured_tau(fresh["softmax"], batches[0])
    models = timing.trained_a_little(fresh, tau, batches, steps, config.learning_rate / 2)
    return {o: (m, tau) for o, m in models.items()}, f"after {steps} steps"


def _steps(
    prepared: Prepared,
    config: TrainingConfig,
    device: torch.device,
    folder: Folder,
    options: Namespace,
) -> Iterator[dict[str, Any]]:
    batches = timing.fixed_batches(prepared, config, device, options.batches)
    fresh = timing.fresh_models(prepared, config, device)
    tau = measured_tau(fresh["softmax"], batches[0])
    yield _take("at the start", fresh, tau, batches, options)
    models, state = trained_models(prepared, config, device, folder)
    weights = {output: model for output, (model, _) in models.items()}
    yield _take(state, weights, models["alpha_relu"][1], batches, options)


def _large(
    prepared: Prepared, config: TrainingConfig, device: torch.device, options: Namespace
) -> Iterator[dict[str, Any]]:
    """A head with more classes than there are units: the others are never the target."""
    batches = timing.fixed_batches(prepared, config, device, options.batches)
    models = timing.fresh_models(prepared, config, device, options.large)
    tau = measured_tau(models["softmax"], batches[0])
    steps = min(50, config.steps)
    little = timing.trained_a_little(models, tau, batches, steps, config.learning_rate / 2)
    yield _take(f"after {steps} steps", little, tau, batches, options)


def _take(
    state: str,
    models: dict[str, Translator],
    tau: float,
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    options: Namespace,
) -> dict[str, Any]:
    row = timing.step_times(
        models,
        tau,
        batches,
        rounds=options.rounds,
        peers=not options.no_peers,
        progress=lambda line: print(f"{state}: {line}", flush=True),
    )
    return {"state": state, **row}


def _decoding(
    prepared: Prepared,
    config: TrainingConfig,
    device: torch.device,
    folder: Folder,
    options: Namespace,
) -> dict[str, Any]:
    models, state = trained_models(prepared, config, device, folder)
    source = prepared.part("test")[0][: options.sentences]
    rows = timing.decoding_times(
        models,
        source,
        BEAMS,
        rounds=options.rounds,
        peers=not options.no_peers,
        progress=lambda line: print(line, flush=True),
    )
    return {"state": state, "rows": rows}
