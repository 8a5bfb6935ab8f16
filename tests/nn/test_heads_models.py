"""Heads in real models: replaced in one line, trained, saved, loaded and generated with."""

import copy
import json
import pickle

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import uncork.nn as unn  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn.heads import HEADS  # noqa: E402

VOCABULARY = 53
COMMON = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LAYERS = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
SIZES = {
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32},  # tied
    "llama": LAYERS,  # not tied
    "granite": LAYERS | {"logits_scaling": 3.0},
    "cohere": LAYERS | {"logit_scale": 0.5},  # tied
    "gemma2": LAYERS | {"final_logit_softcapping": 2.0},
}
SMALL = {"mos": {"components": 3}, "moc": {"components": 3}, "mos-sigsoftmax": {"components": 3}}


def made(kind):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **COMMON, **SIZES[kind])
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(3, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
    return model, ids


def generate(model, ids, **options):
    return model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, pad_token_id=0, **options
    )


def test_another_model_of_the_same_configuration_is_left_alone():
    first, _ = made("gpt2")
    other = type(first)(first.config)
    unn.heads.replace(first, "mos", components=2, tie=False)
    assert not hasattr(other.config, "uncork_head")
    assert other.config.tie_word_embeddings
    assert first.transformer.config is first.config


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("name", HEADS)
def test_a_model_with_the_head_trains_saves_loads_and_generates(kind, name, tmp_path):
    model, ids = made(kind)
    assert unn.heads.replace(model, name, **SMALL.get(name, {})) is model
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(4):
        output = model(ids, labels=ids)
        assert output.logits is None  # they were not made
        optimiser.zero_grad()
        output.loss.backward()
        optimiser.step()
        losses.append(output.loss.item())
    assert losses[-1] < losses[0]
    model.save_pretrained(tmp_path)
    loaded = unn.heads.load_pretrained(tmp_path).eval()
    head = loaded.get_output_embeddings()
    assert type(head) is HEADS[name]
    tied = head.weight is loaded.get_input_embeddings().weight
    assert tied == (kind == "gpt2" and name != "argmaxable")
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)
    assert torch.equal(loaded(ids, labels=ids).loss, model(ids, labels=ids).loss)
    greedy = generate(loaded, ids, do_sample=False)
    assert torch.equal(greedy, generate(model, ids, do_sample=False))
    hidden = loaded(greedy[:, :-1], output_hidden_states=True).hidden_states[-1]
    assert torch.equal(head.argmax(hidden[:, -1]), greedy[:, -1])
    assert generate(loaded, ids, do_sample=True).shape == (2, 12)
    assert generate(loaded, ids, num_beams=2, do_sample=False).shape == (2, 12)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def _keeps_positions_of_each_row(model, ids):
    """Whether transformers itself takes a matrix as `logits_to_keep`, as newer ones do."""
    try:
        logits = model(ids, logits_to_keep=torch.tensor([[0, 3], [2, 5]])).logits
    except (IndexError, ValueError, TypeError):
        return False
    return logits.shape[:-1] == (2, 2)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "granite", "cohere"])
def test_softmax_in_place_of_softmax_changes_nothing(kind):
    model, ids = made(kind)
    labels = ids.clone()
    labels[0, :4] = -100
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    kept = labels != -100
    calls = [
        {"labels": labels},
        {"labels": labels, "num_items_in_batch": torch.tensor(40)},
        {"labels": labels, "shift_labels": shifted, "num_items_in_batch": 40},
        {"labels": labels[:, -4:], "logits_to_keep": 4},
        {"labels": labels[:, :3], "logits_to_keep": torch.tensor([3, 4, 5])},
        {"labels": labels[:, 5:7], "logits_to_keep": torch.tensor([[0, 3], [2, 5]])},
        {"labels": labels[kept], "logits_to_keep": kept},
    ]
    if not _keeps_positions_of_each_row(model, ids):
        calls = [call for call in calls if getattr(call.get("logits_to_keep"), "ndim", 1) < 2]
    before = [model(ids, **call) for call in calls]
    truths = [gradients(model, output.loss) for output in before]
    unn.heads.replace(model, "softmax")
    for call, truth, found in zip(calls, before, truths, strict=True):
        after = model(ids, **call)
        torch.testing.assert_close(after.loss, truth.loss)
        torch.testing.assert_close(gradients(model, after.loss), found, rtol=1e-4, atol=1e-6)
        keep = {"logits_to_keep": call.get("logits_to_keep", 0)}
        torch.testing.assert_close(model(ids, **keep).logits, truth.logits)


