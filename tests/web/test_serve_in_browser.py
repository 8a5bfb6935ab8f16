"""The pages of `uncork serve` in a real browser: list, compare, report, class, playground."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect
from tests.web.browsing import HOSTILE, HOSTILE_READING, Watched, stumbling_blocks

import uncork
from browsers import comes_true, lists, reads, shown, shows
from uncork.store import Store
from uncork.theory.random_heads import random_head

Watch = Callable[..., Watched]


@pytest.fixture
def page(watch: Watch) -> Any:
    return watch().page


def test_audits_are_listed_filtered_and_sorted(page: Any, address: str) -> None:
    page.goto(address)
    rows = page.locator("#audits tbody tr")
    expect(rows).to_have_count(4)
    newest_first = [HOSTILE[0], "model", "model", "model"]
    lists(page, "#audits tbody tr td:nth-child(2) a", newest_first)
    page.fill("#name", "MOD")
    expect(rows).to_have_count(3)
    expect(page.locator("#found")).to_have_text("3 audits")
    page.click("th button:text-is('classes')")
    expect(page.locator("th[aria-sort=descending] button")).to_have_text("classes")
    expect(rows.first.locator("td:nth-child(3)")).to_have_text("61")
    page.fill("#name", "nothing like it")
    expect(rows).to_have_count(0)
    page.fill("#name", "")
    page.select_option("#group", HOSTILE[2])
    expect(rows).to_have_count(1)
    expect(page.locator("#failures tbody td").first).to_have_text(HOSTILE[2])
    expect(page.locator("#failures tbody td").nth(1)).to_have_text(HOSTILE[0])


def test_two_audits_are_compared(page: Any, address: str) -> None:
    page.goto(address)
    expect(page.locator("#compare")).to_be_disabled()
    page.check("[aria-label='compare audit 1']")
    page.check("[aria-label='compare audit 3']")
    page.click("#compare")
    shown(page, "#counts button", 6)
    expect(page).to_have_url(re.compile(r"/compare\?before=1&after=3$"))
    counts = [int(text) for text in page.locator("#counts button b").all_inner_texts()]
    lost, regained, both, other, added, removed = counts
    assert lost + regained > 0
    assert both > 0
    assert (other, added, removed) == (0, 1, 0)
    shown(page, "#changes tbody tr", lost + regained + 1)
    reads(page, "#found", "classes matched by label")
    expect(page.locator("#changes tbody tr", has_text="new classes")).to_contain_text("word60")
    page.click("#counts [data-kind=both]")
    shown(page, "#changes tbody tr", both)
    page.fill("#search", "word1")
    expect(page.locator("#changes tbody tr", has_not_text="word1")).to_have_count(0)
    expect(page).to_have_url(re.compile(r"/compare\?before=1&after=3#show=both&search=word1$"))
    page.reload()
    expect(page.locator("#search")).to_have_value("word1")
    expect(page.locator("#counts [data-kind=both]")).to_have_attribute("aria-pressed", "true")
    page.fill("#search", "")
    page.click("#counts [data-kind=both]")  # everything that differs again
    shown(page, "#changes tbody tr", lost + regained + 1)
    page.select_option("#after", "1")
    reads(page, "#changes", "No class changed.")


def test_two_models_are_side_by_side_and_what_only_one_loses_is_listed(
    page: Any, tmp_path: Path, serving: Callable[[Path], str]
) -> None:
    one, two = (random_head(40, 3, bias=True, seed=seed) for seed in (1, 2))
    labels = [f"word{i}" for i in range(40)]
    with Store(tmp_path / "s.db") as store:
        store.save(uncork.audit(one.replace(labels=labels), jobs=1), name="small")
        other = uncork.audit(two.replace(labels=labels[::-1], domain=uncork.Box(1)), jobs=1)
        store.save(other, name="large")
        verdicts = [{row["label"]: row["verdict"] for row in store.classes(k)} for k in (1, 2)]
    lost = [{name for name in labels if said[name] == "unargmaxable"} for said in verdicts]
    page.goto(serving(tmp_path / "s.db") + "/compare?before=1&after=2#show=regained")
    lists(page, "#sides h2", ["first\nsmall", "second\nlarge"])
    shows(page, "#doubts", "audited with different inputs")
    for kind, expected in (
        ("regained", lost[0] - lost[1]), ("lost", lost[1] - lost[0]), ("both", lost[0] & lost[1])
    ):  # fmt: skip
        if kind != "regained":
            page.click(f"#counts [data-kind={kind}]")
            expect(page).to_have_url(re.compile(f"#show={kind}$"))
        reads(page, f"#counts [data-kind={kind}] b", str(len(expected)))
        shown(page, "#changes tbody tr", len(expected))
        named = page.locator("#changes tbody td.text").all_inner_texts()
        assert set(named) == expected


def test_what_is_chosen_stands_in_the_address_and_a_link_shows_the_same(
    page: Any, watch: Watch, address: str
) -> None:
    page.goto(f"{address}/audits/1")
    page.wait_for_selector(".row")
    expect(page).to_have_url(f"{address}/audits/1")  # nothing was chosen yet
    page.select_option("#filter", "argmaxable")
    page.click("[role=columnheader] button:text-is('margin')")
    page.click("[role=columnheader] button:text-is('class')")
    page.click("[role=columnheader] button:text-is('class')")
    page.fill("#search", "word3")
    chosen = f"{address}/audits/1#show=argmaxable&sort=-class&search=word3"
    expect(page).to_have_url(chosen)
    shows(page, "#found", " of ")
    labels = page.locator(".row .cell-label").all_inner_texts()
    page.click(".row >> nth=0")
    expect(page).to_have_url(re.compile(re.escape(chosen) + r"&class=\d+$"))
    another = watch().page
    another.goto(page.url)
    lists(another, ".row .cell-label", labels)
    expect(another.locator("dialog[open]")).to_contain_text(labels[0])
    another.keyboard.press("Escape")
    expect(another).to_have_url(chosen)
    another.goto(f"{address}/audits/1#show=nonsense&sort=-nonsense&class=x")
    another.reload()
    expect(another.locator("#filter")).to_have_value("unargmaxable")
    another.goto(f"{address}/#name=model&group=checkpoints&sort=-classes")
    shown(another, "#audits tbody tr", 3)
    reads(another, "th[aria-sort=descending] button", "classes")
    expect(another.locator("#group")).to_have_value("checkpoints")
    another.goto(f"{address}/label-audits/1#search=7&verdict=feasible")
    shows(another, "#sets tbody", "feasible")
    expect(another.locator("#verdict")).to_have_value("feasible")
    expect(another.locator("#search")).to_have_value("7")


def test_a_report_offers_its_classes_as_csv_and_its_certificates(
    page: Any, proven: tuple[str, uncork.Audit]
) -> None:
    address, audit = proven
    page.goto(f"{address}/audits/1")
    with page.expect_download() as started:
        page.click("#downloads a:has-text('CSV')")
    lines = Path(started.value.path()).read_text(encoding="utf-8").splitlines()
    assert started.value.suggested_filename == "audit-1.csv"
    assert len(lines) == audit.classes + 1
    with page.expect_download() as started:
        page.click("#downloads a:has-text('certificates')")
    assert started.value.suggested_filename == "audit-1-certificates.npz"
    assert uncork.verify(uncork.Audit.load(started.value.path()), audit.head).ok


def test_a_row_is_moved_and_its_new_verdict_seen(
    page: Any, proven: tuple[str, uncork.Audit]
) -> None:
    address, audit = proven
    lost = int(audit.unargmaxable[0])
    page.goto(f"{address}/audits/1/classes/{lost}")
    shows(page, ".move-answer", "As it is: unargmaxable")
    page.fill("#move-bias-field", "1000000")
    shows(page, ".move-answer", "Now argmaxable")
    shows(page, ".move-answer", "Next in line where it wins then")
    expect(page).to_have_url(re.compile(f"/classes/{lost}#bias=1000000$"))
    page.reload()
    shows(page, ".move-answer", "Now argmaxable")
    page.click("text=Back to how it is")
    shows(page, ".move-answer", "As it is: unargmaxable")
    shows(page, ".move-answer", "The mixture that beats it then")
    page.focus("#move-length")
    page.keyboard.press("End")
    shows(page, ".move-now", "× 4.00")
    expect(page.locator("#move-length-field")).to_have_value("4")
    weight = audit.head.weight.copy()
    weight[lost] *= 4
    expected = uncork.audit(audit.head.replace(weight=weight), classes=[lost], jobs=1)
    shows(page, ".move-answer", str(expected.verdicts[lost]))
    assert stumbling_blocks(page) == []


@pytest.fixture(scope="module")
def proven(
    tmp_path_factory: pytest.TempPathFactory, serving: Callable[[Path], str]
) -> tuple[str, uncork.Audit]:
    """A server over one audit whose weights and certificates are at hand."""
    folder = tmp_path_factory.mktemp("proven")
    np.savez(folder / "head.npz", weight=random_head(40, 4, seed=2).weight)
    audit = uncork.audit(uncork.load(str(folder / "head.npz")), jobs=1)
    audit.save(folder / "proofs.npz")
    with Store(folder / "s.db") as store:
        store.save(audit, certificates=str(folder / "proofs.npz"))
    return serving(folder / "s.db"), audit


def test_an_audit_is_the_report_with_proofs_asked_for_when_opened(page: Any, address: str) -> None:
    page.goto(f"{address}/audits/1")
    page.wait_for_selector(".row")
    shows(page, "h1", "of the 60 classes can never be the argmax")
    page.select_option("#filter", "argmaxable")
    expect(page.locator(".row", has_text="unargmaxable")).to_have_count(0)  # asked for, and come
    page.click(".row >> nth=0")
    expect(page.locator("dialog h3", has_text="Next in line where it wins")).to_be_visible()
    expect(page.locator("dialog h3", has_text="Nearest rows")).to_be_visible()
    page.click("dialog a:has-text('Everything about this class')")
    expect(page.locator("h2", has_text="Over the checkpoints")).to_be_visible()


def test_a_class_has_its_proof_its_neighbours_and_its_history(page: Any, address: str) -> None:
    page.goto(f"{address}/audits/1")
    page.wait_for_selector(".row")
    number = page.inner_text(".row .cell-class >> nth=0")
    page.goto(f"{address}/audits/1/classes/{number}")
    expect(page.locator(".big-label")).to_have_text(f"word{number}")
    shown(page, "#class tbody tr", 3)
    for text in (
        "No input puts it",
        "Who takes its place: the mixture that beats it",
        "Proven anew from the weights, and certified, just now.",
        "Nearest rows",
        "The highest probability any input can give it",
        "The best rank it can hold is",
    ):
        shows(page, "#class", text)
    page.click("#class tbody tr:nth-child(3) a:text-is('audit 3')")
    page.wait_for_selector(".row")


def test_numbers_of_a_column_are_equally_exact(page: Any, address: str) -> None:
    page.goto(f"{address}/audits/1")
    page.wait_for_selector(".row .cell-margin:not(:empty)")
    margins = page.locator(".row .cell-margin").all_inner_texts()
    assert len(margins) > 5
    for text in margins:
        assert re.fullmatch(r"−(0\.0*[1-9]\d\d|\d\.\d\d|\d\d\.\d|\d{3}|[\d,]+000)", text), text
    shows(page, ".lead", "between −100 and 100")


def test_a_stored_verdict_that_does_not_hold_is_marked_on_the_page_of_its_class(
    watch: Watch, tmp_path: Path, serving: Callable[[Path], str]
) -> None:
    head = random_head(40, 4, seed=2)
    np.savez(tmp_path / "head.npz", weight=head.weight)
    audit = uncork.audit(head.replace(source=str(tmp_path / "head.npz")), jobs=1)
    won = int(audit.argmaxable[0])
    with Store(tmp_path / "s.db") as store:
        store.save(audit)
    with sqlite3.connect(tmp_path / "s.db") as database:
        change = "UPDATE results SET verdict = 2, margin = -1, stolen_by = '[[1, 1.0]]'"
        database.execute(f"{change} WHERE class_id = {won}")
    database.close()
    page = watch().page
    page.goto(f"{serving(tmp_path / 's.db')}/audits/1/classes/{won}")
    page.wait_for_selector("#class table")
    shows(page, ".careful", "The stored verdict does not hold")
    expect(page.locator(".statement").first).to_contain_text("Some input puts it first")
    expect(page.locator(".halves")).not_to_contain_text("mixture that beats it")


def test_an_index_by_cosine_is_shown_by_its_metric_and_proven_by_it(
    watch: Watch, tmp_path: Path, serving: Callable[[Path], str]
) -> None:
    rows = np.random.default_rng(1).standard_normal((12, 3)).astype(np.float32)
    rows[4], rows[7] = 2 * rows[3], 0
    np.save(tmp_path / "vectors.npy", rows)
    items = uncork.load_items(tmp_path / "vectors.npy", metric="cosine")
    with Store(tmp_path / "s.db") as store:
        store.save(uncork.audit(items), name="vectors")
    with sqlite3.connect(tmp_path / "s.db") as database:  # one verdict that is not true
        change = "UPDATE results SET verdict = 2, margin = -1, stolen_by = '[[1, 1.0]]'"
        database.execute(f"{change} WHERE class_id = 11")
    database.close()
    page, address = watch().page, serving(tmp_path / "s.db")
    page.goto(address)
    expect(page.locator("#audits tbody")).to_contain_text("compared by cosine")
    page.goto(f"{address}/audits/1")
    expect(page.locator(".lead")).to_contain_text("12 items × 3 features, float32, compared by")
    expect(page.locator("h1")).to_contain_text("2 have the direction of another")
    expect(page.locator("#charts figure")).to_have_count(1)  # lengths; of a theorem no margins
    expect(page.locator("#commands")).to_contain_text("--metric cosine")
    page.goto(f"{address}/audits/1/classes/0")
    expect(page.locator("#class")).to_contain_text("Proven anew from the weights")
    expect(page.locator(".statement")).to_contain_text("First when the query is its own vector")
    expect(page.locator("#class")).to_contain_text("Next in line where it wins")
    page.goto(f"{address}/audits/1/classes/4")
    expect(page.locator(".statement")).to_contain_text("a positive multiple of another's")
    page.goto(f"{address}/audits/1/classes/11")
    expect(page.locator(".careful")).to_contain_text("The stored verdict does not hold")


@pytest.mark.parametrize("width", [1440, 768, 390])
def test_a_comparison_has_one_line_for_each_side_and_nothing_is_cut(
    watch: Watch, address: str, width: int
) -> None:
    page = watch(viewport={"width": width, "height": 900}).page
    page.goto(f"{address}/compare?before=1&after=2")
    page.wait_for_selector("#changes tbody tr")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#changes .wide").evaluate("box => box.scrollWidth - box.clientWidth")
    assert box <= 0
    row = page.locator("#changes tbody tr").first
    for side in row.locator(".side").all():
        assert side.bounding_box()["height"] < 48
    row.locator("a").first.click()
    page.wait_for_selector("#class table")


@pytest.mark.parametrize("width", [1440, 768, 390])
def test_the_list_says_inputs_and_bias_and_breaks_no_date(
    watch: Watch, address: str, width: int
) -> None:
    page = watch(viewport={"width": width, "height": 900}).page
    page.goto(address)
    row = page.locator("#audits tbody tr").last
    shown(page, "#audits tbody tr", 4)
    text = row.inner_text()
    assert "with bias" in text
    assert "within ±100" in text
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", text)
    for date in row.locator(".when").all():
        if date.is_visible():
            assert date.evaluate("node => node.getClientRects().length") == 1
    assert page.locator(".wide").first.evaluate("box => box.scrollWidth <= box.clientWidth")


def test_hostile_labels_stay_text_on_every_page(page: Any, address: str) -> None:
    for number in (0, 5, 7, 10, 12):
        page.goto(f"{address}/audits/4/classes/{number}")
        page.wait_for_selector("#class table")
        shown(page, ".big-label bdi", 1)
        shows(page, "#class", "gone.npz is no longer there")
        shows(page, "#class", "Moving its row needs the weights")
        shown(page, "main script, main img", 0)
        assert page.evaluate("window.hacked") is None
    page.goto(f"{address}/audits/4#class=1")
    shows(page, "dialog[open]", HOSTILE[1])  # the label is asked for, and comes
    reads(page, ".name", HOSTILE[0])


def test_doubts_are_marked_in_the_list_and_stand_first_on_every_page_of_the_audit(
    page: Any, address: str
) -> None:
    page.goto(address)
    first = page.locator("#audits tbody tr").first
    expect(first.locator(".doubt")).to_have_count(len(HOSTILE_READING.doubts))
    expect(first.locator(".doubt").first).to_have_text(f"careful: {HOSTILE[0]}")
    expect(first.locator(".sub").first).to_contain_text(HOSTILE_READING.weight)
    expect(page.locator("#audits tbody tr").nth(1).locator(".doubt")).to_have_count(0)
    for path in ("/audits/4", "/audits/4/classes/0"):
        page.goto(address + path)
        shown(page, ".careful", len(HOSTILE_READING.doubts))  # and they are there from the first
        assert page.locator(".careful").all_inner_texts() == [
            f"Careful: {text}" for text in HOSTILE_READING.doubts
        ]
    page.goto(f"{address}/audits/4")
    expect(page.locator("#read dd").first).to_have_text(f"{HOSTILE[0]} ({HOSTILE[2]})")
    page.goto(f"{address}/compare?before=1&after=4")
    shown(page, "#doubts .careful", len(HOSTILE_READING.doubts))
    expect(page.locator("#doubts .careful").first).to_have_text(f"Careful, second: {HOSTILE[0]}")
    shown(page, "main script, main img", 0)


def test_the_api_is_described_without_leaving_this_machine(page: Any, address: str) -> None:
    page.goto(f"{address}/docs")
    expect(page.locator(".path h2", has_text="GET /api/compare")).to_be_visible()
    expect(page.locator(".path", has_text="GET /api/failures")).to_contain_text("Answer: Failures")


def test_the_playground_is_linked_and_works_there(page: Any, address: str) -> None:
    page.goto(address)
    page.click("nav a:text-is('Playground')")
    page.wait_for_selector("html[data-ready=yes]")
    expect(page.locator("#sentence")).not_to_be_empty()


def test_what_is_not_there_says_so(watch: Watch, address: str) -> None:
    watched = watch()
    watched.page.goto(f"{address}/audits/99")
    reads(watched.page, "h1", "There is no audit 99")
    (complaint,) = watched.complaints  # Chromium logs that a page was not found
    assert "404" in complaint
    watched.complaints.clear()


PAGES = (
    ("/", "#audits tbody tr"),
    ("/compare?before=1&after=3", "#changes tbody tr"),
    ("/audits/1/classes/3", "#class table"),
    ("/docs", ".path"),
    ("/label-audits", "#audits tbody tr"),
    ("/label-audits/2", "#sets tbody tr"),
    ("/label-audits/1/sets/0", "#set table"),
)


def test_pages_fit_a_phone(watch: Watch, address: str) -> None:
    page = watch(viewport={"width": 390, "height": 844}).page
    for path, ready in PAGES:
        page.goto(address + path)
        page.wait_for_selector(ready)
        comes_true(page, "document.documentElement.scrollWidth === 390")


def test_readers_without_eyes_or_mouse_find_no_stumbling_block(page: Any, address: str) -> None:
    for path, ready in PAGES:
        page.goto(address + path)
        page.wait_for_selector(ready)
        assert stumbling_blocks(page) == [], path
