"""From runs to tables: BLEU, steps to a score, the empty translation, zeros, Σp, τ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from translation.outputs import TITLES
from translation.runs import Folder, write_json
from translation.tables import tables
from uncork.core.errors import UncorkError

# "A given validation score": this share of what the weakest output reaches in the end.
SCORE_SHARE = 0.95


def texts(units: np.ndarray, tokenizer: Any) -> list[str]:
    """Detokenised: decoding byte-level units gives plain text."""
    rows = units.astype(int).tolist()
    return [text.strip() for text in tokenizer.decode_batch(rows, skip_special_tokens=True)]


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Detokenised corpus BLEU by sacrebleu, with as many references as each sentence has."""
    try:
        import sacrebleu
    except ImportError as error:
        raise UncorkError("scoring needs `pip install sacrebleu`") from error
    most = max(map(len, references))
    streams = [[r[i] if i < len(r) else None for r in references] for i in range(most)]
    found = sacrebleu.corpus_bleu(list(hypotheses), streams)  # type: ignore[arg-type]
    return float(found.score)


def score(results: Path, prepared: Path) -> str:
    """Write summary.json and every translation as text; return the tables."""
    from tokenizers import Tokenizer

    folder = Folder(results)
    if not (prepared / "target.json").is_file():
        raise UncorkError(f"{prepared}: nothing prepared there; run the prepare stage first")
    tokenizer = Tokenizer.from_file(str(prepared / "target.json"))
    references = {
        part: json.loads((prepared / f"{part}.references.json").read_text("utf-8"))
        for part in ("validation", "test")
    }
    records = [r for r in folder.records() if r["history"]]
    main = [r for r in records if r["config"]["tau"] is None and r["complete"]]
    if not main:
        raise UncorkError(f"{results}: no finished runs; run the train stage first")
    summary: dict[str, Any] = {
        "device": main[0]["device"],
        "config": {k: v for k, v in main[0]["config"].items() if k not in ("output", "seed")},
        "units": main[0]["units"],
        "parameters": main[0]["parameters"],
        "finished": sorted(r["name"] for r in main),
        "curves": _curves(folder, main, tokenizer, references["validation"]),
        "test": _test(folder, main, tokenizer, references["test"]),
        "tau": {r["name"]: r["tau"] for r in main},
        "tau_runs": [
            {
                "tau": r["config"]["tau"],
                "history": [_point(h) for h in r["history"]],
            }
            for r in records
            if r["config"]["tau"] is not None
        ],
    }
    measured = results / "measure.json"
    times = json.loads(measured.read_text()) if measured.is_file() else {}
    summary["to_score"] = _to_score(summary["curves"], times)
    write_json(results / "summary.json", summary)
    return tables(summary, times)


def _point(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "step": entry["step"],
        "training_loss": entry["training_loss"],
        "accuracy": entry["accuracy"],
        "support": entry["support"]["mean"],
        "sum": entry["sum"]["mean"],
        "target_impossible": entry["target_impossible"],
    }


def _curves(
    folder: Folder, main: list[dict[str, Any]], tokenizer: Any, references: list[list[str]]
) -> dict[str, list[dict[str, Any]]]:
    """By output: for every seed, what validation showed and when."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in main:
        with np.load(folder.snapshots(record["name"])) as snapshots:
            points = []
            for entry in record["history"]:
                units = snapshots[str(entry["step"])]
                value = bleu(texts(units, tokenizer), references[: len(units)])
                points.append(_point(entry) | {"bleu": value, "loss": entry["loss"]})
        found[record["config"]["output"]].append(
            {"seed": record["config"]["seed"], "points": points}
        )
    return dict(found)


def _test(
    folder: Folder, main: list[dict[str, Any]], tokenizer: Any, references: list[list[str]]
) -> dict[str, list[dict[str, Any]]]:
    """By output: for every seed, BLEU by beam, the empty translation, zeros and Σp."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in main:
        name = record["name"]
        if not folder.decoded(name).is_file():
            continue
        decoded = json.loads(folder.decoded(name).read_text())
        row: dict[str, Any] = {"seed": record["config"]["seed"], "bleu": {}, "words": {}}
        with np.load(folder.translations(name)) as translations:
            for beam in translations.files:
                hypotheses = texts(translations[beam], tokenizer)
                (folder.path / "decoded" / f"{name}.{beam}.txt").write_text(
                    "\n".join(hypotheses) + "\n", "utf-8"
                )
                row["bleu"][beam] = bleu(hypotheses, references)
                row["words"][beam] = sum(len(h.split()) for h in hypotheses)
        row |= {"empty": decoded["empty"], "positions": decoded["test"]}
        found[record["config"]["output"]].append(row)
    return dict(found)


def first_step(points: Sequence[dict[str, Any]], key: str, wanted: float) -> float | None:
    """The step at which a curve first reaches a score, linear between evaluations."""
    before = None
    for point in points:
        if point[key] >= wanted:
            if before is None or point[key] == before[key]:
                return float(point["step"])
            share = (wanted - before[key]) / (point[key] - before[key])
            return float(before["step"] + share * (point["step"] - before["step"]))
        before = point
    return None


def step_milliseconds(times: dict[str, Any], classes: int | None = None) -> dict[str, float]:
    """By variant: the time of a step with trained weights, measured alone on the device."""
    rows = [r for r in times.get("steps", []) if r["state"] != "at the start"]
    if classes is not None:
        rows = [r for r in rows if r["classes"] == classes]
    if not rows:
        return {}
    return {k: v["median"] for k, v in rows[0]["milliseconds_a_step"].items()}


def _to_score(curves: dict[str, Any], times: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    milliseconds = step_milliseconds(times)
    for key in ("bleu", "accuracy"):
        final = [np.mean([run["points"][-1][key] for run in runs]) for runs in curves.values()]
        wanted = float(SCORE_SHARE * min(final))
        rows = {}
        for output, runs in curves.items():
            steps = [first_step(run["points"], key, wanted) for run in runs]
            reached = [s for s in steps if s is not None]
            row: dict[str, Any] = {"steps": steps}
            if reached and TITLES[output] in milliseconds:
                names = [n for n in milliseconds if n == TITLES[output] or TITLES[output] in n]
                row["seconds"] = {
                    n: float(np.mean(reached)) * milliseconds[n] / 1000 for n in names
                }
            rows[output] = row
        found[key] = {"wanted": wanted, "outputs": rows}
    return found
