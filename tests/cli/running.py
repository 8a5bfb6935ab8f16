"""What came of a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass
class Ran:
    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line a user's mistake is answered with."""
        assert self.status == 2
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("uncork: error: ")
        return lines[0]


Run = Callable[..., Ran]
