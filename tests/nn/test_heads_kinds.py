"""Each kind of head is its formula; ties, descriptions and wrong input are alike for all."""

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
from uncork import UncorkError  # noqa: E402
from uncork.nn.heads import HEADS  # noqa: E402
from uncork.nn.heads.mixtape import _leaves  # noqa: E402

from .small_output_heads import batch, made  # noqa: E402


def rank_of(name, **options):
    head = made(name, 3, 40, **options)
    torch.manual_seed(2)
    values = head.log_probabilities(3 * torch.randn(60, 3, dtype=torch.float64))
    spectrum = torch.linalg.svdvals(values.detach())
    return int((spectrum > 1e-9 * spectrum[0]).sum())


def test_mixtures_of_softmaxes_break_the_bottleneck_and_mixtures_of_contexts_do_not():
    assert rank_of("softmax", bias=False) == 4  # d + 1
    assert rank_of("softmax") == 5  # one more for the bias
    assert rank_of("moc") == 5
    assert rank_of("argmaxable") == 4
    for name in ("mos", "mos-sigsoftmax", "sigsoftmax", "plif"):
        assert rank_of(name) > 20, name
    assert rank_of("mixtape", frequent=20) > 15


def test_sigsoftmax_is_exp_times_sigmoid():
    head = made("sigsoftmax")
    hidden, _ = batch()
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias)
    p = logits.exp() * torch.sigmoid(logits)
    p = p / p.sum(-1, keepdim=True)
    torch.testing.assert_close(head.log_probabilities(hidden).exp(), p)


def test_plif_is_the_identity_at_first_and_always_increases():
    head = HEADS["plif"](4, 7, pieces=6, bound=3.0, dtype=torch.float64)
    z = torch.linspace(-9, 9, 1001, dtype=torch.float64).unsqueeze(0)
    torch.testing.assert_close(head._function(z, head.slopes), z)
    with torch.no_grad():
        head.slopes.copy_(torch.tensor([-2.0, 1.0, -4.0, 3.0, 0.0, 2.0]))
    values = head._function(z, head.slopes)[0]
    steps = values.diff() / z[0].diff()
    assert bool((steps > 0).all())
    slopes = torch.nn.functional.softplus(head.slopes.detach())
    torch.testing.assert_close(steps[[100, -1]], slopes[[0, -1]])
    knots = torch.linspace(-3, 3, 7, dtype=torch.float64)
    at = head._function(knots.unsqueeze(0), head.slopes)[0].diff()
    torch.testing.assert_close(at, slopes)  # pieces are 1 wide


def test_mixtape_is_the_papers_formula():
    head = made("mixtape", frequent=torch.tensor([5, 0, 2]), components=4)
    hidden, _ = batch()
    contexts = torch.tanh(head.projection(hidden)).reshape(5, 4, 4)
    gates = torch.tanh(head.gate_projection(hidden)).reshape(5, 3, 2)
    shared = head.shared_gate(hidden)
    expected = torch.empty(5, 7, dtype=torch.float64)
    own = {5: 0, 0: 1, 2: 2}
    for x in range(7):
        pre = shared
        if x in own:
            pre = pre + gates @ head.gate_weight[own[x]] + head.gate_bias[own[x]]
        one, two, three = torch.sigmoid(pre).unbind(1)
        prior = torch.stack(
            [one * two, one * (1 - two), (1 - one) * three, (1 - one) * (1 - three)], 1
        )
        logits = contexts @ head.weight[x]
        expected[:, x] = (prior * logits).sum(1) + head.bias[x]
    torch.testing.assert_close(head(hidden), expected)


def test_a_trees_leaves_sum_to_one():
    gates = torch.rand(2, 7, 11, dtype=torch.float64)
    leaves = _leaves(gates)
    assert leaves.shape == (2, 8, 11)
    torch.testing.assert_close(leaves.sum(1), torch.ones(2, 11, dtype=torch.float64))
    path = gates[:, 0] * (1 - gates[:, 1]) * gates[:, 4]  # left, right, left: the third leaf
    torch.testing.assert_close(leaves[:, 2], path)


@pytest.mark.parametrize("name", HEADS)
def test_tied_weights_are_one_parameter(name):
    embedding = torch.nn.Embedding(7, 4, dtype=torch.float64)
    head = HEADS[name](4, 7, weight=embedding.weight)
    hidden, target = batch()
    head.loss(hidden, target).backward()
    assert embedding.weight.grad is not None
    assert "tied" in repr(head)
    assert sum(p is embedding.weight for p in head.parameters()) == 1
    with pytest.raises(UncorkError, match="shape"):
        head.tie(torch.nn.Parameter(torch.zeros(7, 5)))


