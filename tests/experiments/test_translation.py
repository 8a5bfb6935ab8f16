"""experiments/translation at toy size: data, model, search, training, and the stages end to end."""

import itertools
import json
import time
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import translate  # noqa: E402
from translation import data, measures, runs, search  # noqa: E402
from translation.data import BOS, EOS, PAD  # noqa: E402
from translation.model import ModelConfig, Translator  # noqa: E402
from translation.outputs import OUTPUTS, best_scores, log_scores, raw_log_scores  # noqa: E402
from translation.scoring import bleu, first_step  # noqa: E402
from translation.stacked import train_together  # noqa: E402
from translation.training import (  # noqa: E402
    Feed,
    TrainingConfig,
    measured_tau,
    train,
)

GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
CPU = torch.device("cpu")


def pairs(count, seed=0):
    """Numbers read out: word by word in both languages."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 10, rng.integers(1, 6)) for _ in range(count)]
    return [(" ".join(GERMAN[i] for i in r), " ".join(ENGLISH[i] for i in r)) for r in rows]


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "toy.tsv"
    path.write_text("".join(f"{e}\t{g}\n" for g, e in pairs(700)), "utf-8")
    return path


@pytest.fixture(scope="module")
def prepared_at(corpus_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    corpus = data.read_corpus(corpus_file, held_out=40)
    data.prepare(corpus, folder, source_units=300, target_units=300)
    return folder


@pytest.fixture(scope="module")
def prepared(prepared_at):
    return data.load_prepared(prepared_at)


TOY = TrainingConfig(
    "softmax", steps=100, warmup=10, learning_rate=1e-2, batch_tokens=256, evaluate_every=50,
    snapshot_sentences=8, width=32, layers=1, heads=2, inner=32, dropout=0.0,
)  # fmt: skip


def toy_model(units=7, seed=0, sharp=3.0, **options):
    """An untrained model, its head scaled up so that outputs are neither flat nor certain."""
    torch.manual_seed(seed)
    model = Translator(ModelConfig(9, units, width=16, layers=1, heads=2, inner=32, **options))
    with torch.no_grad():
        model.head.weight *= sharp
        model.head.bias[:EOS] = -20  # what training does: padding and BOS are no words
    return model.eval()


def toy_source(count=6, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.full((count, 6), PAD, np.int16)
    for row in rows:
        length = rng.integers(1, 6)
        row[:length] = rng.integers(3, 9, length)
        row[length] = EOS
    return rows


def test_no_sentence_of_either_side_is_in_two_parts(corpus_file):
    corpus = data.read_corpus(corpus_file, held_out=40)
    for side in (0, 1):
        train_side = {pair[side] for pair in corpus.train}
        held = [
            {sentence for s, rs in part.items() for sentence in ([s] if side == 0 else rs)}
            for part in (corpus.validation, corpus.test)
        ]
        assert not train_side & held[0]
        assert not train_side & held[1]
        assert not held[0] & held[1]
    assert 40 <= len(corpus.test) < 60


def test_pairs_that_share_a_sentence_through_others_stay_together():
    rows = [("a", "x"), ("b", "x"), ("b", "y"), ("c", "z")]
    assert sorted(map(sorted, data.connected_groups(rows))) == [[0, 1, 2], [3]]


def test_multi30k_is_read_as_it_is_split(tmp_path):
    for part, stem in data.MULTI30K.items():
        (tmp_path / f"{stem}.de").write_text(f"ein {part}\n", "utf-8")
        (tmp_path / f"{stem}.en").write_text(f"a {part}\n", "utf-8")
    corpus = data.read_corpus(tmp_path)
    assert corpus.train == [("ein train", "a train")]
    assert corpus.test == {"ein test": ["a test"]}


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "no such file"), ("one column\n", "line 1"), ("a\tb\n", "held-out")],
)
def test_a_corpus_that_cannot_be_used_is_named(tmp_path, content, says, capsys):
    path = tmp_path / "corpus.tsv"
    if content is not None:
        path.write_text(content)
    status = translate.main(["prepare", "--data", str(path), "--results", str(tmp_path / "out")])
    assert status == 2
    message = capsys.readouterr().err
    assert str(path) in message
    assert says in message


def test_units_decode_to_the_text_they_came_from(prepared_at):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(prepared_at / "source.json"))
    for text in ("fünf sechs", "never seen: ß €"):
        assert tokenizer.decode(tokenizer.encode(text).ids).strip() == text


def test_an_epoch_holds_every_row_once_within_the_tokens(prepared):
    source, target = prepared.part("train")
    order, batches = data.batches(
        data.lengths(source), data.lengths(target), 128, np.random.default_rng(0)
    )
    seen = np.concatenate([order[b.rows] for b in batches])
    assert sorted(seen) == list(range(len(source)))
    for batch in batches:
        rows = order[batch.rows]
        assert len(rows) * batch.target_length <= 128
        assert not (source[rows, batch.source_length :] != PAD).any()
        assert not (target[rows, batch.target_length :] != PAD).any()


def test_word_by_word_is_the_same_as_all_at_once():
    model, source = toy_model(), torch.from_numpy(toy_source()).long()
    target = torch.randint(3, 7, (len(source), 5), generator=torch.Generator().manual_seed(0))
    state = model.begin(source)
    steps = torch.stack([model.step(target[:, i], state) for i in range(5)], 1)
    torch.testing.assert_close(steps, model(source, target), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_of_one_is_greedy_search(output, penalty):
    model, source = toy_model(units=12), torch.from_numpy(toy_source(20)).long()
    limits = search.length_limits(source, 12)
    found = search.beam_search(model, best_scores(output, 0.1), source, 1, limits, penalty)
    assert torch.equal(found.tokens, search.greedy(model, source, limits))


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_beam_as_wide_as_the_space_finds_what_exhaustive_search_finds(output, penalty):
    units, limit = 6, 4
    model, source = toy_model(units, seed=1), toy_source(4)
    scores = log_scores(output, 0.1)
    words = range(EOS + 1, units)
    by_length = [[(*p, EOS) for p in itertools.product(words, repeat=n)] for n in range(limit)]
    by_length.append(list(itertools.product(words, repeat=limit)))  # cut off at the limit
    sentences = torch.from_numpy(source).long()
    widest = sum(map(len, by_length))
    wide = search.beam_search(
        model, best_scores(output, 0.1), sentences, widest, torch.full((4,), limit), penalty
    )
    for index in range(len(source)):
        best = (-np.inf, ())
        for hypotheses in by_length:
            target = torch.tensor([[BOS, *h] for h in hypotheses])
            logits = model(sentences[index].expand(len(target), -1), target[:, :-1])
            found = scores(logits.detach()).gather(-1, target[:, 1:, None]).sum((1, 2))
            found = (found / (target.shape[1] - 1) ** penalty).tolist()
            best = max(best, *zip(found, hypotheses, strict=True))
        assert wide.scores[index].item() == pytest.approx(best[0], abs=1e-4)
        assert tuple(t for t in wide.tokens[index].tolist() if t != PAD) == best[1]


def test_a_wider_beam_never_scores_lower_here():
    model, source = toy_model(units=12, seed=3), torch.from_numpy(toy_source(20)).long()
    by_width = [
        search.beam_search(model, best_scores("softmax"), source, beam, torch.full((20,), 8)).scores
        for beam in (1, 4, 64)
    ]
    assert bool((by_width[2] >= by_width[0] - 1e-5).all())
    assert by_width[1].mean() >= by_width[0].mean()


@pytest.mark.parametrize("output", OUTPUTS)
def test_batches_and_padding_change_no_score(output):
    model, source = toy_model(units=12), toy_source(12)
    targets = measures.as_targets(toy_source(12, seed=5))
    scores = log_scores(output, 0.1)
    together = measures.score(model, scores, (source, targets))
    padded = tuple(np.pad(a, ((0, 0), (0, 5)), constant_values=PAD) for a in (source, targets))
    assert padded[0].shape != source.shape
    alone = [
        measures.score(model, scores, (padded[0][i : i + 1], padded[1][i : i + 1]))[0]
        for i in range(12)
    ]
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    whole, *_ = search.translate(model, best_scores(output, 0.1), source, 3)
    single, *_ = search.translate(model, best_scores(output, 0.1), source, 3, rows=1)
    for one, other in zip(whole, single, strict=True):
        assert list(one[one != PAD]) == list(other[other != PAD])


def test_the_search_returns_the_score_of_what_it_returns():
    model, source = toy_model(units=12, seed=4), toy_source(12)
    for output in OUTPUTS:
        tokens, found, _ = search.translate(model, best_scores(output, 0.1), source, 3)
        again = measures.score(
            model, log_scores(output, 0.1), (source, measures.as_targets(tokens))
        )
        np.testing.assert_allclose(found, again, rtol=1e-4, atol=1e-4)


def test_the_empty_translation_is_counted_where_it_scores_above():
    model, source = toy_model(units=12), toy_source(10)
    with torch.no_grad():
        model.head.bias[EOS] = 4.0
    long = np.tile(np.array([5, 6, 7, EOS], np.int16), (10, 1))
    assert measures.empty_against(model, log_scores("softmax"), source, long)["share_above"] == 1
    with torch.no_grad():
        model.head.bias[EOS] = -40.0
    sparse = measures.empty_against(model, log_scores("entmax"), source, long)
    assert sparse["share_above"] == 0
    assert sparse["share_impossible"] == 1
    dense = measures.empty_against(model, log_scores("softmax"), source, long)
    assert dense["share_impossible"] == 0


def test_raw_scores_differ_from_the_normalised_only_for_alpha_relu():
    logits = torch.randn(5, 30, generator=torch.Generator().manual_seed(0)) * 2
    for output in OUTPUTS:
        scores, raw = log_scores(output, 0.5)(logits), raw_log_scores(output, 0.5)(logits)
        assert torch.allclose(scores, raw, atol=1e-5) == (output != "alpha_relu")


@pytest.mark.parametrize("output", OUTPUTS)
def test_training_reduces_the_loss_and_all_but_the_output_is_equal(prepared, output):
    trained = train(prepared, replace(TOY, output=output), CPU)
    history = trained.record["history"]
    assert history[-1]["training_loss"] < 0.6 * history[0]["training_loss"]
    assert history[-1]["accuracy"] > 0.5
    assert trained.record["complete"]
    # The same initial weights and first batch, whatever the output.
    torch.manual_seed(TOY.seed)
    model = Translator(TOY.model(prepared))
    first = next(iter(Feed(prepared, TOY.batch_tokens, TOY.seed, CPU)))
    tau = trained.record["tau"]["measured_at_start"]
    assert tau == pytest.approx(measured_tau(model, first), abs=1e-6)
    assert trained.record["tau"]["from_shape"] == pytest.approx(tau, rel=0.25)


def test_runs_stacked_into_one_are_the_runs_on_their_own(prepared):
    configs = [
        replace(TOY, output=output, steps=6, evaluate_every=3, width=16)
        for output in ("softmax", "alpha_relu")
    ]
    for config, together in train_together(prepared, configs, CPU):
        alone = train(prepared, config, CPU)
        for one, other in zip(together.record["history"], alone.record["history"], strict=True):
            assert one["training_loss"] == pytest.approx(other["training_loss"], rel=1e-4)
            assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)
        found, wanted = (r.record["tau"]["measured_at_start"] for r in (together, alone))
        assert found == pytest.approx(wanted, rel=1e-5)
        assert np.array_equal(together.snapshots["6"], alone.snapshots["6"])


def test_a_run_out_of_time_says_so_and_is_done_again(prepared, prepared_at, tmp_path):
    folder, config = runs.Folder(tmp_path), replace(TOY, evaluate_every=5)
    runs.train_run(prepared, config, folder, CPU, lambda line: None, time.time() - 1)
    record = json.loads(folder.record(config.name).read_text())
    assert not record["complete"]
    assert record["history"][-1]["step"] == 5
    assert not runs.finished(folder.record(config.name))
    late = runs.Job(config, prepared_at, folder, "cpu", False, deadline=time.time() - 1)
    assert "not started" in runs.do_job(late)


def test_bleu_counts_every_reference_a_sentence_has():
    assert bleu(["two three four five"], [["a b c d", "two three four five"]]) == pytest.approx(100)
    one = bleu(["the cat sat on the mat", "no"], [["the cat sat on a mat"], ["not at all", "no"]])
    assert 0 < one < 100


def test_steps_to_a_score_lie_between_two_evaluations():
    points = [{"step": 10, "bleu": 1.0}, {"step": 20, "bleu": 3.0}]
    assert first_step(points, "bleu", 2.0) == 15
    assert first_step(points, "bleu", 0.5) == 10
    assert first_step(points, "bleu", 4.0) is None


def test_the_stages_run_end_to_end_and_resume(corpus_file, tmp_path, capsys):
    results = ["--results", str(tmp_path)]
    sizes = ["--width", "16", "--layers", "1", "--heads", "2", "--inner", "32", "--dropout", "0"]
    sizes += ["--batch-tokens", "256", "--steps", "8", "--warmup", "2", "--evaluate-every", "4"]
    prepare = ["--source-units", "300", "--target-units", "300", "--held-out", "20"]

    def run(*arguments):
        assert translate.main([*arguments, *results]) == 0
        return capsys.readouterr().out

    assert "units" in run("prepare", "--data", str(corpus_file), *prepare)
    assert "already" in run("prepare", "--data", str(corpus_file), *prepare)
    training = ["train", *sizes, "--seeds", "0", "--tau-steps", "2"]
    assert run(*training).count("done") == 4 + len(runs.TAUS)
    record = tmp_path / "runs" / "entmax-seed0.json"
    before = record.stat().st_mtime_ns
    assert "step" not in run(*training)  # finished runs are skipped
    assert record.stat().st_mtime_ns == before
    run("decode", *sizes, "--seeds", "0")
    quick = ["--rounds", "1", "--batches", "2", "--large", "320", "--sentences", "3"]
    run("measure", *sizes, *quick, "--only", "steps", "large", "decoding")
    assert "measured already" in run("measure", *sizes, "--only", "steps")
    tables = run("score")
    for said in ("BLEU on test", "1.5-ReLU", "entmax package: 1.5", "320 classes", "beam 10"):
        assert said in tables
    assert "its layer norm" in run("audit", "--jobs", "1")
    figures = run("plot").split()
    assert len(figures) == 6
    assert all((tmp_path / "figures" / f"translate_{n}.png").is_file() for n in ("tau", "sums"))
    texts = (tmp_path / "decoded" / "softmax-seed0.beam5.txt").read_text("utf-8").splitlines()
    assert len(texts) == len(json.loads((tmp_path / "prepared/test.references.json").read_text()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--device", "abacus"], "abacus"),
        (["--width", "16", "--heads", "3"], "3 heads"),
        (["--steps", "0"], "--steps"),
    ],
)
def test_options_that_cannot_be_are_named(prepared_at, tmp_path, options, says, capsys):
    where = ["--results", str(tmp_path), "--prepared", str(prepared_at)]
    assert translate.main(["train", *where, *options]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ("train", "prepare stage first"),
        ("measure", "prepare stage first"),
        ("score", "prepare stage first"),
        ("audit", "no heads"),
        ("plot", "score stage first"),
    ],
)
def test_a_stage_whose_turn_has_not_come_says_which_one_has(tmp_path, stage, says, capsys):
    assert translate.main([stage, "--results", str(tmp_path)]) == 2
    assert says in capsys.readouterr().err
