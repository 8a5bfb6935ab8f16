"""The report as people use it: in a real browser, from a file, with any label and any size."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect
from tests.web.browsing import HOSTILE, HOSTILE_READING, Watched, stumbling_blocks

import uncork
from browsers import comes_true, lists, reads, shown, shows
from models import PP_OCR_V6
from uncork import Head
from uncork.auditing.proofs.proofs import Proofs
from uncork.auditing.proofs.verdict import Mixture
from uncork.auditing.result import Audit
from uncork.core.items import Items
from uncork.core.reading import Reading
from uncork.core.words import ITEMS
from uncork.reach.outlooks import Outlook
from uncork.report.page import write_report
from uncork.theory.random_heads import random_head

Watch = Callable[..., Watched]
LOST, REACHED = 2, 1
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def made_up(head: Head) -> Audit:
    """Verdicts as a head of that size may have, without deciding them: short rows are lost."""
    proofs = Proofs.empty(head.classes)
    lengths = np.linalg.norm(head.weight.astype(np.float64), axis=1)
    lost = lengths < np.quantile(lengths, 0.25)
    proofs.verdicts[:] = np.where(lost, LOST, REACHED)
    proofs.margins[:] = np.where(lost, -1e-3 * lengths, 100 * lengths)
    rng = np.random.default_rng(0)
    for t in np.flatnonzero(lost).tolist():
        parts = rng.choice(head.classes - 1, 6, replace=False)
        proofs.mixtures[t] = Mixture(parts + (parts >= t), rng.dirichlet(np.ones(6)))
    return Audit(
        proofs, head.fingerprint, head.domain, head.features, head.dtype, head.bias is not None,
        labels=head.labels, source=head.source, head=head, proven=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Audit]:
    """A report of the 18,710 classes of PP-OCRv6, with its own weights and labels."""
    path = tmp_path_factory.mktemp("large") / "report.html"
    audit = made_up(uncork.load(PP_OCR_V6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("uncork.report.rows._WORK", 5e9)  # details of fewer classes: a second
        write_report(audit, path)
    return path, audit


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    head = random_head(len(HOSTILE), 2, seed=5).replace(labels=HOSTILE, source=HOSTILE[1])
    audit = uncork.audit(head.replace(reading=HOSTILE_READING), jobs=1)
    lost = audit.unargmaxable
    ranks = np.full(len(lost), 3)
    seen = Outlook(
        lost, np.full(len(lost), 0.21), np.full(len(lost), 0.34), ranks, ranks + 1,
        np.full(len(lost), 0.5), fingerprint=head.fingerprint,
    )  # fmt: skip
    audit.report(path, outlook=seen)
    return path


def opened(watch: Watch, path: Path, fragment: str = "", **settings: Any) -> Any:
    page = watch(**settings).page
    page.goto(path.as_uri() + fragment)
    page.wait_for_selector(".row")
    return page


def busy(page: Any) -> Callable[[], float]:
    """Seconds that the page's thread has computed since; other processes do not count."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def total() -> float:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        return next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    start = total()
    return lambda: total() - start


def column(page: Any, name: str) -> list[str]:
    return page.locator(f".row .cell-{name}").all_inner_texts()


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_eighteen_thousand_classes_fit_in_5_mb_and_are_there_within_2_seconds(
    watch: Watch, large: tuple[Path, Audit]
) -> None:
    path, audit = large
    assert audit.classes == 18_710
    assert path.stat().st_size <= 5_000_000
    page = watch().page
    computing = busy(page)
    page.goto(path.as_uri())
    page.wait_for_selector(".row")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    assert computing() <= 2
    lost = len(audit.unargmaxable)
    title = f"{lost:,} of the 18,710 classes can never be the argmax, whatever the input."
    reads(page, "h1", title)
    shown(page, "figure canvas", 4)
    assert page.locator(".row").count() < 60


