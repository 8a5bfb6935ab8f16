"""What the real trackers keep of a watch: counts, lost classes with any label, the report."""

from __future__ import annotations

import csv
import html
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import uncork
from nn.recorded_runs import (
    ODD,
    kept,
    labels,
    losing_head,
    scalars,
    texts,
    wandb_history,
)
from uncork import UncorkError
from uncork.nn.watch import MLflow, TensorBoard, WandB, Watch
from uncork.nn.watch.trackers import Page, Table, as_markdown

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("quiet_trackers")]


def watched(*trackers: Any, steps: int = 5, **options: Any) -> Watch:
    """A training of so many steps, with a count every second one."""
    watch = Watch(losing_head(), every=2, labels=labels(), trackers=trackers, **options)
    for _ in range(steps):
        watch.step()
    watch.finish()
    return watch


def check_page(text: str) -> None:
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert "at step 5" in text
    assert "<script>alert(1)" not in text


# TensorBoard


def test_tensorboard_has_counts_lost_classes_and_the_report(tmp_path: Path) -> None:
    watch = watched(TensorBoard(tmp_path))
    counted = scalars(tmp_path)
    lost = len(uncork.audit(uncork.Head(watch.layer.weight, watch.layer.bias)).unargmaxable)
    assert lost >= len(ODD)
    assert counted["uncork/unargmaxable"] == [(2, lost), (4, lost), (5, lost)]
    assert {"uncork/share", "uncork/seconds", "uncork/nearly_lost"} <= set(counted)
    written = texts(tmp_path)
    ((step, table),) = written["uncork/lost"]  # once: nothing changed
    assert step == 2
    assert len(table.splitlines()) == 2 + lost
    check_page((tmp_path / "uncork/report/report.html").read_text(encoding="utf-8"))
    ((step, where),) = written["uncork/report"]
    assert step == 5
    assert "report&#46;html" in where


def test_no_label_is_markup_in_tensorboard(tmp_path: Path) -> None:
    """TensorBoard's own converter makes the page; every label is there as text."""
    from tensorboard.plugin_util import markdown_to_safe_html

    watched(TensorBoard(tmp_path))
    ((_, table),) = texts(tmp_path)["uncork/lost"]
    page = markdown_to_safe_html(table)
    assert set(re.findall(r"<(\w+)", page)) == {"table", "thead", "tbody", "tr", "th", "td"}
    cells = re.findall(r"<td>(.*?)</td>", page, flags=re.S)
    assert len(cells) % 4 == 0
    shown = [uncork.core.text.visible(str(label), 60) for label in ODD]
    assert [html.unescape(cell) for cell in cells[1::4]] == shown


def test_a_long_table_says_how_many_more_there_are() -> None:
    table = Table("uncork/lost", ("class", "label"), [(t, "x") for t in range(1234)])
    text = as_markdown(table)
    assert text.endswith("… and 1,034 more, all of them in the report.")
    assert len(text.splitlines()) == 2 + 200 + 2


def test_a_writer_of_ones_own_is_written_to(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path / "own") as writer:
        writer.add_scalar("loss", 1.0, 1)
        watched(TensorBoard(writer))
    assert {"loss", "uncork/unargmaxable"} <= set(scalars(tmp_path / "own"))
    assert (tmp_path / "own/uncork/report/report.html").exists()


# MLflow


def test_mlflow_has_counts_lost_classes_and_the_report(mlflow_store: Any, tmp_path: Path) -> None:
    with mlflow_store.start_run() as run:
        watch = watched(MLflow())
    history = mlflow_store.MlflowClient().get_metric_history(run.info.run_id, "uncork/unargmaxable")
    lost = len(watch.lost.rows)
    assert [(metric.step, metric.value) for metric in history] == [(2, lost), (4, lost), (5, lost)]
    files = kept(mlflow_store, run.info.run_id, tmp_path)
    assert set(files) == {"uncork/lost_000002.csv", "uncork/report.html"}
    check_page(files["uncork/report.html"])
    rows = list(csv.reader(files["uncork/lost_000002.csv"].splitlines()))
    assert rows[0] == ["class", "label", "verdict", "since step"]
    assert rows[1] == ["0", "<script>alert(1)</script>", "unargmaxable", "2"]
    assert [row[1] for row in rows[4:7]] == [r"two\nlines\r", r"\x1b[31mred", r"\ud800"]
    assert len(rows) == 1 + lost


def test_the_run_that_began_is_the_one_recorded_in_though_it_has_ended(
    mlflow_store: Any, tmp_path: Path
) -> None:
    watch = Watch(losing_head(), every=2, trackers=[MLflow()])
    with mlflow_store.start_run() as run:
        watch.step()
    watch.finish()
    assert mlflow_store.active_run() is None
    assert "uncork/report.html" in kept(mlflow_store, run.info.run_id, tmp_path)


def test_two_watches_of_one_run_keep_apart(mlflow_store: Any, tmp_path: Path) -> None:
    with mlflow_store.start_run() as run:
        for name in ("encoder", "decoder"):
            Watch(losing_head(), trackers=[MLflow()], name=name).finish()
    files = kept(mlflow_store, run.info.run_id, tmp_path)
    assert {"encoder/report.html", "decoder/report.html"} <= set(files)


