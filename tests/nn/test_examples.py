"""The examples run and do what they say."""

import runpy
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str):
    return runpy.run_path(str(EXAMPLES / name))["main"]()


def test_the_plain_loop_trains_sparse_classifiers(capsys):
    results = run("nn_plain_loop.py")
    assert all(accuracy > 0.95 for accuracy, _ in results.values())
    assert results["softmax"][1] == 50
    assert results["entmax"][1] < 10
    assert results["alpha_relu"][1] < 10
    assert "entmax" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_the_lightning_module_trains(capsys):
    pytest.importorskip("lightning")
    model = run("nn_lightning.py")
    assert model.history[-1] < 0.2 * model.history[0]
    assert "loss.tau" in model.state_dict()
    assert float(model.loss.tau) != 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_the_language_model_trains_and_decodes(capsys):
    pytest.importorskip("transformers", minversion="5.0")
    results = run("nn_transformers.py")
    assert results["losses"][-1] < 0.1
    assert results["relu_losses"][-1] < 0.1
    for key in ("sampled", "beamed", "relu_beamed"):
        for row in results[key].tolist():
            assert row == [(row[0] + i) % 40 for i in range(9)]


@pytest.mark.slow
def test_every_trainer_s_loss_falls(capsys):
    results = run("nn_trainers.py")
    assert all(last < first for first, last in results.values())
    assert "GRPO" in capsys.readouterr().out


def test_the_watched_model_loses_words_and_says_which(tmp_path, capsys):
    pytest.importorskip("tensorboard")
    main = runpy.run_path(str(EXAMPLES / "nn_watch.py"))["main"]
    watch = main(tmp_path / "words", steps=200)
    assert [entry["step"] for entry in watch.history] == [100, 200]
    assert 0 < watch.history[-1]["unargmaxable"] < 1000
    assert "lost: " in capsys.readouterr().out
    assert (tmp_path / "words/uncork/report/report.html").exists()
