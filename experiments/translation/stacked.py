"""Many runs as one: all outputs and seeds trained together, stacked along a leading dimension.

A small model keeps a GPU waiting for its launches. Stacked, twelve models are one sequence of
launches, and all see the same batches: only the initial weights, the dropout and the output differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, stack_module_state, vmap

from translation.data import Prepared
from translation.measures import Spread, evaluate
from translation.model import Translator
from translation.outputs import loss_function, probabilities
from translation.training import (
    Feed,
    Trained,
    TrainingConfig,
    autocast,
    measured_tau,
    new_record,
    schedule,
    snapshot,
)

Tensor = torch.Tensor
PILOT = 40  # steps that show how long one takes


class Stack:
    """Models of one shape, their weights stacked: (models, ...) each."""

    def __init__(self, models: Sequence[Translator]) -> None:
        self.models = list(models)
        self.weights, _ = stack_module_state(self.models)
        self.shared = dict(self.models[0].named_buffers())

    def logits(self, source: Tensor, target: Tensor) -> Tensor:
        """(models, N, T, V)."""

        def one(weights: dict[str, Tensor], source: Tensor, target: Tensor) -> Tensor:
            return functional_call(self.models[0], (weights, self.shared), (source, target))

        run = vmap(one, in_dims=(0, None, None), randomness="different")
        return run(self.weights, source, target)

    @torch.no_grad()
    def unstack(self) -> list[Translator]:
        """The models, with the weights of now."""
        for index, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self.weights[name][index])
            model.eval()
        return self.models

    @torch.no_grad()
    def clip(self, most: float) -> None:
        """Each model's gradient to a length of at most `most`."""
        gradients = [w.grad for w in self.weights.values() if w.grad is not None]
        squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
        factor = (most / (squares.sqrt() + 1e-6)).clamp(max=1)
        for gradient in gradients:
            gradient *= factor.view(-1, *[1] * (gradient.ndim - 1))


def train_together(
    prepared: Prepared,
    configs: Sequence[TrainingConfig],
    device: torch.device,
    progress: Callable[[str], None] = lambda line: None,
    seconds: float | None = None,
    evaluations: int | None = None,
) -> list[tuple[TrainingConfig, Trained]]:
    """Every run of `configs`, which may differ in output, seed and τ only.

    `seconds`: instead of the configured number of steps, as many as fit; the pace of the first
    ones tells. `evaluations`: how many, evenly spread, instead of every so many steps.
    """
    models, taus, at_start = [], [], []
    feed = iter(Feed(prepared, configs[0].batch_tokens, configs[0].seed, device))
    first = next(feed)
    for config in configs:
        torch.manual_seed(config.seed)
        models.append(Translator(config.model(prepared)).to(device))
        at_start.append(measured_tau(models[-1], first))
        taus.append(at_start[-1] if config.tau is None else config.tau)
    stack = Stack(models)
    losses = [loss_function(c.output, t) for c, t in zip(configs, taus, strict=True)]
    fused = device.type == "cuda"
    optimiser = torch.optim.Adam(stack.weights.values(), betas=(0.9, 0.98), fused=fused)
    progress(f"{len(models)} models stacked")

    history: list[list[dict[str, Any]]] = [[] for _ in configs]
    snapshots: list[dict[str, np.ndarray]] = [{} for _ in configs]
    running = torch.zeros(len(configs), device=device)
    since, clock, began, started = 0, 0.0, time.perf_counter(), time.perf_counter()
    pace, count = configs[0], evaluations or 10
    every = pace.evaluate_every if evaluations is None else max(pace.steps // count, 1)
    step = 0
    models[0].train()
    while step < pace.steps:
        for group in optimiser.param_groups:
            group["lr"] = schedule(step, pace)
        source, target = first if step == 0 else next(feed)
        with autocast(device):
            logits = stack.logits(source, target[:, :-1])
        wanted = target[:, 1:].flatten()
        found = [
            loss(z.float().flatten(0, 1), wanted)
            for loss, z in zip(losses, logits.unbind(), strict=True)
        ]
        optimiser.zero_grad()
        torch.stack(found).sum().backward()
        stack.clip(1.0)
        optimiser.step()
        running += torch.stack(found).detach()
        del logits, found
        step, since = step + 1, since + 1
        if step == 5:
            progress(f"5 steps, loss {float(running.mean()) / 5:.3f}")
            pilot_began = time.perf_counter()
        pilot = step == PILOT and seconds is not None
        if pilot:
            float(running[0])  # waits for the device
            each = (time.perf_counter() - pilot_began) / (PILOT - 5)
            progress(f"{1000 * each:.1f} ms a step")
        last = step == pace.steps
        if last or pilot or step % every == 0:
            evaluation_began = time.perf_counter()
            means = (running / since).tolist()  # waits for the device
            clock += time.perf_counter() - began
            for index, model in enumerate(stack.unstack()):
                config, tau = configs[index], taus[index]
                part = prepared.part("validation")
                part = (part[0][: pace.validation], part[1][: pace.validation])
                seen = evaluate(
                    model, part, losses[index], probabilities(config.output, tau), tokens=16384
                )
                snapshots[index][str(step)] = snapshot(model, part[0], pace.snapshot_sentences)
                history[index].append(
                    {"step": step, "seconds": clock, "training_loss": means[index]}
                    | {k: v.record() if isinstance(v, Spread) else v for k, v in seen.items()}
                )
            models[0].train()
            accuracies = ", ".join(f"{h[-1]['accuracy']:.3f}" for h in history)
            progress(f"step {step} of {pace.steps}, accuracies {accuracies}")
            running.zero_()
            since, began = 0, time.perf_counter()
            if pilot and seconds is not None:
                left = seconds - (began - started) - (began - evaluation_began) * count
                pace = replace(pace, steps=max(int(left / each / 1.03), PILOT + 10))
                every = max(pace.steps // count, 1)
                progress(f"{pace.steps} steps fit, and {count} evaluations")
    results = []
    for index, model in enumerate(stack.unstack()):
        config = replace(configs[index], steps=pace.steps, evaluate_every=every)
        record = new_record(prepared, config, model, at_start[index], taus[index])
        record |= {"complete": True, "together": len(configs), "history": history[index]}
        results.append((config, Trained(model, taus[index], record, snapshots[index])))
    return results
