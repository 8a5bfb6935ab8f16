"""Language models of several widths: which words can the output layer never say?

    python experiments/language_model.py all --text deu-eng.tsv.gz --out results/language_model

Stages, each resumed where it stopped:
- `train` (a GPU in minutes): LSTM language models with heads of several widths and seeds, without a
  bias and with one, and students distilled from the widest; keeps the heads;
- `analyse` (CPU): audits every head; how words fare by frequency; how far seeds agree;
- `plot`: the figures. `all` does the three.

Demeter et al. (2020), "Stolen probability", and Grivas et al. (2022), Sections 5 and E.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lstm_body import Body, Budget, Shape, hidden_states, train
from many_runs import Run, run_all
from text import Text, read_text
from torch import Tensor, nn
from torch.nn import functional

from uncork.core.errors import UncorkError

WIDTHS = (8, 16, 32, 64, 128, 200)
SEEDS = (0, 1, 2)
PATIENCE = 900  # seconds that a student waits for its teacher


# Training


@lru_cache(maxsize=1)
def _text(source: str, vocabulary: int) -> Text:
    return read_text(source, vocabulary)


def plan(asked: argparse.Namespace) -> list[Run]:
    """The teacher first, as students wait for it; then everything that is compared."""
    common = {
        "vocabulary": asked.vocabulary, "embedding": asked.embedding, "hidden": asked.hidden,
        "teacher": max(asked.widths), "frequencies": asked.frequencies,
        "budget": asdict(_budget(asked)),
    }  # fmt: skip
    where = {"text": str(asked.text), "out": str(asked.out), "device": asked.device}
    runs = []

    def add(kind: str, width: int, seed: int, cost: float = 1.0) -> None:
        one = {"kind": kind, "width": width, "seed": seed, **common}
        runs.append(Run(f"{kind}-{width}-{seed}", one, where, cost))

    for seed in asked.seeds:
        for width in sorted(asked.widths, reverse=True):
            add("plain", width, seed)
    for seed in asked.seeds:
        for kind, cost in (("student", 1.8), ("bias", 1.0)):
            for width in sorted(asked.narrow):
                add(kind, width, seed, cost)
    return runs


def _budget(asked: argparse.Namespace) -> Budget:
    warm_up = min(100, asked.steps // 5)
    return Budget(asked.steps, asked.batch, asked.length, asked.rate, warm_up=warm_up)


def train_one(asked: dict[str, Any]) -> dict[str, Any]:
    """One language model; its head goes to `heads/`, the teacher's whole self to `teacher.pt`."""
    device = torch.device(asked["device"])
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    text = _text(asked["text"], asked["vocabulary"])
    shape = Shape(text.vocabulary, asked["embedding"], asked["hidden"])
    kind, width, seed = asked["kind"], asked["width"], asked["seed"]
    torch.manual_seed(seed)
    body = Body(shape, width).to(device)
    head = nn.Linear(width, text.vocabulary, bias=kind == "bias").to(device)
    if kind == "bias" and asked["frequencies"]:
        with torch.no_grad():
            seen = torch.tensor(text.counts + 1, dtype=torch.float32, device=device)
            head.bias.copy_(torch.log(seen / seen.sum()))
    stream = torch.tensor(text.train, dtype=torch.long, device=device)
    out = Path(asked["out"])
    if kind == "student":
        teacher = _teacher(out / "teacher.pt", shape, asked["teacher"], device)
        objective = Distillation(head, *teacher)
    else:

        def objective(hidden: Tensor, words: Tensor, following: Tensor) -> Tensor:
            return functional.cross_entropy(head(hidden), following.flatten())

    losses = train(body, head, objective, stream, Budget(**asked["budget"]))
    torch.set_float32_matmul_precision("highest")
    result: dict[str, Any] = {"losses": losses, "parameters": _size(body) + _size(head)}
    for part in ("valid", "test"):
        held_out = torch.tensor(getattr(text, part), dtype=torch.long, device=device)
        result[part] = perplexity(body, head, held_out)
    tensors = {name: value.detach().cpu().numpy() for name, value in head.named_parameters()}
    (out / "heads").mkdir(parents=True, exist_ok=True)
    # float16, as models are shipped; an audit is of the values as they are stored.
    stored = {name: value.astype(np.float16) for name, value in tensors.items()}
    np.savez(out / "heads" / f"{kind}-{width}-{seed}.npz", **stored)
    if kind == "plain" and width == asked["teacher"] and not (out / "teacher.pt").exists():
        both = {"body": body.state_dict(), "head": head.state_dict()}
        torch.save(both, out / "teacher.tmp")
        (out / "teacher.tmp").replace(out / "teacher.pt")
    return result


