"""Time per training step and per decoded sentence, the variants taking turns on an idle device.

Turns, because clocks and caches drift: every round runs every variant for a few steps on the same
batches, and the median over rounds is reported.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

import uncork.nn as unn
from translation.data import Prepared
from translation.model import ModelConfig, Translator
from translation.outputs import (
    OUTPUTS,
    PEERS,
    TITLES,
    Best,
    Loss,
    best_scores,
    loss_function,
    peer_best_scores,
    peer_loss_function,
)
from translation.search import Translated, translate
from translation.training import (
    Feed,
    Step,
    TrainingConfig,
    autocast,
    measured_tau,
    new_optimiser,
)

Tensor = torch.Tensor
Progress = Callable[[str], None]
PEER_OUTPUT = dict(zip(PEERS, ("sparsemax", "entmax"), strict=True))
KS = (None, 512)  # what the entmax package sorts: all logits, or the 512 largest first


@dataclass(frozen=True)
class Variant:
    label: str
    output: str  # whose weights it runs on
    loss: Loss


def variants(tau: float, peers: bool = True) -> list[Variant]:
    ours = [Variant(TITLES[o], o, loss_function(o, tau)) for o in OUTPUTS]
    if not peers:
        return ours
    return ours + [
        Variant(peer_label(p, k), PEER_OUTPUT[p], peer_loss_function(p, k))
        for p in PEERS
        for k in KS
    ]


def peer_label(peer: str, k: int | None) -> str:
    return f"{peer} (all sorted)" if k is None else f"{peer} (k = {k})"


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, work: Callable[[], object]) -> float:
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def step_times(
    models: dict[str, Translator],
    tau: float,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    rounds: int = 5,
    peers: bool = True,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Milliseconds a training step, and of the loss alone (forward and backward), by variant.

    Every variant steps its own copy of its output's weights, with a learning rate too small to
    change them, so the state that is timed is the one that was given.
    """
    device = batches[0][0].device
    chosen = variants(tau, peers)
    steps = {}
    for variant in chosen:
        model = copy.deepcopy(models[variant.output]).train()
        steps[variant.label] = Step(model, variant.loss, new_optimiser(model, 1e-12))
    whole: dict[str, list[float]] = {v.label: [] for v in chosen}
    alone: dict[str, list[float]] = {v.label: [] for v in chosen}
    for turn in range(rounds + 1):  # the first round warms up
        for variant in chosen:
            step = steps[variant.label]
            seconds = timed(device, partial(_all_steps, step, batches))
            logits, target = _logits(step.model, batches[-1])
            loss_seconds = timed(device, partial(_loss_only, variant.loss, logits, target, 5))
            milliseconds = 1000 * seconds / len(batches)
            progress(f"round {turn} of {rounds}, {variant.label}: {milliseconds:.1f} ms a step")
            if turn:
                whole[variant.label].append(milliseconds)
                alone[variant.label].append(1000 * loss_seconds / 5)
    return {
        "rows": int(np.mean([b[1][:, 1:].numel() for b in batches])),
        "classes": next(iter(models.values())).config.target_units,
        "milliseconds_a_step": {k: _summary(v) for k, v in whole.items()},
        "milliseconds_the_loss_alone": {k: _summary(v) for k, v in alone.items()},
    }