@pytest.mark.parametrize("kind", ["granite", "cohere"])
def test_a_bias_that_would_not_be_scaled_with_the_logits_is_refused(kind):
    model, ids = made(kind)
    with pytest.raises(UncorkError, match="multiplies its logits by 0"):
        unn.heads.replace(model, "mos", bias=True)
    with pytest.raises(UncorkError, match="bias=False"):
        unn.heads.replace(model, "argmaxable", how="bias")
    layer = torch.nn.Linear(16, VOCABULARY)
    model.set_output_embeddings(layer)
    before = model(ids, labels=ids).loss
    with pytest.raises(UncorkError, match="leaves its bias as it is"):
        unn.heads.replace(model, "softmax")
    assert torch.equal(model(ids, labels=ids).loss, before)  # nothing was changed


def test_what_is_not_tied_is_not_tied_unasked_and_a_bias_is_kept():
    for kind in ("gpt2", "llama"):
        model, ids = made(kind)
        layer = torch.nn.Linear(16, VOCABULARY)
        model.set_output_embeddings(layer)
        torch.nn.init.normal_(layer.bias)
        if kind == "llama":
            model.config.tie_word_embeddings = True
            layer.weight = model.get_input_embeddings().weight
        before = model(ids, labels=ids).loss
        unn.heads.replace(model, "softmax")
        torch.testing.assert_close(model(ids, labels=ids).loss, before)
        head = model.get_output_embeddings()
        tied = head.weight is model.get_input_embeddings().weight
        assert tied == model.config.tie_word_embeddings == (kind == "llama")


def test_copies_and_pickles_have_the_head_too(tmp_path):
    model, ids = made("gpt2")
    unn.heads.replace(model, "entmax").save_pretrained(tmp_path)
    expected = model(ids, labels=ids).loss
    loaded = unn.heads.load_pretrained(tmp_path).eval()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(loaded))):
        torch.testing.assert_close(other(ids, labels=ids).loss, expected)
        head = other.get_output_embeddings()
        assert head.weight is other.get_input_embeddings().weight
        with torch.no_grad():
            head.weight.zero_()
        assert other(ids, labels=ids).loss != expected
        unn.heads.replace(other, "softmax")
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    assert model._replicate_for_data_parallel().forward.__self__ is not model


def test_accelerate_wraps_and_unwraps_it(accelerator):
    model, ids = made("llama")
    expected = unn.heads.replace(model, "sparsemax")(ids, labels=ids).loss
    prepared = accelerator.prepare(model)
    torch.testing.assert_close(prepared(ids, labels=ids).loss, expected, rtol=0.02, atol=0.02)
    plain = accelerator.unwrap_model(prepared, keep_fp32_wrapper=False)
    torch.testing.assert_close(plain(ids, labels=ids).loss, expected)


def test_tuples_are_returned_where_they_are_asked_for():
    model, ids = made("llama")
    unn.heads.replace(model, "entmax")
    loss, logits = model(ids, labels=ids).loss, model(ids).logits
    model.config.return_dict = False
    torch.testing.assert_close(model(ids, labels=ids)[0], loss)
    torch.testing.assert_close(model(ids)[0], logits)
    torch.testing.assert_close(model(ids, labels=ids, return_dict=True).loss, loss)
    assert generate(model, ids, do_sample=False).shape == (2, 12)


def test_a_fused_loss_and_a_head_of_ours_exclude_each_other():
    model, ids = made("llama")
    unn.patch.fuse_loss(model, "entmax")
    expected = model(ids, labels=ids).loss
    with pytest.raises(UncorkError, match=r"unfuse_loss\(model\) first"):
        unn.heads.replace(model, "mos")
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    unn.heads.replace(unn.patch.unfuse_loss(model), "entmax")
    torch.testing.assert_close(model(ids, labels=ids).loss, expected)
    with pytest.raises(UncorkError, match="head was replaced"):
        unn.patch.fuse_loss(model, "sparsemax")
    torch.testing.assert_close(unn.patch.unfuse_loss(model)(ids, labels=ids).loss, expected)


