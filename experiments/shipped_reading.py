"""Every character a recogniser names, rendered and read: does it ever come first?"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from ocr import Recogniser, covers, render

from uncork.core.progress import Progress

BATCH = 8
NARROWEST = 96  # columns: enough for one character, and a third of the work of the usual 320


def characters(labels: tuple[str, ...], font: str) -> list[int]:
    """Classes that are one visible character of the font."""
    return [
        i
        for i, label in enumerate(labels)
        if len(label) == 1 and not label.isspace() and label.isprintable() and covers(font, label)
    ]


def font_name(font: str) -> str:
    """The file's name and a digest of its bytes: what makes two fonts the same one."""
    return f"{Path(font).name} sha256:{hashlib.sha256(Path(font).read_bytes()).hexdigest()[:12]}"


def read_characters(
    reader: Recogniser, ids: list[int], font: str, height: int, progress: Progress
) -> dict[str, Any]:
    """One image a class: which are read as themselves, and which classes ever come first.

    `first` counts over every time step of every image, so it says more than the text read: a class
    that is not in it did not win once.
    """
    reads: list[str] = []
    first: set[int] = set()
    steps = 0
    progress.stage("reading", len(ids))
    for start in range(0, len(ids), BATCH):
        group = ids[start : start + BATCH]
        images = [
            render(reader.labels[i], font, height * 3 // 4, height // 8, height) for i in group
        ]
        frames = reader.frames(images, batch=BATCH, narrowest=NARROWEST)
        first.update(int(i) for i in np.unique(np.concatenate(frames)))
        steps += sum(map(len, frames))
        reads += [reader.decode(frame) for frame in frames]
        progress.advance(len(group))
    right = [i for i, text in zip(ids, reads, strict=True) if text == reader.labels[i]]
    instead = {
        str(i): text for i, text in zip(ids, reads, strict=True) if text != reader.labels[i]
    }  # text for keys, as JSON has it
    return {
        "tried": ids, "right": right, "instead": instead, "first": sorted(first), "steps": steps
    }  # fmt: skip


def sampled(ids: list[int], lost: set[int], most: int, seed: int = 0) -> list[int]:
    """At most so many of the lost and as many of the others, at random; all where `most` is 0."""
    chosen: list[int] = []
    rng = np.random.default_rng(seed)
    for group in ([i for i in ids if i in lost], [i for i in ids if i not in lost]):
        if most and len(group) > most:
            group = [group[k] for k in rng.choice(len(group), most, replace=False)]
        chosen += group
    return sorted(chosen)
