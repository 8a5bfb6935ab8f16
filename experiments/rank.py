"""Heads against the softmax bottleneck: perplexity, and the rank of the log-probabilities.

    python experiments/rank.py all --text deu-eng.tsv.gz --out results/rank

Every head is put on the same LSTM and trained for as many steps. The LSTM is wide and the classes'
vectors narrow (d), so that the head is the bottleneck: log-probabilities of a softmax, or of a
mixture of contexts, over any number of contexts have rank d + 2 at most (one of it for the bias);
those of a mixture of softmaxes need not. Yang et al. (2018), Table 6.

Stages: `train` (a GPU in minutes; it measures the ranks too), `plot`, or `all`. Finished runs are
kept: the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lstm_body import Body, Budget, Shape, hidden_states, train
from many_runs import Run, read_results, run_all, write_json
from text import Text, read_text
from torch import Tensor, nn

from uncork.core.errors import UncorkError
from uncork.nn import heads
from uncork.theory.spectrum import Spectrum

SEEDS = (0, 1, 2)
SINGLE = 1e-6  # of the largest singular value: what single precision would still see
SMOOTHING = 1e-6  # added to every probability where some are zero (Martins et al. 2020)

# Label, head and options; and how long it takes against a plain softmax.
MAIN: dict[str, tuple[str, dict[str, Any], float]] = {
    "softmax": ("softmax", {}, 1.0),
    "MoC, K = 15": ("moc", {"components": 15}, 1.1),
    "MoS, K = 3": ("mos", {"components": 3}, 1.4),
    "MoS, K = 5": ("mos", {"components": 5}, 1.8),
    "MoS, K = 10": ("mos", {"components": 10}, 2.8),
    "MoS, K = 15": ("mos", {"components": 15}, 3.8),
}
OTHERS: dict[str, tuple[str, dict[str, Any], float]] = {
    "sigsoftmax": ("sigsoftmax", {}, 1.5),
    "mixture of sigsoftmaxes, K = 3": ("mos-sigsoftmax", {"components": 3}, 6.0),
    "PLIF": ("plif", {}, 2.0),
    "Mixtape, K = 4": ("mixtape", {"components": 4}, 2.0),
    "1.5-entmax": ("entmax", {}, 1.5),
    "sparsemax": ("sparsemax", {}, 1.5),
    "1.5-ReLU": ("alpha-relu", {}, 1.5),
}
HEADS = {**MAIN, **OTHERS}
_SPARSE = ("entmax", "sparsemax", "alpha-relu")
_SEVERAL_CONTEXTS = ("moc", "mos", "mos-sigsoftmax", "mixtape")


class Narrow(nn.Module):
    """A head of width d on states of another width: through h = tanh(P g + c), which is the one
    context of a mixture with K = 1, unless the head makes its contexts itself."""

    def __init__(self, label: str, state: int, width: int, classes: int) -> None:
        super().__init__()
        name, options, _ = HEADS[label]
        kind = heads.HEADS[name]
        if name in _SEVERAL_CONTEXTS:
            self.context: nn.Module = nn.Identity()
            self.head = kind(state, classes, embedding=width, **options)
        else:
            self.context = nn.Sequential(nn.Linear(state, width), nn.Tanh())
            self.head = kind(width, classes, **options)

    def loss(self, states: Tensor, target: Tensor) -> Tensor:
        return self.head.loss(self.context(states), target)

    def log_probabilities(self, states: Tensor) -> Tensor:
        return self.head.log_probabilities(self.context(states))


@torch.no_grad()
def start_at_frequencies(head: Narrow, label: str, counts: np.ndarray) -> None:
    """Let the bias say how frequent words are, where the head's probabilities are exponentials.

    Otherwise contexts are used for that first: they saturate, and are slow to come back. Sparse
    heads need no such help.
    """
    name = HEADS[label][0]
    if name in _SPARSE or head.head.bias is None:
        return
    logs = torch.log(torch.tensor((counts + 1) / (counts + 1).sum(), dtype=torch.float32))
    # exp(z) σ(z) is about exp(2z) for the rare ones.
    head.head.bias.copy_(0.5 * logs if "sigsoftmax" in name else logs)


@lru_cache(maxsize=1)
def _text(source: str, vocabulary: int) -> Text:
    return read_text(source, vocabulary)


def plan(asked: argparse.Namespace) -> list[Run]:
    """Every head, width and seed."""
    common = {
        "state": asked.state, "vocabulary": asked.vocabulary, "embedding": asked.embedding,
        "hidden": asked.hidden, "contexts": asked.contexts, "budget": asdict(_budget(asked)),
    }  # fmt: skip
    where = {"text": str(asked.text), "device": asked.device}
    runs = []

    def add(label: str, width: int, seed: int) -> None:
        kind, options, _ = HEADS[label]
        name = f"{kind}{options.get('components', '')}-{width}-{seed}"
        one = {"head": label, "width": width, "seed": seed, **common}
        runs.append(Run(name, one, where, HEADS[label][2]))

    def wanted(labels: dict[str, Any]) -> list[str]:
        chosen = [label for label in labels if not asked.heads or HEADS[label][0] in asked.heads]
        return sorted(chosen, key=lambda label: HEADS[label][2])  # short ones first

    # What is compared first comes first: a budget may leave the rest out.
    narrowest, *wider = asked.widths
    first, *further = asked.seeds
    for seed in asked.seeds:
        for label in wanted(MAIN):
            add(label, narrowest, seed)
    for label in wanted(OTHERS):
        add(label, narrowest, first)
    for width in wider:
        for label in wanted(MAIN):
            add(label, width, first)
    for seed in further:
        for width in wider:
            for label in wanted(MAIN):
                add(label, width, seed)
    for seed in asked.seeds:
        for width in asked.widths:
            for label in wanted(OTHERS):
                if (seed, width) != (first, narrowest):
                    add(label, width, seed)
    return runs


def _budget(asked: argparse.Namespace) -> Budget:
    warm_up = min(100, asked.steps // 5)
    return Budget(asked.steps, asked.batch, asked.length, asked.rate, warm_up=warm_up)


def train_one(asked: dict[str, Any]) -> dict[str, Any]:
    """Train one head on its body; perplexity and rank on held-out text."""
    device = torch.device(asked["device"])
    if device.type == "cpu":
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    text = _text(asked["text"], asked["vocabulary"])
    torch.manual_seed(asked["seed"])
    body = Body(Shape(text.vocabulary, asked["embedding"], asked["hidden"]), asked["state"])
    head = Narrow(asked["head"], asked["state"], asked["width"], text.vocabulary)
    start_at_frequencies(head, asked["head"], text.counts)
    body, head = body.to(device), head.to(device)
    stream = torch.tensor(text.train, dtype=torch.long, device=device)
    budget = Budget(**asked["budget"])
    if isinstance(head.head, heads.AlphaReLUHead):  # τ from a first batch, as in its paper
        states, _ = next(hidden_states(body, stream[: 16 * 65], length=64))
        with torch.no_grad():
            head.head.calibrate(head.context(states))

    def objective(states: Tensor, words: Tensor, following: Tensor) -> Tensor:
        return head.loss(states, following.flatten())

    losses = train(body, head, objective, stream, budget)
    torch.set_float32_matmul_precision("highest")
    test = torch.tensor(text.test, dtype=torch.long, device=device)
    body.eval()
    head.eval()
    return {
        "losses": losses,
        "parameters": sum(p.numel() for p in (*body.parameters(), *head.parameters())),
        **quality(body, head, test),
        **rank(body, head, test, asked["contexts"], asked["width"]),
    }


@torch.no_grad()
def quality(body: Body, head: Narrow, stream: Tensor) -> dict[str, Any]:
    """Perplexity and accuracy of the next word; where probabilities can be zero, the perplexity
    with `SMOOTHING` added to each, and how often the word that came had none."""
    sums = torch.zeros(4, dtype=torch.float64, device=stream.device)
    count, zeros = 0, False
    for states, following in hidden_states(body, stream):
        for rows, target in zip(states.split(1024), following.split(1024), strict=True):
            said = head.log_probabilities(rows)
            own = said.gather(1, target[:, None]).double()
            smooth = torch.log((own.exp() + SMOOTHING) / (1 + SMOOTHING * said.shape[1]))
            right = said.argmax(1, keepdim=True) == target[:, None]
            parts = (-own, -smooth, right.double(), (own == -math.inf).double())
            sums += torch.stack([part.sum() for part in parts])
            count += len(target)
            zeros = zeros or bool(torch.isinf(said).any())
    loss, smoothed, right, missed = (sums / count).tolist()
    made: dict[str, Any] = {
        "perplexity": round(math.exp(loss), 3) if math.isfinite(loss) else None,
        "accuracy": round(right, 4),
    }
    if zeros:
        made |= {"smoothed perplexity": round(math.exp(smoothed), 3), "missed": round(missed, 5)}
    return made


@torch.no_grad()
def rank(body: Body, head: Narrow, stream: Tensor, contexts: int, width: int) -> dict[str, Any]:
    """The numerical rank of the log-probabilities over evenly spaced held-out contexts.

    States come from the network in float32; from there on everything is float64, so that rounding
    lies far below the tolerance max(contexts, words)·2⁻⁵²·σ₁.
    """
    states = torch.cat([states for states, _ in hidden_states(body, stream)])
    if contexts > len(states):
        raise UncorkError(f"{contexts} contexts were asked for, the text has {len(states)}")
    chosen = torch.linspace(0, len(states) - 1, contexts, dtype=torch.float64).long()
    states, head = states[chosen.to(states.device)].double(), head.double()
    matrix = torch.cat([head.log_probabilities(rows) for rows in states.split(512)])
    if not bool(torch.isfinite(matrix).all()):
        return {"rank": None, "of": min(matrix.shape)}
    energy = float((matrix * matrix).sum())
    # A QR decomposition first: the singular values are those of the smaller triangle.
    longer = matrix if len(matrix) >= matrix.shape[1] else matrix.T
    triangle = torch.linalg.qr(longer, mode="r").R
    driver = "gesvd" if triangle.is_cuda else None  # the default is slower there
    values = torch.linalg.svdvals(triangle, driver=driver).cpu().numpy()
    found = Spectrum(values, (len(states), matrix.shape[1]), energy)
    kept = np.unique(np.geomspace(1, len(values), 60).round().astype(int))
    return {
        "rank": found.rank,
        "of": min(found.shape),
        "bound": width + 2,  # uncork.theory.bottleneck.rank_bound with a bias
        "tolerance": found.tolerance / values[0],
        "single": int((values > SINGLE * values[0]).sum()),
        "effective": round(found.effective_rank, 2),
        "spectrum": [[int(k), float(f"{values[k - 1] / values[0]:.4g}")] for k in kept],
    }


def table(results: list[dict[str, Any]]) -> str:
    """A line a head and width: means over seeds, and how far they are apart."""
    lines = [
        f"{'width':>5} {'head':<32} {'seeds':>5} {'perplexity':>16} {'accuracy':>8} "
        f"{'rank (lowest to highest)':>24} {'> 1e-6':>7}"
    ]
    for width in sorted({one["width"] for one in results}):
        for label in HEADS:
            rows = [one for one in results if (one["head"], one["width"]) == (label, width)]
            if rows:
                lines.append(_line(width, label, rows))
    return "\n".join(lines)


def _line(width: int, label: str, rows: list[dict[str, Any]]) -> str:
    smoothed = any("smoothed perplexity" in one for one in rows)
    key = "smoothed perplexity" if smoothed else "perplexity"
    values = np.array([one[key] for one in rows])
    spread = f" ± {values.std(ddof=1):.1f}" if len(rows) > 1 else ""
    right = np.mean([one["accuracy"] for one in rows])
    ranks = [one["rank"] for one in rows]
    if None in ranks:
        counted, single = "zeros have no log", "-"
    else:
        counted = f"{min(ranks)} to {max(ranks)} of {rows[0]['of']}"
        single = f"{np.mean([one['single'] for one in rows]):.0f}"
    mean = f"{values.mean():.1f}{spread}{'*' if smoothed else ''}"
    return (
        f"{width:>5} {label:<32} {len(rows):>5} {mean:>16} {right:>8.3f} {counted:>24} {single:>7}"
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    made.add_argument("stage", choices=("train", "plot", "all"))
    made.add_argument("--text", help="a .tsv(.gz) of pairs, a text, a PTB folder, a prepared .npz")
    made.add_argument("--out", type=Path, default=Path("results/rank"))
    made.add_argument("--widths", type=_numbers, default=(32,), help="d, of the head")
    made.add_argument("--heads", nargs="*", default=[], help="only these, by their names in HEADS")
    made.add_argument("--seeds", type=_numbers, default=SEEDS)
    made.add_argument("--vocabulary", type=int, default=10_000)
    made.add_argument("--contexts", type=int, default=4096, help="over which the rank is measured")
    made.add_argument("--steps", type=int, default=1300)
    made.add_argument("--batch", type=int, default=256, help="streams side by side")
    made.add_argument("--length", type=int, default=16, help="words of each a step")
    made.add_argument("--rate", type=float, default=1.5e-3, help="of learning")
    made.add_argument("--embedding", type=int, default=256)
    made.add_argument("--hidden", type=int, default=512, help="of the lower LSTM")
    made.add_argument("--state", type=int, default=256, help="of the upper LSTM")
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made.add_argument("--workers", type=int, default=1, help="trainings side by side")
    made.add_argument("--budget-seconds", type=float, help="begin no training that ends later")
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
            line=lambda run: f"perplexity {run['perplexity']}, rank {run['rank']} of {run['of']} "
            f"in {run['seconds']:.1f} s",
        )  # fmt: skip
    results = read_results(asked.out / "runs")
    if results:
        kept = [{key: one[key] for key in one if key != "losses"} for one in results]
        write_json(asked.out / "summary.json", kept, lines=True)
        print(table(results))
    if asked.stage in ("plot", "all"):
        from rank_figures import draw

        for path in draw(asked.out):
            print(path)
    return 1 if left else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UncorkError as error:
        print(f"rank: {error}", file=sys.stderr)
        sys.exit(2)
