"""One training run: a model with one of the outputs, one seed, a fixed number of steps.

Everything but the output is equal: data, order of batches, initial weights, schedule, precision.
The data live on the device and nothing is read back between evaluations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

import uncork.nn as unn
from translation import data
from translation.data import PAD, Prepared
from translation.measures import Spread, evaluate
from translation.model import ModelConfig, Translator
from translation.outputs import Loss, loss_function, probabilities
from translation.search import greedy, length_limits

Tensor = torch.Tensor
Progress = Callable[[str], None]


@dataclass(frozen=True)
class TrainingConfig:
    output: str
    seed: int = 0
    tau: float | None = None  # None: the paper's rule, the mean 1.5-entmax threshold at the start
    steps: int = 4500
    stop_after: int | None = None  # end here, the schedule still that of `steps`
    warmup: int = 300
    learning_rate: float = 1e-3
    batch_tokens: int = 8192
    evaluate_every: int = 225
    validation: int = 3000  # sentences of validation that are used
    snapshot_sentences: int = 500  # of validation, translated greedily at every evaluation
    width: int = 256
    layers: int = 3
    heads: int = 4
    inner: int = 1024
    dropout: float = 0.1

    @property
    def name(self) -> str:
        tau = "" if self.tau is None else f"-tau{self.tau:g}"
        return f"{self.output}{tau}-seed{self.seed}"

    def model(self, prepared: Prepared) -> ModelConfig:
        return ModelConfig(
            prepared.source_units,
            prepared.target_units,
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            inner=self.inner,
            dropout=self.dropout,
        )


class Feed:
    """The training part on the device, as an endless stream of batches."""

    def __init__(self, prepared: Prepared, tokens: int, seed: int, device: torch.device) -> None:
        arrays = prepared.part("train")
        self.lengths = [data.lengths(side) for side in arrays]
        self.tensors = [torch.from_numpy(side).to(device) for side in arrays]
        self.tokens, self.device = tokens, device
        self.rng = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            order, batches = data.batches(self.lengths[0], self.lengths[1], self.tokens, self.rng)
            rows = torch.from_numpy(order).to(self.device)
            for batch in batches:
                chosen = rows[batch.rows]
                yield (
                    self.tensors[0][chosen, : batch.source_length].long(),
                    self.tensors[1][chosen, : batch.target_length].long(),
                )


@dataclass
class Step:
    """One optimisation step: forward in bfloat16 on a GPU, the loss in float32."""

    model: Translator
    loss: Loss
    optimiser: torch.optim.Optimizer

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        with autocast(source.device):
            logits = self.model(source, target[:, :-1])
        loss = self.loss(logits.float().flatten(0, 1), target[:, 1:].flatten())
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        return loss.detach()


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def new_optimiser(model: Translator, learning_rate: float) -> torch.optim.Optimizer:
    fused = model.head.weight.device.type == "cuda"
    return torch.optim.Adam(model.parameters(), learning_rate, betas=(0.9, 0.98), fused=fused)


def schedule(step: int, config: TrainingConfig) -> float:
    """Up linearly, then down linearly to zero at the last step."""
    up = (step + 1) / config.warmup
    down = (config.steps - step) / max(config.steps - config.warmup, 1)
    return config.learning_rate * min(up, down)


@torch.no_grad()
def measured_tau(model: Translator, batch: tuple[Tensor, Tensor]) -> float:
    """The mean 1.5-entmax threshold of a batch: the paper's rule for τ, at the first one."""
    source, target = batch
    training = model.training
    model.eval()
    tau = unn.tau_from_data(model(source, target[:, :-1]), 1.5, mask=target[:, 1:] != PAD)
    model.train(training)
    return tau


@dataclass
class Trained:
    model: Translator
    tau: float
    record: dict[str, Any]  # what goes into the JSON
    snapshots: dict[str, np.ndarray]  # greedy translations of validation sentences, by step


def train(
    prepared: Prepared,
    config: TrainingConfig,
    device: torch.device,
    progress: Progress = lambda line: None,
    deadline: float | None = None,  # of time.time(): stop at the next evaluation past it
) -> Trained:
    progress(f"{config.name}: begins")
    torch.manual_seed(config.seed)
    model = Translator(config.model(prepared)).to(device)
    feed = iter(Feed(prepared, config.batch_tokens, config.seed, device))
    first = next(feed)
    at_start = measured_tau(model, first)
    tau = at_start if config.tau is None else config.tau
    optimiser = new_optimiser(model, config.learning_rate)
    step_once = Step(model, loss_function(config.output, tau), optimiser)
    held_out = prepared.part("validation")
    held_out = (held_out[0][: config.validation], held_out[1][: config.validation])

    history: list[dict[str, Any]] = []
    snapshots: dict[str, np.ndarray] = {}
    running = torch.zeros((), device=device)
    since, clock, complete = 0, 0.0, True
    began = time.perf_counter()
    model.train()
    final = config.steps if config.stop_after is None else min(config.stop_after, config.steps)
    for step in range(final):
        for group in optimiser.param_groups:
            group["lr"] = schedule(step, config)
        running += step_once(*(first if step == 0 else next(feed)))
        since += 1
        if step == 0:
            progress(f"{config.name}: first step, loss {float(running):.3f}, τ {tau:.4f}")
        last = step + 1 == final
        if last or (step + 1) % config.evaluate_every == 0:
            training_loss = float(running) / since  # waits for the device
            seconds = time.perf_counter() - began
            clock += seconds
            model.eval()
            seen = evaluate(
                model,
                held_out,
                loss_function(config.output, tau),
                probabilities(config.output, tau),
                tokens=config.batch_tokens,
            )
            snapshots[str(step + 1)] = snapshot(model, held_out[0], config.snapshot_sentences)
            model.train()
            history.append(
                {"step": step + 1, "seconds": clock, "training_loss": training_loss}
                | {name: v.record() if isinstance(v, Spread) else v for name, v in seen.items()}
            )
            progress(
                f"{config.name}: step {step + 1} of {config.steps}, loss {training_loss:.3f}, "
                f"accuracy {seen['accuracy']:.3f}, support {seen['support'].mean:.1f}, "
                f"{1000 * seconds / since:.1f} ms a step"
            )
            running.zero_()
            since, began = 0, time.perf_counter()
            if deadline is not None and time.time() > deadline and not last:
                complete = False
                break
    model.eval()
    record = new_record(prepared, config, model, at_start, tau) | {
        "complete": complete,
        "history": history,
    }
    return Trained(model, tau, record, snapshots)


def new_record(
    prepared: Prepared, config: TrainingConfig, model: Translator, at_start: float, tau: float
) -> dict[str, Any]:
    device = model.head.weight.device
    return {
        "config": asdict(config),
        "name": config.name,
        "units": {"source": prepared.source_units, "target": prepared.target_units},
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "tau": {
            "used": tau if config.output == "alpha_relu" else None,
            "measured_at_start": at_start,
            "from_shape": unn.tau_from_shape(config.width, prepared.target_units),
        },
    }


@torch.no_grad()
def snapshot(model: Translator, source: np.ndarray, sentences: int) -> np.ndarray:
    """Greedy translations of the first sentences, as units."""
    part = source[:sentences]
    part = part[:, : int((part != PAD).sum(1).max())].astype(np.int64)
    batch = torch.from_numpy(part).to(model.head.weight.device)
    with autocast(batch.device):
        found = greedy(model, batch, length_limits(batch, model.config.longest))
    tokens = found.cpu().numpy().astype(np.int16)
    return tokens[:, : max(int((tokens != PAD).sum(1).max()), 1)]
