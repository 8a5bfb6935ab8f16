"""The time that watching takes: measured, reported, and held to a share of the training's."""

from __future__ import annotations

import itertools
import logging
from typing import Any

import pytest
import torch
from torch import nn

from uncork import UncorkError
from uncork.nn import Watch
from uncork.nn.watch import counting, pace
from uncork.nn.watch.pace import Pace


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    monkeypatch.setattr(counting, "time", made)
    return made


def trained(
    watch: Watch, clock: Clock, costs: list[float], steps: int, monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The steps with a count, of a training with one second a step and counts of these costs."""
    waiting = itertools.chain(costs, itertools.repeat(costs[-1]))
    own = Watch._counted

    def counted(self: Watch, *of: object) -> dict[str, float]:
        clock.now += next(waiting)
        return own(self, *of)  # type: ignore[arg-type]

    monkeypatch.setattr(Watch, "_counted", counted)
    watch.begin()
    counts = []
    for step in range(1, steps + 1):
        clock.now += 1.0
        if watch.step() is not None:
            counts.append(step)
    return counts


def test_without_a_share_every_count_is_made_and_its_share_reported(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Watch(nn.Linear(3, 10), every=10)
    assert trained(watch, clock, [2.0], 50, monkeypatch) == [10, 20, 30, 40, 50]
    assert [entry["seconds"] for entry in watch.history] == [2.0] * 5
    assert watch.history[0]["share"] == pytest.approx(2 / 12)
    assert watch.history[-1]["share"] == pytest.approx(10 / 60)


def test_counts_wait_until_they_keep_to_the_share(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first takes 3 s, and so might the second: 1 % is enough for both after 600 s."""
    watch = Watch(nn.Linear(3, 10), every=10, share=0.01)
    counts = trained(watch, clock, [3.0, 0.5], 1000, monkeypatch)
    assert counts[:2] == [10, 600]
    assert all(step % 10 == 0 for step in counts)
    assert all(entry["share"] <= 0.01 for entry in watch.history[1:])
    assert 3 + 0.5 * len(counts[1:]) == 10.0  # all that 1 % of 1,000 s allows


def test_cheap_counts_are_all_made(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(nn.Linear(3, 10), every=10, share=0.01)
    assert trained(watch, clock, [0.05], 100, monkeypatch) == list(range(10, 101, 10))


def test_what_trackers_take_counts_as_watching(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        name = "slow"

        def begin(self) -> None: ...
        def scalars(self, values: object, step: int) -> None:
            clock.now += 1.0

        def table(self, table: object, step: int) -> None: ...
        def page(self, page: object, step: int) -> None: ...

    watch = Watch(nn.Linear(30, 4), every=10, share=0.01, trackers=[Slow()])
    assert trained(watch, clock, [0.0], 320, monkeypatch) == [10, 200, 300]


def test_one_line_says_that_counting_takes_long(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(nn.Linear(3, 10), every=10)
    with caplog.at_level(logging.WARNING, "uncork"):
        trained(watch, clock, [2.0, 0.05, 0.5], 50, monkeypatch)
    assert [record.message for record in caplog.records] == [
        "Watch: a count took 0.5 s, 5 % of the time of 10 steps; Watch(..., share=0.01) counts "
        "less often"
    ]


def test_a_watch_with_a_share_has_nothing_to_say(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch(nn.Linear(3, 10), every=10, share=0.5)
    with caplog.at_level(logging.WARNING, "uncork"):
        trained(watch, clock, [2.0], 50, monkeypatch)
    assert caplog.records == []


def test_training_begins_with_its_first_step(clock: Clock) -> None:
    """What lies between the making of the watch and the training is not the training's time."""
    watch = Watch(nn.Linear(3, 10), every=1)
    clock.now += 1000
    watch.step()
    assert watch._pace.share == 0.0
    own = Pace(None)
    clock.now += 3
    own.spend(1.0, counting=True)
    assert own.share == pytest.approx(1 / 3)


@pytest.mark.parametrize("share", [0, -0.1, 1.5, "1%"])
def test_a_share_is_a_share(share: Any) -> None:
    with pytest.raises(UncorkError, match=f"such as 0.01, got {share!r}"):
        Watch(nn.Linear(3, 10), share=share)


def test_a_gpu_is_waited_for_before_the_clock_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a count would be charged for the training that is still queued when it begins."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    layer = nn.Linear(64, 512, device="cuda")
    watch = Watch(layer)
    watch.count()
    big = torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    for _ in range(400):
        big = big @ big * 1e-3
    assert watch.count()["seconds"] < 0.5
