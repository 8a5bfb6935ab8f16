"""The gradient study at toy size: what is compared is comparable, and adds up."""

import json
from pathlib import Path

import gradient
import gradient_figures
import gradient_heads
import pytest
import torch
from many_runs import read_results
from toy_text import write_toy_text

from uncork import UncorkError
from uncork.nn import heads

KINDS = ["softmax", "whitened", "frequent"]
SMALL = (
    "--widths 4 6 8 12 16 --classes 40 60 --copy-classes 40 60 80 --state 16 --layers 1 --steps 12 "
    "--copy-steps 12 --batch 8 --timed 1 --turns 2 --time-batches 4 --seeds 0 "
    "--rates 0.002 0.004 --copy-rates 0.004 "
    f"--device cpu --kinds {' '.join(KINDS)}"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradient")
    text = write_toy_text(folder / "text.txt")
    arguments = ["all", "--text", str(text), "--out", str(folder / "out"), *SMALL.split()]
    assert gradient.main(arguments) == 0
    return folder / "out", arguments


def runs(study, **wanted):
    found = json.loads((study[0] / "gradient.json").read_text())["runs"]
    return [one for one in found if all(one[name] == value for name, value in wanted.items())]


def test_every_kind_gets_the_rate_that_ended_lowest_on_a_seed_of_its_own(study):
    best = gradient.best_rates(read_results(study[0] / "runs"))
    assert set(best) == set(KINDS)
    for kind, rate in best.items():
        tried = runs(study, task="text", kind=kind, seed=gradient.GRID_SEED)
        assert len(tried) == 2
        assert min(tried, key=lambda one: one["curve"][-1]["loss"])["rate"] == rate
        assert {one["rate"] for one in runs(study, task="text", kind=kind, seed=0)} == {rate}


def test_a_narrow_head_that_feeds_the_body_learns_as_if_it_were_alone(study):
    """But for the clipping of both heads' gradients together: the first look is the same, and the
    body's share of what passes is that of the narrow head."""
    (alone,) = runs(study, task="text", kind="softmax", width=4, classes=40, seed=0)
    (fed,) = runs(study, task="text", kind="narrow-feeds", width=4, classes=40, seed=0)
    assert fed["curve"][0]["loss"] == alone["curve"][0]["loss"]
    assert fed["curve"][-1]["loss"] == pytest.approx(alone["curve"][-1]["loss"], rel=0.02)
    assert "wide_loss" in fed["curve"][-1]


@pytest.mark.parametrize(("kind", "untaught"), [("narrow-feeds", "wide"), ("wide-feeds", "reader")])
def test_the_body_learns_from_one_head_alone(kind, untaught):
    asked = {"state": 8, "width": 4, "kind": kind, "layers": 1}
    model = gradient.Model(asked, 20)
    torch.manual_seed(0)
    tokens = torch.randint(20, (2, 5))
    with torch.no_grad():  # what is read from a detached body tells it nothing
        for parameter in getattr(model, untaught).parameters():
            parameter.zero_()
    model.loss(tokens, tokens.flatten()).backward()
    before = model.body.words.weight.grad.clone()
    with torch.no_grad():
        for parameter in getattr(model, untaught).parameters():
            parameter.normal_()
    model.zero_grad()
    model.loss(tokens, tokens.flatten()).backward()
    torch.testing.assert_close(model.body.words.weight.grad, before)


def test_what_passes_is_measured_as_training_goes_on(study):
    (one,) = runs(study, task="text", kind="softmax", width=4, classes=40, seed=0)
    assert [look["step"] for look in one["curve"]] == [0, 1, 2, 4, 6, 8, 10, 12]
    for look in one["curve"]:
        assert 0 < look["cosine"] <= look["share"] < 1
        assert look["share"] ** 2 + look["lost"] ** 2 == pytest.approx(1, abs=0.05)
    assert 0 < one["curve"][-1]["train"] < one["curve"][1]["train"] + 1


def test_symbols_that_were_seen_are_told_from_others(study):
    (one,) = runs(study, task="spam", width=4, classes=80)
    assert 0 < one["seen"] <= 1
    assert 0 <= one["curve"][-1]["accuracy_seen"] <= 1


def test_the_step_of_every_kind_is_timed_beside_softmax(study):
    times = json.loads((study[0] / "gradient.json").read_text())["times"]
    assert {one["kind"] for one in times} == set(KINDS)
    for one in times:
        for part in ("step", "head", "measure"):
            low, high = one[f"{part}_ratios"]
            assert low <= one[f"{part}_ratio"] <= high
            assert one["kind"] != "softmax" or low == high == 1


def test_what_was_trained_elsewhere_is_not_trained_again(study, tmp_path, capsys):
    arguments = ["train", *study[1][1:], "--resume", str(study[0] / "gradient.json")]
    arguments[arguments.index("--out") + 1] = str(tmp_path)
    assert gradient.main(arguments) == 0
    assert "loss" not in capsys.readouterr().err.split("rates:")[1]
    assert read_results(tmp_path / "runs") == read_results(study[0] / "runs")


def test_the_same_command_trains_nothing_again(study, capsys):
    gradient.main(["train", *study[1][1:]])
    said = capsys.readouterr().err
    assert "6 of 6 runs are done already" in said
    assert "loss" not in said.split("rates:")[0]


def test_without_a_text_there_is_nothing_to_train(tmp_path, capsys):
    with pytest.raises(SystemExit):
        gradient.main(["train", "--out", str(tmp_path)])
    with pytest.raises(UncorkError, match="there is no text"):
        gradient.main(["train", "--out", str(tmp_path), "--text", str(tmp_path / "no.tsv")])


# The page


def test_the_tables_of_the_page_are_those_of_the_data(tmp_path):
    docs = Path(__file__).parents[2] / "docs" / "results"
    study = gradient_figures.Study(docs / "data" / "gradient.json")
    page = (docs / "gradient.md").read_text("utf-8")
    for table in gradient_figures.tables(study).values():
        assert table in page
    gradient_figures.draw(study, tmp_path / "gradient.svg")
    assert "99.997 % lost" in (tmp_path / "gradient.svg").read_text("utf-8")
    assert "99.997 %" in page


def test_tables_are_made_of_any_study(study):
    made = gradient_figures.tables(gradient_figures.Study(study[0] / "gradient.json"))
    assert all(table.count("\n") >= 2 for table in made.values())


# The candidates


def of(kind, features=6, classes=40):
    torch.manual_seed(0)
    head = gradient_heads.make_head(kind, features, classes)
    with torch.no_grad():
        for parameter in head.parameters():  # columns of very different lengths
            if parameter.ndim == 2 and parameter.shape[1] == features:
                parameter.mul_(torch.logspace(-0.6, 0.6, features))
    return head


def tokens(n=64, features=6, classes=40):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, features, generator=generator, requires_grad=True)
    return hidden, torch.randint(classes, (n,), generator=generator)


