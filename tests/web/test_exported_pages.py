"""The exported pages in a real browser, from a disk and from a plain server of files."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import expect
from tests.web.browsing import HOSTILE, HOSTILE_READING, Watched, stumbling_blocks

import uncork
from browsers import comes_true, reads, shown, shows
from uncork.report.page import asset, one_script
from uncork.store import Store
from uncork.theory.random_heads import random_head
from uncork.web.export.write import export_pages
from uncork.web.label_sets.queries import label_audit_page

Watch = Callable[..., Watched]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(store_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site") / "pages"
    with Store(store_file, create=False) as store:
        export_pages(store, store.audits(), path, label_audit_page(store, None, 100, 0)[1])
    return path


@pytest.fixture(scope="module", params=["file", "http"])
def site(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Where the pages are: on a disk, and below a folder of a server that only sends files."""
    if request.param == "file":
        yield folder.as_uri()
        return
    handler = functools.partial(_Quiet, directory=folder.parent)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{folder.name}"
    server.shutdown()
    thread.join(20)
    server.server_close()


@pytest.fixture
def page(watch: Watch) -> Any:
    return watch().page


def test_the_list_leads_to_reports_and_these_to_classes(page: Any, site: str) -> None:
    page.goto(site + "/index.html")
    shown(page, "#audits tbody tr", 4)
    page.fill("#name", "model")
    shown(page, "#audits tbody tr", 3)
    page.locator("#audits tbody tr a").last.click()
    page.wait_for_selector(".row")
    shows(page, "h1", "of the 60 classes can never be the argmax")
    shown(page, "figure canvas", 4)
    page.click(".row >> nth=0")
    expect(page.locator("dialog h3", has_text="Who takes its place")).to_be_visible()
    page.click("dialog a:has-text('Everything about this class')")
    expect(page.locator("h2", has_text="Over the checkpoints")).to_be_visible()
    shown(page, "#class tbody tr", 3)
    shows(page, "#class", "Nearest rows")
    shows(page, "#class", "As stored when these pages were made")
    shows(page, "#class", "these pages are files")
    shown(page, "input[type=range]", 0)
    number = page.inner_text("h1").removeprefix("Class ")
    page.click("text=Next class")
    reads(page, "h1", f"Class {int(number) + 1}")
    reads(page, ".big-label", f"word{int(number) + 1}")
    page.click("text=In the report")
    shows(page, "dialog[open]", f"word{int(number) + 1}")


def test_what_is_chosen_stands_in_the_address_and_a_link_shows_the_same(
    page: Any, watch: Watch, site: str
) -> None:
    page.goto(site + "/audit-1.html")
    page.wait_for_selector(".row")
    page.select_option("#filter", "argmaxable")
    page.click("[role=columnheader] button:text-is('label')")
    page.fill("#search", "word5")
    shows(page, "#found", " of ")
    expect(page).to_have_url(site + "/audit-1.html#show=argmaxable&sort=label&search=word5")
    labels = page.locator(".row .cell-label").all_inner_texts()
    another = watch().page
    another.goto(page.url)
    expect(another.locator(".row .cell-label")).to_have_text(labels)
    expect(another.locator("#search")).to_have_value("word5")
    expect(another.locator("#filter")).to_have_value("argmaxable")
    another.goto(site + "/index.html#name=model&sort=classes")
    shown(another, "#audits tbody tr", 3)
    reads(another, "th[aria-sort=ascending] button", "classes")


def test_two_audits_are_side_by_side(page: Any, folder: Path) -> None:
    site = folder.as_uri()
    page.goto(site + "/index.html")
    page.check("[aria-label='compare audit 1']")
    page.check("[aria-label='compare audit 3']")
    page.click("#compare")
    shown(page, "#sides .card", 2)
    expect(page).to_have_url(site + "/compare.html?before=1&after=3")
    page.click("#counts [data-kind=both]")
    expect(page.locator("#counts [data-kind=both]")).to_have_attribute("aria-pressed", "true")
    both = int(page.inner_text("#counts [data-kind=both] b"))
    shown(page, "#changes tbody tr", both)
    expect(page).to_have_url(site + "/compare.html?before=1&after=3#show=both")
    page.locator("#changes tbody a").first.click()
    page.wait_for_selector("#class table")


def test_hostile_labels_stay_text(page: Any, folder: Path) -> None:
    site = folder.as_uri()
    page.goto(site + "/audit-4.html#show=all&sort=class")
    expect(page.locator(".row .cell-label").first).to_have_text(HOSTILE[0])
    for number in (0, 1, 5, 7, 10, 12):
        page.goto(f"{site}/audit-4-class.html#class={number}")
        reads(page, "h1", f"Class {number}")
        page.wait_for_selector("#class table")
        shown(page, ".big-label bdi", 1)
        shown(page, "main script, main img", 0)
    page.goto(site + "/compare.html?before=1&after=4#search=onerror")
    shown(page, "#changes tbody tr", 1)
    reads(page, "#changes tbody a", HOSTILE[2])
    shown(page, "#doubts .careful", len(HOSTILE_READING.doubts))


