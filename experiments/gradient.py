"""What the head throws away of the training signal, while models learn.

    python experiments/gradient.py all --text deu-eng.tsv.gz --out results/gradient

A body of fixed size, a projection to d features, and a head of V classes: only d, V and the kind of
head change ("Lost in Backpropagation", 2603.10145, in its spirit).

- text: a causal transformer on sentences. V = 10,000: the English of the table; V = 50,000: both
  its languages.
- feeds: two softmax heads on one such body, of d features and of the body's width. The body learns
  from one ("narrow-feeds", "wide-feeds"), and the other only reads it: this tells what a narrow
  head cannot say from what a body does not learn behind it.
- copy: the next token is the one just read, tokens drawn alike: nothing to guess, no context.
- spam: a sequence repeats one symbol, as the paper's SpamLang does.

Stages: `train`, `time` (of a step of each kind, alone on the device), `collect` (one file of all
runs), or `all`. Every kind has its own learning rate, from a small grid on a seed of its own.
Finished runs are kept: the same command goes on where it stopped. What passes is measured on 256
held-out tokens as training goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gradient_heads import KINDS, make_head, passing
from many_runs import Run, read_results, run_all, write_json
from text import read_text
from torch import Tensor, nn

from uncork.core.errors import UncorkError

BODY = 256
LENGTH = 32
RATES = (1e-3, 2e-3, 4e-3)
COPY_RATES = (1e-3, 4e-3)
GRID_SEED = 10  # the grid's runs are no part of the comparison
MEASURED = 256  # tokens
HELD_OUT = 256  # windows
SMOOTHING = 0.01  # of the probability spread over all classes, where some have none
WARM, DECAY = 50, 0.3  # steps up; share of the steps down to nothing at the end
LOOKS = (0, 1 / 12, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1)
FEEDS = ("narrow-feeds", "wide-feeds")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        parts = self.attend(self.before(x)).view(n, length, 3, 4, width // 4)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.join(found.transpose(1, 2).reshape(n, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Body(nn.Module):
    """Tokens (batch, length) to states (batch · length, width)."""

    def __init__(self, classes: int, layers: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(classes, width)
        self.places = nn.Embedding(LENGTH, width) if layers else None
        self.layers = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for table in (self.words, self.places):
            if table is not None:
                nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        if self.places is not None:  # without layers nothing but the token itself matters
            x = x + self.places.weight[: tokens.shape[1]]
        return self.norm(self.layers(x)).flatten(0, 1)


class Reader(nn.Module):
    """From the body's states to d features, and a head."""

    def __init__(self, kind: str, state: int, width: int, classes: int) -> None:
        super().__init__()
        self.kind = kind
        self.narrow = nn.Sequential(nn.Linear(state, width), nn.LayerNorm(width))
        self.head = make_head(kind, width, classes)

    def loss(self, states: Tensor, target: Tensor) -> Tensor:
        hidden = self.narrow(states)
        with _half(hidden):
            return self.head.loss(hidden, target)


def _half(tensor: Tensor) -> AbstractContextManager[Any]:
    """The head's products in bfloat16, on a GPU."""
    return torch.autocast("cuda", torch.bfloat16) if tensor.is_cuda else nullcontext()


class Model(nn.Module):
    """A body and the reader that is judged; for `feeds` another, and which of them teaches."""

    def __init__(self, asked: dict[str, Any], classes: int) -> None:
        super().__init__()
        state, width, kind = asked["state"], asked["width"], asked["kind"]
        self.body = Body(classes, asked["layers"], state)
        self.feeds = kind if kind in FEEDS else None
        self.reader = Reader("softmax" if self.feeds else kind, state, width, classes)
        self.wide = Reader("softmax", state, state, classes) if self.feeds else None

    def loss(self, tokens: Tensor, target: Tensor) -> Tensor:
        states = self.body(tokens)
        if self.wide is None:
            return self.reader.loss(states, target)
        narrow, wide = states, states.detach()
        if self.feeds == "wide-feeds":
            narrow, wide = wide, narrow
        return self.reader.loss(narrow, target) + self.wide.loss(wide, target)


