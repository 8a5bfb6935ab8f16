"""The user's data: lines of text, arrays by input name, or pictures of text."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError

_LONGEST_LINE = 1 << 20  # characters of one text; the rest of such a line is left out
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
ARRAYS = (".npz", ".npy")


def files_of(data: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The files named, folders replaced by what is in them, in order."""
    found: list[Path] = []
    for name in data:
        if not str(name):  # a path of it would be the working directory
            raise UncorkError("--data: a name is empty: give a file, a folder or a pattern")
        path = Path(name)
        if glob.has_magic(str(name)) and not path.exists():  # a pattern the shell was kept from
            matching = sorted(Path(p) for p in glob.glob(str(name)) if os.path.isfile(p))
            if not matching:
                raise UncorkError(f"--data {name} matches no file")
            found += matching
        elif path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and p.name[:1] != ".")
            if not inside:
                raise UncorkError(f"--data {path}: the folder is empty")
            found += inside
        elif path.is_file():
            found.append(path)
        else:
            what = "is not a regular file" if path.exists() else "does not exist"
            raise UncorkError(f"--data {path} {what}")
    if not found:
        raise UncorkError("no data: name files with --data")
    return found


def named_and_matched(data: Sequence[str] | None) -> list[str]:
    """What was named, and every file that stands for: what a result must not overwrite."""
    return [] if not data else [*data, *map(str, files_of(data))]


def digest_of(*parts: object, files: Sequence[Path] = ()) -> str:
    """What tells two runs apart: settings, and names, sizes and dates of files."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part}\n".encode())
    for path in files:
        status = path.stat()
        digest.update(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()


class Lines:
    """Texts, one a line; empty lines are left out."""

    def __init__(self, files: Sequence[Path]) -> None:
        for path in files:
            if path.suffix.lower() in (*PICTURES, *ARRAYS):
                raise UncorkError(f"--data {path}: this model takes text, one a line")
        self.files = list(files)
        self.total = sum(1 for _ in self._every())
        if not self.total:
            raise UncorkError(f"--data {self.files[0]}: there is no text in it")

    def between(self, start: int, stop: int) -> Iterator[str]:
        for k, line in enumerate(self._every()):
            if k >= stop:
                return
            if k >= start:
                yield line

    def _every(self) -> Iterator[str]:
        for path in self.files:
            try:
                with path.open(encoding="utf-8") as file:
                    while line := file.readline(_LONGEST_LINE):
                        cut = line
                        while not cut.endswith("\n") and (cut := file.readline(_LONGEST_LINE)):
                            pass
                        if text := line.strip():
                            yield text
            except UnicodeDecodeError:
                raise UncorkError(f"--data {path} is not UTF-8 text") from None


class Arrays:
    """Model inputs from .npz (by name) and .npy files (for a model with one input)."""

    def __init__(self, files: Sequence[Path], names: Sequence[str]) -> None:
        self.files, self.names = list(files), list(names)
        self.counts = [self._count(path) for path in self.files]
        self.total = sum(self.counts)
        if not self.total:
            raise UncorkError(f"--data {self.files[0]}: the arrays are empty")

    def _open(self, path: Path) -> dict[str, np.ndarray]:
        try:
            loaded = np.load(path, allow_pickle=False, mmap_mode="r")
            if isinstance(loaded, np.ndarray):
                if len(self.names) != 1:
                    raise UncorkError(
                        f"--data {path}: the model has the inputs {', '.join(self.names)}: give "
                        "an .npz with an array for each"
                    )
                return {self.names[0]: loaded}
            with loaded:
                missing = [name for name in self.names if name not in loaded.files]
                if missing:
                    raise UncorkError(
                        f"--data {path} has no array {missing[0]!r}; there are "
                        f"{', '.join(loaded.files[:8])}"
                    )
                return {name: loaded[name] for name in self.names}
        except (ValueError, OSError, EOFError) as error:
            if isinstance(error, UncorkError):
                raise
            raise UncorkError(f"--data {path} is not an array file: {error}") from None

    def _count(self, path: Path) -> int:
        arrays = self._open(path)
        counts = {len(a) if a.ndim else 0 for a in arrays.values()}
        if len(counts) != 1:
            raise UncorkError(
                f"--data {path}: the first dimensions of its arrays differ: {sorted(counts)}"
            )
        return counts.pop()

    def between(
        self, start: int, stop: int, size: int
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Items start to stop, at most `size` at a time: how many, and the arrays."""
        first = 0
        for path, count in zip(self.files, self.counts, strict=True):
            low, high = max(start, first) - first, min(stop, first + count) - first
            if low < high:
                arrays = self._open(path)
                for k in range(low, high, size):
                    end = min(k + size, high)
                    yield end - k, {n: np.ascontiguousarray(a[k:end]) for n, a in arrays.items()}
            first += count


def picture(path: Path, channels: int, height: int) -> np.ndarray:
    """A picture of a line of text as recognisers take it: (1, channels, height, width) float32.

    Resized to the height with its proportions kept, (v/255 − 0.5)/0.5, channels in the order blue,
    green, red, as PP-OCR has them; one channel is grey.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UncorkError("reading pictures needs Pillow: pip install pillow") from None
    try:
        with Image.open(path) as image:
            turned = image.convert("RGB" if channels == 3 else "L")
            width = max(1, round(turned.width * height / turned.height))
            if width > 65_536:
                raise UncorkError(
                    f"--data {path} is {turned.width} × {turned.height}: no line of text"
                )
            small = turned.resize((width, height), Image.Resampling.BILINEAR)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, UncorkError):
            raise
        raise UncorkError(f"--data {path} is not a picture that can be read: {error}") from None
    values = np.asarray(small, dtype=np.float32)
    values = values[:, :, ::-1] if channels == 3 else values[:, :, None]
    return np.ascontiguousarray(((values / 255 - 0.5) / 0.5).transpose(2, 0, 1)[None])