def test_label_sets_are_listed_and_opened(page: Any, folder: Path) -> None:
    page.goto(folder.as_uri() + "/index.html")
    page.click("nav a:text-is('Label sets')")
    shown(page, "#audits tbody tr", 2)
    page.get_by_role("link", name="pairs").click()
    page.fill("#search", "7")
    expect(page).to_have_url(folder.as_uri() + "/label-audit-1.html#search=7")
    shows(page, "#found", "sets")
    page.locator("#sets tbody a").first.click()
    shows(page, "#set", "As stored when these pages were made")
    number = int(page.inner_text("h1").removeprefix("Label set "))
    page.click("text=Next set")
    reads(page, "h1", f"Label set {number + 1}")
    page.goto(folder.as_uri() + "/label-audit-2-set.html#set=16")
    shows(page, "#set", HOSTILE[2])
    shown(page, "main script, main img", 0)


def test_downloads_are_there(page: Any, site: str, folder: Path) -> None:
    page.goto(site + "/audit-1.html")
    with page.expect_download() as started:
        page.click("#downloads a:has-text('CSV')")
    assert started.value.suggested_filename == "audit-1.csv"
    table = folder / "downloads" / "audit-1.csv"
    assert Path(started.value.path()).read_bytes() == table.read_bytes()


def test_a_file_that_is_missing_is_said(watch: Watch, folder: Path) -> None:
    watched = watch()
    hidden = folder / "data" / "audit-2.js"
    kept = hidden.read_bytes()
    hidden.unlink()
    try:
        watched.page.goto((folder / "audit-2-class.html").as_uri() + "#class=1")
        shows(watched.page, "#class", "data/audit-2.js is missing")
    finally:
        hidden.write_bytes(kept)
    watched.complaints.clear()  # Chromium logs that a file was not found


PAGES = (
    ("/index.html", "#audits tbody tr"),
    ("/compare.html?before=1&after=3", "#changes tbody tr"),
    ("/compare.html?before=4&after=3", "#changes tbody tr"),
    ("/audit-1.html", ".row"),
    ("/audit-1-class.html#class=3", "#class table"),
    ("/label-audits.html", "#audits tbody tr"),
    ("/label-audit-2.html", "#sets tbody tr"),
    ("/label-audit-1-set.html#set=0", "#set .statement"),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readers_without_eyes_or_mouse_find_no_stumbling_block(
    watch: Watch, folder: Path, scheme: str
) -> None:
    page = watch(color_scheme=scheme).page
    for path, ready in PAGES:
        page.goto(folder.as_uri() + path)
        page.wait_for_selector(ready)
        assert stumbling_blocks(page) == [], path


def test_pages_fit_a_phone(watch: Watch, folder: Path) -> None:
    page = watch(viewport={"width": 390, "height": 844}).page
    for path, ready in PAGES:
        page.goto(folder.as_uri() + path)
        page.wait_for_selector(ready)
        comes_true(page, "document.documentElement.scrollWidth === 390")


ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/api/audits", {}),
    ("/api/audits", {"sort": "share", "descending": True, "limit": 2}),
    ("/api/audits", {"name": "MOD", "sort": "classes", "offset": 1}),
    ("/api/groups", {}),
    ("/api/audits/1/classes", {}),
    ("/api/audits/1/classes", {"sort": "margin", "limit": 7, "offset": 3}),
    ("/api/audits/2/classes", {"verdict": "unargmaxable", "sort": "label", "descending": True}),
    ("/api/audits/3/classes", {"search": "WORD1"}),
    ("/api/audits/3/classes", {"search": "7", "after": 5}),
    ("/api/audits/4/classes", {"search": "u+202e", "sort": "verdict"}),
    ("/api/audits/3/classes", {"odd": "near_rows"}),
    ("/api/audits/1/odd", {}),
    ("/api/audits/1/figures", {"across": "norm"}),
    ("/api/audits/2/figures", {"across": "norm", "up": "rank"}),
    ("/api/audits/4/figures", {"across": "class"}),
    ("/api/label-audits", {}),
    ("/api/label-audits", {"name": "pairs"}),
    ("/api/label-audits/2", {}),
    ("/api/label-audits/1/sets", {"verdict": "infeasible", "limit": 5, "offset": 2}),
    ("/api/label-audits/1/sets", {"search": "7"}),
    ("/api/label-audits/2/sets", {"search": "ONERROR"}),
    ("/api/compare", {"before": 1, "after": 3}),
    ("/api/compare", {"before": 1, "after": 2, "kind": "both"}),
    ("/api/compare", {"before": 2, "after": 1, "kind": "regained", "limit": 2, "offset": 1}),
    ("/api/compare", {"before": 1, "after": 4, "search": "HACKED"}),
    ("/api/compare", {"before": 3, "after": 1, "search": "60"}),
)
HERE = {  # what a file says otherwise: nothing of a machine, and shorter numbers
    "certificates", "source", "iterations", "next_after", "weights", "resolved", "names",
}  # fmt: skip


