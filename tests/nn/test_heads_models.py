"""Heads in real models: replaced in one line, trained, saved, loaded and generated with."""

import copy
import json

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


def test_softmax_in_place_of_softmax_changes_nothing():
    for kind in ("gpt2", "llama", "granite"):
        model, ids = made(kind)
        labels = ids.clone()
        labels[0, :4] = -100
        before = model(ids, labels=labels)
        truth = torch.autograd.grad(before.loss, model.get_input_embeddings().weight)
        unn.heads.replace(model, "softmax")
        after = model(ids, labels=labels)
        torch.testing.assert_close(after.loss, before.loss)
        got = torch.autograd.grad(after.loss, model.get_input_embeddings().weight)
        torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(model(ids).logits, before.logits)
        last = model(ids, logits_to_keep=1).logits
        torch.testing.assert_close(last, before.logits[:, -1:])
        counted = int((labels[:, 1:] != -100).sum())
        shared = model(ids, labels=labels, num_items_in_batch=2 * counted).loss
        torch.testing.assert_close(shared, before.loss / 2)


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
    head = unn.MixtureOfContexts(4, 6, components=2)
    unn.heads.replace(again, head, name="2")
    assert again[2] is head


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
        unn.heads.replace(model, unn.SoftmaxHead(16, VOCABULARY), components=3)
    with pytest.raises(UncorkError, match="the layer it replaces"):
        unn.heads.replace(model, unn.SoftmaxHead(16, 7))
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
    with pytest.raises(UncorkError, match="call replace again"):
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