def test_what_stands_around_or_before_a_model_is_named():
    model, _ = made("llama")
    with pytest.raises(UncorkError, match=r"replace the head of its \.module"):
        unn.heads.replace(torch.nn.DataParallel(model), "mos")
    model.forward = lambda *arguments, **keywords: None
    with pytest.raises(UncorkError, match="replace the head before that"):
        unn.heads.replace(model, "mos")
    classifier = transformers.LlamaForSequenceClassification(model.config)
    with pytest.raises(UncorkError, match="does not compute as llama's"):
        unn.heads.replace(classifier, "mos")


def test_sampling_follows_the_heads_distribution():
    model, ids = made("llama")
    unn.heads.replace(model, "sparsemax")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8)
    one = ids[:1]
    p = model(one).logits[0, -1].exp().detach()
    assert 1 < int((p > 0).sum()) < VOCABULARY
    torch.manual_seed(0)
    drawn = model.generate(
        one.expand(3000, -1), attention_mask=torch.ones(3000, 9, dtype=torch.int64),
        max_new_tokens=1, do_sample=True, top_k=0, pad_token_id=0,
    )[:, -1]  # fmt: skip
    shares = torch.bincount(drawn, minlength=VOCABULARY) / len(drawn)
    torch.testing.assert_close(shares, p, atol=0.03, rtol=0)
    assert bool((shares[p == 0] == 0).all())


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_trains_it_and_a_copy_is_a_model_of_its_own(tmp_path):
    model, ids = made("llama")
    unn.heads.replace(model.train(), "mos", components=2)
    kept = copy.deepcopy(model)
    rows = [{"input_ids": row, "labels": row} for row in ids] * 4
    arguments = transformers.TrainingArguments(
        str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=4,
        learning_rate=1e-2, report_to=[], use_cpu=True, save_strategy="no", logging_steps=1,
        disable_tqdm=True,
    )  # fmt: skip
    before = kept(ids, labels=ids).loss.item()
    trainer = transformers.Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    assert kept(ids, labels=ids).loss.item() == before


def test_a_linear_of_any_module_is_replaced_by_name():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 6))
    first = network[2].weight.detach().clone()
    assert unn.heads.replace(network, "mos", name="2", components=2) is network
    assert torch.equal(network[2].weight, first)
    scores = network(torch.randn(5, 3))
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(5))
    again = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 6))
    unn.heads.replace(again, "mos", name="2", components=2)
    again.load_state_dict(network.state_dict())
    x = torch.randn(5, 3)
    assert torch.equal(again(x), network(x))
    head = unn.heads.MixtureOfContexts(4, 6, components=2)
    unn.heads.replace(again, head, name="2")
    assert again[2] is head