def alike(value: Any) -> Any:
    """An answer without what files say otherwise; shares as float32 holds them."""
    if isinstance(value, dict):
        return {key: alike(item) for key, item in value.items() if key not in HERE}
    if isinstance(value, list):
        return [alike(item) for item in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def test_files_answer_as_the_server_does(
    page: Any, folder: Path, address: str, tmp_path: Path
) -> None:
    """On a page of its own, which asks with the script that the exported pages ask with."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    own = files("uncork.web").joinpath("static", "export-ask.js").read_text(encoding="utf-8")
    modules = [asset("text.js"), asset("data.js"), own, "globalThis.asking = ask;\n"]
    (copy / "assets" / "asking.js").write_text(one_script(modules), encoding="utf-8")
    (copy / "asking.html").write_text(
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="uncork-export" content="1"></head>'
        '<body><script src="assets/asking.js"></script></body></html>'
    )
    page.goto((copy / "asking.html").as_uri())
    for path, parameters in ASKED:
        said = page.evaluate("([path, given]) => asking(path, given)", [path, parameters])
        answer = httpx.get(address + path, params=parameters)
        assert answer.status_code == 200
        assert alike(said) == alike(answer.json()), (path, parameters)


def test_best_ranks_are_drawn_and_said_where_they_were_asked_for(
    page: Any, site: str, address: str, store_file: Path
) -> None:
    title = "Length of the row against best rank"
    with Store(store_file, create=False) as store:
        classes, lower, upper = store.best_ranks(2)
    held = f"The best rank it can hold is {lower[0]} to {upper[0]}"
    assert lower[0] < upper[0]
    for report in (f"{site}/audit-2.html", f"{address}/audits/2"):
        page.goto(f"{report}#class={classes[0]}")
        expect(page.locator("figure", has_text=title)).to_be_visible()
        expect(page.locator("dialog", has_text=held)).to_be_visible()
    for other in (f"{site}/audit-1.html", f"{address}/audits/1"):
        page.goto(other)
        shown(page, "figure canvas", 4)
        expect(page.locator("figure", has_text=title)).to_have_count(0)
    page.goto(f"{site}/audit-2-class.html#class={classes[0]}")
    expect(page.locator("#class", has_text=held)).to_be_visible()
    expect(page.locator("#class", has_text="Its highest probability and what")).to_be_visible()


def test_a_class_is_described_by_its_certificates(watch: Watch, tmp_path: Path) -> None:
    head = random_head(30, 3, seed=1)
    np.savez(tmp_path / "head.npz", weight=head.weight)
    audit = uncork.audit(uncork.load(str(tmp_path / "head.npz")), jobs=1)
    audit.save(tmp_path / "proofs.npz")
    with Store(tmp_path / "s.db") as store:
        store.save(audit, certificates=str(tmp_path / "proofs.npz"))
        export_pages(store, store.audits(), tmp_path / "site")
    page = watch().page
    lost, won = int(audit.unargmaxable[0]), int(audit.argmaxable[0])
    page.goto((tmp_path / "site" / "audit-1-class.html").as_uri() + f"#class={lost}")
    shows(page, "#class", "It was certified against the weights when these pages were made.")
    first = audit.mixture(lost).top(1)[0][0]
    shows(page, ".halves section:first-child li:first-child", f"class {first}")
    page.goto((tmp_path / "site" / "audit-1-class.html").as_uri() + f"#class={won}")
    shows(page, ".halves", "Next in line where it wins")
    page.goto((tmp_path / "site" / "audit-1.html").as_uri())
    shows(page, "#downloads", "the certificates")
    shows(page, "main", "checked against the weights then, and every one held")


def test_an_index_by_cosine_is_spoken_of_as_items(watch: Watch, tmp_path: Path) -> None:
    rows = np.random.default_rng(1).standard_normal((12, 3)).astype(np.float32)
    rows[4] = 2 * rows[3]
    np.save(tmp_path / "vectors.npy", rows)
    audit = uncork.audit(uncork.load_items(tmp_path / "vectors.npy", metric="cosine"))
    audit.save(tmp_path / "proofs.npz")
    with Store(tmp_path / "s.db") as store:
        store.save(audit, name="vectors", certificates=str(tmp_path / "proofs.npz"))
        export_pages(store, store.audits(), tmp_path / "site")
    page = watch().page
    page.goto((tmp_path / "site" / "index.html").as_uri())
    shows(page, "#audits tbody", "compared by cosine")
    page.goto((tmp_path / "site" / "audit-1.html").as_uri())
    shows(page, "h1", "2 have the direction of another")
    shown(page, "#charts figure", 1)
    shows(page, "#downloads", "the certificates")
    page.goto((tmp_path / "site" / "audit-1-class.html").as_uri() + "#class=0")
    shows(page, ".statement", "First when the query is its own vector")
    shows(page, "#class", "It was certified against the weights when these pages were made.")
    shows(page, "#class", "Next in line where it wins")
