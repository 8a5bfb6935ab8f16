"""Lost classes on data: what is counted, how rows are taught, how a Kaldi network runs."""

from pathlib import Path

import finetune_ocr
import lost_items
import lost_on_data
import lost_reach
import lost_senones
import lost_tables
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import uncork
from uncork import Head
from uncork.loading.kaldi.nnet import Component, Network, Node
from uncork.loading.kaldi.stream import Array

SIZES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(0, 5), st.integers(0, 2**16))


def texts_and_scores(sizes, classes=9):
    """Log-probabilities (n, T, C) and texts without equal neighbours that fit in."""
    n, size, more, seed = sizes
    rng = np.random.default_rng(seed)
    logits = torch.tensor(rng.normal(size=(n, size + more, classes)), dtype=torch.float64)
    ids = torch.tensor(np.stack([1 + rng.permutation(classes - 1)[:size] for _ in range(n)]))
    return logits, ids


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(SIZES)
def test_the_loss_of_a_text_is_torchs_ctc(sizes):
    logits, ids = texts_and_scores(sizes)
    p = logits.log_softmax(2)
    n, steps, _ = p.shape
    own = finetune_ocr.ctc(p[:, :, 0], p.gather(2, ids[:, None].expand(-1, steps, -1)))
    theirs = torch.nn.functional.ctc_loss(
        p.transpose(0, 1), ids, torch.full((n,), steps), torch.full((n,), ids.shape[1]),
        reduction="none",
    )  # fmt: skip
    torch.testing.assert_close(own, theirs)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(SIZES)
def test_teaching_some_rows_has_the_gradient_of_the_whole_head(sizes):
    """The constants of the frozen classes stand for their rows exactly."""
    _, ids = texts_and_scores(sizes)
    n, size = ids.shape
    rng = np.random.default_rng(sizes[-1])
    head = Head(rng.normal(size=(9, 4)).astype(np.float32), rng.normal(size=9).astype(np.float32))
    x = rng.normal(size=(n, size + sizes[2], 4)).astype(np.float32)
    lost = np.array([2, 5, 7])
    texts = [finetune_ocr.Text(tuple(row), "") for row in ids.tolist()]
    lines = finetune_ocr.prepared(x, texts, head, lost, "cpu")
    weight = torch.tensor(head.weight, requires_grad=True)
    bias = torch.tensor(head.bias, requires_grad=True)
    p = (torch.tensor(x) @ weight.T + bias).log_softmax(2)
    whole = finetune_ocr.ctc(p[:, :, 0], p.gather(2, ids[:, None].expand(-1, p.shape[1], -1)))
    whole.mean().backward()
    rows = torch.tensor(head.weight[lost], requires_grad=True)
    offsets = torch.tensor(head.bias[lost], requires_grad=True)
    part = finetune_ocr.loss(lines, torch.arange(n), rows, offsets)
    part.backward()
    close = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(part, whole.mean(), **close)
    torch.testing.assert_close(rows.grad, weight.grad[torch.as_tensor(lost)], **close)
    torch.testing.assert_close(offsets.grad, bias.grad[torch.as_tensor(lost)], **close)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_characters_are_found_in_order_and_none_twice(meant, read):
    found = [a for a, hit in zip(meant, finetune_ocr.matched(meant, read), strict=True) if hit]
    left = iter(read)
    assert all(a in left for a in found)  # a subsequence of what was read
    assert all(finetune_ocr.matched(meant, meant))


def test_one_wrong_and_one_missing_character_cost_no_other():
    assert finetune_ocr.matched([1, 2, 3, 4, 5], [1, 9, 3, 5]) == [True, False, True, False, True]


