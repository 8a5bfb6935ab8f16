"""Which runs there are, where their results lie, and doing them, several at a time.

A run that has written its record is finished and skipped the next time. One that was stopped by
the time limit says so in its record (complete: false) and is done again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import uncork.nn as unn
from translation.data import Prepared, load_prepared
from translation.measures import empty_against, evaluate
from translation.model import Translator
from translation.outputs import (
    OUTPUTS,
    best_scores,
    log_scores,
    loss_function,
    probabilities,
    raw_log_scores,
)
from translation.search import translate
from translation.training import Trained, TrainingConfig, train
from uncork.core.errors import UncorkError

BEAMS = (1, 5, 10)
TAUS = (0.0, 0.1, 0.2, 0.3, 5.0, 10.0)


@dataclass(frozen=True)
class Folder:
    """The files of a results folder."""

    path: Path

    def record(self, name: str) -> Path:
        return self.path / "runs" / f"{name}.json"

    def snapshots(self, name: str) -> Path:
        return self.path / "runs" / f"{name}.snapshots.npz"

    def checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.pt"

    def decoded(self, name: str) -> Path:
        return self.path / "decoded" / f"{name}.json"

    def translations(self, name: str) -> Path:
        return self.path / "decoded" / f"{name}.npz"

    def head(self, name: str) -> Path:
        return self.path / "heads" / f"{name}.npz"

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(p.read_text()) for p in sorted((self.path / "runs").glob("*.json"))]


def main_runs(base: TrainingConfig, seeds: Sequence[int]) -> list[TrainingConfig]:
    """Every output with every seed; seeds last, so that a time limit costs a seed."""
    return [replace(base, output=o, seed=s, tau=None) for s in seeds for o in OUTPUTS]


def tau_runs(base: TrainingConfig, steps: int) -> list[TrainingConfig]:
    """α-ReLU with each τ, for the beginning of training only (the schedule is the main runs')."""
    every = max(steps // 15, 1)
    short = replace(base, output="alpha_relu", evaluate_every=every, snapshot_sentences=1)
    return [replace(short, seed=0, tau=t, stop_after=steps) for t in TAUS]


def finished(path: Path) -> bool:
    return path.is_file() and bool(json.loads(path.read_text()).get("complete", False))


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all: a record on disk is a finished one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n")
    temporary.replace(path)


def train_run(
    prepared: Prepared,
    config: TrainingConfig,
    folder: Folder,
    device: torch.device,
    progress: Callable[[str], None] = print,
    deadline: float | None = None,
) -> None:
    save_run(train(prepared, config, device, progress, deadline), config, folder)


def save_run(trained: Trained, config: TrainingConfig, folder: Folder) -> None:
    name = config.name
    for path in (folder.snapshots(name), folder.checkpoint(name), folder.head(name)):
        path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder.snapshots(name), **trained.snapshots)  # type: ignore[arg-type]
    if config.tau is None:
        torch.save(
            {"state": trained.model.state_dict(), "tau": trained.tau}, folder.checkpoint(name)
        )
        if config.seed == 0:
            save_head(trained.model, folder.head(name))
    write_json(folder.record(name), trained.record)


def save_head(model: Translator, path: Path) -> None:
    """The head, and the layer norm before it. float16: finer than the bfloat16 it was trained in,
    and small enough to keep."""
    norm, head = model.decoder_norm, model.head
    arrays = {
        "weight": head.weight.detach().half().cpu().numpy(),
        "bias": head.bias.detach().float().cpu().numpy(),
        "gain": norm.weight.detach().float().cpu().numpy(),
        "shift": norm.bias.detach().float().cpu().numpy(),
    }
    np.savez(path, **arrays)  # type: ignore[arg-type]


def load_model(
    prepared: Prepared, config: TrainingConfig, folder: Folder, device: torch.device
) -> tuple[Translator, float]:
    path = folder.checkpoint(config.name)
    if not path.is_file():
        raise UncorkError(f"{path}: no checkpoint; run the train stage first")
    saved = torch.load(path, map_location=device, weights_only=True)
    model = Translator(config.model(prepared)).to(device).eval()
    model.load_state_dict(saved["state"])
    return model, float(saved["tau"])


def decode_run(
    prepared: Prepared,
    config: TrainingConfig,
    folder: Folder,
    device: torch.device,
    progress: Callable[[str], None] = print,
    deadline: float | None = None,
    beams: Sequence[int] = BEAMS,
    rows: int = 1024,
) -> None:
    """Translate the test part with each beam; then how the empty translation compares."""
    del deadline  # a matter of seconds
    model, tau = load_model(prepared, config, folder, device)
    source, target = prepared.part("test")
    scores, best = log_scores(config.output, tau), best_scores(config.output, tau)
    found: dict[str, np.ndarray] = {}
    empty: dict[str, Any] = {}
    for beam in beams:
        began = time.perf_counter()
        tokens = translate(model, best, source, beam, rows=rows).tokens
        found[f"beam{beam}"] = tokens
        empty[f"beam{beam}"] = {"normalised": empty_against(model, scores, source, tokens)}
        if config.output == "alpha_relu":
            raw = raw_log_scores(config.output, tau)
            empty[f"beam{beam}"]["as it is"] = empty_against(model, raw, source, tokens)
        above = empty[f"beam{beam}"]["normalised"]["share_above"]
        progress(
            f"{config.name}: beam {beam}, {len(source)} sentences in "
            f"{time.perf_counter() - began:.1f} s, empty above {above:.2%}"
        )
    seen = evaluate(
        model,
        (source, target),
        loss_function(config.output, tau),
        probabilities(config.output, tau),
    )
    test = {k: v if isinstance(v, float) else v.record() for k, v in seen.items()}
    folder.translations(config.name).parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder.translations(config.name), **found)  # type: ignore[arg-type]
    write_json(
        folder.decoded(config.name),
        {"name": config.name, "complete": True, "empty": empty, "test": test},
    )