def _logits(model: Translator, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    source, target = batch
    with torch.no_grad(), autocast(source.device):
        logits = model(source, target[:, :-1]).float().flatten(0, 1)
    return logits.requires_grad_(), target[:, 1:].flatten()


def _all_steps(step: Step, batches: Sequence[tuple[Tensor, Tensor]]) -> None:
    for batch in batches:
        step(*batch)


def _loss_only(loss: Loss, logits: Tensor, target: Tensor, times: int) -> None:
    for _ in range(times):
        logits.grad = None
        loss(logits, target).backward()


def _summary(values: Sequence[float]) -> dict[str, float]:
    return {
        "median": float(np.median(values)),
        "least": float(np.min(values)),
        "most": float(np.max(values)),
    }


def fresh_models(
    prepared: Prepared, config: TrainingConfig, device: torch.device, classes: int | None = None
) -> dict[str, Translator]:
    """One untrained model, for all outputs; with more classes than units the rest never occur."""
    torch.manual_seed(config.seed)
    shape = config.model(prepared)
    model = Translator(replace(shape, target_units=classes or shape.target_units)).to(device)
    return dict.fromkeys(OUTPUTS, model)


def trained_a_little(
    models: dict[str, Translator],
    tau: float,
    batches: Sequence[tuple[Tensor, Tensor]],
    steps: int,
    learning_rate: float,
) -> dict[str, Translator]:
    """Each output's own copy after a few steps, for when there is no checkpoint to time."""
    found = {}
    for output, model in models.items():
        model = copy.deepcopy(model).train()
        step = Step(model, loss_function(output, tau), new_optimiser(model, learning_rate))
        for index in range(steps):
            step(*batches[index % len(batches)])
        found[output] = model.eval()
    return found


def fixed_batches(
    prepared: Prepared, config: TrainingConfig, device: torch.device, count: int
) -> list[tuple[Tensor, Tensor]]:
    feed = iter(Feed(prepared, config.batch_tokens, config.seed, device))
    return [next(feed) for _ in range(count)]


def decoding_times(
    models: dict[str, tuple[Translator, float]],
    source: np.ndarray,
    beams: Sequence[int],
    *,
    rounds: int = 3,
    peers: bool = True,
    progress: Progress = lambda line: None,
) -> list[dict[str, Any]]:
    """Seconds for all sentences by output and beam; the package's entmax on entmax's weights.

    A batch takes as many steps as its longest translation has words, which is another number for
    every model: what outputs cost is the time of a step.
    """
    device = next(iter(models.values()))[0].head.weight.device
    chosen: dict[str, tuple[Translator, Best]] = {
        TITLES[o]: (model, best_scores(o, tau)) for o, (model, tau) in models.items()
    }
    if peers:
        for peer in PEERS:
            model, _ = models[PEER_OUTPUT[peer]]
            chosen[peer_label(peer, None)] = (model, peer_best_scores(peer))
    rows = []
    for beam in beams:
        seconds: dict[str, list[float]] = {label: [] for label in chosen}
        found: dict[str, Translated] = {}
        for turn in range(rounds + 1):
            for label, (model, best) in chosen.items():
                began = time.perf_counter()
                found[label] = translate(model, best, source, beam)  # ends on the host
                if turn:
                    seconds[label].append(time.perf_counter() - began)
        for label, values in seconds.items():
            rows.append(
                {
                    "label": label,
                    "beam": beam,
                    "sentences": len(source),
                    "words": int((found[label].tokens != 0).sum()),
                    "steps": found[label].steps,
                    "seconds": _summary(values),
                    "milliseconds_a_step": _summary([1e3 * v / found[label].steps for v in values]),
                }
            )
        progress(f"decoding times, beam {beam}")
    wait(device)
    return rows


def tau_table(
    prepared: Prepared,
    config: TrainingConfig,
    device: torch.device,
    seeds: Sequence[int] = (0, 1, 2),
) -> list[dict[str, Any]]:
    """τ measured on the first batch of an untrained model, against τ from the shape alone."""
    rows = []
    for width, classes in (
        (config.width, prepared.target_units),
        (512, 10_000),
        (512, 40_000),
        (512, 60_000),
    ):
        measured = []
        for seed in seeds:
            torch.manual_seed(seed)
            shape = ModelConfig(
                prepared.source_units, max(classes, prepared.target_units), width, config.layers
            )
            model = Translator(replace(shape, heads=max(width // 64, 1), inner=4 * width))
            small = replace(config, batch_tokens=512, seed=seed)
            batch = fixed_batches(prepared, small, device, 1)[0]
            measured.append(measured_tau(model.to(device), batch))
        rows.append(
            {
                "width": width,
                "classes": classes,
                "measured": measured,
                "predicted": unn.tau_from_shape(width, classes),
            }
        )
    return rows
