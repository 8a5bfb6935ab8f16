"""How much of the time goes into watching, and whether that leaves room for one more count."""

from __future__ import annotations

import time

from uncork.nn._rows import check_number


class Pace:
    """The time spent on counts since training began, held to a share of all of it if one is given.

    A count that would go over waits. It is taken to cost what the last one did; the first, a full
    audit of unknown cost, is always made.
    """

    def __init__(self, most: float | None) -> None:
        if most is not None:
            check_number(most, "share", "a share of the time, such as 0.01", lambda s: 0 < s <= 1)
        self.most = most
        self.restart()

    def restart(self) -> None:
        """Training begins."""
        self._began = self._ended = time.perf_counter()
        self._counted, self._spent, self._last, self._latest = 0, 0.0, 0.0, 0.0

    def spend(self, seconds: float, *, counting: bool = False) -> None:
        """So much was just spent on watching: on a count, or on what becomes of its result."""
        now = time.perf_counter()
        if counting:
            self._latest = seconds / max(now - self._ended, 1e-9)
            self._counted, self._last = self._counted + 1, 0.0
        self._spent, self._last, self._ended = self._spent + seconds, self._last + seconds, now

    @property
    def share(self) -> float:
        """Of the time since training began."""
        return min(1.0, self._spent / max(time.perf_counter() - self._began, 1e-9))

    @property
    def latest(self) -> float:
        """What the last count took, of the time since the one before; 0 of the first."""
        return self._latest if self._counted > 1 else 0.0

    def allows(self) -> bool:
        """Whether one more count keeps to the share."""
        if self.most is None or not self._counted:
            return True
        elapsed = time.perf_counter() - self._began
        return self._spent + self._last <= self.most * (elapsed + self._last)
