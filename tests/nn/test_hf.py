"""Inside transformers: the loss signature, the trainer's, and decoding from sparse outputs."""

import itertools
import pickle

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", minversion="5.0")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork import UncorkError  # noqa: E402

# transformers imports parts of torch that torch deprecates.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=9,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0, 0.6)
    return model


@pytest.fixture
def tokens():
    return torch.tensor([[3, 1, 4, 1, 5], [2, 7, 1, 8, 2]])


def test_causal_lm_loss_replaces_the_models_own(model, tokens):
    labels = tokens.clone()
    labels[0, 2] = -100
    logits = model(tokens).logits
    rows, target = logits[:, :-1].reshape(-1, 9), labels[:, 1:].reshape(-1)
    cases = [
        ("softmax", {}, torch.nn.functional.cross_entropy(rows, target)),
        ("sparsemax", {}, F.sparsemax_loss(rows, target)),
        ("entmax", {"alpha": 1.3}, F.entmax_loss(rows, target, alpha=1.3)),
        ("alpha_relu", {"tau": 0.1}, F.alpha_relu_loss(rows, target, tau=0.1)),
        (F.normmax_loss, {}, F.normmax_loss(rows, target)),
    ]
    before = model.loss_function
    try:
        for name, options, expected in cases:
            model.loss_function = unn.hf.causal_lm_loss(name, **options)
            torch.testing.assert_close(model(tokens, labels=labels).loss, expected)
            counted = model(tokens, labels=labels, num_items_in_batch=torch.tensor(14)).loss
            torch.testing.assert_close(counted, expected * 7 / 14)
    finally:
        model.loss_function = before


def test_causal_lm_loss_has_the_values_of_transformers_own_for_softmax(tokens):
    from transformers.loss.loss_utils import ForCausalLMLoss

    logits = torch.randn(2, 5, 9).bfloat16()
    ours = unn.hf.causal_lm_loss("softmax")
    for options in ({}, {"num_items_in_batch": 5}, {"ignore_index": 1}, {"shift_labels": tokens}):
        torch.testing.assert_close(
            ours(logits, tokens, 9, **options), ForCausalLMLoss(logits, tokens, 9, **options)
        )


def test_trainer_loss_has_the_signature_of_compute_loss_func(model, tokens):
    outputs = model(tokens)
    expected = F.entmax_loss(outputs.logits[:, :-1].reshape(-1, 9), tokens[:, 1:].reshape(-1))
    compute = unn.hf.trainer_loss("entmax")
    torch.testing.assert_close(compute(outputs, tokens), expected)
    torch.testing.assert_close(compute(outputs, tokens, num_items_in_batch=16), expected * 8 / 16)
    flat = unn.hf.trainer_loss("sparsemax", shift=False)
    torch.testing.assert_close(
        flat({"logits": outputs.logits}, tokens),
        F.sparsemax_loss(outputs.logits.reshape(-1, 9), tokens.reshape(-1)),
    )


