"""The summary of all runs, and the times, as Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from translation.outputs import OUTPUTS, TITLES
from translation.runs import BEAMS


def mean_spread(values: Sequence[float], digits: int = 1) -> str:
    """Mean ± sample standard deviation over the seeds."""
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def tables(summary: dict[str, Any], times: dict[str, Any]) -> str:
    """Everything of the summary as Markdown."""
    outputs = [o for o in OUTPUTS if o in summary["curves"]]
    parts = []
    test = summary["test"]
    decoded = [o for o in outputs if o in test]
    beams = [f"beam{b}" for b in BEAMS if decoded and f"beam{b}" in test[decoded[0]][0]["bleu"]]

    def over_seeds(output: str, beam: str, *path: str) -> list[float]:
        found = []
        for run in test[output]:
            value = run["empty"][beam]
            for key in path:
                value = value[key]
            found.append(100 * value)
        return found

    parts.append("BLEU on test, detokenised, mean ± standard deviation over seeds\n")
    parts.append(
        table(
            ["output", "seeds", *(f"beam {b[4:]}" for b in beams)],
            [
                [
                    TITLES[o],
                    str(len(test[o])),
                    *(mean_spread([run["bleu"][b] for run in test[o]]) for b in beams),
                ]
                for o in decoded
            ],
        )
    )
    parts.append("\nThe empty translation scores above the one found, % of test sentences\n")
    parts.append(
        table(
            ["output", *(f"beam {b[4:]}" for b in beams), "impossible (probability 0), %"],
            [
                [
                    TITLES[o],
                    *(mean_spread(over_seeds(o, b, "normalised", "share_above"), 2) for b in beams),
                    mean_spread(over_seeds(o, beams[0], "normalised", "share_impossible")),
                ]
                for o in decoded
            ],
        )
    )
    classes = summary["units"]["target"]
    parts.append("\nOn test references: support, zeros, Σp, words that got probability 0\n")
    parts.append(
        table(
            ["output", "support, mean", "zeros, %", "Σp, mean", "Σp, 5 % to 95 %", "accuracy, %",
             "reference impossible, %"],
            [
                [
                    TITLES[o],
                    mean_spread([r["positions"]["support"]["mean"] for r in test[o]]),
                    mean_spread(
                        [100 * (1 - r["positions"]["support"]["mean"] / classes) for r in test[o]],
                        2,
                    ),
                    mean_spread([r["positions"]["sum"]["mean"] for r in test[o]], 3),
                    " to ".join(
                        f"{np.mean([r['positions']['sum']['quantiles'][i] for r in test[o]]):.2f}"
                        for i in (1, 5)
                    ),
                    mean_spread([100 * r["positions"]["accuracy"] for r in test[o]]),
                    mean_spread([100 * r["positions"]["target_impossible"] for r in test[o]]),
                ]
                for o in decoded
            ],
        )
    )  # fmt: skip
    for key, found in summary["to_score"].items():
        parts.append(f"\nSteps to a validation {key} of {found['wanted']:.4g}\n")
        rows = []
        for output in outputs:
            row = found["outputs"][output]
            steps = [s for s in row["steps"] if s is not None]
            seconds = row.get("seconds", {})
            rows.append(
                [
                    TITLES[output],
                    mean_spread(steps, 0) if steps else "not reached",
                    "; ".join(f"{name}: {value:.1f} s" for name, value in seconds.items()),
                ]
            )
        parts.append(table(["output", "steps", "at the measured time a step"], rows))
    for row in [*times.get("steps", []), *times.get("large", [])]:
        parts.append(
            f"\nMilliseconds a step, {row['classes']:,} classes, about {row['rows']:,} rows, "
            f"{row['state']}, alone on {times['device']}\n"
        )
        whole, alone = row["milliseconds_a_step"], row["milliseconds_the_loss_alone"]
        base, base_alone = whole["softmax"]["median"], alone["softmax"]["median"]
        parts.append(
            table(
                ["variant", "step", "against softmax", "the loss alone", "against softmax"],
                [
                    [
                        name,
                        f"{v['median']:.2f} ({v['least']:.2f} to {v['most']:.2f})",
                        f"{v['median'] / base:.2f}",
                        f"{alone[name]['median']:.2f}",
                        f"{alone[name]['median'] / base_alone:.2f}",
                    ]
                    for name, v in whole.items()
                ],
            )
        )
    if "decoding" in times:
        parts.append(_decoding_table(times["decoding"]))
    if "tau" in times:
        parts.append("\nτ measured on the first batch of an untrained model, and predicted\n")
        parts.append(
            table(
                ["features × classes", "measured", "predicted"],
                [
                    [
                        f"{r['width']} × {r['classes']:,}",
                        mean_spread(r["measured"], 4),
                        f"{r['predicted']:.4f}",
                    ]
                    for r in times["tau"]
                ],
            )
        )
    return "\n".join(parts)


def _decoding_table(found: dict[str, Any]) -> str:
    labels = list(dict.fromkeys(r["label"] for r in found["rows"]))
    rows = {(r["label"], r["beam"]): r for r in found["rows"]}
    beams = sorted({r["beam"] for r in found["rows"]})
    sentences = found["rows"][0]["sentences"]

    def cell(row: dict[str, Any]) -> str:
        step, seconds = row["milliseconds_a_step"]["median"], row["seconds"]["median"]
        return f"{step:.2f} ({row['steps']}, {seconds:.3f} s)"

    return (
        f"\nTranslating {sentences:,} test sentences by beam size ({found['state']}): milliseconds "
        "a step (steps, all of them)\n\n"
        + table(
            ["variant", *(f"beam {b}" for b in beams)],
            [[label, *(cell(rows[label, b]) for b in beams)] for label in labels],
        )
    )