@pytest.mark.slow
def test_taught_rows_change_and_no_others():
    rng = np.random.default_rng(0)
    head = Head(rng.normal(size=(9, 4)).astype(np.float32), np.zeros(9, np.float32))
    lost = np.array([2, 5])
    texts = [finetune_ocr.Text((2, 3), ""), finetune_ocr.Text((4, 5), "")] * 3
    x = rng.normal(size=(6, 5, 4)).astype(np.float32)
    asked = type("Asked", (), {"device": "cpu", "batch": 2, "epochs": 8, "rate": 0.1})
    lines = finetune_ocr.prepared(x, texts, head, lost, "cpu")
    taught, losses = finetune_ocr.teach(head, lost, [lines], 0, asked)
    changed = (taught.weight != head.weight).any(axis=1)
    assert np.flatnonzero(changed).tolist() == lost.tolist()
    assert losses[-1] < losses[0]
    again, _ = finetune_ocr.teach(head, lost, [lines], 0, asked)
    assert np.array_equal(again.weight, taught.weight)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**16), st.integers(1, 40), st.integers(3, 12))
def test_ranks_and_first_places_are_those_of_sorted_scores(seed, n, classes):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, classes))
    head = Head(rng.normal(size=(classes, 2)))
    lost = np.array([0])
    naive = [min(int((row > row[k]).sum()) + 1 for row in logits) for k in range(classes)]
    assert lost_on_data.best_ranks(logits).tolist() == naive
    found = lost_on_data.places(logits, head, lost)
    assert found["lost"]["first"] + found["all others"]["first"] == n
    assert found["lost"]["best_rank"][0] == naive[0]
    assert (found["lost"]["behind"][0] == 0) == (found["lost"]["first"] > 0)


def test_why_says_that_the_lost_row_is_the_shortest():
    weight = np.array([[4.0, 0], [0, 4], [-4, 0], [0, -4], [0.5, 0.25]])
    head = Head(weight)
    lost = uncork.audit(head).unargmaxable
    assert lost.tolist() == [4]
    said = lost_reach.why(head, lost)
    assert said["lost_among_the_shortest"] == 1
    assert said["length_of_lost"][2] < said["length_of_others"][0]
    assert [one.name for one in lost_reach.with_losses()].count("wordllama") == 1


def test_equal_rows_are_listed_in_their_groups():
    head = Head([[1.0, 2], [3, 4], [1, 2], [3, 4], [5, 6]], [0, 0, 0, 1, 0], labels="abcde")
    assert lost_items.equal_rows(head) == [["a", "c"]]


@pytest.mark.parametrize(
    ("token", "kind"),
    [("<0x0A>", "bytes"), ("▁the", "words and beginnings"), ("ing", "letters inside words"),
     (",", "digits and signs"), ("</s>", "control")],
)  # fmt: skip
def test_tokens_are_of_one_kind(token, kind):
    assert lost_items.kind_of(token) == kind


def array(values):
    values = np.array(values, np.float32)
    return Array(values.shape, "float32", lambda: values)


def test_a_kaldi_network_runs_as_it_is_wired():
    """x(t) and x(t − 1) side by side, a layer over two frames, half of it added to the input."""
    nodes = {
        "input": Node("input", "input-node", "", ""),
        "a": Node("a", "component-node", "Append(Offset(input, -1), input)", "a"),
        "b": Node("b", "component-node", "a", "b"),
        "c": Node("c", "component-node", "Sum(Scale(0.5, b), input)", "c"),
    }
    components = {
        "a": Component("RectifiedLinearComponent", {}),
        "b": Component("TdnnComponent", {
            "<TimeOffsets>": [0, 1], "<LinearParams>": array([[1, 10, 100, 1000]]),
            "<BiasParams>": array([0.5])}),
        "c": Component("BatchNormComponent", {
            "<StatsMean>": array([1.0]), "<StatsVar>": array([4.0 - 1e-3])}),
    }  # fmt: skip
    network = Network(Path("toy"), nodes, components, None, (), False)
    x = np.array([[1.0], [-2], [3]], np.float32)
    [b, c] = lost_senones.Running(network)({"input": x}, "b", "c")
    # Outside, the first and the last frame are repeated.
    assert b[:, 0].tolist() == [1 + 10 + 100 + 0.5, 1 + 3000 + 0.5, 30 + 3000 + 0.5]
    np.testing.assert_allclose(c, (0.5 * b + x - 1) / 2, rtol=1e-6)


def test_the_tables_on_the_page_are_those_of_the_data():
    page = (Path(__file__).parents[2] / "docs/results/lost_in_practice.md").read_text("utf-8")
    for table in lost_tables.tables():
        assert table in page, table
