"""How near the lost characters of two shipped OCR models come: every bound proven, twice.

    python experiments/reach_ocr.py --out results/reach_ocr     (make results-reach)

For PP-OCRv4 and PP-OCRv6 small (inputs within ±100): the highest softmax probability of every
unargmaxable class, the best rank of all 202 of the one and of 500 of the other, evenly spread over
its ids, and what sparsemax and 1.5-entmax would give PP-OCRv4's. The proofs are written to files,
and everything in these is proven again from the file, without a solver. CPU seconds are those of
all threads of this process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import uncork
from uncork.reach.certificates import (
    Certificates,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.probability.search import highest_probability
from uncork.reach.rank.search import best_rank
from uncork.reach.sparse.search import sparse_probability

MODELS = {
    "PP-OCRv4": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "PP-OCRv6 small": ("rapidocr", "models/PP-OCRv6_rec_small.onnx"),
}
_Result = TypeVar("_Result")


def path_of(package: str, file: str) -> Path:
    """The model inside an installed package, none of whose code is run."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{package} is not installed: make test installs it")
    return Path(found.submodule_search_locations[0]) / file


class Clock:
    """CPU and wall seconds, stage by stage."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}

    def __call__(self, stage: str, work: Callable[[], _Result]) -> _Result:
        began, spent = time.perf_counter(), time.process_time()
        result = work()
        self.stages[stage] = {
            "cpu": round(time.process_time() - spent, 1),
            "wall": round(time.perf_counter() - began, 1),
        }
        print(f"  {stage}: {self.stages[stage]}", flush=True)
        return result


def quantiles(values: np.ndarray) -> list[float]:
    """Least, median, largest."""
    return [float(f"{v:.6g}") for v in np.quantile(values, [0, 0.5, 1])]


def measure(name: str, arguments: argparse.Namespace, out: Path) -> dict[str, Any]:
    clock, jobs = Clock(), arguments.jobs
    head = uncork.load(str(path_of(*MODELS[name])))
    stem = name.lower().replace(" ", "_")
    kept = None if arguments.audits is None else Path(arguments.audits) / f"{stem}.npz"
    if kept is not None and kept.exists():
        audit = uncork.Audit.load(kept, head)
    else:
        audit = clock("audit", lambda: uncork.audit(head, jobs=jobs, device="cpu"))
        if kept is not None:
            audit.save(kept)
    lost = audit.unargmaxable
    spread = np.linspace(0, len(lost) - 1, min(arguments.ranks, len(lost))).astype(np.int64)
    found = Certificates(head.fingerprint, head.domain)
    found.probability = p = clock(
        "probability",
        lambda: highest_probability(head, lost, audit=audit, jobs=jobs, device="cpu"),
    )
    found.rank = r = clock(
        "rank",
        lambda: best_rank(
            head,
            lost[spread],
            audit=audit,
            hints=p.inputs[spread],
            jobs=jobs,
            top=arguments.most or None,
        ),
    )
    file = out / f"{stem}.npz"
    clock("write", lambda: write_certificates(found, file))
    checked = clock(
        "check",
        lambda: check_certificates(read_certificates(file, head), head, device="cpu", jobs=jobs),
    )
    ratio = r.upper / r.lower
    row: dict[str, Any] = {
        "model": name, "classes": head.classes, "features": head.features,
        "unargmaxable": len(lost),
        "highest probability": quantiles(p.lower),
        "all below one half": bool((p.upper < 0.5).all()),
        "largest relative gap": float(f"{p.gap.max():.3g}"),
        "ranks of": len(spread), "best rank at least": quantiles(r.lower),
        "best rank at most": quantiles(r.upper), "median ratio": round(float(np.median(ratio)), 2),
        "ratio": quantiles(ratio), "never in the top 2": int((r.lower > 2).sum()),
        "checked": checked.held, "failed": len(checked.failed),
    }  # fmt: skip
    for alpha in arguments.alphas if name == "PP-OCRv4" else ():
        s = clock(
            f"{alpha:g}-entmax",
            lambda alpha=alpha: sparse_probability(
                head, lost, alpha, audit=audit, jobs=jobs, device="cpu"
            ),
        )
        row[f"{alpha:g}-entmax"] = {
            "probability": quantiles(s.lower), "largest relative gap": float(f"{s.gap.max():.3g}"),
            "never in the support": int((s.support == 0).sum()),
            "in the support": int((s.support == 1).sum()),
            "the whole support": int((s.whole == 1).sum()),
        }  # fmt: skip
    row["seconds"] = clock.stages
    needed = ("probability", "rank", "check")
    row["CPU seconds of probability, rank and check"] = round(
        sum(clock.stages[stage]["cpu"] for stage in needed), 1
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="results/reach_ocr")
    parser.add_argument("--audits", help="folder where audits are kept from run to run")
    parser.add_argument("--ranks", type=int, default=500, help="classes whose rank is bounded")
    parser.add_argument(
        "--most", type=int, default=5,
        help="mixtures sought for each rank, which is then at least one more than as many; 0: as "
        "many as there are, which takes twice as long for PP-OCRv4 (default 5: about eight minutes "
        "on two cores for both models, audits not counted)",
    )  # fmt: skip
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--alphas", nargs="*", type=float, default=[1.5, 2.0])
    parser.add_argument("--jobs", type=int)
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    if arguments.audits is not None:
        Path(arguments.audits).mkdir(parents=True, exist_ok=True)
    rows = []
    for name in arguments.models:
        print(name, flush=True)
        rows.append(measure(name, arguments, out))
        (out / "reach_ocr.json").write_text(
            json.dumps(rows, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
