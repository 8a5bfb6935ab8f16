"""What people do with a model around its head: resize it, smooth labels, watch, decode."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn import heads, patch  # noqa: E402

from .test_patch import made  # noqa: E402


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize(("name", "options"), [("plif", {}), ("mixtape", {}), ("entmax", {})])
def test_a_vocabulary_is_resized_after_its_head_was_replaced(name, options, tie):
    model, ids, _ = made("llama")
    heads.replace(model, name, tie=tie, **options)
    before = model.get_output_embeddings()
    rows = torch.randn(2, before.features)
    expected = before._ranked(rows)
    model.resize_token_embeddings(before.classes + 5)
    after = model.get_output_embeddings()
    assert after.classes == before.classes + 5
    assert (after.weight is model.get_input_embeddings().weight) == tie
    assert model.config.uncork_head["classes"] == after.classes
    scores = after._ranked(rows)[:, : before.classes]
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
    assert model(ids).logits.shape[-1] == after.classes
    assert model(ids, labels=ids + 5).loss.isfinite()
    model.resize_token_embeddings(60)
    assert model(ids % 60).logits.shape[-1] == 60


def test_classes_that_go_take_their_gates_along():
    model, ids, _ = made("llama")
    heads.replace(model, "mixtape", frequent=[50, 3, 7])
    before = model.get_output_embeddings()
    rows = torch.randn(2, before.features)
    expected = before(rows)[:, :40]
    model.resize_token_embeddings(40)
    after = model.get_output_embeddings()
    assert after.frequent_classes.tolist() == [3, 7]
    assert model.config.uncork_head["frequent"] == 2
    torch.testing.assert_close(after(rows), expected)
    assert model(ids % 40, labels=ids % 40).loss.isfinite()
    after.reset_parameters()
    assert after.frequent_classes.tolist() == [3, 7]


def test_what_is_frozen_or_set_stays_so_when_the_vocabulary_is_resized():
    model, _, _ = made("llama")
    heads.replace(model, "alpha-relu", tau=0.7)
    model.requires_grad_(False)
    model.get_output_embeddings().bias = torch.nn.Parameter(torch.zeros(model.config.vocab_size))
    model.resize_token_embeddings(60)
    after = model.get_output_embeddings()
    assert [name for name, each in after.named_parameters() if each.requires_grad] == ["bias"]
    after.reset_parameters()
    assert float(after.tau) == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("name", "options", "sizes", "says"),
    [
        ("argmaxable", {}, (40, None), "an argmaxable head cannot be resized"),
        ("argmaxable", {}, (None, 16), "an argmaxable head cannot be resized"),
        ("mixtape", {"frequent": torch.tensor([50])}, (33, 16), "of 48 classes none"),
    ],
)
def test_a_resize_that_is_refused_changes_nothing(name, options, sizes, says):
    model, ids, _ = made("llama")
    heads.replace(model, name, **options)
    classes = model.config.vocab_size
    model.resize_token_embeddings(classes)  # as it is
    with pytest.raises(UncorkError, match=says):
        model.resize_token_embeddings(*sizes)
    assert model.config.vocab_size == classes == len(model.get_input_embeddings().weight)
    assert model(ids).logits.shape[-1] == classes


def trainer_of(model, folder, rows, **options):
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=1, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, **options,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=rows)


@pytest.mark.parametrize("change", ["fused", "replaced"])
def test_a_trainer_that_smooths_labels_is_warned_about(change, tmp_path):
    model, ids, labels = made("llama")
    model.train()
    if change == "fused":
        patch.fuse_loss(model, "entmax")
    else:
        heads.replace(model, "entmax")
    inputs = {"input_ids": ids, "labels": labels}
    trainer = trainer_of(model, tmp_path, [inputs], label_smoothing_factor=0.1)
    with pytest.warns(UserWarning, match="label_smoothing_factor keeps the labels from the model"):
        trainer.compute_loss(model, dict(inputs))
    trainer_of(model, tmp_path, [inputs]).compute_loss(model, dict(inputs))  # warns of nothing


def test_what_a_watch_cannot_be_attached_to_is_said():
    layer = torch.nn.Linear(3, 4)
    with pytest.raises(UncorkError, match="attach takes a Trainer of transformers, got Linear"):
        unn.Watch(layer).attach(layer)
    with pytest.raises(UncorkError, match="attach takes a Trainer of transformers, got type"):
        unn.Watch(layer).attach(transformers.Trainer)


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("tau", [-0.5, 0.2, 9.0])  # all, few and no support
def test_log_probabilities_for_decoding_are_those_that_can_be_trained(tau, dim):
    z = torch.randn(6, 700, generator=torch.Generator().manual_seed(0))
    z[0, 3:] = -torch.inf
    z[1, 5] = torch.nan
    for function in (
        lambda z: F.log_entmax(z, 1.5, dim),
        lambda z: F.log_sparsemax(z, dim),
        lambda z: F.log_alpha_relu(z, 1.5, tau, dim),
    ):
        trained = function(z.clone().requires_grad_()).detach()
        torch.testing.assert_close(function(z), trained, equal_nan=True)
