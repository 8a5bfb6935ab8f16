"""Model cards: the section added and replaced, the hub's evaluation results, and pull requests."""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made import MIDDLE, SQUARE, subject
from typer.testing import CliRunner, Result

from hub_server import Hub, serving
from uncork import UncorkError, __version__
from uncork.check import Checked, run_checks
from uncork.check.card import BEGIN, END, evaluation, read_card
from uncork.check.run import Kept
from uncork.cli import app

hub_library = pytest.importorskip("huggingface_hub")
yaml = pytest.importorskip("yaml")

CARD = """---
license: mit   # a comment, and quotes as they are
tags: ['ocr', "text"]
---
# My model

Words of mine.
"""


@pytest.fixture(scope="module")
def checked() -> Checked:
    done = run_checks(subject([*SQUARE.tolist(), *MIDDLE.tolist()]))
    return replace(done, certificates=Kept("proofs.npz", "ab" * 32))


def test_the_section_is_added_and_nothing_else_changes(checked: Checked, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(CARD, encoding="utf-8")
    read_card(str(path)).save(checked)
    text = path.read_text(encoding="utf-8")
    assert text.startswith(CARD)
    assert text.count(BEGIN) == text.count(END) == 1
    card = hub_library.ModelCard.load(path)
    assert card.data.to_dict() == {"license": "mit", "tags": ["ocr", "text"]}
    assert "4 can be the argmax for some input, 1 can never be" in card.text
    assert "ab" * 32 in card.text
    assert "uncork verify proofs.npz made.npz" in card.text


def test_the_section_is_replaced_where_it_stands(checked: Checked, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"{CARD}\n{BEGIN}\nold\n{END}\n\n## After\r\n", encoding="utf-8", newline="")
    read_card(str(path)).save(checked)
    once = path.read_bytes()
    assert b"old" not in once
    assert once.startswith(CARD.encode())
    assert once.endswith(f"{END}\n\n## After\r\n".encode())
    read_card(str(path)).save(checked)
    assert path.read_bytes() == once


def test_a_model_of_the_hub_is_verified_by_its_whole_id(checked: Checked, tmp_path: Path) -> None:
    of_hub = replace(checked, audit=replace(checked.audit, source="hf:me/mine"))
    read_card(str(tmp_path / "README.md")).save(of_hub)
    assert "uncork verify proofs.npz hf:me/mine\n" in (tmp_path / "README.md").read_text("utf-8")


def test_a_card_that_is_not_there_is_made(checked: Checked, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    read_card(str(path)).save(checked)
    assert "What the output layer can say" in hub_library.ModelCard.load(path).text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"---\n- a\n- list\n---\n", "is not a model card"),
        (b"---\na: [1\n---\n", "is not a model card"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (BEGIN.encode(), "must stand there once each, or never"),
        (f"{BEGIN}{END}{BEGIN}{END}".encode(), "must stand there once each, or never"),
    ],
)
def test_a_card_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "README.md"
    path.write_bytes(content)
    with pytest.raises(UncorkError, match=said):
        read_card(str(path))


def test_the_evaluation_result_is_of_the_form_that_the_hub_documents(checked: Checked) -> None:
    text = evaluation(checked, "owner/benchmark", datetime.date(2026, 1, 2))
    (entry,) = yaml.safe_load(text)
    assert entry == {
        "dataset": {"id": "owner/benchmark", "task_id": "argmaxable"},
        "value": 80.0,
        "date": "2026-01-02",
        "source": {"url": "https://github.com/uncork-authors/uncork",
                   "name": f"uncork {__version__}"},
        "notes": f"inputs in {checked.audit.domain}; weights {checked.audit.fingerprint}; "
        f"certificates proofs.npz sha256:{'ab' * 32}",
    }  # fmt: skip
    (parsed,) = hub_library.parse_eval_result_entries([entry])
    assert parsed.value == 80.0


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    with serving() as server:
        for name, value in {
            "ENDPOINT": server.url, "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_TOKEN_PATH": str(tmp_path / "token"), "HF_HUB_DISABLE_XET": True,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.url + "/{repo_id}/resolve/{revision}/{filename}",
        }.items():  # fmt: skip
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", "hf_mine")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        folder = tmp_path / "remote"
        folder.mkdir()
        server.repositories["me/mine"] = folder
        yield server


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("model.npz", weight=np.vstack([SQUARE, MIDDLE]))
    return tmp_path


def run(*arguments: str) -> Result:
    given = ["check", "model.npz", "--quiet", "--jobs", "1", "--device", "cpu", *arguments]
    return CliRunner().invoke(app, given, prog_name="uncork", catch_exceptions=False)


PUBLISH = ("--card", "README.md", "--eval-results", "owner/benchmark", "--certificates", "c.npz")


def test_nothing_is_sent_unless_it_is_asked_for(hub: Hub, model: Path) -> None:
    assert run(*PUBLISH).exit_code == 1  # a class is lost; the card says so
    assert hub.requests == []
    digest = hashlib.sha256((model / "c.npz").read_bytes()).hexdigest()
    assert digest in (model / "README.md").read_text("utf-8")
    assert digest in (model / ".eval_results" / "uncork.yaml").read_text("utf-8")


def test_push_opens_a_pull_request_with_card_result_and_proofs(hub: Hub, model: Path) -> None:
    done = run(*PUBLISH, "--push", "me/mine")
    assert done.stderr == f"uncork: pull request opened: {hub.url}/me/mine/discussions/1\n"
    (commit,) = hub.commits
    assert (commit.repository, commit.pull_request) == ("me/mine", True)
    assert set(commit.files) == {"README.md", ".eval_results/uncork.yaml", "c.npz"}
    for name, data in commit.files.items():
        assert data == (model / name).read_bytes()
    assert {request.token for request in hub.requests if request.method == "POST"} == {
        "Bearer hf_mine"
    }


def test_push_begins_from_the_card_that_the_repository_has(hub: Hub, model: Path) -> None:
    (hub.repositories["me/mine"] / "README.md").write_text(CARD, encoding="utf-8")
    run("--card", "README.md", "--push", "me/mine")
    (commit,) = hub.commits
    assert commit.files["README.md"].decode().startswith(CARD)


def test_what_the_hub_refuses_is_one_line(
    hub: Hub, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    (model / "README.md").write_text(CARD)
    done = run("--card", "README.md", "--push", "me/mine")
    assert done.exit_code == 2
    assert "fail  lost" in done.stdout  # what was found is shown whatever the hub says
    assert re.fullmatch(r"uncork: error: --push me/mine: the hub refused it: .*\n", done.stderr)
