"""Real models of transformers with the fused loss: equal losses, equal gradients, no logits."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import uncork.nn  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn import ArgmaxableLinear, hf, patch  # noqa: E402

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


def test_it_is_found_without_being_imported():
    assert uncork.nn.__getattr__("patch") is patch
    assert "patch" in dir(uncork.nn)


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


def test_copies_and_pickles_are_models_of_their_own():
    model, ids, labels = made("llama")
    patch.fuse_loss(model, "entmax", alpha=1.3)
    expected = model(ids, labels=labels).loss
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(other(ids, labels=labels).loss, expected)
        with torch.no_grad():
            other.lm_head.weight.zero_()
        assert other(ids, labels=labels).loss != expected
        patch.unfuse_loss(other)
        assert type(other) is transformers.LlamaForCausalLM
        assert other(ids, labels=labels).logits is not None
    torch.testing.assert_close(model(ids, labels=labels).loss, expected)
    assert model._replicate_for_data_parallel().forward.__self__ is not model


def test_a_checkpoint_is_the_plain_models(tmp_path):
    model, ids, labels = made("llama")
    patch.fuse_loss(model, "softmax").save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is transformers.LlamaForCausalLM
    torch.testing.assert_close(model(ids, labels=labels).loss, loaded(ids, labels=labels).loss)


def test_accelerate_wraps_and_unwraps_it(accelerator):
    model, ids, labels = made("llama")
    expected = patch.fuse_loss(model, "entmax")(ids, labels=labels).loss
    prepared = accelerator.prepare(model)
    torch.testing.assert_close(prepared(ids, labels=labels).loss, expected, rtol=0.02, atol=0.02)
    plain = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    torch.testing.assert_close(plain(ids, labels=labels).loss, expected)
    patch.unfuse_loss(plain)
    assert plain(ids, labels=labels).logits is not None


def test_outputs_are_asked_for_as_ever():
    model, ids, labels = made("llama")
    kept = {"labels": labels[:, -4:], "logits_to_keep": 4}
    some = {"labels": labels[:, :3], "logits_to_keep": torch.tensor([0, 1, 2])}
    expected = [model(ids, **asked).loss for asked in (kept, some)]
    states = model(ids, output_hidden_states=True).hidden_states
    patch.fuse_loss(model, "softmax")
    torch.testing.assert_close([model(ids, **asked).loss for asked in (kept, some)], expected)
    found = model(ids, labels=labels, output_hidden_states=True)
    torch.testing.assert_close(found.hidden_states, states)
    model.config.return_dict = False
    torch.testing.assert_close(model(ids, labels=labels)[0], found.loss)
    torch.testing.assert_close(model(ids, labels=labels, return_dict=True).loss, found.loss)


def test_peft_trains_the_output_layer_where_it_is_to_be_saved():
    peft = pytest.importorskip("peft")
    model, ids, labels = made("llama")
    patch.fuse_loss(model, "entmax")
    before = model(ids, labels=labels).loss
    settings = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    adapted = peft.get_peft_model(model, settings)
    adapted(input_ids=ids, labels=labels).loss.backward()
    copied = model.lm_head.modules_to_save["default"]
    assert copied.weight.grad is not None
    assert model.lm_head.original_module.weight.grad is None
    with torch.no_grad():
        copied.weight.mul_(2)
    logits = adapted(input_ids=ids).logits
    expected = hf.causal_lm_loss("entmax")(logits, labels, logits.shape[-1])
    torch.testing.assert_close(adapted(input_ids=ids, labels=labels).loss, expected)
    with adapted.disable_adapter():
        torch.testing.assert_close(adapted(input_ids=ids, labels=labels).loss, before)
    model.lm_head.register_forward_hook(lambda *given: None)
    with pytest.raises(UncorkError, match="has hooks"):
        adapted(input_ids=ids, labels=labels)


@pytest.mark.parametrize("kind", ["cohere", "granite", "gemma2"])
def test_a_bias_is_scaled_as_the_logits_are(kind):
    model, ids, labels = made(kind)
    head = torch.nn.Linear(16, 97)
    torch.nn.init.normal_(head.bias, 0, 3)
    model.set_output_embeddings(head)
    expected = model(ids, labels=labels).loss
    patch.fuse_loss(model, "softmax")
    torch.testing.assert_close(model(ids, labels=labels).loss, expected, rtol=1e-5, atol=1e-6)


def test_an_argmaxable_layer_is_taken():
    model, ids, labels = made("llama")
    model.lm_head = ArgmaxableLinear.from_linear(model.lm_head, "bias")
    expected = model(ids, labels=labels).loss
    truth = gradients(model, expected)
    got = patch.fuse_loss(model, "softmax")(ids, labels=labels).loss
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients(model, got), truth, rtol=1e-4, atol=1e-6)


class Adapted(torch.nn.Linear):
    """As LoRA's and quantised layers are: a weight, and a forward that does more."""

    def forward(self, input):
        return 2 * super().forward(input)


