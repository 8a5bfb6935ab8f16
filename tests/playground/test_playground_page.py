"""The playground used as people use it: mouse, keyboard, touch, links, other people's labels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browsers import reads, shown, shows
from uncork import Box, Head, Unbounded, UncorkError
from uncork.web.playground import standalone

STATIC = Path(standalone.__code__.co_filename).parent


def centre(page: Any, selector: str) -> tuple[float, float]:
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def handle(name: str) -> str:
    return f'#weights .handle[aria-label^="Class {name},"]'


def drag(page: Any, name: str, x: float, y: float) -> None:
    """Drag a class's arrow to (x, y) of the weights' plane, whose half-width is 3."""
    box = page.locator("#weights").bounding_box()
    page.mouse.move(*centre(page, f"{handle(name)} .knob"))
    page.mouse.down()
    scale = box["width"] / 6
    page.mouse.move(box["x"] + (3 + x) * scale, box["y"] + (3 - y) * scale, steps=4)
    page.mouse.up()


def colour(page: Any, name: str) -> str:
    page.wait_for_timeout(250)  # colours change gradually
    return str(page.eval_on_selector(f"{handle(name)} .knob", "e => getComputedStyle(e).fill"))


RED = "rgb(163, 22, 63)"


def test_a_class_dragged_into_the_hull_turns_red(watch: Any, playground_file: Path) -> None:
    watched = watch().open(playground_file)
    page = watched.page
    page.get_by_role("button", name="Figure 2").click()
    page.wait_for_selector('#weights .handle[data-class="3"][data-verdict="argmaxable"]')
    shows(page, "#sentence", "All 4 classes can win")
    assert colour(page, "D") != RED
    shown(page, "#inputs .region", 4)
    drag(page, "D", -0.3, 0.8)
    page.wait_for_selector('#weights .handle[data-class="3"][data-verdict="unargmaxable"]')
    reads(page, "#sentence", "Class D can never win: it is inside the triangle of A, B and C.")
    assert colour(page, "D") == RED
    shown(page, "#inputs .region", 3)
    drag(page, "D", 1.5, -2.0)
    page.wait_for_selector('#weights .handle[data-class="3"][data-verdict="argmaxable"]')
    assert colour(page, "D") != RED


def test_everything_works_by_keyboard(watch: Any, playground_file: Path) -> None:
    page = watch().open(playground_file).page
    page.focus(handle("D"))
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    page.wait_for_selector('#weights .handle[data-class="3"][data-verdict="argmaxable"]')
    assert page.evaluate("document.activeElement.dataset.class") == "3"
    page.keyboard.press("ArrowUp")
    page.wait_for_selector('#weights .handle[aria-label*="2.38, 0.31"]')
    page.focus("#inputs .probe")
    page.keyboard.press("ArrowLeft")
    shows(page, "#inputs-caption", "x = (0.94, 0.5) ranks")


@pytest.mark.parametrize(
    ("preset", "rankings", "formula", "sentence"),
    [
        ("Figure 1", "12", "12", "Class D can never win: it is inside the triangle of A, B and C."),
        ("Figure 2", "12", "12", "All 4 classes can win."),
        ("Figure 7", "6", "6", "All 3 classes can win."),
        ("Figure 8", "18", "18", "All 4 classes can win: D is inside the hull, but its bias"),
        ("Equal norms", "90", "90", "All 10 classes can win: on a circle"),
    ],
)
def test_examples_show_what_they_promise(
    watch: Any, playground_file: Path, preset: str, rankings: str, formula: str, sentence: str
) -> None:
    watched = watch().open(playground_file)
    page = watched.page
    page.get_by_role("button", name=preset).click()
    shows(page, "#sentence", sentence)
    reads(page, "#rankings-found", rankings)
    reads(page, "#rankings-formula", formula)


def test_label_sets_are_drawn_counted_and_linked_to(watch: Any, playground_file: Path) -> None:
    watched = watch().open(playground_file)
    page = watched.page
    page.get_by_role("button", name="Label sets").click()
    shows(page, "#sentence", "11 of 16 label sets can be predicted; never D alone.")
    shown(page, "#inputs .half", 4)
    shows(page, "#rankings-formula", "11")
    assert page.locator("#orders button:disabled").all_inner_texts() == [
        "D", "CD", "ABC", "BCD", "ABCD",
    ]  # fmt: skip
    page.get_by_role("button", name="A, B and D", exact=True).click()
    shows(page, "#inputs-caption", "predicts A, B and D.")
    shown(page, "#inputs .cell", 1)
    link = page.get_attribute("#link", "href")
    page.check('input[name="mode"][value="argmax"]')
    shown(page, "#inputs .half", 0)
    watched.open(playground_file, link)
    page.reload()
    shows(page, "#sentence", "11 of 16 label sets")


def test_bias_box_and_prevention_decide_too(watch: Any, playground_file: Path) -> None:
    watched = watch().open(playground_file)
    page = watched.page
    page.get_by_role("button", name="Figure 8").click()
    reads(page, "#rankings-found", "18")
    page.uncheck("#bias")
    reads(page, "#rankings-found", "12")
    page.wait_for_selector('#weights .handle[data-class="3"][data-verdict="unargmaxable"]')
    page.check("#bias")
    page.wait_for_selector('#weights .handle[data-class="3"][data-verdict="argmaxable"]')
    page.fill("#box", "0")  # inputs within ±0.25: the bias of D decides nearly everything
    page.wait_for_selector('#weights .handle[data-verdict="unargmaxable"]')
    shows(page, "#sentence", "Classes A, B and C can never win. A: for inputs within")
    page.fill("#box", "12")
    page.uncheck("#bias")
    for how in ("norm", "bias"):
        page.check(f'input[name="prevention"][value="{how}"]')
        shows(page, "#sentence", "All 4 classes can win")


def test_fields_that_are_grey_say_why(watch: Any, playground_file: Path) -> None:
    page = watch().open(playground_file).page
    shows(page, "#held", "the bias is switched off")
    page.check("#bias")
    reads(page, "#held", "")
    page.check('input[value="bias"]')
    shows(page, "#held", "prevention sets them")
    page.check('input[value="norm"]')
    shows(page, "#held", "holds every class on one circle")


def test_braid_reflect_finds_a_winning_input(watch: Any, playground_file: Path) -> None:
    page = watch().open(playground_file).page
    page.get_by_role("button", name="Figure 2").click()
    page.select_option("#reflect-class", "0")
    page.click("#reflect-step")
    shows(page, "#reflect-text", "ahead")
    shown(page, "#inputs .path", 1)
    for _ in range(6):
        page.click("#reflect-step")
    shows(page, "#reflect-text", "A wins at x")
    shows(page, "#inputs-caption", "ranks A")


def test_classes_come_and_go(watch: Any, playground_file: Path) -> None:
    page = watch().open(playground_file).page
    for _ in range(6):
        page.click("#add")
    page.wait_for_selector("#classes li:nth-child(10)")
    assert page.is_disabled("#add")
    for _ in range(9):
        page.locator("#classes .remove").first.click()
    shows(page, "#sentence", "has no rival")
    page.click("#shuffle")
    page.click("#reflect-step")
    page.click("#theme")


def test_a_link_holds_the_head(watch: Any, playground_file: Path) -> None:
    watched = watch().open(playground_file)
    watched.page.get_by_role("button", name="Figure 8").click()
    shows(watched.page, "#sentence", "its bias lifts it out")
    link = watched.page.evaluate("document.querySelector('#link').hash")
    again = watch().open(playground_file, link)
    reads(again.page, "#rankings-found", "18")
    nonsense = watch().open(playground_file, "#w=1,2;nan,Infinity,x&box=-3")
    shows(nonsense.page, "#sentence", "D can never win")


def test_equal_and_collinear_classes_are_said_to_be_so(watch: Any, playground_file: Path) -> None:
    tied = watch().open(playground_file, "#w=1,0,0;1,0,0;-1,1,0;-1,-1,0")
    reads(tied.page, "#sentence", "A and B are the same class twice over: they can only tie.")
    line = watch().open(playground_file, "#w=-1,-1,0;0,0,0;1,1,0")
    reads(line.page, "#sentence", "Class B can never win: it is on the line between A and C.")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_a_phone(watch: Any, playground_file: Path, theme: str) -> None:
    phone = {"width": 360, "height": 740}
    page = watch(viewport=phone, color_scheme=theme, has_touch=True).open(playground_file).page
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    x, y = centre(page, "#inputs")
    page.locator("#inputs").scroll_into_view_if_needed()
    x, y = centre(page, "#inputs")
    page.touchscreen.tap(x - 60, y)
    shows(page, "#inputs-caption", "x = (−")


def test_a_finger_drags_a_class_and_not_the_page(watch: Any, playground_file: Path) -> None:
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    page = watch(**phone).open(playground_file).page
    session = page.context.new_cdp_session(page)
    x, y = centre(page, f"{handle('D')} .knob")
    for k in range(9):
        kind = "touchMove" if k else "touchStart"
        finger = {"x": x + 9 * k, "y": y + 11 * k}
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [finger]})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    shows(page, "#sentence", "Class C can never win: it is inside the triangle of A, B and D.")
    assert page.evaluate("scrollY") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_readers_without_eyes_or_mouse_do_not_stumble(
    watch: Any, playground_file: Path, theme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = watch(color_scheme=theme).open(playground_file).page
    page.wait_for_timeout(600)  # colours settle
    found = Axe().run(page).response["violations"]
    assert [f"{item['id']}: {[n['html'][:90] for n in item['nodes']]}" for item in found] == []


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>document.title='owned'</script>",
    "\u202egnp.exe\u0000",
    "x" * 10_000,
    "\ud800",
]


def test_labels_of_a_head_are_shown_and_nothing_runs(watch: Any, tmp_path: Path) -> None:
    weight = np.array([[-2.0, -2], [1, 2], [2, -1], [0.5, 0], [0, -2]])
    path = tmp_path / "own.html"
    path.write_text(standalone(Head(weight, labels=HOSTILE, domain=Box(100))), encoding="utf-8")
    watched = watch().open(path)
    assert watched.page.title() == "uncork playground"
    assert watched.page.locator("img").count() == 0
    shows(watched.page, "#sentence", "can never win")
    assert "<img src=x onerr" not in watched.page.content().split("</main>")[0]


def test_the_linked_page_is_the_same_page(watch: Any, tmp_path: Path) -> None:
    """What `uncork serve` serves, with its scripts and style beside it."""
    shutil.copy(STATIC / "playground.html", tmp_path)
    shutil.copytree(STATIC / "static", tmp_path / "static")
    shutil.copytree(STATIC.parent / "report" / "assets", tmp_path / "assets")
    watched = watch().open(tmp_path / "playground.html")
    shows(watched.page, "#sentence", "D can never win")
    reads(watched.page, "#rankings-found", "12")


@pytest.mark.parametrize(
    ("head", "what"),
    [
        (Head(np.ones((3, 3))), "2 features, not of 3"),
        (Head(np.ones((11, 2))), "up to 10 classes, not 11"),
        (Head(np.ones((3, 2)), domain=Box(0, 1)), "knows boxes box:R and the unbounded domain"),
        (Head(np.full((3, 2), 1e9), domain=Unbounded()), "the largest weight is 1e+09"),
    ],
)
def test_heads_it_cannot_show_are_refused(head: Head, what: str) -> None:
    with pytest.raises(UncorkError) as raised:
        standalone(head)
    assert what in str(raised.value)
