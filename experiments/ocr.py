"""Text rendered to images and read by an OCR recogniser: what experiments on such models share.

    reader = Recogniser("ch_PP-OCRv4_rec_infer.onnx")
    reader.read([render("你好", "/usr/share/fonts/truetype/wqy/wqy-zenhei.ttc")])    # ['你好']

or, to see what a model makes of a text:

    python experiments/ocr.py ch_PP-OCRv4_rec_infer.onnx --font wqy-zenhei.ttc 商榷 你好

For recognisers of the PaddleOCR family in ONNX: an image of 48 rows and three equal channels goes
in, scaled to [−1, 1], and one row of class scores for every eight columns comes out. Text is
decoded greedily, as the packages that ship these models do (CTC: repeats are merged, blanks
dropped). Needs `uncork[onnxruntime]`, and fontTools, which comes with matplotlib, to tell what a
font covers.

Fonts are files; these experiments use two that Debian packages: fonts-wqy-zenhei (sans serif) and
fonts-arphic-uming (serif).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from uncork import UncorkError, load

HEIGHT = 48  # rows of an image, since the third version of PaddleOCR's; 32 before
_NARROWEST = 320  # columns; narrower images are padded, as rapidocr does
_FONT_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts")
_FONT_NAMES = (".ttf", ".ttc", ".otf")


@lru_cache(maxsize=8)
def _opened(font: str, size: int) -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.truetype(font, size)
    except OSError as error:
        raise UncorkError(f"{font} cannot be opened as a font: {error}") from None


@lru_cache(maxsize=8)
def _characters(font: str) -> frozenset[int]:
    from fontTools.ttLib import TTFont, TTLibError

    try:
        # Opened here, because fontTools leaves a file that is no font open. The first font of a
        # collection is PIL's choice, too.
        with open(font, "rb") as file:
            return frozenset(TTFont(file, fontNumber=0, lazy=True).getBestCmap() or ())
    except (OSError, TTLibError) as error:
        raise UncorkError(f"{font} cannot be opened as a font: {error}") from None


def covers(font: str | os.PathLike[str], text: str) -> bool:
    """Whether the font has a glyph of its own for every character."""
    known = _characters(os.fspath(font))
    return all(ord(character) in known for character in text)


def fonts(text: str = "", folders: Iterable[str | os.PathLike[str]] = _FONT_FOLDERS) -> list[str]:
    """Installed font files that cover every character of the text, in order of their names."""
    found = []
    for folder in folders:
        for path in sorted(Path(folder).expanduser().rglob("*")):
            if path.suffix.lower() not in _FONT_NAMES:
                continue
            try:
                if covers(path, text):
                    found.append(str(path))
            except UncorkError:  # a damaged font among the system's is not the caller's mistake
                continue
    return found


def render(
    text: str,
    font: str | os.PathLike[str],
    size: int = 36,
    margin: int = 6,
    height: int = HEIGHT,
) -> np.ndarray:
    """Black text on white, as tall as a recogniser wants it: (3, height, width) float32 in [−1, 1].

    Text stands on the font's own baseline, because a comma and an apostrophe differ by their height
    alone. `size` is the font's size in pixels.
    """
    from PIL import Image, ImageDraw

    opened = _opened(os.fspath(font), size)
    ascent, descent = opened.getmetrics()
    left, _, right, _ = opened.getbbox(text, anchor="ls")
    left, right = min(left, 0), max(right, round(opened.getlength(text)))
    picture = Image.new("L", (right - left + 2 * margin, height), 255)
    baseline = (height - ascent - descent) / 2 + ascent
    ImageDraw.Draw(picture).text((margin - left, baseline), text, 0, font=opened, anchor="ls")
    grey = np.asarray(picture, dtype=np.float32) / 127.5 - 1  # (height, width)
    return np.broadcast_to(grey, (3, *grey.shape))


class Recogniser:
    """An ONNX recogniser: `labels` names its classes, the CTC blank first."""

    labels: tuple[str, ...]

    def __init__(
        self,
        path: str | os.PathLike[str],
        threads: int | None = None,
        labels: Sequence[str] | None = None,
    ) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise UncorkError(
                "reading images needs onnxruntime: pip install 'uncork[onnxruntime]'"
            ) from None
        labels = load(os.fspath(path)).labels if labels is None else labels
        if labels is None:
            raise UncorkError(f"{path} names no characters: give them as `labels`, the blank first")
        self.labels = tuple(labels)
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        if threads is not None:
            settings.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            os.fspath(path), settings, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name

    def scores(
        self, images: Sequence[np.ndarray], batch: int = 16, narrowest: int = _NARROWEST
    ) -> Iterator[np.ndarray]:
        """The model's output for each image in turn: (time, classes), in most files a softmax.

        Images are padded to one width with zeros, the middle grey, as in training.
        """
        for start in range(0, len(images), batch):
            group = images[start : start + batch]
            width = max(narrowest, *(image.shape[2] for image in group))
            padded = np.zeros((len(group), 3, group[0].shape[1], width), np.float32)
            for row, image in zip(padded, group, strict=True):
                row[:, :, : image.shape[2]] = image
            yield from self._session.run(None, {self._input: padded})[0]

    def frames(self, images: Sequence[np.ndarray], **how: Any) -> list[np.ndarray]:
        """For each image, which class comes first at every time step: (time,) ids."""
        return [scores.argmax(1) for scores in self.scores(images, **how)]

    def read(self, images: Sequence[np.ndarray], **how: Any) -> list[str]:
        """The text of each image."""
        return [self.decode(ids) for ids in self.frames(images, **how)]

    def decode(self, ids: np.ndarray) -> str:
        """CTC: a run of one class counts once, and blanks are dropped."""
        kept = ids[np.r_[True, ids[1:] != ids[:-1]]]
        return "".join(self.labels[i] for i in kept if i != 0)


def main(arguments: list[str] | None = None) -> None:
    """Print each text and what is read of it, a column a font."""
    parser = argparse.ArgumentParser(description="Render text and read it with an ONNX recogniser.")
    parser.add_argument("model", help="a PaddleOCR recogniser that names its characters (.onnx)")
    parser.add_argument("text", nargs="+")
    parser.add_argument("--font", action="append", required=True, help="a font file; repeatable")
    asked = parser.parse_args(arguments)
    for font in asked.font:
        for text in asked.text:
            if not covers(font, text.replace(" ", "")):
                raise UncorkError(f"{font} has no glyph for some character of {text!r}")
    reader = Recogniser(asked.model)
    for text in asked.text:
        read = reader.read([render(text, font) for font in asked.font])
        print(text, *read, sep="\t")


if __name__ == "__main__":
    try:
        main()
    except UncorkError as error:
        sys.exit(f"error: {error}")