def test_an_output_layer_that_does_more_is_refused_even_if_it_comes_later():
    model, ids, labels = made("llama")
    patch.fuse_loss(model, "softmax")
    plain = model.lm_head
    model.lm_head = Adapted(16, 97, bias=False)
    with pytest.raises(UncorkError, match="got Adapted"):
        model(ids, labels=labels)
    assert model(ids).logits is not None
    model.lm_head = plain
    hook = plain.register_forward_hook(lambda layer, arguments, output: 2 * output)
    with pytest.raises(UncorkError, match="hooks"):
        model(ids, labels=labels)
    hook.remove()
    model(ids, labels=labels)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_compiles_as_one_graph():
    torch._dynamo.reset()
    model, ids, labels = made("llama")
    patch.fuse_loss(model, "alpha_relu", tau=torch.tensor(0.2), weight=torch.rand(97))
    expected = model(ids, labels=labels).loss
    truth = gradients(model, expected)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    got = compiled(ids, labels=labels).loss
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients(model, got), truth, rtol=1e-4, atol=1e-6)


def tiny(kind, **sizes):
    """Without weights: what is refused is not run."""
    with torch.device("meta"):
        return kind(kind.config_class(**sizes))


def own_forward(model):
    model.forward = lambda *arguments, **keywords: None
    return model


class OwnLoss(transformers.LlamaForCausalLM):
    def forward(self, *arguments, **keywords):
        return super().forward(*arguments, **keywords)


GPT2 = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 9}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.nn.DataParallel(made("llama")[0]), "fuse the loss of its .module"),
        (
            lambda: torch.compile(made("llama")[0], backend="eager"),
            "fuse the loss of its ._orig_mod",
        ),
        (lambda: own_forward(made("llama")[0]), "its own forward in front"),
        (lambda: tiny(OwnLoss, **SIZES), "OwnLoss does not compute as llama's"),
        (lambda: tiny(transformers.GPT2DoubleHeadsModel, **GPT2), "does not compute as gpt2's"),
        (lambda: tiny(transformers.LlamaModel, **SIZES), "does not compute as llama's"),
        (lambda: tiny(transformers.T5ForConditionalGeneration, **T5), "encoder-decoder"),
        (lambda: torch.nn.Linear(3, 3), "model type None"),
    ],
)
def test_a_model_of_another_kind_is_named(make, says):
    with pytest.raises(UncorkError, match=says):
        patch.fuse_loss(make())


def test_no_assurance_makes_up_for_what_a_model_lacks():
    model, _, _ = made("llama")
    model.config.get_text_config = lambda: None  # as that of a model which also takes images
    with pytest.raises(UncorkError, match="more than text"):
        patch.fuse_loss(model, unknown_model=True)
    with pytest.raises(UncorkError, match=r"no \.get_output_embeddings"):
        patch.fuse_loss(torch.nn.Linear(3, 3), unknown_model=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"alpha": 0.5}, "alpha must be"),
        ({"tau": 0.1}, "entmax takes alpha, weight"),
        ({"softcap": 3.0}, "got 'softcap'"),
        ({"return_lse": True}, "got 'return_lse'"),
        ({"return_predictions": True}, "got 'return_predictions'"),
        ({"token_weight": torch.ones(1)}, "got 'token_weight'"),
        ({"weight": torch.ones(5)}, "one value per class"),
        ({"label_smoothing": 2.0}, "label_smoothing must be"),
    ],
)
def test_wrong_options_are_said_before_the_first_batch(options, says):
    model, ids, labels = made("llama")
    with pytest.raises(UncorkError, match=says):
        patch.fuse_loss(model, "entmax", **options)
    assert model(ids, labels=labels).logits is not None


def test_what_it_cannot_do_is_said():
    model, _, _ = made("llama")
    with pytest.raises(UncorkError, match="loss must be one of"):
        patch.fuse_loss(model, "hinge")
    model.config.model_type = "unheard_of"
    with pytest.raises(UncorkError, match="unheard_of"):
        patch.fuse_loss(model)
    patch.fuse_loss(model, unknown_model=True)
