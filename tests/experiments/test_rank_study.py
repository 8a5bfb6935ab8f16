"""The rank study at toy size: softmax and MoC keep to d + 2, mixtures of softmaxes do not."""

import json
import math

import numpy as np
import pytest
import rank
import torch
from toy_text import write_toy_text

from uncork import UncorkError
from uncork.theory.outputs import Outputs
from uncork.theory.spectrum import spectrum

SMALL = (
    "--widths 4 --seeds 0 --steps 15 --batch 8 --length 8 --embedding 12 --hidden 12 --state 12 "
    "--contexts 50 --device cpu"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rank")
    text = write_toy_text(folder / "text.txt")
    arguments = ["all", "--text", str(text), "--out", str(folder / "out"), *SMALL.split()]
    assert rank.main(arguments) == 0
    return folder / "out", arguments


def results(study):
    return {one["head"]: one for one in json.loads((study[0] / "summary.json").read_text())}


def test_every_head_is_trained_and_measured(study):
    found = results(study)
    assert set(found) == set(rank.HEADS)
    for label, one in found.items():
        perplexity = one.get("smoothed perplexity", one["perplexity"])
        assert 1 < perplexity < 1e5, label
        assert 0 <= one["accuracy"] <= 1


def test_a_linear_head_keeps_to_the_bound_and_a_mixture_of_softmaxes_does_not(study):
    found = results(study)
    assert found["softmax"]["bound"] == 6
    assert found["softmax"]["rank"] == 6
    assert found["MoC, K = 15"]["rank"] == 6
    for label in ("MoS, K = 3", "MoS, K = 5", "MoS, K = 10", "MoS, K = 15", "sigsoftmax"):
        assert found[label]["rank"] > 12, label


def test_probabilities_of_zero_have_no_rank(study):
    found = results(study)
    assert found["sparsemax"]["rank"] is None
    assert found["sparsemax"]["missed"] > 0


def test_the_same_command_trains_nothing_again(study, capsys):
    out, arguments = study
    before = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert rank.main(["train", *arguments[1:]]) == 0
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()} == before
    said = capsys.readouterr()
    assert "13 of 13 runs are done already" in said.err
    assert "6 to 6 of 50" in said.out


def test_figures_are_drawn_from_the_summary_alone(study, tmp_path):
    (tmp_path / "summary.json").write_bytes((study[0] / "summary.json").read_bytes())
    assert rank.main(["plot", "--out", str(tmp_path)]) == 0
    assert "d + 2 = 6" in (tmp_path / "rank-spectra.svg").read_text("utf-8")
    assert "Mixtape" in (tmp_path / "rank-perplexity.svg").read_text("utf-8")


def test_the_rank_is_that_of_uncork_rank_on_the_same_matrix():
    torch.manual_seed(0)
    body = rank.Body(rank.Shape(40, 8, 8), 8)
    head = rank.Narrow("MoS, K = 3", 8, 3, 40)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    stream = torch.randint(0, 40, (500,))
    found = rank.rank(body, head, stream, 120, 3)
    states = torch.cat([states for states, _ in rank.hidden_states(body, stream)])
    chosen = torch.linspace(0, len(states) - 1, 120, dtype=torch.float64).long()
    with torch.no_grad():
        matrix = head.log_probabilities(states[chosen].double()).numpy()
    known = spectrum(Outputs(matrix, "log-probabilities"))
    assert found["rank"] == known.rank
    assert found["effective"] == pytest.approx(known.effective_rank, abs=0.01)
    assert found["spectrum"][-1][1] == pytest.approx(known.values[-1] / known.values[0], rel=1e-2)


def test_perplexity_is_that_of_the_probabilities():
    torch.manual_seed(1)
    body = rank.Body(rank.Shape(20, 4, 4), 4).eval()
    head = rank.Narrow("softmax", 4, 3, 20)
    stream = torch.randint(0, 20, (16 * 11,))
    columns = stream.view(16, 11)
    with torch.no_grad():
        states, _ = body(columns.t()[:-1])
        said = head.log_probabilities(states)
    own = said.gather(2, columns.t()[1:, :, None])
    found = rank.quality(body, head, stream)
    assert found["perplexity"] == pytest.approx(math.exp(-own.mean()), rel=1e-3)
    right = np.mean((said.argmax(-1) == columns.t()[1:]).numpy())
    assert found["accuracy"] == pytest.approx(right, abs=1e-4)


def test_too_many_contexts_and_a_missing_text_are_said_in_a_line(tmp_path):
    with pytest.raises(UncorkError, match="needs --text"):
        rank.main(["train"])
    with pytest.raises(UncorkError, match="there is no text"):
        rank.main(["train", "--text", str(tmp_path / "none.txt"), "--out", str(tmp_path)])
    assert not (tmp_path / "runs").exists()
    with pytest.raises(UncorkError, match=r"no summary\.json"):
        rank.main(["plot", "--out", str(tmp_path)])
    body = rank.Body(rank.Shape(20, 4, 4), 4)
    head = rank.Narrow("softmax", 4, 3, 20)
    with pytest.raises(UncorkError, match="100 contexts were asked for"):
        rank.rank(body, head, torch.zeros(64, dtype=torch.long), 100, 3)
