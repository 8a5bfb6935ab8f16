"""`uncork serve --export`: a folder of files, whole or not at all, that gives nothing away."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from tests.web.browsing import HOSTILE, HOSTILE_READING

import uncork
from uncork import UncorkError
from uncork.auditing.proofs.verdict import Mixture
from uncork.core.reading import Reading
from uncork.labels import LabelSets, decide_sets
from uncork.store import Store
from uncork.theory.random_heads import random_head
from uncork.web.export import write
from uncork.web.export.folder import MARKER, check_folder, whole_folder
from uncork.web.export.write import export_pages
from uncork.web.label_sets.queries import label_audit_page


def exported(store_file: Path, folder: Path, name: str | None = None) -> Path:
    with Store(store_file, create=False) as store:
        sets = label_audit_page(store, name, 100, 0)[1]
        export_pages(store, store.audits(name=name), folder, sets)
    return folder


def data(folder: Path, name: str) -> dict:
    text = (folder / "data" / f"{name}.js").read_text(encoding="ascii")
    call = re.fullmatch(r'uncorkData\("([\w-]+)", (".*")\);\n', text)
    assert call is not None
    assert call[1] == name
    return json.loads(json.loads(call[2]))


@pytest.fixture(scope="module")
def site(store_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(store_file, tmp_path_factory.mktemp("site") / "pages")


def test_every_audit_has_its_pages_its_data_and_its_table(site: Path) -> None:
    files = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    for k in (1, 2, 3, 4):
        assert {
            f"audit-{k}.html", f"audit-{k}-class.html", f"data/audit-{k}.js",
            f"downloads/audit-{k}.csv",
        } <= files  # fmt: skip
    for k in (1, 2):
        assert {f"label-audit-{k}.html", f"label-audit-{k}-set.html"} <= files
    assert {"index.html", "compare.html", "label-audits.html", "data/audits.js"} <= files
    listed = json.loads((site / MARKER).read_text())
    assert {*listed["files"], MARKER} == files
    assert [path.name for path in site.parent.iterdir()] == ["pages"]  # nothing half done


def test_no_page_names_another_place(site: Path) -> None:
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "Content-Security-Policy" in text
        for address in re.findall(r'(?:href|src)="([^"]*)"', text):
            assert (site / address.split("?")[0].split("#")[0]).is_file(), (page, address)
    for script in (site / "assets").glob("*.js"):
        assert not re.search(r"^(import|export) ", script.read_text(encoding="utf-8"), re.M)


def test_folders_of_this_machine_are_not_in_it(tmp_path: Path, store_file: Path) -> None:
    folder = tmp_path / "secret-folder"
    folder.mkdir()
    np.savez(folder / "head.npz", weight=random_head(9, 2).weight)
    head = uncork.load(str(folder / "head.npz"))
    reading = Reading("weight", labels_from=f"{folder}/words.txt", notes=(f"see {folder}/a",))
    audit = uncork.audit(head.replace(reading=reading), jobs=1)
    audit.save(folder / "proofs.npz")
    with Store(folder / "s.db") as store:
        store.save(audit, certificates=str(folder / "proofs.npz"))
        sets = decide_sets(audit.head, LabelSets.of_size(9, 1), jobs=1)
        store.save_label_audit(sets, certificates=str(folder / "sets.npz"))
    site = exported(folder / "s.db", tmp_path / "site")
    for path in site.rglob("*"):
        if path.is_file() and path.suffix != ".npz":
            assert "secret-folder" not in path.read_text(encoding="utf-8"), path
    assert "words.txt" in (site / "audit-1.html").read_text(encoding="utf-8")
    assert data(site, "audits")[0]["name"] == "head.npz"


def test_the_table_holds_every_class_and_no_formula(tmp_path: Path) -> None:
    labels = ["=1+1", "-", "=", "@SUM(A1)", "word", 'a,b\n"c"', "\ud800", "+1", "\t=1"]
    head = random_head(9, 2).replace(labels=labels)
    with Store(tmp_path / "s.db") as store:
        store.save(uncork.audit(head, jobs=1), name="=cmd()")
    site = exported(tmp_path / "s.db", tmp_path / "site")
    with (site / "downloads" / "audit-1.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [
        "'=1+1", "-", "=", "'@SUM(A1)", "word", labels[5], "\\ud800", "'+1", "'\t=1",
    ]  # fmt: skip
    assert {row["name"] for row in rows} == {"'=cmd()"}


def test_certificates_are_checked_then_copied_and_anything_else_is_not(tmp_path: Path) -> None:
    head = random_head(30, 3, seed=1)
    np.savez(tmp_path / "head.npz", weight=head.weight)
    audit = uncork.audit(uncork.load(str(tmp_path / "head.npz")), jobs=1)
    audit.save(tmp_path / "proofs.npz")
    (tmp_path / "password").write_text("do not tell")
    other = uncork.audit(random_head(30, 3, seed=2), jobs=1)
    with Store(tmp_path / "s.db") as store:
        store.save(audit, name="good", certificates=str(tmp_path / "proofs.npz"))
        store.save(other, name="bad", certificates=str(tmp_path / "password"))
    site = exported(tmp_path / "s.db", tmp_path / "site")
    copied = site / "downloads" / "audit-1-certificates.npz"
    assert copied.read_bytes() == (tmp_path / "proofs.npz").read_bytes()
    assert uncork.verify(uncork.Audit.load(copied), uncork.load(tmp_path / "head.npz")).ok
    assert data(site, "audit-1")["extra"]["certified"] is True
    assert data(site, "audit-2")["extra"]["certified"] is False
    assert not (site / "downloads" / "audit-2-certificates.npz").exists()
    assert "certificates.npz" not in (site / "audit-2.html").read_text(encoding="utf-8")
    assert not any(b"do not tell" in path.read_bytes() for path in site.rglob("*.*"))


def test_certificates_that_do_not_hold_are_not_called_certified(tmp_path: Path) -> None:
    head = random_head(30, 3, seed=1)
    np.savez(tmp_path / "head.npz", weight=head.weight)
    audit = uncork.audit(uncork.load(str(tmp_path / "head.npz")), jobs=1)
    lost = int(audit.unargmaxable[0])
    audit.proofs.mixtures[lost] = Mixture(audit.argmaxable[:1], np.ones(1))
    audit.save(tmp_path / "proofs.npz")
    with Store(tmp_path / "s.db") as store:
        store.save(audit, certificates=str(tmp_path / "proofs.npz"))
    site = exported(tmp_path / "s.db", tmp_path / "site")
    assert data(site, "audit-1")["extra"]["certified"] is False


def test_hostile_text_is_only_ever_text(site: Path) -> None:
    labels = data(site, "audit-4")["labels"]
    assert labels[:8] == list(HOSTILE[:8])
    for name in ("audit-4.html", "audit-4-class.html", "label-audit-2.html", "index.html"):
        text = (site / name).read_text(encoding="utf-8")
        assert "<script>window" not in text
        assert "<img" not in text
        assert text.count("<script") == text.count("</script>") <= 2
    assert HOSTILE_READING.weight in data(site, "audits")[-1]["weight"]


def test_a_folder_with_anything_else_in_it_is_left_alone(tmp_path: Path, store_file: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(UncorkError, match="not empty, and not an earlier export"):
        exported(store_file, full)
    with pytest.raises(UncorkError, match="is not a folder"):
        exported(store_file, full / "mine.txt")
    assert [path.name for path in full.iterdir()] == ["mine.txt"]


def test_an_earlier_export_is_replaced_but_not_with_somebodys_file_in_it(
    tmp_path: Path, store_file: Path
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()  # an empty folder will do
    exported(store_file, folder)
    exported(store_file, folder, name="model")
    assert not (folder / "audit-4.html").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    (folder / "assets" / "CNAME").write_text("example.org")
    with pytest.raises(UncorkError, match="assets/CNAME was not written by an export"):
        exported(store_file, folder)
    (folder / "assets" / "CNAME").unlink()
    (folder / "empty").mkdir()
    with pytest.raises(UncorkError, match="empty was not written"):
        check_folder(folder)
    (folder / "empty").rmdir()
    (folder / MARKER).write_text("[]")
    with pytest.raises(UncorkError, match="damaged"):
        exported(store_file, folder)
    assert (folder / "audit-1.html").exists()


def test_an_export_that_fails_leaves_what_was_there(
    tmp_path: Path, store_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(store_file, tmp_path / "site", name="model")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "_assets", full)
    with pytest.raises(UncorkError, match="No space left"):
        exported(store_file, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    with pytest.raises(UncorkError, match="No space left"):
        exported(store_file, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "new", "0"):
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_link_to_a_folder_stays_one(tmp_path: Path, store_file: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    exported(store_file, tmp_path / "link", name="model")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "index.html").is_file()


def test_equal_heads_under_two_names_are_listed_twice_and_written_once(tmp_path: Path) -> None:
    audit = uncork.audit(random_head(9, 2), jobs=1)
    with Store(tmp_path / "s.db") as store:
        store.save(audit, name="one")
        store.save(audit, name="two")
    site = exported(tmp_path / "s.db", tmp_path / "site")
    assert [item["name"] for item in data(site, "audits")] == ["one", "two"]
    assert [path.name for path in (site / "data").glob("audit-*")] == ["audit-1.js"]
    assert not (site / "compare.html").exists()
