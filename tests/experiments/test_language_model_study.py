"""The language models at toy size: every word decided, and the decisions Qhull's own."""

import json

import language_model
import lost_words
import numpy as np
import pytest
import torch
from lstm_body import Body, Shape, hidden_states
from scipy import stats
from toy_text import write_toy_text

from uncork import UncorkError
from uncork.theory.random_heads import hull_vertices

SMALL = (
    "--widths 3,5 --narrow 3 --seeds 0,1 --steps 25 --batch 8 --length 8 --embedding 12 "
    "--hidden 12 --device cpu --sample 12"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language_model")
    text = write_toy_text(folder / "text.txt")
    arguments = ["all", "--text", str(text), "--out", str(folder / "out"), *SMALL.split()]
    assert language_model.main(arguments) == 0
    return folder / "out", arguments


def summary(study):
    return json.loads((study[0] / "summary.json").read_text("utf-8"))


def test_every_head_of_every_kind_is_audited_and_no_word_left_undecided(study):
    found = summary(study)["heads"]
    kinds = {(one["kind"], one["domain"]) for one in found}
    assert kinds == {
        ("plain", "box:-1,1"), ("student", "box:-1,1"), ("random", "box:-1,1"),
        ("bias", "box:-1,1"), ("bias", "box:-100,100"),
    }  # fmt: skip
    for one in found:
        assert one["counts"]["undecided"] == 0
        assert one["lost"] == one["counts"]["unargmaxable"] == sum(one["lost by rank"])


def test_lost_words_are_the_rows_inside_the_hull(study):
    out = study[0]
    for path in sorted((out / "heads").glob("plain-3-*.npz")):
        with np.load(path) as file:
            weight = file["weight"]
        inside = np.setdiff1d(np.arange(len(weight)), hull_vertices(weight.astype(np.float64)))
        found = json.loads((out / "audits" / f"{path.stem}-box-1,1.json").read_text())
        assert found["lost"] == inside.tolist()
        assert len(inside) > 0


def test_a_larger_box_never_loses_more_words(study):
    lost = {(h["kind"], h["domain"], h["seed"]): h["lost"] for h in summary(study)["heads"]
            if h["width"] == 3}  # fmt: skip
    for seed in (0, 1):
        assert lost["bias", "box:-100,100", seed] <= lost["bias", "box:-1,1", seed]


def test_the_highest_probability_of_a_lost_word_stays_below_a_half(study):
    shown = [one for one in summary(study)["heads"] if "highest" in one]
    assert {(one["kind"], one["seed"]) for one in shown} == {("plain", 0)}
    upper = np.concatenate([one["highest"]["upper"] for one in shown])
    lower = np.concatenate([one["highest"]["lower"] for one in shown])
    lost = np.concatenate([one["highest"]["lost"] for one in shown])
    assert lost.any()
    assert (upper[lost] < 0.5).all()
    assert (lower <= upper * 1.001).all()


def test_nothing_is_done_twice_and_the_table_names_every_row(study, capsys):
    out, arguments = study
    before = {path: path.stat().st_mtime_ns for path in (out / "audits").iterdir()}
    assert language_model.main(arguments) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "audits").iterdir()} == before
    said = capsys.readouterr()
    assert "8 of 8 runs are done already" in said.err
    assert sum(line.startswith("plain") for line in said.out.splitlines()) == 2
    for name in ("width", "frequency", "highest"):
        assert (out / f"language-model-{name}.svg").stat().st_size > 5000


def test_hidden_states_lie_within_one_as_the_domain_says():
    torch.manual_seed(0)
    body = Body(Shape(30, 8, 8), 5)
    for parameter in body.parameters():
        torch.nn.init.normal_(parameter, std=3.0)
    states = torch.cat([states for states, _ in hidden_states(body, torch.randint(0, 30, (400,)))])
    assert 0.9 < float(states.abs().max()) <= 1.0


def test_a_student_with_its_teacher_s_own_distribution_has_no_loss():
    torch.manual_seed(0)
    body, head = Body(Shape(30, 8, 8), 5).eval(), torch.nn.Linear(5, 30)
    words = torch.randint(0, 30, (7, 4))
    hidden, _ = body(words)
    same = language_model.Distillation(head, body, head)
    assert same(hidden.flatten(0, 1), words, words).item() == pytest.approx(0, abs=1e-6)
    other = language_model.Distillation(torch.nn.Linear(5, 30), body, head)
    assert other(hidden.flatten(0, 1), words, words).item() > 0.01


def test_rarer_is_the_mann_whitney_statistic():
    rng = np.random.default_rng(0)
    lost, reached = rng.integers(1, 9, 40), rng.integers(3, 12, 70)
    known = stats.mannwhitneyu(reached, lost).statistic / (40 * 70)
    assert lost_words._rarer(lost, reached) == pytest.approx(known)


def test_a_stage_without_what_it_needs_says_so(tmp_path):
    text = write_toy_text(tmp_path / "text.txt")
    with pytest.raises(UncorkError, match="needs --text"):
        language_model.main(["train"])
    with pytest.raises(UncorkError, match="no trained models"):
        language_model.main(["analyse", "--text", str(text), "--out", str(tmp_path)])
    with pytest.raises(UncorkError, match="analyse first"):
        language_model.main(["plot", "--out", str(tmp_path)])