# Weights & Biases


def test_wandb_offline_has_counts_lost_classes_and_the_report(tmp_path: Path) -> None:
    wandb = pytest.importorskip("wandb")
    with wandb.init(project="watched", dir=tmp_path) as run:
        run.log({"loss": 1.0})
        watch = watched(WandB())
    rows = wandb_history(tmp_path)
    lost = len(watch.lost.rows)
    counted = [row for row in rows if "uncork/unargmaxable" in row]
    assert [row["uncork/step"] for row in counted] == [2, 4, 5]
    assert [row["uncork/unargmaxable"] for row in counted] == [lost] * 3
    (table,) = [row for row in rows if "uncork/lost/path" in row]
    assert table["uncork/step"] == 2
    assert table["uncork/lost/nrows"] == lost
    (folder,) = tmp_path.glob("wandb/offline-run-*/files")
    stored = json.loads((folder / table["uncork/lost/path"]).read_text(encoding="utf-8"))
    assert stored["columns"] == ["class", "label", "verdict", "since step"]
    assert stored["data"][0] == [0, "<script>alert(1)</script>", "unargmaxable", 2]
    assert stored["data"][5][1] == r"\ud800"
    (page,) = [row for row in rows if "uncork/report/path" in row]
    check_page((folder / page["uncork/report/path"]).read_text(encoding="utf-8"))


def test_wandb_without_a_run_is_refused_when_training_begins() -> None:
    pytest.importorskip("wandb")
    with pytest.raises(UncorkError, match=r"wandb\.init"):
        Watch(nn.Linear(3, 10), trackers=[WandB()]).step()


# What all of them share


class Own:
    """A tracker of one's own: it writes down what it is told."""

    name = "own"

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.tables: list[Table] = []
        self.pages: list[str] = []

    def begin(self) -> None:
        self.told.append(("begin", 0))

    def scalars(self, values: Any, step: int) -> None:
        self.told.append(("scalars", step))

    def table(self, table: Table, step: int) -> None:
        self.told.append(("table", step))
        self.tables.append(table)

    def page(self, page: Page, step: int) -> None:
        self.told.append((page.path.name, step))
        self.pages.append(page.path.read_text(encoding="utf-8"))


def test_the_report_comes_at_each_count_where_that_is_asked_for() -> None:
    own = Own()
    watched(own, steps=4, report="count")
    assert own.told == [
        ("begin", 0), ("scalars", 2), ("table", 2), ("report_000002.html", 2), ("scalars", 4),
        ("report_000004.html", 4),
    ]  # fmt: skip


def test_no_report_is_made_where_none_is_asked_for() -> None:
    own = Own()
    watched(own, report=None)
    assert own.pages == []


def test_the_table_follows_the_classes_that_are_lost_and_won_back() -> None:
    own = Own()
    layer = losing_head()
    watch = Watch(layer, every=1, trackers=[own])
    watch.step()
    first = {row[0]: row for row in own.tables[0].rows}
    layer.weight.data[3] *= 1e4  # long, and so first in its own direction
    layer.weight.data[40] = layer.weight.data[1]  # short, and below
    layer.bias.data[40] = -0.5
    watch.step()
    second = {row[0]: row for row in own.tables[1].rows}
    assert 3 in first
    assert 3 not in second
    assert second[40] == (40, "", "unargmaxable", 2)
    assert second[0] == (0, "", "unargmaxable", 1)
    watch.step()
    assert len(own.tables) == 2


def test_rows_beyond_the_labels_have_none_and_labels_beyond_the_rows_are_refused() -> None:
    watch = Watch(losing_head(), labels=["one", "two"])
    watch.count()
    assert watch.lost.rows[0][1] == "one"
    assert watch.lost.rows[2][1] == "(no label)"
    assert watch.audit().label(59) == "(no label)"
    with pytest.raises(UncorkError, match="61 labels for 60 classes"):
        Watch(losing_head(), labels=range(61)).count()


def test_a_tracker_that_fails_ends_no_training(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(Own):
        name = "gone"

        def scalars(self, values: Any, step: int) -> None:
            raise OSError("the server is away")

    gone, own = Gone(), Own()
    with caplog.at_level(logging.WARNING, "uncork"):
        watched(gone, own)
    said = [record.message for record in caplog.records if "gone" in record.message]
    assert said == ["gone failed and is told no more: the server is away"]
    assert ("report.html", 5) in own.told
    assert gone.told == [("begin", 0)]


def test_the_audit_is_about_the_layer_and_the_inputs_that_are_counted() -> None:
    watch = Watch(losing_head(), domain=uncork.Box(3), labels=labels())
    counts = watch.count()
    audit = watch.audit()
    assert audit.domain == uncork.Box(3)
    assert audit.counts["unargmaxable"] == counts["unargmaxable"]
    assert list(audit.unargmaxable) == [row[0] for row in watch.lost.rows]


def test_what_is_no_tracker_or_no_time_for_a_report_is_refused() -> None:
    with pytest.raises(UncorkError, match="'mlflow' is no tracker"):
        Watch(nn.Linear(2, 3), trackers=["mlflow"])  # type: ignore[list-item]
    with pytest.raises(UncorkError, match="report 'daily'"):
        Watch(nn.Linear(2, 3), report="daily")