def test_a_label_is_searched_a_column_sorted_and_a_class_opened(
    watch: Watch, large: tuple[Path, Audit]
) -> None:
    path, audit = large
    page = opened(watch, path)
    lost = audit.unargmaxable
    margins = [float(text.replace("−", "-")) for text in column(page, "margin")]
    assert margins == sorted(margins)
    page.click("[role=columnheader] button:text-is('class')")
    by_class = page.locator("[role=columnheader].cell-class")
    expect(by_class).to_have_attribute("aria-sort", "ascending")
    expect(page.locator(".row .cell-class").first).to_have_text(f"{lost[0]:,}")
    assert [number(text) for text in column(page, "class")[:9]] == lost[:9].tolist()
    page.click("[role=columnheader] button:text-is('class')")
    expect(by_class).to_have_attribute("aria-sort", "descending")
    expect(page.locator(".row .cell-class").first).to_have_text(f"{lost[-1]:,}")

    label = audit.labels[lost[1000]]
    page.fill("#search", label)
    shows(page, "#found", " of ")
    expect(page.locator(f".cell-class:text-is('{lost[1000]:,}')")).to_have_count(1)
    assert all(label.lower() in text.lower() for text in column(page, "label"))
    page.fill("#search", f"U+{ord(label[0]):04X}")
    expect(page.locator(f".cell-class:text-is('{lost[1000]:,}')")).to_have_count(1)

    page.click(f".row:has(.cell-class:text-is('{lost[1000]:,}'))")
    dialog = page.locator("dialog[open]")
    expect(dialog).to_contain_text(label)
    expect(dialog).to_contain_text("No input puts it first")
    first = audit.mixture(lost[1000]).top(1)[0][0]
    expect(dialog.locator("ul.rows li").first).to_contain_text(f"class {first:,}")
    expect(page).to_have_url(re.compile(f"[#&]class={lost[1000]}$"))
    dialog.locator("ul.rows li button").first.click()
    expect(page).to_have_url(re.compile(f"[#&]class={first}$"))
    page.keyboard.press("Escape")
    shown(page, "dialog[open]", 0)


def test_what_is_chosen_stands_in_the_address_and_a_link_shows_the_same(
    watch: Watch, hostile: Path
) -> None:
    page = opened(watch, hostile)
    expect(page).to_have_url(hostile.as_uri())  # nothing was chosen yet
    page.select_option("#filter", "all")
    page.click("[role=columnheader] button:text-is('class')")
    page.click("[role=columnheader] button:text-is('class')")
    page.fill("#search", "window")
    expect(page).to_have_url(hostile.as_uri() + "#show=all&sort=-class&search=window")
    shown(page, ".row", 3)
    another = opened(watch, hostile, "#show=all&sort=-class&search=window")
    lists(another, ".row .cell-class", ["2", "1", "0"])
    expect(another.locator("#search")).to_have_value("window")
    another.goto(hostile.as_uri() + "#show=all&class=12")  # a link on the same page
    expect(another.locator("dialog[open]")).to_contain_text(HOSTILE[12])
    shown(another, ".row", len(HOSTILE))
    another.goto(hostile.as_uri() + "#show=constructor&sort=toString&class=99")
    another.reload()
    expect(another.locator("#filter")).to_have_value("unargmaxable")


