"""A folder of files, whole or not at all; an earlier one is replaced, anything else is refused.

A list of what was written stands in the folder. Where it names every file there, all of them are an
export's and may go.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from uncork.core.errors import UncorkError

MARKER = "uncork-export.json"
_KIND = "uncork export"
_LARGEST = 1 << 26  # bytes of a list that is read at all


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise unless that folder is not there, is empty, or holds an export and nothing else."""
    folder = Path(path)
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise UncorkError(f"--export {folder}: it is there, and is not a folder")
    there = _files(folder)
    if not there:
        return
    if MARKER not in there:
        raise UncorkError(
            f"--export {folder}: the folder is not empty, and not an earlier export: choose another"
        )
    foreign = sorted(there - _listed(folder) - {MARKER})
    if foreign:
        raise UncorkError(
            f"--export {folder}: {foreign[0]} was not written by an export, and would be lost: "
            "move it away, or choose another folder"
        )


@contextmanager
def whole_folder(path: str | os.PathLike[str], version: str) -> Iterator[Path]:
    """Where to write what is to be the folder `path`, once the block has ended well."""
    check_folder(path)
    target = Path(os.path.realpath(path))
    name = f"{target.name[:200]}.{secrets.token_hex(4)}"
    unfinished, earlier = target.with_name(name + ".part"), target.with_name(name + ".old")
    try:
        try:
            unfinished.mkdir()
            yield unfinished
            _mark(unfinished, version)
            check_folder(target)  # somebody may have put something there meanwhile
            if target.exists():
                target.rename(earlier)
            try:
                unfinished.rename(target)
            except OSError:
                if earlier.exists():
                    earlier.rename(target)
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
            if target.exists():
                shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:
        raise UncorkError(f"{path} cannot be written: {error.strerror or error}") from None


def _mark(folder: Path, version: str) -> None:
    listed = {"kind": _KIND, "version": 1, "uncork": version, "files": sorted(_files(folder))}
    (folder / MARKER).write_text(json.dumps(listed, indent=1) + "\n", encoding="ascii")


def _files(folder: Path) -> set[str]:
    """Every file below a folder, and every folder with nothing in it, by its path from there."""
    found = set()
    for place, folders, files in os.walk(folder):
        here = PurePosixPath(Path(place).relative_to(folder).as_posix())
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found |= {str(here / name) for name in (*files, *links)}
        if not files and not folders and place != str(folder):
            found.add(str(here))
    return found


def _listed(folder: Path) -> set[str]:
    try:
        if (folder / MARKER).stat().st_size > _LARGEST:
            raise ValueError
        plain: Any = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        if plain["kind"] != _KIND or not all(isinstance(name, str) for name in plain["files"]):
            raise ValueError
        return set(plain["files"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UncorkError(
            f"--export {folder}: its {MARKER} is damaged, so that nobody knows what is an "
            "export's there: choose another folder"
        ) from None