class Tied(torch.nn.Module):
    """A decoder that shares the encoder's weight, by its own doing."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9)
        self.decoder.weight = self.encoder.weight

    def forward(self, ids):
        return self.decoder(self.encoder(ids))


def test_a_linear_that_shares_its_weight_is_replaced_by_a_head_that_does():
    for tie, shared in ((None, True), (True, True), (False, False)):
        model = unn.heads.replace(Tied(), "mos", name="decoder", components=2, tie=tie)
        assert (model.decoder.weight is model.encoder.weight) == shared
        assert torch.equal(model.decoder.weight, model.encoder.weight)
    model = unn.heads.replace(Tied(), "mos", name="decoder", components=2, embedding=3)
    assert model.decoder.weight.shape == (9, 3)
    for change, says in (({"embedding": 3}, "cannot share"), ({"components": 2}, "nothing to tie")):
        model = Tied()
        if "components" in change:
            model.decoder.weight = torch.nn.Parameter(model.encoder.weight.detach().clone())
        with pytest.raises(UncorkError, match=says):
            unn.heads.replace(model, "mos", name="decoder", tie=True, **change)
        assert isinstance(model.decoder, torch.nn.Linear)
    with pytest.raises(UncorkError, match="name must be"):
        unn.heads.replace(Tied(), "mos", name="")


def test_what_transformers_ties_stays_tied_or_is_refused():
    config = transformers.BertConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, **COMMON
    )
    place = "cls.predictions.decoder"
    model = transformers.BertForMaskedLM(config).eval()
    unn.heads.replace(model, "mos", name=place, components=2)
    assert model.get_submodule(place).weight is model.get_input_embeddings().weight
    ids = torch.randint(3, VOCABULARY, (2, 5))
    before = model(ids).logits
    model.tie_weights()
    assert torch.equal(model(ids).logits, before)
    model = transformers.BertForMaskedLM(config)
    for options in ({"tie": False}, {"embedding": 5}):
        with pytest.raises(UncorkError, match=r"ties cls\.predictions\.decoder\.weight to"):
            unn.heads.replace(model, "mos", name=place, components=2, **options)
    config.tie_word_embeddings = False
    model = transformers.BertForMaskedLM(config)
    unn.heads.replace(model, "mos", name=place, components=2, embedding=5)
    model.tie_weights()
    assert model(ids).logits.shape == (2, 5, VOCABULARY)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Albert"])
def test_a_bias_that_transformers_ties_is_shared_or_refused(kind):
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        embedding_size=16, **COMMON,
    )  # fmt: skip
    made = getattr(transformers, f"{kind}ForMaskedLM")
    model = made(config).eval()
    place, _, _ = next(key for key in model.all_tied_weights_keys if "bias" in key).rpartition(".")
    unn.heads.replace(model, "softmax", name=place)
    ids = torch.randint(3, VOCABULARY, (2, 5))
    optimiser = torch.optim.SGD(model.parameters(), 0.5)
    model(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    before = model(ids).logits
    assert model.get_submodule(place).bias.any()  # it has learned
    model.tie_weights()
    assert torch.equal(model(ids).logits, before)
    model = made(config)
    with pytest.raises(UncorkError, match=r"ties .*decoder\.bias to .*bias again"):
        unn.heads.replace(model, "mos", name=place, components=2, bias=False)
    assert isinstance(model.get_submodule(place), torch.nn.Linear)


def test_a_head_by_name_in_a_model_that_is_resized_since_is_named():
    config = transformers.BertConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, **COMMON
    )
    model = transformers.BertForMaskedLM(config)
    unn.heads.replace(model, "entmax", name="cls.predictions.decoder")
    model.resize_token_embeddings(VOCABULARY + 3)
    with pytest.raises(UncorkError, match="of 53 classes and its weight has become one of 56"):
        model(torch.randint(3, VOCABULARY, (2, 5)))


def test_ties_can_be_chosen():
    model, _ = made("gpt2")
    unn.heads.replace(model, "mos", components=2, tie=False)
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    model, _ = made("llama")
    unn.heads.replace(model, "mos", components=2, tie=True)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.config.tie_word_embeddings
    with pytest.raises(UncorkError, match="cannot share"):
        unn.heads.replace(model, "mos", components=2, embedding=5, tie=True)
    unn.heads.replace(model, "mos", components=2, embedding=5)  # again, and narrower
    assert model.get_output_embeddings().weight.shape == (VOCABULARY, 5)


def test_what_it_cannot_do_is_said(tmp_path):
    model, ids = made("gemma2")
    with pytest.raises(UncorkError, match="soft-caps"):
        unn.heads.replace(model, "mos")
    model, ids = made("llama")
    with pytest.raises(UncorkError, match="one of softmax"):
        unn.heads.replace(model, "moss")
    with pytest.raises(UncorkError, match="takes no options"):
        unn.heads.replace(model, unn.heads.SoftmaxHead(16, VOCABULARY), components=3)
    for options in ({"classes": 9}, {"features": 3}):
        with pytest.raises(UncorkError, match="the layer it replaces 53 × 16"):
            unn.heads.replace(model, "entmax", **options)
    with pytest.raises(UncorkError, match="the layer it replaces"):
        unn.heads.replace(model, unn.heads.SoftmaxHead(16, 7))
    with pytest.raises(UncorkError, match="name of a Linear"):
        unn.heads.replace(torch.nn.Linear(3, 4), "mos")
    with pytest.raises(UncorkError, match="got ReLU"):
        unn.heads.replace(torch.nn.Sequential(torch.nn.ReLU()), "mos", name="0")
    model.save_pretrained(tmp_path / "plain")
    with pytest.raises(UncorkError, match="names no head"):
        unn.heads.load_pretrained(tmp_path / "plain")
    with pytest.raises(UncorkError, match="trust_remote_code"):
        unn.heads.load_pretrained(tmp_path / "plain", trust_remote_code=True)
    unn.heads.replace(model, "mos", components=2)
    model.set_output_embeddings(torch.nn.Linear(16, VOCABULARY))
    with pytest.raises(UncorkError, match=r"none of uncork\.nn.s: .* call replace after"):
        model(ids)
    model.config.model_type = "unheard_of"
    with pytest.raises(UncorkError, match="unheard_of"):
        unn.heads.replace(model, "mos")


def changed(folder, **settings):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["uncork_head"] |= settings
    path.write_text(json.dumps(config))


def test_a_hostile_configuration_is_refused(tmp_path):
    model, _ = made("llama")
    unn.heads.replace(model, "mos", components=2)
    model.save_pretrained(tmp_path)
    changed(tmp_path, components=10**9)
    with pytest.raises(UncorkError, match="more than its files hold"):
        unn.heads.load_pretrained(tmp_path)
    changed(tmp_path, components=2, name="os.system")
    with pytest.raises(UncorkError, match="must be one of"):
        unn.heads.load_pretrained(tmp_path)
    changed(tmp_path, name="mos", device="cuda")
    with pytest.raises(UncorkError, match="device"):
        unn.heads.load_pretrained(tmp_path)


def test_weights_in_a_pickle_are_not_read(tmp_path):
    model, _ = made("llama")
    unn.heads.replace(model, "mos", components=2)
    model.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OSError, match="safetensors"):
        unn.heads.load_pretrained(tmp_path)


def test_a_saved_mixture_is_not_audited_as_if_it_were_linear(tmp_path):
    import uncork

    model, _ = made("llama")
    unn.heads.replace(model, "mos", components=2)
    model.save_pretrained(tmp_path)
    with pytest.raises(UncorkError, match=r"its head is uncork\.nn's mos"):
        uncork.load(tmp_path)
    unn.heads.replace(model, "sigsoftmax")  # whose order is its logits'
    model.save_pretrained(tmp_path)
    weight = model.get_output_embeddings().weight.detach().numpy()
    assert (uncork.load(tmp_path).weight == weight).all()


@pytest.mark.parametrize("name", ["mos", "entmax"])
def test_peft_trains_the_head_where_it_is_to_be_saved(name):
    peft = pytest.importorskip("peft")
    model, ids = made("llama")
    unn.heads.replace(model, name, **SMALL.get(name, {}))
    before = model(ids, labels=ids).loss
    settings = peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])
    adapted = peft.get_peft_model(model, settings)
    torch.testing.assert_close(adapted(input_ids=ids, labels=ids).loss, before)
    adapted(input_ids=ids, labels=ids).loss.backward()
    head = model.lm_head.modules_to_save["default"]
    assert all(parameter.grad is not None for parameter in head.parameters())
    with torch.no_grad():
        head.weight.mul_(0)
    after = adapted(input_ids=ids, labels=ids).loss
    assert not torch.allclose(after, before)
    with adapted.disable_adapter():
        torch.testing.assert_close(adapted(input_ids=ids, labels=ids).loss, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["sparsemax", "entmax", "normmax"])
def test_a_support_that_is_forbidden_leaves_the_order_of_the_logits(name, dtype):
    model, ids = made("llama")
    model = model.to(dtype).eval()
    model.lm_head.weight.data.mul_(300)  # as confident as a trained model
    ids, logits = ids[:1], model(ids[:1]).logits[0, -1].detach()
    best, second = logits.topk(2).indices.tolist()
    unn.heads.replace(model, name)
    scores = model(ids).logits[0, -1].detach()
    assert torch.equal(scores.float().softmax(-1), (scores.double().exp() > 0).float())  # one
    asked = {"max_new_tokens": 1, "suppress_tokens": [best]}
    for way in ({"do_sample": False}, {"do_sample": True}, {"do_sample": False, "num_beams": 3}):
        assert int(model.generate(ids, **asked, **way)[0, -1]) == second
    head = model.get_output_embeddings()
    assert (head(torch.randn(9, head.features, dtype=dtype)) == -torch.inf).any()


def test_a_decoder_keeps_its_cross_attentions():
    config = transformers.GPT2Config(
        n_embd=16, n_layer=1, n_head=2, add_cross_attention=True, is_decoder=True, **COMMON
    )
    body = transformers.BertConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, **COMMON
    )
    decoder = unn.heads.replace(transformers.GPT2LMHeadModel(config), "mos", components=2)
    model = transformers.EncoderDecoderModel(
        encoder=transformers.BertModel(body), decoder=decoder
    ).eval()
    ids = torch.randint(3, VOCABULARY, (2, 5))
    model.set_attn_implementation("eager")
    made = model(input_ids=ids, decoder_input_ids=ids, output_attentions=True)
    assert made.logits.shape == (2, 5, VOCABULARY)
    assert len(made.cross_attentions) == 1
