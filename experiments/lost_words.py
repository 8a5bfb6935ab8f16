"""What audits say of trained language models: lost words by width, by frequency, by seed."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from many_runs import read_results, write_json
from text import Text

from uncork import Box, Domain, Head, UncorkError, Verdict, audit
from uncork.auditing.search.together.iterations import count_iterations
from uncork.reach import highest_probability
from uncork.theory.random_heads import random_head

# h = o·tanh(c) of an LSTM lies within ±1; the papers take ±100. Without a bias it is all one.
LSTM, PAPER = Box(1), Box(100)
PATIENCE = 200  # reflections after which a class counts as hard
TRIED = 500  # reachable classes whose reflections are counted
BINS = 10


def analyse(out: Path, text: Text, sample: int) -> dict[str, Any]:
    """Audit every head that was trained and write `summary.json`; what was done is not repeated."""
    runs = {run["name"]: run for run in read_results(out / "runs")}
    if not runs:
        raise UncorkError(f"there are no trained models in {out}: run the train stage first")
    folder = out / "audits"
    folder.mkdir(exist_ok=True)
    wanted = list(_wanted(out, runs, text))
    for done, (name, head, asked) in enumerate(wanted, 1):
        path = folder / f"{name}.json"
        if path.exists():
            continue
        begun = time.perf_counter()
        found = {"name": name, **asked, **_look(head, asked, sample)}
        found["seconds"] = round(time.perf_counter() - begun, 2)
        write_json(path, found)
        counts = ", ".join(f"{count} {verdict}" for verdict, count in found["counts"].items())
        print(f"[{done}/{len(wanted)}] {name}: {counts}", file=sys.stderr, flush=True)
    audits = [one for one in read_results(folder) if one["name"] in {w[0] for w in wanted}]
    summary = {
        "words": text.vocabulary,
        "heads": [_summary(one, runs.get(one["run"]), text) for one in audits],
        "seeds": list(_seeds(audits)),
        "examples": _examples(audits, text),
    }
    write_json(out / "summary.json", summary, lines=True)
    return summary


def _wanted(
    out: Path, runs: dict[str, Any], text: Text
) -> Iterator[tuple[str, Head, dict[str, Any]]]:
    """Every head with every domain that matters to it; and random heads of the same shapes."""
    order = ("plain", "student", "bias")
    by_seed = sorted(runs.items(), key=lambda item: (item[1]["seed"], order.index(item[1]["kind"])))
    for name, run in by_seed:
        with np.load(out / "heads" / f"{name}.npz", allow_pickle=False) as file:
            weight, bias = file["weight"], file.get("bias")
        about = {key: run[key] for key in ("kind", "width", "seed")} | {"run": name}
        domains: tuple[Domain, ...] = (LSTM,) if bias is None else (LSTM, PAPER)
        for domain in domains:
            head = Head(weight, bias, domain=domain)
            yield f"{name}-{domain}".replace(":", ""), head, {**about, "domain": str(domain)}
    for width in sorted({run["width"] for run in runs.values()}):
        head = random_head(text.vocabulary, width, "uniform", domain=LSTM)
        about = {"kind": "random", "width": width, "seed": 0, "run": "", "domain": str(LSTM)}
        yield f"random-{width}-0", head, about


def _look(head: Head, asked: dict[str, Any], sample: int) -> dict[str, Any]:
    result = audit(head, device="cpu")
    verdicts = result.proofs.verdicts
    found: dict[str, Any] = {
        "counts": {key: int(value) for key, value in result.counts.items()},
        "lost": np.flatnonzero(verdicts == Verdict.UNARGMAXABLE).tolist(),
    }
    if asked["kind"] != "plain":
        return found
    reached = np.flatnonzero(verdicts == Verdict.ARGMAXABLE)
    # How hard the reachable ones are for the paper's approximate algorithm.
    some = reached[np.unique(np.linspace(0, len(reached) - 1, TRIED).astype(np.int64))]
    taken = count_iterations(head.replace(domain=PAPER), some, PATIENCE)[some]
    found["reflections"] = {
        "tried": len(some),
        "mean": round(float(np.where(taken < 0, PATIENCE, taken).mean()), 2) if len(taken) else 0.0,
        "none": int((taken == 0).sum()),
        "beyond patience": int((taken < 0).sum()),
    }
    if asked["seed"] == 0 and sample:
        # Words are numbered by frequency, so that even steps are even in frequency rank.
        classes = np.unique(np.linspace(0, head.classes - 1, sample).astype(np.int64))
        highest = highest_probability(head, classes, audit=result, gap=1e-3, device="cpu")
        found["highest"] = {
            "classes": classes.tolist(),
            "lower": [float(f"{value:.4g}") for value in highest.lower],
            "upper": [float(f"{value:.4g}") for value in highest.upper],
        }
    return found


def _summary(one: dict[str, Any], run: dict[str, Any] | None, text: Text) -> dict[str, Any]:
    lost = np.zeros(text.vocabulary, dtype=bool)
    lost[one["lost"]] = True
    kept = {key: value for key, value in one.items() if key not in ("lost", "run")}
    kept["perplexity"] = None if run is None else run["test"]
    kept["lost"] = int(lost.sum())
    if "highest" in one:
        classes = one["highest"]["classes"]
        seen = {"counts": text.counts[classes].tolist(), "lost": lost[classes].tolist()}
        kept["highest"] = {**one["highest"], **seen}
    # Frequency rank in ten parts, most frequent first.
    kept["lost by rank"] = [int(part.sum()) for part in np.array_split(lost, BINS)]
    if one["kind"] != "random" and 0 < lost.sum() < len(lost):
        kept["median count"] = {
            "lost": float(np.median(text.counts[lost])),
            "reached": float(np.median(text.counts[~lost])),
        }
        kept["lost is rarer"] = round(_rarer(text.counts[lost], text.counts[~lost]), 4)
    return kept


def _rarer(lost: np.ndarray, reached: np.ndarray) -> float:
    """The probability that a lost word is rarer than a reached one; a half says nothing (the
    Mann-Whitney statistic, ties counted half)."""
    below = np.searchsorted(np.sort(lost), reached, "left").sum()
    up_to = np.searchsorted(np.sort(lost), reached, "right").sum()
    return float(below + up_to) / (2 * len(lost) * len(reached))


def _seeds(audits: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """How far seeds lose the same words: the share of common words in all that two of them lose,
    and what it would be were they lost independently."""
    key = lambda one: (one["kind"], one["width"], one["domain"])  # noqa: E731
    for (kind, width, domain), group in itertools.groupby(sorted(audits, key=key), key):
        sets = [set(one["lost"]) for one in group]
        if kind == "random" or len(sets) < 2 or not all(sets):
            continue
        total = sum(next(one for one in audits if key(one) == (kind, width, domain))["counts"]
                    .values())  # fmt: skip
        overlaps, chances = [], []
        for a, b in itertools.combinations(sets, 2):
            overlaps.append(len(a & b) / len(a | b))
            common = len(a) * len(b) / total
            chances.append(common / (len(a) + len(b) - common))
        yield {
            "kind": kind, "width": width, "domain": domain,
            "lost": [len(one) for one in sets],
            "overlap": round(float(np.mean(overlaps)), 4),
            "by chance": round(float(np.mean(chances)), 4),
        }  # fmt: skip


def _examples(audits: list[dict[str, Any]], text: Text) -> dict[str, list[str]]:
    """The most frequent words lost by each plain head of seed 0, with their counts."""
    return {
        str(one["width"]): [f"{text.words[i]} ({text.counts[i]})" for i in sorted(one["lost"])[:12]]
        for one in audits
        if one["kind"] == "plain" and one["seed"] == 0 and one["lost"]
    }


def table(summary: dict[str, Any]) -> str:
    """Lost words of each kind by width, the seeds beside each other."""
    lines = [f"{'head':<10} {'domain':<9} {'width':>5}  {'perplexity':<22} lost of "
             f"{summary['words']:,}"]  # fmt: skip
    key = lambda one: (one["kind"], one["domain"], one["width"])  # noqa: E731
    for (kind, domain, width), group in itertools.groupby(sorted(summary["heads"], key=key), key):
        seeds = sorted(group, key=lambda one: one["seed"])
        ppl = " ".join("-" if s["perplexity"] is None else f"{s['perplexity']:.1f}" for s in seeds)
        lost = ", ".join(str(s["lost"]) for s in seeds)
        lines.append(f"{kind:<10} {domain:<9} {width:>5}  {ppl:<22} {lost}")
    return "\n".join(lines)
