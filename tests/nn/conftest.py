"""Fixtures that several tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(params=["narrow", "wide"])
def width(request, monkeypatch):
    """Both kernels of α-entmax, by the width of the rows."""
    if request.param == "narrow":
        return 601
    from uncork.nn.kernels import entmax

    monkeypatch.setattr(entmax, "WIDEST", 600)
    return 5003  # more than four tiles of the wide kernel, and a multiple of nothing


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate")
    state = accelerate.state.AcceleratorState  # one for the whole process, until it is told so
    state._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    state._reset_state(reset_partial_state=True)


@pytest.fixture
def quiet_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MLflow and Weights & Biases that speak to nobody, and write here."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)  # where MLflow puts what it was given no place for


@pytest.fixture(scope="session")
def mlflow_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """MLflow with a database in a folder, which takes it seconds to make."""
    mlflow = pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').as_posix()}")
        mlflow.create_experiment("watched", artifact_location=(folder / "kept").as_uri())
        mlflow.set_experiment("watched")
        yield mlflow
        mlflow.set_tracking_uri(before)
