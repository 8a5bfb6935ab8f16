"""LIMIT (Weller et al. 2025): which pairs of 46 documents can some query rank first, by dimension?

python experiments/limit.py pairs --json docs/results/data/limit.json
python experiments/limit.py critical --json docs/results/data/limit_critical.json
python experiments/limit.py figure -o docs/results/figures/limit.svg

Three kinds of document vectors, each with all 1,035 pairs decided and proven:

* random: directions drawn at random;
* trained: an encoder of bags of words. Every pair is a word that exactly two documents hold; the
  encoder (one vector a word, a document the mean of its words') is trained to find the two for half
  of the words, and never sees queries for the other half;
* optimised: the paper's free embeddings. Document and query vectors are parameters, trained on the
  very pairs that are asked about (InfoNCE, Adam, all pairs at once).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from uncork.core.items import Items
from uncork.domain import Unbounded
from uncork.retrieval import Judgements
from uncork.retrieval.certify import SetCertifier
from uncork.retrieval.examples import LIMIT_ITEMS, moment_curve, random_items
from uncork.retrieval.questions import Question, Questions

DIMENSIONS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
SEEDS = (0, 1)
STEPS, RATE, TEMPERATURE = 1000, 0.03, 0.1


def pairs_of(count: int) -> torch.Tensor:
    """All pairs: (pairs, 2)."""
    return torch.combinations(torch.arange(count), 2)


def loss_of(queries: torch.Tensor, documents: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """InfoNCE: each of the two documents against those that are not relevant."""
    queries = torch.nn.functional.normalize(queries, dim=1)
    documents = torch.nn.functional.normalize(documents, dim=1)
    scores = queries @ documents.T / TEMPERATURE  # (pairs, documents)
    relevant = torch.zeros_like(scores).scatter_(1, pairs, 1.0) > 0
    others = torch.logsumexp(scores.masked_fill(relevant, -torch.inf), dim=1, keepdim=True)
    own = scores.gather(1, pairs)
    return (torch.logaddexp(own, others) - own).mean()


def descend(parameters: list[torch.Tensor], loss: Any) -> None:
    optimiser = torch.optim.Adam(parameters, RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
        schedule.step()


def optimised(count: int, features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Free document and query vectors, trained on all pairs."""
    torch.manual_seed(seed)
    pairs = pairs_of(count)
    documents = torch.randn(count, features, requires_grad=True)
    queries = torch.randn(len(pairs), features, requires_grad=True)
    descend([documents, queries], lambda: loss_of(queries, documents, pairs))
    return _units(documents), _units(queries)


def trained(count: int, features: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Documents as means of word vectors; the query of a pair is the word that both hold."""
    torch.manual_seed(seed)
    pairs = pairs_of(count)
    words = torch.randn(len(pairs), features, requires_grad=True)
    asked = torch.randn(len(pairs), features, requires_grad=True)
    held = torch.zeros(count, len(pairs))
    held[pairs[:, 0], torch.arange(len(pairs))] = 1.0
    held[pairs[:, 1], torch.arange(len(pairs))] = 1.0
    held /= held.sum(dim=1, keepdim=True)
    half = torch.randperm(len(pairs))[: len(pairs) // 2]
    descend([words, asked], lambda: loss_of(asked[half], held @ words, pairs[half]))
    return _units(held @ words), _units(asked)


def _units(rows: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(rows.detach(), dim=1).numpy().astype(np.float32)


def decided(documents: np.ndarray, queries: np.ndarray | None) -> dict[str, Any]:
    """Shares of the pairs that are possible, and that the queries at hand rank first."""
    sets = Judgements.every(len(documents), 2).relevant
    engine = Questions(SetCertifier(Items(documents), Unbounded()))
    answers = [decision.possible for decision in engine.ask([Question(ids) for ids in sets])]
    row: dict[str, Any] = {
        "possible": answers.count(True), "impossible": answers.count(False),
        "undecided": answers.count(None), "share": answers.count(True) / len(sets),
    }  # fmt: skip
    if queries is not None:
        scores = queries.astype(np.float64) @ documents.astype(np.float64).T
        first = np.sort(np.argsort(-scores, axis=1)[:, :2], axis=1)
        row["own_share"] = float((first == np.array(sets)).all(axis=1).mean())
    return row


def pairs(path: str) -> None:
    rows = []
    for features in DIMENSIONS:
        for seed in SEEDS:
            made: dict[str, tuple[np.ndarray, np.ndarray | None]] = {
                "random": (random_items(LIMIT_ITEMS, features, seed).vectors, None),
                "trained": trained(LIMIT_ITEMS, features, seed),
                "optimised": optimised(LIMIT_ITEMS, features, seed),
            }
            for kind, (documents, queries) in made.items():
                rows.append({"kind": kind, "features": features, "seed": seed,
                             **decided(documents, queries)})  # fmt: skip
                print(rows[-1], flush=True)
    curve = decided(moment_curve(LIMIT_ITEMS, 4).vectors, None)
    rows.append({"kind": "moment curve", "features": 4, "seed": 0, **curve})
    print(rows[-1], flush=True)
    Path(path).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def critical(path: str, most: int) -> None:
    """The largest number of documents whose every pair optimised vectors make possible."""
    rows = []
    for features in (3, 4, 5, 6):
        row: dict[str, Any] = {"features": features, "own": 0, "possible": 0}
        for count in range(features + 1, most + 1):
            documents, queries = optimised(count, features, 0)
            found = decided(documents, queries)
            if found["own_share"] == 1 and row["own"] in (0, count - 1):
                row["own"] = count
            if found["share"] < 1:
                break
            row["possible"] = count
        rows.append(row)
        print(row, flush=True)
    Path(path).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def figure(data: str, path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = json.loads(Path(data).read_text("utf-8"))
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for kind, colour in (("optimised", "C2"), ("trained", "C1"), ("random", "C0")):
        own = [r for r in rows if r["kind"] == kind]
        places = sorted({r["features"] for r in own})

        def mean(key: str, places: list[int] = places, own: list[Any] = own) -> list[float]:
            return [float(np.mean([r[key] for r in own if r["features"] == d])) for d in places]

        axes.plot(places, mean("share"), "-o", color=colour, ms=4, label=f"{kind}: any query")
        if "own_share" in own[0]:
            axes.plot(places, mean("own_share"), ":s", color=colour, ms=3,
                      label=f"{kind}: its own queries")  # fmt: skip
    axes.plot([4], [1], "k*", ms=10, label="moment curve: any query")
    axes.set(xlabel="features", ylabel="share of the 1,035 pairs", ylim=(0, 1.03))
    axes.legend(frameon=False, fontsize=8)
    axes.grid(alpha=0.25)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("pairs", "critical", "figure"))
    parser.add_argument("--json", default="docs/results/data/limit.json")
    parser.add_argument("--most", type=int, default=40)
    parser.add_argument("-o", "--output", default="docs/results/figures/limit.svg")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "pairs":
        pairs(given.json)
    elif given.what == "critical":
        critical(given.json, given.most)
    else:
        figure(given.json, given.output)


if __name__ == "__main__":
    main()