class Distillation:
    """KL from the teacher's distribution to the student's, teacher and student reading side by
    side; the teacher keeps its own place in the text."""

    def __init__(self, head: nn.Module, body: Body, teacher: nn.Module) -> None:
        self.head, self.body, self.teacher = head, body, teacher
        self.state: Any = None

    def __call__(self, hidden: Tensor, words: Tensor, following: Tensor) -> Tensor:
        with torch.no_grad():
            states, self.state = self.body(words, self.state)
            wanted = functional.log_softmax(self.teacher(states.flatten(0, 1)), -1)
        said = functional.log_softmax(self.head(hidden), -1)
        return functional.kl_div(said, wanted, reduction="batchmean", log_target=True)


def _teacher(path: Path, shape: Shape, width: int, device: torch.device) -> tuple[Body, nn.Linear]:
    waited = time.time() + PATIENCE
    while not path.exists():
        if time.time() > waited:
            raise UncorkError(f"there is no teacher in {path}: train plain-{width} first")
        time.sleep(1)
    body, head = Body(shape, width), nn.Linear(width, shape.vocabulary, bias=False)
    both = torch.load(path, map_location="cpu", weights_only=True)
    body.load_state_dict(both["body"])
    head.load_state_dict(both["head"])
    return body.to(device).eval(), head.to(device).eval()


@torch.no_grad()
def perplexity(body: Body, head: nn.Module, stream: Tensor) -> float:
    total, count = 0.0, 0
    for hidden, following in hidden_states(body, stream):
        for rows, targets in zip(hidden.split(4096), following.split(4096), strict=True):
            total += float(functional.cross_entropy(head(rows), targets, reduction="sum"))
            count += len(targets)
    return round(math.exp(total / count), 3)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# The command


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    made.add_argument("stage", choices=("train", "analyse", "plot", "all"))
    made.add_argument("--text", help="a .tsv(.gz) of pairs, a text, a PTB folder, a prepared .npz")
    made.add_argument("--out", type=Path, default=Path("results/language_model"))
    made.add_argument("--widths", type=_numbers, default=WIDTHS, help="of the head")
    made.add_argument(
        "--narrow", type=_numbers, default=(8, 16, 32, 64), help="widths with a bias, of students"
    )
    made.add_argument("--seeds", type=_numbers, default=SEEDS)
    made.add_argument("--vocabulary", type=int, default=10_000)
    made.add_argument("--steps", type=int, default=1000)
    made.add_argument("--batch", type=int, default=512, help="streams side by side")
    made.add_argument("--length", type=int, default=16, help="words of each a step")
    made.add_argument("--rate", type=float, default=4e-3, help="of learning")
    made.add_argument(
        "--frequencies", action="store_true", help="a bias begins as the words' log-frequencies"
    )
    made.add_argument("--embedding", type=int, default=256)
    made.add_argument("--hidden", type=int, default=512, help="of the lower LSTM")
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--workers", type=int, default=1, help="trainings side by side")
    made.add_argument("--budget-seconds", type=float, help="begin no training that ends later")
    made.add_argument("--sample", type=int, default=200, help="words whose probability is bounded")
    return made


def _numbers(words: str) -> tuple[int, ...]:
    return tuple(int(word) for word in words.replace(",", " ").split())


def main(arguments: list[str] | None = None) -> int:
    asked = parser().parse_args(arguments)
    left = 0
    if asked.stage in ("train", "all"):
        if not asked.text:
            raise UncorkError("training needs --text")
        _text(asked.text, asked.vocabulary)  # a text that cannot be read is said once, here
        left = run_all(
            plan(asked), train_one, asked.out / "runs",
            workers=asked.workers, budget_seconds=asked.budget_seconds,
            line=lambda run: f"perplexity {run['test']:.1f} in {run['seconds']:.1f} s",
        )  # fmt: skip
    if asked.stage in ("analyse", "all"):
        if not asked.text:
            raise UncorkError("how words fare by frequency needs --text, the same as in training")
        from lost_words import analyse, table

        found = analyse(asked.out, read_text(asked.text, asked.vocabulary), asked.sample)
        print(table(found))
    if asked.stage in ("plot", "all"):
        from language_model_figures import draw

        for path in draw(asked.out):
            print(path)
    return 1 if left else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UncorkError as error:
        print(f"language_model: {error}", file=sys.stderr)
        sys.exit(2)
