"""A watch in the trainers themselves: what they report to has counts, lost classes and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import uncork
from nn.recorded_runs import (
    kept,
    labels,
    losing_head,
    scalars,
    texts,
    wandb_history,
)
from uncork import UncorkError
from uncork.nn import Watch
from uncork.nn.watch import TensorBoard

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("quiet_trackers")]


def lost(layer: Any) -> int:
    return uncork.audit(uncork.Head(layer.weight.detach(), layer.bias.detach())).counts[
        "unargmaxable"
    ]


# transformers


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = losing_head()

    def forward(self, x: Any = None, labels: Any = None) -> dict[str, torch.Tensor]:
        logits = self.head(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def trainer(folder: Path, model: nn.Module, report_to: list[str], **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    data = [{"x": torch.randn(4), "labels": torch.tensor(k % 60)} for k in range(40)]
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=5, per_device_train_batch_size=4, report_to=report_to, use_cpu=True,
        save_strategy="no", disable_tqdm=True, logging_steps=1, learning_rate=1e-3,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=data, **options)


def test_the_trainers_own_runs_have_counts_lost_classes_and_the_report(
    mlflow_store: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`attach`, and nothing else: whatever it reports to has all of it, in one run each."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "events"))
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "watched")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_store.get_tracking_uri())
    before = {run.info.run_id for run in mlflow_store.search_runs(output_format="list")}
    model = Model()
    made = trainer(tmp_path / "out", model, ["mlflow", "wandb", "tensorboard"])
    Watch(model.head, every=2, labels=labels()).attach(made)
    made.train()
    count = lost(model.head)
    assert count >= 15

    logged = [entry for entry in made.state.log_history if "uncork/unargmaxable" in entry]
    assert [entry["step"] for entry in logged] == [2, 4, 5]
    assert logged[-1]["uncork/unargmaxable"] == count
    assert 0 < logged[-1]["uncork/share"] <= 1

    runs = mlflow_store.search_runs(output_format="list")
    (run,) = [run for run in runs if run.info.run_id not in before]
    assert run.data.metrics["uncork/unargmaxable"] == count
    history = mlflow_store.MlflowClient().get_metric_history(run.info.run_id, "uncork/unargmaxable")
    assert [metric.step for metric in history] == [2, 4, 5]  # none of them twice
    files = kept(mlflow_store, run.info.run_id, tmp_path / "kept")
    assert "uncork/report.html" in files
    assert "<script>alert(1)</script>,unargmaxable,2" in files["uncork/lost_000002.csv"]

    counted = scalars(tmp_path / "events")
    assert [step for step, _ in counted["train/uncork/unargmaxable"]] == [2, 4, 5]
    assert {"uncork/lost", "uncork/report"} <= set(texts(tmp_path / "events"))
    assert (tmp_path / "events/uncork/report/report.html").exists()

    rows = wandb_history(tmp_path)
    assert [r["train/global_step"] for r in rows if "train/uncork/unargmaxable" in r] == [2, 4, 5]
    assert any("uncork/lost/path" in row for row in rows)
    assert any("uncork/report/path" in row for row in rows)


def test_a_callback_of_the_trainer_tells_its_trackers_itself(tmp_path: Path) -> None:
    model = Model()
    watch = Watch(model.head, every=2, trackers=[TensorBoard(tmp_path / "own")])
    made = trainer(tmp_path, model, [], callbacks=[watch.transformers()])
    made.train()
    expected = [(entry["step"], entry["unargmaxable"]) for entry in watch.history]
    assert [step for step, _ in expected] == [2, 4, 5]
    assert scalars(tmp_path / "own")["uncork/unargmaxable"] == expected
    logged = [entry for entry in made.state.log_history if "uncork/unargmaxable" in entry]
    assert [(entry["step"], entry["uncork/unargmaxable"]) for entry in logged] == expected


def test_a_callback_of_the_trainer_writes_events_where_it_reports_to_tensorboard(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard")  # transformers finds it missing before it calls the watch
    model = Model()
    watch = Watch(model.head, every=2)
    trainer(tmp_path, model, ["tensorboard"], callbacks=[watch.transformers()]).train()
    assert [step for step, _ in scalars(tmp_path / "runs/uncork")["uncork/share"]] == [2, 4, 5]
    assert (tmp_path / "runs/uncork/uncork/report/report.html").exists()


def test_the_trainer_logs_its_loss_at_steps_with_a_count_too(tmp_path: Path) -> None:
    """A log in the middle of a step passes for the step's own, which then is left out."""
    model = Model()
    made = trainer(tmp_path, model, [])
    Watch(model.head, every=2).attach(made)
    made.train()
    assert [entry["step"] for entry in made.state.log_history if "loss" in entry] == [1, 2, 3, 4, 5]


def test_training_that_reports_to_nobody_makes_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "audit", lambda self: pytest.fail("an audit for nobody"))
    model = Model()
    watch = Watch(model.head, every=2)
    made = trainer(tmp_path, model, [])
    watch.attach(made)
    made.train()
    assert [entry["step"] for entry in watch.history] == [2, 4, 5]


# Lightning