@pytest.mark.parametrize("kind", sorted({*gradient_heads.KINDS} - {"entmax", "alpha-relu"}))
def test_a_candidates_loss_is_that_of_its_probabilities(kind):
    head, (hidden, target) = of(kind), tokens()
    loss = head.loss(hidden, target)
    expected = -head.log_probabilities(hidden).gather(1, target[:, None]).mean()
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("kind", ["wide", "whitened", "frequent"])
def test_a_candidates_gradient_is_that_of_its_probabilities(kind):
    head, (hidden, target) = of(kind), tokens()
    head.loss(hidden, target).backward()
    made = hidden.grad.clone()
    hidden.grad = None
    (-head.log_probabilities(hidden).gather(1, target[:, None]).mean()).backward()
    torch.testing.assert_close(made, hidden.grad)


@pytest.mark.parametrize("kind", ["preconditioned", "natural", "natural-quarter"])
def test_a_changed_gradient_keeps_its_length_and_the_rows_keep_theirs(kind):
    head, (hidden, target) = of(kind), tokens()
    plain = heads.SoftmaxHead(6, 40)
    plain.load_state_dict({"weight": head.weight, "bias": head.bias})
    for _ in range(gradient_heads.EVERY + 1):  # natural needs to have seen gradients
        hidden.grad = None
        head.zero_grad()
        head.loss(hidden, target).backward()
    made = hidden.grad.clone()
    hidden.grad = None
    plain.loss(hidden, target).backward()
    assert made.norm() == pytest.approx(float(hidden.grad.norm()), rel=1e-4)
    assert not torch.allclose(made, hidden.grad, rtol=0.1)
    torch.testing.assert_close(head.weight.grad, plain.weight.grad)


def test_whitening_and_preconditioning_move_the_logits_along_what_passes():
    found = {}
    for kind in ("softmax", "whitened", "preconditioned"):
        head, (hidden, target) = of(kind), tokens()
        head.loss(hidden, target)
        measured = gradient_heads.passing(kind, head, hidden, target)
        found[kind] = (float(measured.step.mean()), float(measured.share.mean()))
    assert found["softmax"][0] < 0.8 * found["softmax"][1]
    for kind in ("whitened", "preconditioned"):
        step, share = found[kind]
        assert step > 0.95 * share


def test_the_frequent_head_passes_more_of_frequent_classes():
    head, (hidden, _) = of("frequent", classes=400), tokens()
    frequent, rare = torch.zeros(64, dtype=torch.long), torch.full((64,), 399)
    share = [
        float(gradient_heads.passing("frequent", head, hidden, y).share.mean())
        for y in (frequent, rare)
    ]
    assert share[0] > 2 * share[1]
