"""Real models of transformers with the fused loss: equal losses, equal gradients, no logits."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from uncork import UncorkError  # noqa: E402
from uncork.nn import hf, patch  # noqa: E402

SIZES = {
    "vocab_size": 97,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SPECIAL = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 97},
    "granite": {"logits_scaling": 3.0},
    "gemma2": {"final_logit_softcapping": 2.0},
    "cohere": {"logit_scale": 0.5},
}
REMOVED = {"gpt2": set(SIZES) - {"vocab_size", "bos_token_id", "eos_token_id"}}


def made(kind):
    torch.manual_seed(0)
    sizes = {name: value for name, value in SIZES.items() if name not in REMOVED.get(kind, ())}
    config = transformers.AutoConfig.for_model(kind, **(sizes | SPECIAL.get(kind, {})))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()  # no dropout
    with torch.no_grad():  # logits large enough for a sparse output to be sparse
        model.get_output_embeddings().weight.mul_(20)
    ids = torch.randint(3, 97, (2, 9), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[0, :3] = -100
    return model, ids, labels


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", patch.KNOWN)
def test_cross_entropy_is_the_models_own(kind):
    model, ids, labels = made(kind)
    expected = model(ids, labels=labels).loss
    truth = gradients(model, expected)
    assert patch.fuse_loss(model, "softmax") is model
    output = model(ids, labels=labels)
    assert output.logits is None
    torch.testing.assert_close(output.loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(model, output.loss), truth, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("sparsemax", {}), ("entmax", {"alpha": 1.5}), ("alpha_relu", {"alpha": 1.5, "tau": 0.2})],
)
def test_sparse_losses_are_those_of_the_logits(kind, name, options):
    model, ids, labels = made(kind)
    own = model.loss_function
    model.loss_function = hf.causal_lm_loss(name, **options)
    expected = model(ids, labels=labels).loss
    truth = gradients(model, expected)
    model.loss_function = own
    patch.fuse_loss(model, name, **options)
    got = model(input_ids=ids, labels=labels, num_items_in_batch=None).loss
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(gradients(model, got), truth, rtol=1e-4, atol=1e-6)


def test_gradient_accumulation_divides_by_the_global_count():
    model, ids, labels = made("llama")
    patch.fuse_loss(model, "softmax")
    counted = int((labels[:, 1:] != -100).sum())
    mean = model(ids, labels=labels).loss
    shared = model(ids, labels=labels, num_items_in_batch=torch.tensor(2 * counted)).loss
    torch.testing.assert_close(shared, mean / 2)
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    torch.testing.assert_close(model(ids, shift_labels=shifted).loss, mean)


def test_without_labels_and_undone_the_model_is_as_before():
    model, ids, labels = made("llama")
    before = model(ids, labels=labels)
    patch.fuse_loss(model, "entmax")
    patch.fuse_loss(model, "sparsemax")  # again: the last one counts
    torch.testing.assert_close(model(ids).logits, before.logits)
    assert model.generate(ids, max_new_tokens=2, do_sample=False).shape == (2, 11)
    assert len(model(ids, labels=labels, return_dict=False)) >= 1
    patch.unfuse_loss(model)
    torch.testing.assert_close(model(ids, labels=labels).loss, before.loss)


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_trains_it(tmp_path):
    model, ids, labels = made("qwen2")
    patch.fuse_loss(model.train(), "entmax", alpha=1.5)
    rows = [{"input_ids": a, "labels": b} for a, b in zip(ids, labels, strict=True)] * 4
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4,
        learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no", logging_steps=1,
        disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]


def test_what_it_cannot_do_is_said():
    model, _, _ = made("llama")
    with pytest.raises(UncorkError, match="loss must be one of"):
        patch.fuse_loss(model, "hinge")
    model.config.model_type = "unheard_of"
    with pytest.raises(UncorkError, match="unheard_of"):
        patch.fuse_loss(model)
    patch.fuse_loss(model, unknown_model=True)
