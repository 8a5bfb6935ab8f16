"""A format is a reader and a line in a table: done here from a package of one's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import uncork
from uncork.cli import app
from uncork.loading import formats

# [docs: begin]
READER = '''
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.loading.contents import Choice, Contents, Tensor, Vocabulary


def read_rows(path: Path) -> Contents:
    """Lines of "label number number …" after a first line "rows 1"."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    try:
        weight = np.array([[float(number) for number in rest] for _, *rest in lines])
    except ValueError as error:
        raise UncorkError(f"{path}: a row holds something other than numbers: {error}") from None
    tensors = {"rows": Tensor("rows", weight.shape, "float64", lambda: weight)}
    labels = Vocabulary(tuple(label for label, *_ in lines), f"the rows of {path.name}")
    choose = lambda: Choice(weight, None, "rows", None, "the only tensor")
    return Contents(path, "rows", tensors, choose, vocabulary=lambda classes: labels)
'''

ROWS = formats.Format(
    "rows",
    "rows_format:read_rows",  # module:function, imported when a file calls for it
    shown=".rows",
    suffixes=(".rows",),
    starts=lambda start, size: start.startswith(b"rows 1\n"),
)
# [docs: end]


@pytest.fixture
def rows_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "rows_format.py").write_text(READER)
    monkeypatch.syspath_prepend(tmp_path / "package")
    monkeypatch.setattr(formats, "FORMATS", list(formats.FORMATS))
    formats.add(ROWS)
    yield
    sys.modules.pop("rows_format", None)


@pytest.mark.usefixtures("rows_format")
def test_a_new_format_is_loaded_audited_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "words.rows"
    path.write_text("rows 1\nup 0 1\ndown 0 -1\nleft -1 0\nright 1 0\nmiddle 0.1 0.1\n")
    head = uncork.load(path, domain="unbounded")
    assert head.labels == ("up", "down", "left", "right", "middle")
    assert uncork.audit(head).unargmaxable.tolist() == [4]
    shown = CliRunner().invoke(app, ["audit", str(path), "--domain", "unbounded"])
    assert shown.exit_code == 0
    assert "middle" in shown.stdout


@pytest.mark.usefixtures("rows_format")
def test_its_damaged_files_are_refused_like_all_others(tmp_path: Path) -> None:
    path = tmp_path / "words.rows"
    path.write_text("rows 1\nup 0 one\n")
    with pytest.raises(uncork.UncorkError, match="other than numbers"):
        uncork.load(path)
    path.write_text("something else\n")
    with pytest.raises(uncork.UncorkError, match=r"not a \.rows file"):
        uncork.load(path)
    np.save(tmp_path / "plain.npy", np.eye(3))
    assert uncork.load(tmp_path / "plain.npy").classes == 3


def test_without_it_the_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "words.rows"
    path.write_text("rows 1\nup 0 1\n")
    with pytest.raises(uncork.UncorkError, match="not a model that uncork reads"):
        uncork.load(path)
