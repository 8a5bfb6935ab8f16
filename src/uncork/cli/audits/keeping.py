"""Keeping an audit in a store: `--save`, `--store`, `--name`, `--group` and `--iterations`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from uncork.auditing import Audit
from uncork.cli.files import check_writable
from uncork.cli.output import progress_bar
from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.reach.outlooks import Outlook


class Keeping:
    """What was asked for. Opens the store at once: a wrong one is noticed before the work."""

    def __init__(
        self,
        save: bool,
        store: str | None,
        name: str | None,
        group: str | None,
        iterations: bool,
        patience: int | None,
        asked: Mapping[str, Any],  # the other options, as a manifest calls them
    ) -> None:
        self.name, self.group, self.iterations, self.patience = name, group, iterations, patience
        self.asked = {**asked, "iterations": iterations, "patience": patience}
        self.url: str | None = None
        if not (save or store is not None):
            given = {"--name": name, "--group": group, "--iterations": iterations or None}
            unkept = [option for option, value in given.items() if value is not None]
            if unkept:
                raise UncorkError(f"{unkept[0]} goes with --save or --store: nothing else keeps it")
            return
        from uncork.store import Store
        from uncork.store.default import default_store

        self.url = default_store() if store is None else store
        missing = _missing_file(self.url)
        if missing is None:
            with Store(self.url) as opened:
                opened.check_writable()
        else:  # made once there is something to keep: bad input leaves no empty store behind
            check_writable(missing, "--store")

    def keep(
        self, audit: Audit, certificates: str | None, quiet: bool, near: Outlook | None = None
    ) -> str:
        """Store the audit, with best ranks where they are known; a line that says so, "" if there
        was nothing to do."""
        if self.url is None:
            return ""
        from uncork.auditing.search.reference import PATIENCE
        from uncork.store import Store

        counts, patience = None, self.patience or PATIENCE
        if self.iterations:
            counts = self._count(audit, patience, quiet)
        with Store(self.url) as store:
            number = store.save(
                audit,
                name=self.name,
                group=self.group or "",
                options=self.asked,
                certificates=certificates,
                iterations=counts,
                patience=patience if self.iterations else None,
                ranks=None if near is None else near.ranks,
            )
            return f"stored as audit {number} in {printable(store.name)}"

    def _count(self, audit: Audit, patience: int, quiet: bool) -> np.ndarray:
        from uncork.auditing.search.together.iterations import classes_to_count, count_iterations

        assert audit.head is not None
        classes = classes_to_count(audit)
        with progress_bar(quiet) as bar:
            bar.stage("counting iterations", len(classes))
            head = audit.head.replace(domain=audit.domain)
            return count_iterations(head, classes, patience, bar.advance)


def _missing_file(url: str) -> str | None:
    """The file that would have to be made for the store; None if it exists, or is not a file."""
    from uncork.store.engine import Database

    database = Database(url, create=True, wait=0)  # says what is wrong with it, opens nothing
    database.close()
    is_file = database.url.get_backend_name() == "sqlite"
    return database.name if is_file and not os.path.exists(database.name) else None
