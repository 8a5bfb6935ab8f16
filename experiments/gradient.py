"""What the head throws away of the training signal, while models learn.

    python experiments/gradient.py copy --out results/gradient
    python experiments/gradient.py text --text deu-eng.tsv.gz --out results/gradient
    python experiments/gradient.py table --out results/gradient

A body of fixed size, a projection to d features, and a head of V classes: only d, V and the kind of
head change. `copy`: the next token is the one just read, which any body learns at once, so that
what is not learned is the head's doing ("Lost in Backpropagation", 2603.10145, in its spirit).
`text`: a small transformer on sentences. Each run is a line of JSON, and runs that are there are
left out when it is started again. The share of the gradient that passes is measured on 256 held-out
tokens as training goes on (`uncork.theory.gradient`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import uncork.nn as unn
import uncork.nn.functional as F
from uncork import Head
from uncork.theory.gradient import Output, expected_share, measure_gradient

KINDS = ("softmax", "entmax", "alpha-relu", "mos", "wide")
BODY = 256
LENGTH = 32
_MEASURED = 256  # tokens
_WIDE = 512  # features of the wide head's own layer


class Body(nn.Module):
    """Tokens (batch, length) to states (batch, length, BODY): embeddings, and causal layers."""

    def __init__(self, vocabulary: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, BODY)
        self.places = nn.Embedding(LENGTH, BODY)
        layer = nn.TransformerEncoderLayer(
            BODY, 4, 4 * BODY, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = None
        if layers:
            self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(BODY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        if self.layers is None:  # nothing but the token itself matters
            return self.norm(self.words(tokens))
        x = self.words(tokens) + self.places(torch.arange(length, device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.norm(self.layers(x, mask=mask, is_causal=True))


class Model(nn.Module):
    """A body, d features, and a head: what is compared."""

    def __init__(self, kind: str, width: int, vocabulary: int, layers: int) -> None:
        super().__init__()
        self.kind = kind
        self.body = Body(vocabulary, layers)
        self.narrow = nn.Sequential(nn.Linear(BODY, width), nn.LayerNorm(width))
        features = width
        if kind == "wide":
            self.narrow.append(nn.Linear(width, _WIDE))
            self.narrow.append(nn.GELU())
            features = _WIDE
        self.mixture = None
        if kind == "mos":
            self.mixture = unn.heads.MixtureOfSoftmaxes(features, vocabulary, components=3)
        else:
            self.rows = nn.Linear(features, vocabulary)
            nn.init.xavier_normal_(self.rows.weight)
            nn.init.zeros_(self.rows.bias)
        self.tau = unn.tau_from_shape(features, vocabulary)

    def states(self, tokens: Tensor) -> Tensor:
        return self.narrow(self.body(tokens)).flatten(0, 1)

    def loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        if self.mixture is not None:
            return self.mixture.loss(hidden, target)
        weight, bias = self.rows.weight, self.rows.bias
        if self.kind == "entmax":
            return F.linear_entmax_loss(hidden, weight, target, linear_bias=bias, alpha=1.5)
        if self.kind == "alpha-relu":
            return F.linear_alpha_relu_loss(
                hidden, weight, target, linear_bias=bias, alpha=1.5, tau=self.tau
            )
        return F.linear_cross_entropy(hidden, weight, target, linear_bias=bias)

    def right(self, hidden: Tensor, target: Tensor) -> Tensor:
        if self.mixture is not None:
            return self.mixture.log_probabilities(hidden).argmax(-1) == target
        return self.rows(hidden).argmax(-1) == target

    @torch.no_grad()
    def passing(self, hidden: Tensor, target: Tensor) -> dict[str, float]:
        """Shares of the gradient that pass; of a mixture, over the logits of its components."""
        y = target.cpu().numpy()
        device = "cuda" if hidden.is_cuda else "cpu"
        if self.mixture is not None:
            contexts, prior = self.mixture.contexts(hidden)
            return _mixture_share(
                _head(self.mixture.weight, self.mixture.bias), contexts, prior.exp(), y
            )
        outputs = {
            "entmax": Output("entmax", 1.5), "alpha-relu": Output("alpha-relu", 1.5, self.tau),
        }  # fmt: skip
        found = measure_gradient(
            _head(self.rows.weight, self.rows.bias), hidden.double().cpu().numpy(), y,
            output=outputs.get(self.kind, Output()), on_support=False, device=device,
        )  # fmt: skip
        return {
            "share": float(found.share.mean()), "lost": float(found.lost.mean()),
            "all_together": found.total, "cosine": float(found.step.mean()), "best": found.best,
            "support": float(found.support.mean()), "effective_rank": found.effective_rank,
        }  # fmt: skip


def _head(weight: Tensor, bias: Tensor | None) -> Head:
    return Head(
        weight.detach().float().cpu().numpy(),
        None if bias is None else bias.detach().float().cpu().numpy(),
    )


def _mixture_share(head: Head, contexts: Tensor, prior: Tensor, y: np.ndarray) -> dict[str, float]:
    """Of Σ_k r_k² ‖p_k − e_y‖², what passes: as `measure_mixture` does, a chunk at a time."""
    count, components = prior.shape
    flat = contexts.reshape(count * components, -1).double().cpu().numpy()
    found = measure_gradient(head, flat, np.repeat(y, components), on_support=False)
    z = (contexts.double().cpu() * torch.from_numpy(head.take(y))[:, None]).sum(-1)
    z = z + torch.from_numpy(head.offsets[y])[:, None]
    lse = torch.logsumexp(
        torch.from_numpy(flat) @ torch.from_numpy(head.weight).double().T
        + torch.from_numpy(head.offsets),
        -1,
    ).reshape(count, components)
    joint = prior.double().cpu().log() + z - lse
    responsible = torch.softmax(joint, -1).numpy()
    squares = (responsible * found.norm.reshape(count, components)) ** 2
    passed = squares * found.share.reshape(count, components) ** 2
    share = np.sqrt(passed.sum(1) / np.maximum(squares.sum(1), 1e-300))
    return {
        "share": float(share.mean()), "lost": float(np.sqrt(1 - share**2).mean()),
        "all_together": float(np.sqrt(passed.sum() / squares.sum())),
    }  # fmt: skip


class Copying:
    """The next token is the one just read: there is nothing to guess, and no context to use."""

    def __init__(self, vocabulary: int, device: str) -> None:
        self.vocabulary, self.device = vocabulary, device

    def batch(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        shape = (size, LENGTH)
        tokens = torch.randint(self.vocabulary, shape, generator=generator).to(self.device)
        return tokens, tokens.reshape(-1)

    def held_out(self) -> tuple[Tensor, Tensor]:
        return self.batch(torch.Generator().manual_seed(10**6), 256)


class Reading:
    """Sentences of a text, as windows of its stream of words."""

    def __init__(self, source: str, vocabulary: int, device: str) -> None:
        from text import read_text

        found = read_text(source, vocabulary)
        self.vocabulary = found.vocabulary
        self.train, self.valid = (
            torch.from_numpy(part.astype(np.int64)).to(device)
            for part in (found.train, found.valid)
        )

    def batch(self, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
        return self._windows(self.train, generator, size)

    def held_out(self) -> tuple[Tensor, Tensor]:
        return self._windows(self.valid, torch.Generator().manual_seed(0), 256)

    def _windows(
        self, stream: Tensor, generator: torch.Generator, size: int
    ) -> tuple[Tensor, Tensor]:
        first = torch.randint(len(stream) - LENGTH - 1, (size, 1), generator=generator)
        at = (first + torch.arange(LENGTH)).to(stream.device)
        return stream[at], stream[at + 1].reshape(-1)


def train(
    data: Copying | Reading, kind: str, width: int, seed: int, asked: argparse.Namespace
) -> dict[str, Any]:
    """One model, from the beginning; its curve."""
    torch.manual_seed(seed)
    layers = 0 if isinstance(data, Copying) else asked.layers
    model = Model(kind, width, data.vocabulary, layers).to(asked.device)
    optimiser = torch.optim.AdamW(model.parameters(), asked.rate, weight_decay=0.0)
    warm = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: min(1.0, (s + 1) / 50))
    generator = torch.Generator().manual_seed(seed)
    tokens, target = data.held_out()
    curve, seconds = [], 0.0
    for step in range(asked.steps + 1):
        if step % (asked.steps // asked.looks) == 0:
            curve.append(
                {"step": step, "seconds": round(seconds, 3), **look(model, tokens, target)}
            )
        began = time.perf_counter()
        optimiser.zero_grad(set_to_none=True)
        read, following = data.batch(generator, asked.batch)
        loss = model.loss(model.states(read), following)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        warm.step()
        if asked.device == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - began
    return {
        "task": asked.task, "kind": kind, "width": width, "seed": seed,
        "classes": data.vocabulary, "steps": asked.steps, "batch": asked.batch,
        "rate": asked.rate, "parameters": sum(p.numel() for p in model.parameters()),
        "expected": expected_share(
            data.vocabulary, min(_WIDE if kind == "wide" else width, data.vocabulary)
        ),
        "curve": curve,
    }  # fmt: skip


@torch.no_grad()
def look(model: Model, tokens: Tensor, target: Tensor) -> dict[str, float]:
    model.eval()
    hidden = model.states(tokens)
    parts = zip(hidden.split(1024), target.split(1024), strict=True)
    right = torch.cat([model.right(h, y) for h, y in parts])
    loss = float(model.loss(hidden, target))
    found = model.passing(hidden[:_MEASURED], target[:_MEASURED])
    model.train()
    return {"loss": loss, "accuracy": float(right.float().mean()), **found}


def table(folder: Path) -> None:
    """The end of every run, means over seeds."""
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            run = json.loads(line)
            key = (run["task"], run["classes"], run["width"], run["kind"])
            runs.setdefault(key, []).append(run)
    names = "task|classes|d|head|passes at first|passes at the end|accuracy|loss|ms a step"
    print("| " + " | ".join(names.split("|")) + " |")
    print("| --- " * 9 + "|")
    for (task, classes, width, kind), found in sorted(runs.items()):
        speed = statistics.mean(run["curve"][-1]["seconds"] / run["steps"] for run in found)
        print(
            f"| {task} | {classes:,} | {width} | {kind} | {_mean(found, 'share', 0)} "
            f"| {_mean(found, 'share', -1)} | {_mean(found, 'accuracy', -1)} "
            f"| {_mean(found, 'loss', -1)} | {1000 * speed:.1f} |"
        )


def _mean(found: list[dict[str, Any]], name: str, at: int) -> str:
    values = [run["curve"][at][name] for run in found]
    spread = f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("copy", "text", "table"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--text")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--widths", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--classes", type=int, nargs="+", default=[20_000])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--looks", type=int, default=6)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=1e9, help="start no run after so many")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    if asked.task == "table":
        table(asked.out)
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    path, began = asked.out / f"{asked.task}.jsonl", time.perf_counter()
    done = set()
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            run = json.loads(line)
            done.add(tuple(run[name] for name in ("kind", "width", "seed", "asked")))
    for classes in asked.classes:
        data: Copying | Reading
        if asked.task == "copy":
            data = Copying(classes, asked.device)
        elif asked.text is None:
            parser.error("text needs --text FILE")
        else:
            data = Reading(asked.text, classes, asked.device)
        for seed in range(asked.seeds):
            for width in asked.widths:
                for kind in asked.kinds:
                    late = time.perf_counter() - began > 60 * asked.minutes
                    if late or (kind, width, seed, classes) in done:
                        continue
                    run = {**train(data, kind, width, seed, asked), "asked": classes}
                    with path.open("a", encoding="utf-8") as out:
                        out.write(json.dumps(run) + "\n")
                    last = run["curve"][-1]
                    print(kind, width, seed, classes, {k: round(v, 4) for k, v in last.items()},
                          flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
