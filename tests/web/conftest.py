"""A real Chromium that is watched, and a real server on loopback over a store."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.web.browsing import HOSTILE, HOSTILE_READING, Watched

import uncork
from uncork.labels import LabelSets, decide_sets
from uncork.reach.first_places import first_places
from uncork.store import Store
from uncork.theory.random_heads import random_head


@pytest.fixture
def watch(chromium: Any) -> Iterator[Callable[..., Watched]]:
    """Open pages; at the end none may have logged a problem, run a label or left this machine."""
    opened: list[Watched] = []
    contexts: list[Any] = []

    def watching(**settings: Any) -> Watched:
        settings.setdefault("viewport", {"width": 1280, "height": 900})
        context = chromium.new_context(**settings)
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        watched = Watched(page)
        page.on("console", lambda message: watched.complaints.append(message.text))
        page.on("pageerror", lambda error: watched.complaints.append(str(error)))
        page.on("dialog", lambda dialog: watched.complaints.append(dialog.message))
        page.on("request", lambda request: watched.requests.append(request.url))
        opened.append(watched)
        return watched

    yield watching
    for watched in opened:
        assert watched.page.evaluate("window.hacked") is None
    for context in contexts:
        context.close()
    for watched in opened:
        assert watched.complaints == []
        ours = ("file:", "data:", "blob:", "http://127.0.0.1:")
        assert all(url.startswith(ours) for url in watched.requests)


@pytest.fixture(scope="module")
def store_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints of one model (the second with best ranks, the last with a new class), a
    hostile one, a failure."""
    folder = tmp_path_factory.mktemp("store")
    path = folder / "results.db"
    with Store(path) as store:
        for k in range(3):
            head = random_head(60 + (k == 2), 4, bias=True, seed=k)
            file = folder / f"step{k}.npz"
            labels = [f"word{i}" for i in range(head.classes)]
            np.savez(file, weight=head.weight, bias=head.bias)
            head = head.replace(labels=labels, source=str(file))
            audit = uncork.audit(head, jobs=1)
            near = (
                first_places(head, audit, [3], most_asked=0).outlook(head, audit.domain)
                if k == 1
                else None
            )
            ranks = None if near is None else near.ranks
            store.save(audit, name="model", group="checkpoints", ranks=ranks)
        head = random_head(len(HOSTILE), 2, seed=5).replace(labels=HOSTILE, source="gone.npz")
        audit = uncork.audit(head.replace(reading=HOSTILE_READING), jobs=1)
        store.save(audit, name=HOSTILE[0], group=HOSTILE[2], certificates="\x00")
        _label_audits(store, folder)
        store.record_failure(HOSTILE[1], HOSTILE[0], name=HOSTILE[2])
    return path


def _label_audits(store: Store, folder: Path) -> None:
    """Pairs and a question about a file that is there; sets of hostile labels of one that is
    not."""
    head = uncork.load(str(folder / "step0.npz")).replace(source=str(folder / "step0.npz"))
    pairs = LabelSets.sample(60, 2, 150).joined(LabelSets.question(60, [7], [8]))
    store.save_label_audit(decide_sets(head, pairs, jobs=1), name="pairs")
    hostile = random_head(len(HOSTILE), 2, bias=True, seed=5).replace(
        labels=HOSTILE, source="gone.npz", reading=HOSTILE_READING
    )
    every = LabelSets.of_size(len(HOSTILE), 1).joined(LabelSets.of(len(HOSTILE), [range(16)]))
    store.save_label_audit(decide_sets(hostile, every, jobs=1), name=HOSTILE[0])


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[[Path], str]]:
    """Serve a store: where a server over it listens."""
    import uvicorn

    from uncork.web.app import make_app
    from uncork.web.patience import Impatient

    class Quick(Impatient):
        seconds = 2.0

    with contextlib.ExitStack() as until_the_end:

        def serve(store_file: Path) -> str:
            listening = until_the_end.enter_context(socket.socket())
            listening.bind(("127.0.0.1", 0))
            app = make_app(Store(store_file, create=False))
            config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, http=Quick)
            server = uvicorn.Server(config)
            thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
            thread.start()
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.02)
            until_the_end.callback(thread.join, 20)
            until_the_end.callback(setattr, server, "should_exit", True)
            return f"http://127.0.0.1:{listening.getsockname()[1]}"

        yield serve


@pytest.fixture(scope="module")
def address(store_file: Path, serving: Callable[[Path], str]) -> str:
    """Where a server over that store listens."""
    return serving(store_file)
