"""The figures of `finetune_ocr.py`: what each head reads, and which characters came back.

python experiments/finetune_figures.py results/finetune_ocr --out results/finetune_ocr
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from finetune_ocr import UNSEEN, usable
from repair_ocr import MODELS, model_path

import uncork
from uncork.report.drawing import INK, LOST, REACHED, drawn_to

FONT = "/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc"
HEADS = ("shipped", "repaired", "lengthened", "prevented", "taught")


def share(head: dict[str, Any], texts: tuple[str, ...], what: str) -> float | None:
    """Characters read right in fonts that were not trained with, in per cent."""
    own = [r[what] for r in head["reads"] if r["text"] in texts and not r["seen"]]
    tried = sum(count[1] for count in own)
    return 100 * sum(count[0] for count in own) / tried if tried else None


def shares(model: dict[str, Any], title: str, texts: tuple[str, ...], what: str) -> list[float]:
    """Of the head, or of every seed."""
    heads = [head for name, head in model["heads"].items() if name.split()[0] == title]
    return [one for head in heads if (one := share(head, texts, what)) is not None]


def draw_reading(path: Path, models: list[dict[str, Any]]) -> None:
    """Lost characters and others read, head by head."""
    shown = [[t for t in HEADS if shares(model, t, ("lines",), "lost")] for model in models]
    tall = [len(titles) + 1.0 for titles in shown]  # a row each, and a title
    with drawn_to(path, (7.6, 0.42 * sum(tall) + 0.5)) as figure:
        panels = figure.subplots(len(models), 1, squeeze=False, height_ratios=tall)[:, 0]
        for axes, model, titles in zip(panels, models, shown, strict=True):
            for k, title in enumerate(titles):
                for shift, texts, what, colour in (
                    (-0.2, ("lines", "alone"), "lost", LOST),
                    (0.2, ("lines", "alone", "plain"), "able", REACHED),
                ):
                    found = shares(model, title, texts, what)
                    mean = sum(found) / len(found)
                    axes.barh(k + shift, mean, 0.36, color=colour)
                    axes.text(mean + 0.8, k + shift, f"{mean:.1f}", va="center", fontsize=8,
                              color=colour)  # fmt: skip
            axes.set_yticks(range(len(titles)), titles)
            axes.invert_yaxis()
            axes.set_xlim(0, 108)
            axes.set_xticks(range(0, 101, 20))
            axes.spines[["top", "right"]].set_visible(False)
            axes.set_title(
                f"{model['model']}: {model['taught']:,} of {model['lost']:,} lost characters "
                "taught",
                fontsize=9, color=INK, loc="left",
            )  # fmt: skip
            axes.text(1, 1.03, "lost characters", color=LOST, fontsize=8, ha="right",
                      transform=axes.transAxes)  # fmt: skip
            axes.text(0.8, 1.03, "others", color=REACHED, fontsize=8, ha="right",
                      transform=axes.transAxes)  # fmt: skip
        axes.set_xlabel("characters read right in two fonts not trained with, %")
        figure.tight_layout()


def draw_characters(path: Path, model: dict[str, Any], columns: int = 26) -> None:
    """The lost characters, each in the colour of how often it is read alone after teaching."""
    from matplotlib.font_manager import FontProperties

    head = uncork.load(str(model_path(*MODELS[model["model"]])))
    assert head.labels is not None
    lost = uncork.audit(head, jobs=1, device="cpu").unargmaxable.tolist()
    heads = [one for name, one in model["heads"].items() if name.startswith("taught")]
    fonts = {Path(font).stem: set(usable(head.labels, font)) for font in UNSEEN}
    reads = [(set(r["lost_read_alone"]), fonts[r["font"]]) for one in heads for r in one["reads"]
             if r["text"] == "alone" and not r["seen"]]  # fmt: skip
    tried = {k: sum(k in known for _, known in reads) for k in lost}
    share = {k: sum(k in right for right, _ in reads) / max(tried[k], 1) for k in lost}
    order = sorted((k for k in lost if tried[k]), key=lambda k: -share[k])
    lines = -(-len(order) // columns)
    with drawn_to(path, (7.6, 0.30 * lines + 0.3)) as figure:
        axes = figure.add_axes((0.02, 0.02, 0.96, 1 - 0.3 / (0.30 * lines + 0.3)))
        for place, k in enumerate(order):
            colour = REACHED if share[k] == 1 else INK if share[k] else LOST
            axes.text(
                (place % columns + 0.5) / columns, 1 - (place // columns + 0.5) / lines,
                head.labels[k], ha="center", va="center", color=colour,
                fontproperties=FontProperties(fname=FONT, size=13),
            )  # fmt: skip
        axes.set_axis_off()
        always, never = (sum(share[k] == value for k in order) for value in (1, 0))
        figure.suptitle(
            f"Read alone after teaching, three seeds and two unseen fonts: always {always} "
            f"(blue), at times {len(order) - always - never} (black), never {never} (orange)",
            fontsize=9, color=INK, y=0.995,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("results", type=Path, help="the folder of finetune_ocr.py, or its .json")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the figures")
    asked = parser.parse_args()
    files = sorted(asked.results.glob("*.json")) if asked.results.is_dir() else [asked.results]
    read = [json.loads(file.read_text("utf-8")) for file in files]
    models = [model for one in read for model in (one if isinstance(one, list) else [one])]
    draw_reading(asked.out / "taught_reading.png", models)
    for model in models:
        if model["taught"] == model["lost"]:
            draw_characters(asked.out / "taught_characters.png", model)


if __name__ == "__main__":
    main()
