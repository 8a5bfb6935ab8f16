"""Every picture of these pages that uncork itself makes, made anew: `make pictures`.

The gallery's are drawn by the commands that stand beside them. The report, the pages of
`uncork serve` and the playground are photographed in a headless Chromium. The report is of
PP-OCRv6, whose audit takes minutes, and wants a font for its labels (Debian: fonts-wqy-zenhei).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_WAIT = 60_000  # milliseconds, of a busy machine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = {
        "gallery": draw_gallery,
        "playground": playground,
        "readme": readme,
        "report": report,
    }
    parser.add_argument("which", nargs="*", help="all, unless some are named")
    for kind in parser.parse_args().which or kinds:
        if kind not in kinds:
            parser.error(f"{kind!r} is none of {', '.join(kinds)}")
        kinds[kind]()


def draw_gallery() -> None:
    """The commands of gallery.md, run in its folder."""
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for command in re.findall(r"^    uncork (draw .*)$", text, re.M):
        _uncork(*shlex.split(command), folder=DOCS / "gallery")


def playground() -> None:
    from uncork.web.playground import standalone

    with tempfile.TemporaryDirectory() as folder, _browser() as browser:
        file = Path(folder) / "playground.html"
        file.write_text(standalone(), encoding="utf-8")
        page = _page(browser, 1280, 900, file.as_uri())
        page.wait_for_selector("#inputs .region")
        page.screenshot(path=DOCS / "gallery" / "playground.png")


def readme() -> None:
    """The report that the README's example writes."""
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / "demo-report.html"
        model = _model("rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer.onnx")
        _uncork("audit", model, "--report", made.name, "--quiet", folder=Path(name))
        with _browser() as browser:
            page = _page(browser, 1280, 900, made.as_uri())
            page.wait_for_selector(".row")
            page.screenshot(path=DOCS / "images" / "report-ppocrv4.png")


def report() -> None:
    """The report of PP-OCRv6 and its figures; it and PP-OCRv4 served: list, class, side by side."""
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name), Path(name) / "PP-OCRv6.html"
        os.chdir(folder)  # the list's page says which store it is of
        old = _model("rapidocr_onnxruntime", "ch_PP-OCRv4_rec_infer.onnx")
        new = _model("rapidocr", "PP-OCRv6_rec_small.onnx")
        _audited(folder, old, "PP-OCRv4", "--drop-bias")
        _audited(folder, old, "PP-OCRv4", "--certificates", "proofs.npz")
        _audited(folder, new, "PP-OCRv6 small", "--report", made.name)
        with _browser() as browser, _served(Path("results.db")) as address:
            page = _page(browser, 1280, 1000, made.as_uri())
            page.wait_for_selector(".row")
            page.screenshot(path=DOCS / "images" / "report.png")
            page.locator("#figures").screenshot(path=DOCS / "images" / "report-figures.png")
            page = _page(browser, 1280, 560, address)
            page.wait_for_selector("#audits tbody tr")
            page.screenshot(path=DOCS / "images" / "serve.png")
            page.set_viewport_size({"width": 1280, "height": 900})
            page.goto(f"{address}/audits/2/classes/37")
            page.wait_for_selector("#class table")
            page.screenshot(path=DOCS / "images" / "serve-class.png")
            page.goto(f"{address}/audits/2/classes/829#bias=0.1")
            page.wait_for_selector(".move-answer li")
            moving = page.locator("section:has(> .move-control)")
            moving.evaluate("section => { section.style.padding = '1.5rem'; }")
            moving.screenshot(path=DOCS / "images" / "serve-move.png")
            page.goto(f"{address}/compare?before=2&after=3#show=regained")
            page.wait_for_selector("#changes tbody tr")
            page.screenshot(path=DOCS / "images" / "serve-compare.png")


def _model(package: str, name: str) -> str:
    found = importlib.util.find_spec(package)  # finds a package without running its code
    if found is None or not found.submodule_search_locations:
        sys.exit(f"{package} is not installed: see TEST_MODELS in the Makefile")
    return str(Path(found.submodule_search_locations[0]) / "models" / name)


def _audited(folder: Path, model: str, name: str, *options: str) -> None:
    _uncork("audit", model, *options, "--save", "--store", "results.db", "--name", name,
            folder=folder)  # fmt: skip


def _uncork(*arguments: str, folder: Path) -> None:
    # Paths of this machine are no part of the pictures, nor of what they say.
    subprocess.run([sys.executable, "-m", "uncork", *arguments], cwd=folder, check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        sys.exit("there is no Chromium here (Debian: apt-get install chromium)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


def _page(browser: Any, width: int, height: int, address: str) -> Any:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(_WAIT)
    page.goto(address)
    return page


@contextmanager
def _served(store: Path) -> Iterator[str]:
    import uvicorn

    from uncork.store import Store
    from uncork.web.app import make_app

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(make_app(Store(store)), log_level="error"))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(20)


if __name__ == "__main__":
    main()