@dataclass(frozen=True)
class Job:
    """One run's work for a process of the pool."""

    config: TrainingConfig
    prepared: Path
    folder: Folder
    device: str
    decode: bool
    train: bool = True
    deadline: float | None = None


def do_job(job: Job) -> str:
    if job.deadline is not None and time.time() > job.deadline:
        return f"{job.config.name}: not started, out of time"
    device = start_device(job.device)
    prepared = load_prepared(job.prepared)
    arguments = (prepared, job.config, job.folder, device, say, job.deadline)
    if job.train and not finished(job.folder.record(job.config.name)):
        train_run(*arguments)
        if device.type == "cuda":
            torch.cuda.empty_cache()  # other runs on the device may need what training kept
    has_model = job.folder.checkpoint(job.config.name).is_file()
    if job.decode and has_model and not finished(job.folder.decoded(job.config.name)):
        decode_run(*arguments)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return f"{job.config.name}: done"


def attempt(job: Job) -> tuple[str, bool]:
    """(what to say, done): one run that fails does not take those beside it along."""
    try:
        return do_job(job), True
    except Exception as error:
        return f"{job.config.name}: {type(error).__name__}: {error}", False


def do_jobs(jobs: Sequence[Job], workers: int) -> None:
    """In this process, or in `workers` that stay alive from one job to the next; those that failed
    are named at the end."""
    if workers <= 1:
        for job in jobs:
            say(do_job(job))
        return
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    with context.Pool(min(workers, len(jobs)), start_device, (jobs[0].device,)) as pool:
        # Kernels are compiled once, by one process, and found on disk by the others.
        pool.apply(_compile_kernels, (jobs[0],))
        failed = []
        for line, done in pool.imap_unordered(attempt, jobs):
            say(line)
            if not done:
                failed.append(line)
    if failed:
        raise UncorkError(f"{len(failed)} of {len(jobs)} runs failed; first {failed[0]}")


def check_device(name: str) -> torch.device:
    """Before processes are started for it."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UncorkError(f"--device {name}: not a device; try cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise UncorkError(f"--device {name}: only cpu and cuda are known here")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UncorkError(f"--device {name}: torch finds no CUDA device here")
    return device


def start_device(name: str) -> torch.device:
    device = check_device(name)
    torch.set_num_threads(max((os.cpu_count() or 1) // 8, 1))
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        torch.zeros(1, device=device)  # the first use takes seconds
    return device


def _compile_kernels(job: Job) -> None:
    device = start_device(job.device)
    if device.type != "cuda":
        return
    units = load_prepared(job.prepared).target_units  # they are compiled for a width
    logits = torch.randn(64, units, device=device, requires_grad=True)
    target = torch.randint(3, units, (64,), device=device)
    unn.tau_from_data(logits)
    for output in OUTPUTS:
        loss_function(output, 0.1)(logits, target).backward()
        for function in (probabilities, log_scores):
            function(output, 0.1)(logits.detach())
        best_scores(output, 0.1)(logits.detach(), 8)
    torch.cuda.synchronize(device)
    say("kernels compiled")


BEGAN = time.perf_counter()


def say(line: str) -> None:
    # In one piece: several processes write to the same terminal.
    sys.stdout.write(f"[{time.perf_counter() - BEGAN:6.1f} s] {line}\n")
    sys.stdout.flush()