def test_the_loggers_of_lightning_have_counts_lost_classes_and_the_report(
    mlflow_store: Any,
    tmp_path: Path,
) -> None:
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.head = losing_head()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            return nn.functional.cross_entropy(self.head(x), y)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    model = Module()
    events = TensorBoardLogger(tmp_path, name="events", version="")
    server = MLFlowLogger("watched", tracking_uri=mlflow_store.get_tracking_uri())
    plain = CSVLogger(tmp_path, name="plain", version="")
    watch = Watch(model.head, every=2, labels=labels())
    data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.arange(60))
    lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=2, accelerator="cpu", logger=[events, server, plain],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1, callbacks=[watch.lightning()],
    ).fit(model, torch.utils.data.DataLoader(data, batch_size=6))  # fmt: skip
    steps = [entry["step"] for entry in watch.history]
    assert steps == [2, 4, 5]  # of the optimiser, in ten batches
    assert watch.history[-1]["unargmaxable"] == lost(model.head)

    counted = scalars(tmp_path / "events")["uncork/unargmaxable"]
    assert counted[-1] == (5, lost(model.head))  # Lightning repeats the last counts in between
    assert {"uncork/lost", "uncork/report"} <= set(texts(tmp_path / "events"))
    files = kept(mlflow_store, server.run_id, tmp_path / "kept")
    assert {"uncork/lost_000002.csv", "uncork/report.html"} <= set(files)
    history = server.experiment.get_metric_history(server.run_id, "uncork/unargmaxable")
    assert history[-1].value == lost(model.head)
    assert "uncork/unargmaxable" in (tmp_path / "plain/metrics.csv").read_text(encoding="utf-8")


# Keras


@pytest.fixture
def keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    """With whatever backend it has been given by now: torch where this is the first to ask."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return pytest.importorskip("keras")


def dense_model(keras: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    keras.utils.set_random_seed(0)
    head = keras.layers.Dense(60)
    model = keras.Sequential([keras.layers.Input((4,)), head])
    made = losing_head()
    head.set_weights([made.weight.detach().numpy().T.copy(), made.bias.detach().numpy()])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    return model, x, np.arange(40)


def dense_lost(layer: Any) -> int:
    kernel, bias = layer.get_weights()
    return uncork.audit(uncork.Head(kernel.T, bias)).counts["unargmaxable"]


def test_keras_has_the_counts_in_its_history_and_its_tracker_the_rest(
    keras: Any, tmp_path: Path
) -> None:
    model, x, y = dense_model(keras)
    head = model.layers[-1]
    watch = Watch(head, every=3, labels=labels(), trackers=[TensorBoard(tmp_path)])
    after = []

    class Later(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            after.append(logs["uncork/unargmaxable"])

    history = model.fit(
        x, y, epochs=2, batch_size=10, verbose=0, callbacks=[watch.keras(), Later()]
    ).history
    assert [entry["step"] for entry in watch.history] == [3, 6, 8]
    assert watch.history[-1]["unargmaxable"] == dense_lost(head) >= 15
    assert (
        history["uncork/unargmaxable"]
        == after
        == [entry["unargmaxable"] for entry in watch.history[:2]]
    )
    assert [step for step, _ in scalars(tmp_path)["uncork/unargmaxable"]] == [3, 6, 8]
    assert (tmp_path / "uncork/report/report.html").exists()


def test_every_epoch_of_keras_has_counts_though_none_was_due(keras: Any) -> None:
    model, x, y = dense_model(keras)
    watch = Watch(model.layers[-1], every=1000)
    history = model.fit(x, y, epochs=3, batch_size=10, verbose=0, callbacks=[watch.keras()]).history
    assert len(history["uncork/unargmaxable"]) == 3
    assert [entry["step"] for entry in watch.history] == [4, 12]


def test_a_dense_layer_without_bias_and_in_half_precision_is_counted(keras: Any) -> None:
    layer = keras.layers.Dense(60, use_bias=False, dtype="bfloat16")
    layer.build((None, 4))
    weight = losing_head().weight.detach().bfloat16()
    layer.kernel.assign(weight.float().numpy().T)
    expected = uncork.audit(uncork.Head(weight)).counts["unargmaxable"]
    assert Watch(layer).count()["unargmaxable"] == expected >= 15


def test_layers_of_keras_whose_classes_are_not_known_are_refused(keras: Any) -> None:
    with pytest.raises(UncorkError, match="build the model"):
        Watch(keras.layers.Dense(3)).count()
    with pytest.raises(UncorkError, match="not EinsumDense: give a function"):
        Watch(keras.layers.EinsumDense("ab,cb->ac", 3)).count()
    codes = keras.layers.Dense(4)
    codes.build((None, 4))
    codes.quantize("int8")
    with pytest.raises(UncorkError, match="codes"):
        Watch(codes).count()


@pytest.mark.parametrize("kind", ["numpy", "like a variable of TensorFlow"])
def test_kernels_of_other_backends_are_copied(keras: Any, kind: str) -> None:
    from uncork.nn.watch import layers

    kernel = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Variable:
        def value(self) -> np.ndarray:
            return kernel

    made = layers._tensor(kernel if kind == "numpy" else Variable())
    assert made.tolist() == kernel.tolist()
    kernel[0, 0] = 9
    assert made[0, 0] == 0
