"""German to English with softmax, sparsemax, 1.5-entmax and 1.5-ReLU: "Speeding Up Entmax" again.

    python experiments/translate.py prepare --data deu-eng.tsv.gz
    python experiments/translate.py train --device cuda --workers 6 --decode
    python experiments/translate.py measure --device cuda       (alone on the GPU: it takes times)
    python experiments/translate.py score
    python experiments/translate.py audit
    python experiments/translate.py plot

Each stage reads and writes one results folder (--results) and skips what is finished there. Data:
Tatoeba's pairs from manythings.org/anki (a file: English, tab, German), or a folder of Multi30k's
train, val and test_2016_flickr in .de and .en. What is measured, and what came out, is told in
docs/results/speeding_up_entmax.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from uncork.core.errors import UncorkError

if TYPE_CHECKING:
    from translation.training import TrainingConfig

MODEL_OPTIONS = {
    "steps": "training steps, the same for every output",
    "warmup": "steps until the learning rate is at its highest",
    "learning-rate": "the highest",
    "batch-tokens": "target positions in a batch",
    "evaluate-every": "steps between evaluations",
    "validation": "sentences of validation that are used",
    "snapshot-sentences": "of validation, translated at every evaluation",
    "width": "of the model; the head's number of features",
    "layers": "of the encoder, and of the decoder",
    "heads": "of attention",
    "inner": "width of the feed-forward layers",
    "dropout": "share of activations dropped",
}


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        STAGES[options.stage](options)
    except UncorkError as error:
        print(f"translate: {error}", file=sys.stderr)
        return 2
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python experiments/translate.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    stages = found.add_subparsers(dest="stage", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--results", type=Path, default=Path("results/translate"))
    shared.add_argument("--prepared", type=Path, help="default: RESULTS/prepared")

    stage = stages.add_parser("prepare", parents=[shared], help="a corpus to arrays of units")
    stage.add_argument("--data", type=Path, required=True, help="Tatoeba's file, Multi30k's folder")
    stage.add_argument("--source-units", type=int, default=10_000)
    stage.add_argument("--target-units", type=int, default=10_000)
    stage.add_argument("--joint", action="store_true", help="the same units for both languages")
    stage.add_argument("--held-out", type=int, default=3000, help="validation and test sources")

    from translation.training import TrainingConfig

    defaults = {f.name: f.default for f in fields(TrainingConfig)}
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("--device", default="cpu", help="cpu or cuda")
    model.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    for name, text in MODEL_OPTIONS.items():
        default = defaults[name.replace("-", "_")]
        model.add_argument(f"--{name}", type=type(default), default=default, help=text)

    for name, text in (
        ("train", "every output with every seed, and α-ReLU with every τ"),
        ("decode", "translate the test part with every trained model"),
    ):
        stage = stages.add_parser(name, parents=[shared, model], help=text)
        stage.add_argument("--workers", type=int, default=1, help="processes, each one run")
        stage.add_argument("--budget-seconds", type=float, help="start and continue nothing after")
    stages.choices["train"].add_argument("--decode", action="store_true", help="each at its end")
    stages.choices["train"].add_argument(
        "--together", action="store_true", help="all main runs stacked in one process"
    )
    stages.choices["train"].add_argument(
        "--fit-seconds", type=float, help="with --together: as many steps as fit into these"
    )
    stages.choices["train"].add_argument(
        "--evaluations", type=int, help="with --together: how many, evenly spread"
    )
    stages.choices["train"].add_argument("--tau-steps", type=int, default=300, help="0: no τ runs")

    stage = stages.add_parser("measure", parents=[shared, model], help="times, on an idle device")
    stage.add_argument("--only", choices=("steps", "large", "decoding", "tau"), nargs="+")
    stage.add_argument("--rounds", type=int, default=5)
    stage.add_argument("--batches", type=int, default=10, help="steps of a variant in a round")
    stage.add_argument("--sentences", type=int, default=1000, help="to time decoding on")
    stage.add_argument("--large", type=int, default=40_000, help="classes of the larger head")
    stage.add_argument("--no-peers", action="store_true", help="without the entmax package")

    stages.add_parser("score", parents=[shared], help="BLEU, and tables of everything")
    stage = stages.add_parser("audit", parents=[shared], help="which units no input makes first")
    stage.add_argument("--jobs", type=int)
    stage = stages.add_parser("plot", parents=[shared], help="figures")
    stage.add_argument("--figures", type=Path, help="default: RESULTS/figures")
    return found


def prepared_folder(options: argparse.Namespace) -> Path:
    return options.prepared or options.results / "prepared"


def base_config(options: argparse.Namespace) -> TrainingConfig:
    from translation.training import TrainingConfig

    chosen = {name.replace("-", "_") for name in MODEL_OPTIONS}
    for name in MODEL_OPTIONS:
        if name in ("dropout", "learning-rate"):
            continue
        if getattr(options, name.replace("-", "_")) < 1:
            raise UncorkError(f"--{name} must be at least 1")
    return TrainingConfig("softmax", **{name: getattr(options, name) for name in chosen})


def prepare(options: argparse.Namespace) -> None:
    from translation import data

    folder = prepared_folder(options)
    if (folder / "arrays.npz").is_file():
        print(f"{folder}: prepared already")
        return
    corpus = data.read_corpus(options.data, options.held_out)
    prepared = data.prepare(
        corpus,
        folder,
        source_units=options.source_units,
        target_units=options.target_units,
        joint=options.joint,
    )
    for part in data.PARTS:
        source, target = prepared.part(part)
        units = [int((side != data.PAD).sum()) for side in (source, target)]
        print(f"{part:<11} {len(source):>7,} pairs {units[0]:>10,} and {units[1]:>10,} units")
    print(f"units: {prepared.source_units:,} German, {prepared.target_units:,} English")


def train(options: argparse.Namespace) -> None:
    if options.together:
        _train_together(options)
    _do(options, True, options.decode)


def _train_together(options: argparse.Namespace) -> None:
    from translation import data, runs, stacked

    folder = runs.Folder(options.results)
    configs = runs.main_runs(base_config(options), options.seeds)
    if all(runs.finished(folder.record(c.name)) for c in configs):
        return
    prepared = data.load_prepared(prepared_folder(options))
    device = runs.start_device(options.device)
    for config, trained in stacked.train_together(
        prepared, configs, device, runs.say, options.fit_seconds, options.evaluations
    ):
        runs.save_run(trained, config, folder)


def decode(options: argparse.Namespace) -> None:
    _do(options, False, True)


def _do(options: argparse.Namespace, training: bool, decoding: bool) -> None:
    from translation import data, runs

    folder, prepared = runs.Folder(options.results), prepared_folder(options)
    base = base_config(options)
    # Fail here, not in every process.
    runs.check_device(options.device)
    base.model(data.load_prepared(prepared))
    limit = options.budget_seconds
    deadline = None if limit is None else time.time() + limit
    configs = runs.main_runs(base, options.seeds)
    if training and options.tau_steps:
        configs += runs.tau_runs(base, options.tau_steps)
    jobs = [
        runs.Job(c, prepared, folder, options.device, decoding, training, deadline) for c in configs
    ]
    runs.do_jobs(jobs, options.workers)


def measure(options: argparse.Namespace) -> None:
    from translation import measuring

    measuring.measure(options.results, prepared_folder(options), base_config(options), options)


def score(options: argparse.Namespace) -> None:
    from translation import scoring

    print(scoring.score(options.results, prepared_folder(options)))


def audit(options: argparse.Namespace) -> None:
    from translation import heads

    print(heads.audit_heads(options.results, prepared_folder(options), options.jobs))


def plot(options: argparse.Namespace) -> None:
    from translation import figures

    for path in figures.plot(options.results, options.figures or options.results / "figures"):
        print(path)


STAGES = {
    "prepare": prepare,
    "train": train,
    "decode": decode,
    "measure": measure,
    "score": score,
    "audit": audit,
    "plot": plot,
}

if __name__ == "__main__":
    sys.exit(main())