def test_the_trainer_itself_trains_with_it(tokens, tmp_path):
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=9,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
    )
    rows = [{"input_ids": row, "labels": row} for row in tokens.repeat(8, 1)]
    trainer = transformers.Trainer(
        transformers.LlamaForCausalLM(config),
        transformers.TrainingArguments(
            str(tmp_path),
            max_steps=30,
            learning_rate=1e-2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
        ),
        train_dataset=rows,
        compute_loss_func=unn.hf.trainer_loss("entmax", alpha=1.5),
    )
    before = F.entmax_loss(
        trainer.model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    )
    trainer.train()
    after = F.entmax_loss(
        trainer.model(tokens).logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    )
    assert after < 0.5 * before


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="alpha_relu, entmax"):
        unn.hf.causal_lm_loss("entmaxx")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: unn.hf.causal_lm_loss("entmax", tau=0.1), "entmax takes weight, alpha"),
        (lambda: unn.hf.trainer_loss("alpha_relu", reduction="sum"), "got 'reduction'"),
        (lambda: unn.hf.EntmaxLogitsProcessor(0.0), "alpha must be"),
        (lambda: unn.hf.AlphaReLULogitsProcessor(1.0), "alpha must be"),
    ],
)
def test_wrong_options_are_said_before_the_first_batch(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_losses_are_pickled_with_their_model(model, tokens):
    before = model.loss_function
    try:
        model.loss_function = unn.hf.causal_lm_loss("entmax", alpha=1.3)
        loaded = pickle.loads(pickle.dumps(model))
        expected = model(tokens, labels=tokens).loss
    finally:
        model.loss_function = before
    torch.testing.assert_close(loaded(tokens, labels=tokens).loss, expected)
    pickle.loads(pickle.dumps(unn.hf.trainer_loss("sparsemax")))


def test_a_token_classifier_that_asks_its_loss_function_is_given_it(model, tokens):
    classifier = transformers.LlamaForTokenClassification(model.config).eval()
    logits = classifier(tokens).logits  # of two classes
    classifier.loss_function = unn.hf.masked_lm_loss("entmax")
    torch.testing.assert_close(
        classifier(tokens, labels=tokens % 2).loss,
        F.entmax_loss(logits.reshape(-1, 2), tokens.reshape(-1) % 2),
    )


def test_a_processor_does_not_mind_a_fused_loss(model, tokens):
    from uncork.nn import patch

    try:
        patch.fuse_loss(model)
        with unn.hf.AlphaReLULogitsProcessor(1.5, 0.1, model=model) as processor:
            model(tokens)
            noted = processor._raw
            model(tokens, labels=tokens)
            assert processor._raw is noted
    finally:
        patch.unfuse_loss(model)


def test_sampling_draws_from_the_sparse_distribution(model, tokens):
    prompt = tokens[:1].repeat(4000, 1)
    logits = model(tokens[:1]).logits[0, -1].detach()
    relu = F.alpha_relu(logits, 1.5, 0.3)
    for processor, expected in [
        (unn.hf.EntmaxLogitsProcessor(1.5), F.entmax(logits, 1.5)),
        (unn.hf.EntmaxLogitsProcessor(2.0), F.sparsemax(logits)),
        (unn.hf.AlphaReLULogitsProcessor(1.5, 0.3), relu / relu.sum()),
    ]:
        assert (expected == 0).any()
        torch.manual_seed(0)
        drawn = model.generate(
            prompt, max_new_tokens=1, do_sample=True, top_k=0, logits_processor=[processor]
        )[:, -1]
        shares = torch.bincount(drawn, minlength=9) / len(drawn)
        assert (shares[expected == 0] == 0).all()
        torch.testing.assert_close(shares, expected, atol=0.03, rtol=0)


@pytest.mark.parametrize("assisted", [False, True])
def test_a_processor_with_a_model_is_right_in_assisted_decoding(model, tokens, assisted):
    """Which asks for several places at once, and an assistant for its own."""
    prompt = tokens[:1, :3].repeat(1, 3)
    way = {"assistant_model": model} if assisted else {"prompt_lookup_num_tokens": 3}
    with unn.hf.AlphaReLULogitsProcessor(1.5, 0.1, model=model) as processor:
        torch.manual_seed(0)
        found = model.generate(
            prompt, max_new_tokens=6, do_sample=True, top_k=0, logits_processor=[processor],
            output_scores=True, return_dict_in_generate=True, **way,
        )  # fmt: skip
    logits = model(found.sequences).logits.detach()[0, prompt.shape[1] - 1 : -1]
    expected = F.alpha_relu_log_scores(logits, 1.5, 0.1).exp()
    torch.testing.assert_close(torch.cat(found.scores)[: len(expected)].exp(), expected)


@pytest.mark.parametrize("tau", [float("nan"), float("inf"), "x"])
def test_a_threshold_is_a_number(tau):
    with pytest.raises(UncorkError, match="tau must be a number, got"):
        unn.hf.AlphaReLULogitsProcessor(1.5, tau)


def log_scores(model, sequences, score):
    """Σ log score of the last two tokens of each sequence."""
    logits = model(sequences).logits.detach()
    steps = [score(logits[:, -3 + i]).gather(1, sequences[:, -2 + i, None]) for i in range(2)]
    return (steps[0] + steps[1])[:, 0]


def test_beam_search_finds_the_best_sequence_of_the_sparse_distribution(model, tokens):
    """With as many beams as first tokens the search is exhaustive for two steps."""
    prompt = tokens[:1]
    endings = torch.tensor(list(itertools.product(range(9), repeat=2)))
    sequences = torch.cat([prompt.expand(len(endings), -1), endings], 1)
    relu = unn.hf.AlphaReLULogitsProcessor(1.5, 0.1, model=model)
    with relu:
        for processor, score in [
            (unn.hf.EntmaxLogitsProcessor(1.3), lambda z: F.log_entmax(z, 1.3)),
            (relu, lambda z: F.alpha_relu_log_scores(z, 1.5, 0.1)),
        ]:
            best = log_scores(model, sequences, score)
            found = model.generate(
                prompt,
                max_new_tokens=2,
                num_beams=9,
                length_penalty=0.0,
                logits_processor=[processor],
                return_dict_in_generate=True,
                output_scores=True,
            )
            assert found.sequences[0].tolist() == sequences[best.argmax()].tolist()
            assert float(found.sequences_scores[0]) == pytest.approx(float(best.max()), abs=1e-4)
    assert not model._forward_hooks  # closed processors leave nothing behind