@pytest.mark.parametrize("name", HEADS)
def test_a_description_makes_the_same_head(name):
    head = made(name)
    described = unn.heads.describe(head)
    assert described["name"] == name
    again = unn.heads.make(described, dtype=torch.float64)
    again.load_state_dict(head.state_dict())
    hidden, target = batch()
    assert torch.equal(again.loss(hidden, target), head.loss(hidden, target))


def test_alpha_relu_finds_its_threshold_on_data():
    head = made("alpha-relu")
    hidden, _ = batch(20)
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias)
    assert head.calibrate(hidden) == pytest.approx(unn.tau_from_data(logits, 1.5), rel=1e-6)


def test_wrong_input_is_named():
    head = made("mos")
    hidden, target = batch()
    for wrong, message in [
        (lambda: head.loss(hidden[:, :3], target), "4 features"),
        (lambda: head.loss(hidden.float(), target), "one dtype"),
        (lambda: head.loss(hidden, target[:2]), "target must have shape"),
        (lambda: head.loss(hidden, torch.rand(5)), "class indices"),
        (lambda: head.loss(hidden, target, reduction="average"), "average"),
        (lambda: head.loss(hidden, target, label_smoothing=2.0), "label_smoothing"),
        (lambda: head.loss(hidden, target, weight=torch.ones(3)), "one value per class"),
        (lambda: head.top_k(hidden, 8), "between 1 and 7"),
        (lambda: HEADS["mos"](4, 7, components=0), "components"),
        (lambda: HEADS["mos"](4, 7, embedding=0), "embedding must be a positive"),
        (lambda: HEADS["mixtape"](4, 7, embedding=-1), "embedding must be a positive"),
        (lambda: HEADS["mos"](4, 0), "classes"),
        (lambda: HEADS["mos"](4, 7, activation="relu"), "relu"),
        (lambda: HEADS["plif"](4, 7, bound=-1.0), "bound"),
        (lambda: HEADS["mixtape"](4, 7, components=3), "2, 4, 8"),
        (lambda: HEADS["mixtape"](4, 7, frequent=9), "between 1 and 7"),
        (lambda: HEADS["argmaxable"](4, 7, how="hope"), "hope"),
        (lambda: unn.heads.make({"name": "moss"}), "moss"),
        (lambda: unn.heads.make({"name": "mos", "experts": 3}), "experts"),
        (lambda: unn.heads.make({"name": "mos", "classes": 3}), "features"),
    ]:
        with pytest.raises(UncorkError, match=message):
            wrong()
    with pytest.raises(IndexError):
        head.loss(hidden, target + 100)


def test_no_rows_are_no_trouble():
    head = made("mos")
    empty, target = torch.zeros(0, 4, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    assert head.argmax(empty).shape == (0,)
    assert head.top_k(empty, 2).indices.shape == (0, 2)
    assert head.top_k(empty, 2).values.dtype == torch.float64
    assert head.loss(empty, target, reduction="sum").item() == 0
    mean = head.loss(empty, target)
    assert mean.isnan()  # as cross_entropy of no rows
    assert (torch.autograd.grad(mean, head.weight)[0] == 0).all()


def test_a_nan_is_the_loss_and_no_error():
    hidden = torch.full((2, 4), torch.nan, dtype=torch.float64)
    assert made("plif").loss(hidden, torch.tensor([0, 1])).isnan()


@pytest.mark.parametrize("bias", [False, True])
def test_mixtapes_rank_is_that_of_its_contexts_and_its_frequent_classes(bias):
    torch.manual_seed(0)
    head = unn.heads.MixtapeHead(24, 120, embedding=10, frequent=30, bias=bias).double()
    if bias:
        torch.nn.init.normal_(head.bias)
    log_p = head.log_probabilities(3 * torch.randn(400, 24, dtype=torch.float64)).detach()
    assert torch.linalg.matrix_rank(log_p, rtol=1e-10) == 10 + 30 + 1 + bias


def test_alpha_relu_ranks_alike_in_argmax_and_top_k():
    """Scores that are zero, or round to the same, still have an order: that of their logits."""
    torch.manual_seed(0)
    head = unn.heads.AlphaReLUHead(8, 50, alpha=1.01, tau=5.0).half().float()
    hidden = 1e-3 * torch.randn(500, 8)
    assert torch.equal(head.argmax(hidden), head.top_k(hidden, 1).indices[:, 0])
    ranked = head.top_k(hidden, 50).indices
    assert torch.equal(ranked, head._ranked(hidden).argsort(-1, descending=True))