def test_the_keyboard_alone_is_enough(watch: Watch, large: tuple[Path, Audit]) -> None:
    path, audit = large
    page = opened(watch, path)
    page.select_option("#filter", "all")
    page.click("[role=columnheader] button:text-is('class')")
    page.focus(".row[tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("PageDown")
    page.keyboard.press("End")
    last = audit.classes - 1
    focused = "text => document.activeElement.querySelector('.cell-class')?.textContent === text"
    comes_true(page, focused, f"{last:,}")
    expect(page.locator(".row:focus")).to_have_attribute("aria-rowindex", str(last + 2))
    page.keyboard.press("Enter")
    shows(page, "dialog[open]", f"class {last:,}")
    page.keyboard.press("Escape")
    shown(page, ".row:focus", 1)
    page.keyboard.press("Home")
    comes_true(page, focused, "0")


def test_sorting_searching_and_scrolling_do_not_stutter(
    watch: Watch, large: tuple[Path, Audit]
) -> None:
    page = opened(watch, large[0])
    page.select_option("#filter", "all")
    settle = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
    for work in (
        "document.querySelector('[role=columnheader].cell-label button').click()",
        "document.querySelector('[role=columnheader].cell-margin button').click()",
        "document.querySelector('[role=columnheader].cell-norm button').click()",
        "document.querySelector('.scroller').scrollTop = 400000",
        "const box = document.querySelector('#search'); box.value = 'a';"
        " box.dispatchEvent(new Event('input'))",
    ):
        computing = busy(page)
        page.evaluate(f"() => {{ {work}; }}")
        page.evaluate(settle)
        assert computing() < 0.25, work


def test_scrolling_keeps_few_rows_in_the_page(watch: Watch, large: tuple[Path, Audit]) -> None:
    path, audit = large
    page = opened(watch, path)
    page.select_option("#filter", "all")
    page.click("[role=columnheader] button:text-is('class')")
    for part in (0.3, 0.9, 1.0):
        page.evaluate(
            "part => { const box = document.querySelector('.scroller');"
            " box.scrollTop = part * box.scrollHeight; }",
            part,
        )
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
        assert page.locator(".row").count() < 60
    expect(page.locator(".row .cell-class").last).to_have_text(f"{audit.classes - 1:,}")
    expect(page.locator("[role=grid]")).to_have_attribute("aria-rowcount", str(audit.classes + 1))


def test_hostile_labels_are_shown_as_text_and_nothing_runs(watch: Watch, hostile: Path) -> None:
    page = opened(watch, hostile)
    page.select_option("#filter", "all")
    page.click("[role=columnheader] button:text-is('class')")
    shown(page, ".row", len(HOSTILE))
    expect(page.locator(".row .cell-class").first).to_have_text("0")
    texts = column(page, "label")
    for k in (0, 1, 2, 3, 4, 11):
        assert texts[k] == HOSTILE[k]
    assert texts[5] == "␀"
    assert texts[6] == "RLOtxt.exe"
    assert texts[7] == "U+D800"
    assert texts[8] == "empty"
    assert texts[9] == "␣␣"
    assert texts[12] == HOSTILE[12]
    assert texts[13] == "◌́"
    assert texts[14:] == ["U+3164", "␣the"]
    assert len(texts[10]) < 100
    shown(page, "main script, main img, dialog script, dialog img", 0)
    directions = page.locator(".row .cell-label bdi").evaluate_all(
        "found => found.map(bdi => bdi.dir)"
    )
    assert set(directions) == {"auto"}
    page.fill("#search", "onerror")
    lists(page, ".row .cell-label", [HOSTILE[2]])
    for k in (1, 2, 5, 7, 12):
        page.goto(hostile.as_uri() + f"#class={k}")
        page.reload()
        page.wait_for_selector("dialog[open]")
    page.goto(hostile.as_uri() + "#class=10")
    page.reload()
    page.click("dialog button:has-text('Show all 10,000 characters')")
    comes_true(page, "document.querySelector('.detail-label').innerText.trim().length >= 9999")


def test_what_was_read_stands_at_the_top_as_text(watch: Watch, hostile: Path) -> None:
    page = opened(watch, hostile)
    careful = page.locator("header .careful")
    expect(careful).to_have_count(len(HOSTILE_READING.doubts))
    assert careful.all_inner_texts() == [f"Careful: {text}" for text in HOSTILE_READING.doubts]
    read = page.locator("header #read dt").all_inner_texts()
    assert read[:2] == ["weight", "bias"]
    expect(page.locator("header #read dd").first).to_have_text(f"{HOSTILE[0]} ({HOSTILE[2]})")
    shown(page, "header script, header img", 0)
    tiles = page.locator("#tiles").bounding_box()
    assert careful.last.bounding_box()["y"] < tiles["y"]


def test_how_near_a_lost_class_comes_has_its_columns(watch: Watch, hostile: Path) -> None:
    page = opened(watch, hostile)
    assert set(column(page, "probability")) == {"34\u00a0%"}
    assert set(column(page, "rank")) == {"3–4"}
    page.click(".row >> nth=0")
    for text in ("21\u00a0% to 34\u00a0%", "3 to 4", "+0.5"):
        shows(page, "dialog[open]", text)


def test_both_themes_are_readable_and_the_button_switches(watch: Watch, hostile: Path) -> None:
    for scheme in ("light", "dark"):
        page = opened(watch, hostile, color_scheme=scheme)
        colours = page.evaluate(
            """() => {
              const style = getComputedStyle(document.documentElement);
              const read = name => style.getPropertyValue('--' + name).trim();
              const names = ['ink', 'soft', 'accent', 'unargmaxable'];
              return [['paper', 'card', 'shade', 'tint'].map(read), names.map(read)];
            }"""
        )
        for ground in colours[0]:
            for text in colours[1]:
                assert contrast(ground, text) >= 4.5, (scheme, ground, text)
    page.click("#theme")
    page.click("#theme")
    reads(page, "#theme", "Theme: dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.click("#theme")
    page.click("#theme")
    expect(page.locator("body")).to_have_css("background-color", "rgb(250, 248, 244)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_readers_without_eyes_or_mouse_find_no_stumbling_block(
    watch: Watch, hostile: Path, scheme: str
) -> None:
    page = opened(watch, hostile, color_scheme=scheme)
    assert stumbling_blocks(page) == []
    page.click(".row >> nth=0")
    page.wait_for_selector("dialog[open]")
    assert stumbling_blocks(page) == []


def contrast(one: str, other: str) -> float:
    """The ratio of the Web Content Accessibility Guidelines."""

    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_phone_shows_it_without_scrolling_sideways(watch: Watch, hostile: Path) -> None:
    page = opened(watch, hostile, **PHONE)
    fits = "document.documentElement.scrollWidth === 390"
    comes_true(page, fits)
    page.select_option("#sort", "class -1")
    page.select_option("#filter", "all")
    expect(page.locator(".row .cell-class").first).to_have_text(str(len(HOSTILE) - 1))
    page.tap(".row >> nth=3")
    comes_true(
        page, "Math.abs(document.querySelector('dialog').getBoundingClientRect().width - 390) < 1"
    )
    comes_true(page, fits)


def test_a_dot_of_a_figure_opens_its_class(watch: Watch, hostile: Path) -> None:
    page = opened(watch, hostile)
    canvas = page.locator("figure.points canvas").first
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    for x in range(70, int(box["width"]), 6):
        page.mouse.move(box["x"] + x, box["y"] + box["height"] * 0.2)
        if page.locator("#hint").is_visible():
            break
    shows(page, "#hint", "class")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector("dialog[open]")


def test_paper_holds_the_rows_and_no_controls(watch: Watch, large: tuple[Path, Audit]) -> None:
    page = opened(watch, large[0])
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown(page, ".row", 1000)
    shows(page, ".space > .empty", "3,67")  # the rest is said
    page.emulate_media(media="print")
    expect(page.locator("#search")).not_to_be_visible()
    expect(page.locator("#theme")).not_to_be_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    comes_true(page, "document.querySelectorAll('.row').length < 60")


def test_a_quarter_of_a_million_classes_still_open(watch: Watch, tmp_path: Path) -> None:
    classes = 256_000
    proofs = Proofs.empty(classes)
    proofs.verdicts[:] = REACHED
    proofs.verdicts[::40] = LOST
    proofs.margins[:] = np.where(proofs.verdicts == LOST, -0.01, 5.0)
    for t in range(0, classes, 40):
        proofs.mixtures[t] = Mixture(np.array([1, 2]), np.array([0.5, 0.5]))
    labels = tuple(f"token {k}" for k in range(classes))
    audit = Audit(
        proofs, "sha256:0", uncork.Box(100), 64, "float32", False, labels=labels, source="large"
    )
    path = tmp_path / "huge.html"
    write_report(audit, path)
    assert path.stat().st_size < 20_000_000
    page = opened(watch, path)
    shows(page, "h1", "6,400 of the 256,000 classes")
    page.select_option("#filter", "all")
    page.fill("#search", "token 255999")
    lists(page, ".row .cell-class", ["255,999"])
    page.keyboard.press("Enter")
    shows(page, "dialog[open]", "token 255999")


def test_small_and_empty_heads_have_a_report_too(watch: Watch, tmp_path: Path) -> None:
    path = tmp_path / "small.html"
    middle = Head(np.array([[1.0], [-1.0], [0.0]]))
    cases = {
        "1 of the 3 classes can never": uncork.audit(middle, jobs=1),
        "Every one of the 2 classes can be": uncork.audit(Head(np.eye(2)), jobs=1),
        "some only in a tie": uncork.audit(Head(np.ones((3, 2))), jobs=1),
        "1 of the 1 classes asked about": uncork.audit(middle, classes=[2], jobs=1),
        "but not every class was decided": uncork.audit(
            middle, classes=[2], approximate=True, patience=3, jobs=1
        ),
    }
    cases["Every one of the 2 classes can be"].head = None
    page = watch().page
    for sentence, audit in cases.items():
        write_report(audit, path)
        page.goto(path.as_uri())
        page.wait_for_selector(".row")
        shows(page, "h1", sentence)
        page.click(".row >> nth=0")
        page.wait_for_selector("dialog[open]")


def test_an_index_is_spoken_of_as_items_and_queries_and_labels_stay_as_they_are(
    watch: Watch, tmp_path: Path
) -> None:
    labels = [f"class {i}, input" for i in range(40)]
    head = random_head(40, 3, seed=1).replace(labels=labels, source="things")
    head.reading = Reading("vectors", words=ITEMS.name)
    audit = made_up(head)
    size = len(audit.unargmaxable)
    near = Outlook(
        audit.unargmaxable, np.full(size, 0.2), np.full(size, 0.3), np.full(size, 2),
        np.full(size, 3), np.full(size, 0.5), fingerprint=head.fingerprint,
    )  # fmt: skip
    write_report(audit, tmp_path / "items.html", outlook=near)
    page = opened(watch, tmp_path / "items.html")
    expect(page.locator("h1")).to_have_text(
        "10 of the 40 items can never be retrieved first, whatever the query."
    )
    page.click(".row >> nth=0")
    page.wait_for_selector("dialog[open]")
    said = page.locator("dialog").inner_text() + page.locator("body").inner_text()
    assert re.search(r"class \d+, input", said)
    said = re.sub(r"class \d+, input", "", said)
    assert not re.findall(r"\b(class|classes|inputs?|(?:un)?argmaxable)\b", said, re.IGNORECASE)
    assert "The items that steal" in said


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_items_by_another_metric_have_their_own_vector_as_proof_and_no_margin(
    watch: Watch, tmp_path: Path, metric: str
) -> None:
    rows = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)
    rows[5] = rows[4]
    items = Items(rows, metric, labels=tuple(f"title {k}" for k in range(40)))
    uncork.audit(items).report(tmp_path / "report.html")
    page = watch().page
    page.goto(f"file://{tmp_path / 'report.html'}#class=3")
    expect(page.locator("dialog .statement")).to_contain_text("the query is its own vector")
    expect(page.locator("dialog h3").first).to_have_text(
        "Next in line where it wins: its lead over them"
    )
    nearest = np.linalg.norm(rows - rows[3], axis=1)
    if metric == "cosine":
        nearest = 1 - rows @ rows[3] / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows[3])
    first = page.locator("dialog ul.rows li").first
    expect(first).to_contain_text(f"title {int(np.argsort(nearest)[1])}")
    expect(first.locator(".value")).to_have_text(f"{np.sort(nearest)[1]:#.3g}")
    page.goto(f"file://{tmp_path / 'report.html'}")
    expect(page.locator("#classes-title")).to_have_text("Items")
    expect(page.locator("#charts figure")).to_have_count(1)
    expect(page.locator("#table")).not_to_contain_text("margin")
    expect(page.locator("#takers")).to_be_hidden()
    assert stumbling_blocks(page) == []


@pytest.mark.parametrize("how", ["blob", "srcdoc"])
def test_a_report_inside_another_page_works_as_well(
    watch: Watch, hostile: Path, tmp_path: Path, how: str
) -> None:
    """As experiment trackers show it: in a frame that may run scripts and has no address or store
    of its own."""
    frame = tmp_path / "tracker.html"
    frame.write_text("<!doctype html><title>Run</title><iframe sandbox=allow-scripts></iframe>")
    page = watch().page
    page.goto(frame.as_uri())
    page.evaluate(
        """([text, how]) => {
            const frame = document.querySelector("iframe");
            frame.width = 1000; frame.height = 900;
            if (how === "srcdoc") frame.srcdoc = text;
            else frame.src = URL.createObjectURL(new Blob([text], { type: "text/html" }));
        }""",
        [hostile.read_text(encoding="utf-8"), how],
    )
    inside = page.frame_locator("iframe")
    inside.locator(".row").first.click()
    panel = inside.locator("#detail")
    expect(panel).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(inside.locator(".row").first).to_be_focused()