class Copying:
    """The next token is the one just read; with `spam`, a sequence has only one."""

    def __init__(self, classes: int, device: str, spam: bool) -> None:
        self.classes, self.device, self.spam = classes, device, spam
        self.seen = torch.zeros(classes, dtype=torch.bool, device=device)

    def batch(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        shape = (size, 1 if self.spam else LENGTH)
        tokens = torch.randint(self.classes, shape, generator=generator, device=self.device)
        tokens = tokens.expand(size, LENGTH)
        self.seen[tokens.flatten()] = True
        return tokens, tokens.reshape(-1)

    def held_out(self) -> tuple[Tensor, Tensor]:
        """Symbols of the whole vocabulary: whether they were seen is asked at the end."""
        generator = torch.Generator(self.device).manual_seed(10**6)
        size = (HELD_OUT * LENGTH, 1) if self.spam else (HELD_OUT, LENGTH)
        tokens = torch.randint(self.classes, size, generator=generator, device=self.device)
        if not self.spam:
            return tokens, tokens.reshape(-1)
        return tokens.expand(-1, 2).contiguous(), tokens.expand(-1, 2).reshape(-1)


class Reading:
    """Windows of a text's stream of words."""

    def __init__(self, path: str, classes: int, device: str) -> None:
        found = read_text(path, classes)
        self.classes = found.vocabulary
        self.train, self.valid = (
            torch.from_numpy(part.astype(np.int64)).to(device)
            for part in (found.train, found.valid)
        )

    def batch(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        return self._windows(self.train, generator, size)

    def held_out(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(self.valid.device).manual_seed(0)
        return self._windows(self.valid, generator, HELD_OUT)

    def _windows(
        self, stream: Tensor, generator: torch.Generator, size: int
    ) -> tuple[Tensor, Tensor]:
        last = len(stream) - LENGTH - 1
        first = torch.randint(last, (size, 1), generator=generator, device=stream.device)
        at = first + torch.arange(LENGTH, device=stream.device)
        return stream[at], stream[at + 1].reshape(-1)


@lru_cache(maxsize=2)
def _reading(path: str, classes: int, device: str) -> Reading:
    return Reading(path, classes, device)


def data_of(asked: dict[str, Any]) -> Copying | Reading:
    if asked["task"] == "text":
        return _reading(asked["texts"][str(asked["classes"])], asked["classes"], asked["device"])
    return Copying(asked["classes"], asked["device"], asked["task"] == "spam")


class Training:
    """One model and what a step of it is."""

    def __init__(self, asked: dict[str, Any]) -> None:
        torch.set_float32_matmul_precision("high")
        torch.set_num_threads(1)
        torch.manual_seed(asked["seed"])
        self.asked, self.data = asked, data_of(asked)
        self.model = Model(asked, self.data.classes).to(asked["device"])
        cuda = asked["device"].startswith("cuda")
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(), asked["rate"], betas=(0.9, 0.98), weight_decay=0.0, fused=cuda
        )
        steps = asked["steps"]
        self.rate = torch.optim.lr_scheduler.LambdaLR(
            self.optimiser, lambda s: min(1.0, (s + 1) / WARM, (steps - s) / (DECAY * steps))
        )
        self.generator = torch.Generator(asked["device"]).manual_seed(asked["seed"])

    def step(self) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        tokens, target = self.data.batch(self.generator, self.asked["batch"])
        loss = self.model.loss(tokens, target)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.rate.step()
        return loss.detach()


def work(asked: dict[str, Any]) -> dict[str, Any]:
    """One model, from the beginning; its curve."""
    training = Training(asked)
    steps, curve, since = asked["steps"], [], []
    looks = {round(share * steps) for share in LOOKS}
    held = training.data.held_out()
    for step in range(steps + 1):
        if step in looks:
            seen = float(torch.stack(since).mean()) if since else None
            since = []
            curve.append({"step": step, "train": seen, **look(training, *held)})
        if step < steps:
            since.append(training.step())
    classes = training.data.classes
    result = {
        "words": classes, "parameters": sum(p.numel() for p in training.model.parameters()),
        "curve": curve,
    }  # fmt: skip
    if isinstance(training.data, Copying):
        result["seen"] = float(training.data.seen.float().mean())
    del training
    if asked["device"].startswith("cuda"):
        torch.cuda.empty_cache()
    return result


@torch.no_grad()
def look(training: Training, tokens: Tensor, target: Tensor) -> dict[str, Any]:
    """The held-out tokens: smoothed −log p, which every kind has, accuracy, and what passes."""
    model, data = training.model, training.data
    model.eval()
    states = model.body(tokens)
    hidden = model.reader.narrow(states)
    log_p, right = _read(model.reader, states, target)
    found: dict[str, Any] = {
        "loss": _smoothed(log_p, data.classes), "nll": float(-log_p.mean()),
        "accuracy": float(right.mean()),
    }  # fmt: skip
    if isinstance(data, Copying):
        seen = data.seen[target].float()
        found["accuracy_seen"] = float((right * seen).sum() / seen.sum().clamp(min=1))
    if model.wide is not None:
        log_p, right = _read(model.wide, states, target)
        found |= {"wide_loss": _smoothed(log_p, data.classes), "wide_accuracy": float(right.mean())}
    kind = model.reader.kind
    # Of windows that overlap in nothing: the first tokens would all be of a few sentences.
    some = torch.arange(0, len(target), max(1, len(target) // MEASURED), device=target.device)
    measured = passing(kind, model.reader.head, hidden[some], target[some])
    share = measured.share
    found |= {
        "share": float(share.mean()), "lost": float(measured.lost.mean()),
        "cosine": float(measured.step.mean()), "target": float(measured.target.mean()),
        "together": measured.total, "support": float(measured.support.double().mean()),
    }  # fmt: skip
    if isinstance(data, Reading):  # words are numbered by frequency
        bands = {"frequent": (0, 100), "middle": (100, 1000), "rare": (1000, data.classes)}
        for name, (first, end) in bands.items():
            inside = (target[some] >= first) & (target[some] < end)
            found[f"share_{name}"] = float(share[inside].mean()) if inside.any() else None
    model.train()
    return {
        name: value if value is None or not np.isfinite(value) else round(value, 6)
        for name, value in found.items()
    }


def _read(reader: Reader, states: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """log p of the targets, and whether each is first."""
    logs, right = [], []
    for some, y in zip(states.split(1024), target.split(1024), strict=True):
        log_p = reader.head.log_probabilities(reader.narrow(some))
        logs.append(log_p.gather(1, y[:, None])[:, 0].float())
        right.append((log_p.argmax(-1) == y).float())
    return torch.cat(logs), torch.cat(right)


def _smoothed(log_p: Tensor, classes: int) -> float:
    return float(-((1 - SMOOTHING) * log_p.exp() + SMOOTHING / classes).log().mean())


# The runs


def _run(asked: argparse.Namespace, where: dict[str, Any], **given: Any) -> Run:
    layers = {"text": asked.layers, "spam": 2}.get(given["task"], 0)
    one = {"layers": layers, "state": asked.state, "batch": asked.batch} | given
    rate = f"{one['rate']:g}"
    name = "-".join(
        [one["task"], one["kind"], str(one["width"]), str(one["classes"]), rate, str(one["seed"])]
    )
    heavy = one["classes"] / 10_000 * (3 if one["kind"] == "mos" else 1)
    return Run(name, one, where, (1 + 0.25 * heavy) * one["steps"] / 600)


def grid(asked: argparse.Namespace, where: dict[str, Any]) -> list[Run]:
    """Every kind with every rate, at one width and the smaller vocabulary."""
    return [
        _run(asked, where, task="text", kind=kind, width=asked.widths[1], rate=rate,
             classes=asked.classes[0], seed=GRID_SEED, steps=asked.steps)
        for kind in asked.kinds for rate in asked.rates
    ]  # fmt: skip


def best_rates(results: list[dict[str, Any]]) -> dict[str, float]:
    """The rate of each kind whose run of the grid ended lowest."""
    ends: dict[str, list[tuple[float, float]]] = {}
    for one in results:
        if one["seed"] == GRID_SEED:
            ends.setdefault(one["kind"], []).append((one["curve"][-1]["loss"], one["rate"]))
    return {kind: min(found)[1] for kind, found in ends.items()}


def plan(asked: argparse.Namespace, where: dict[str, Any], rates: dict[str, float]) -> list[Run]:
    """What is compared first comes first, all of it with one seed after the other: a budget may
    leave the rest out."""
    small, large = asked.classes[0], asked.classes[-1]
    second, fourth = asked.widths[1], asked.widths[-2]
    runs: list[Run] = []

    def text(kind: str, width: int, classes: int, seed: int) -> None:
        rate = rates["softmax" if kind in FEEDS else kind]
        runs.append(
            _run(asked, where, task="text", kind=kind, width=width, classes=classes, rate=rate,
                 seed=seed, steps=asked.steps)
        )  # fmt: skip

    def copy(task: str, kind: str, width: int, classes: int, seed: int) -> None:
        for rate in asked.copy_rates:
            runs.append(
                _run(asked, where, task=task, kind=kind, width=width, classes=classes, rate=rate,
                     seed=seed, steps=asked.copy_steps)
            )  # fmt: skip

    def copies(seed: int) -> None:
        for classes in asked.copy_classes:
            for width in asked.widths[::2]:
                copy("copy", "softmax", width, classes, seed)

    others = [kind for kind in asked.kinds if kind != "softmax"]
    for seed in asked.seeds:
        for width in asked.widths:
            text("softmax", width, small, seed)
        for feeds in FEEDS:
            for width in (asked.widths[0], asked.widths[2]):
                text(feeds, width, small, seed)
        for kind in others:
            for width in asked.widths if kind.startswith("natural") else (second, fourth):
                text(kind, width, small, seed)
    first, *further = asked.seeds
    for seed in (first, *further):
        if seed == first:
            copies(first)
        for width in asked.widths:
            text("softmax", width, large, seed)
        for kind in others:
            text(kind, second, large, seed)
        for feeds in FEEDS:
            text(feeds, asked.widths[0], large, seed)
    for seed in further:
        copies(seed)
    for classes in asked.copy_classes:
        for width in asked.widths[::2]:
            copy("spam", "softmax", width, classes, first)
    for kind in others:
        copy("copy", kind, asked.widths[0], asked.copy_classes[1], first)
    for seed in asked.seeds:
        for kind in others:
            text(kind, fourth, large, seed)
    return runs


def _prepared(asked: argparse.Namespace) -> dict[str, str]:
    """Each vocabulary's text as numbers, made once: the larger one has both languages."""
    made = {}
    for classes in asked.classes:
        path = asked.out / f"text-{classes}.npz"
        if not path.exists():
            columns = 1 if classes == asked.classes[0] else 2
            read_text(asked.text, classes, columns=columns).save(path)
        made[str(classes)] = str(path)
    return made


# The time of a step


def step_times(asked: argparse.Namespace, where: dict[str, Any]) -> list[dict[str, Any]]:
    """Milliseconds on a device that does nothing else, and how often softmax's: a step of training,
    of it the head's loss and gradients alone, and what it takes to measure what passes of 256
    tokens. All kinds take turns, so that a slow moment of the machine is everybody's; once with the
    batch of the runs, where the host is busier than a GPU, and once with a large one."""
    rows = []
    for classes in asked.classes:
        for batch in asked.time_batches:
            for width in asked.widths:
                few = width in (asked.widths[1], asked.widths[-2])
                kinds = asked.kinds if few else ["softmax"]
                one = {"width": width, "classes": classes, "batch": batch}
                rows += _turns(asked, where, one, kinds)
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _turns(
    asked: argparse.Namespace, where: dict[str, Any], one: dict[str, Any], kinds: Sequence[str]
) -> list[dict[str, Any]]:
    wait = torch.cuda.synchronize if asked.device.startswith("cuda") else lambda: None
    doing = {kind: _timed_parts(asked, where, one, kind) for kind in kinds}
    found: dict[str, dict[str, list[float]]] = {
        kind: {part: [] for part in parts} for kind, parts in doing.items()
    }
    for turn in range(asked.turns + 1):  # the first starts everything up
        for kind, parts in doing.items():
            for part, (what, times) in parts.items():
                wait()
                began = time.perf_counter()
                for _ in range(times):
                    what()
                wait()
                if turn:
                    found[kind][part].append(1000 * (time.perf_counter() - began) / times)
    rows = []
    for kind, parts in found.items():
        row: dict[str, Any] = {"kind": kind, **one}
        for part, values in parts.items():
            ratios = [a / b for a, b in zip(values, found["softmax"][part], strict=True)]
            row |= {
                f"{part}_ms": round(statistics.median(values), 3),
                f"{part}_ratio": round(statistics.median(ratios), 3),
                f"{part}_ratios": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        rows.append(row)
    return rows


def _timed_parts(
    asked: argparse.Namespace, where: dict[str, Any], one: dict[str, Any], kind: str
) -> dict[str, tuple[Any, int]]:
    """What is timed of a kind, and how often a turn has it."""
    given = _run(asked, where, task="text", kind=kind, rate=1e-3, seed=0, steps=10**6, **one).asked
    training = Training({**given, **where})
    head = training.model.reader.head
    shape = (one["batch"] * LENGTH, one["width"])
    hidden = torch.randn(shape, device=asked.device, requires_grad=True)
    _, target = training.data.batch(training.generator, one["batch"])

    def head_alone() -> None:
        hidden.grad = None
        with _half(hidden):
            loss = head.loss(hidden, target)
        loss.backward()

    def measured() -> None:
        passing(kind, head, hidden[:MEASURED].detach(), target[:MEASURED])

    return {
        "step": (training.step, asked.timed), "head": (head_alone, asked.timed),
        "measure": (measured, 1),
    }  # fmt: skip


def restore(out: Path, file: Path) -> None:
    """The runs that such a file holds, as if they had been trained here."""
    for one in json.loads(file.read_text("utf-8"))["runs"]:
        path = out / "runs" / f"{one['name']}.json"
        if not path.exists():
            write_json(path, one)


def collect(out: Path) -> None:
    """All runs in one file, a line each."""
    runs = read_results(out / "runs")
    times = out / "times.json"
    write_json(
        out / "gradient.json",
        {"runs": runs, "times": json.loads(times.read_text("utf-8")) if times.exists() else []},
        lines=True,
    )
    print(f"{len(runs)} runs", file=sys.stderr)


def _line(one: dict[str, Any]) -> str:
    last = one["curve"][-1]
    return ", ".join(f"{name} {last[name]:.4f}" for name in ("loss", "accuracy", "share", "cosine"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stage", choices=("all", "train", "time", "collect"))
    parser.add_argument("--text", type=Path, help="as experiments/text.py names them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--copy-classes", type=int, nargs="+", default=[10_000, 50_000, 131_072])
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--copy-rates", type=float, nargs="+", default=list(COPY_RATES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--copy-steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128, help=f"windows of {LENGTH} tokens")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--state", type=int, default=BODY, help="width of the body")
    parser.add_argument("--timed", type=int, default=20, help="steps in a turn of timing")
    parser.add_argument("--turns", type=int, default=5, help="of timing")
    parser.add_argument("--time-batches", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--resume", type=Path, help="a gradient.json whose runs are done already")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="of training; begin no run that ends later")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    left = 0
    if asked.resume is not None:
        restore(asked.out, asked.resume)
    if asked.stage in ("all", "train", "time"):
        if asked.text is None:
            parser.error(f"{asked.stage} needs --text FILE")
        where = {"texts": _prepared(asked), "device": asked.device}
    if asked.stage in ("all", "train"):
        began = time.time()

        def trained(runs: list[Run]) -> int:
            budget = None
            if asked.minutes is not None:
                budget = 60 * asked.minutes - (time.time() - began)
            return run_all(
                runs, work, asked.out / "runs", workers=asked.workers, budget_seconds=budget,
                line=_line,
            )  # fmt: skip

        left = trained(grid(asked, where))
        rates = best_rates(read_results(asked.out / "runs"))
        print(f"rates: {rates}", file=sys.stderr, flush=True)
        missing = [kind for kind in asked.kinds if kind not in rates]
        if missing:
            print(f"no rate for {', '.join(missing)} yet", file=sys.stderr)
            return 1
        left += trained(plan(asked, where, rates))
    if asked.stage in ("all", "time"):
        write_json(asked.out / "times.json", step_times(asked, where))
    if asked.stage in ("all", "collect"):
        collect(asked.out)
    return 1 if left else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UncorkError as error:
        sys.exit(f"gradient: {error}")
