"""Out of Python: torch.export with batches of any size, and ONNX held to by onnxruntime."""

import io

import pytest

torch = pytest.importorskip("torch")

import uncork.nn as unn  # noqa: E402
import uncork.nn.functional as F  # noqa: E402
from uncork.nn.heads import HEADS  # noqa: E402

from .small_output_heads import SPARSE, made  # noqa: E402

# torch's own exporter uses what torch deprecates for others.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
]


class Modules(torch.nn.Module):
    """Those that no head has. One model of all: exporting takes seconds."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.of_logits = torch.nn.ModuleList(
            [unn.Entmax(1.3), unn.Entmax(1.0001), unn.AlphaReLU(1.5, 0.2), unn.Budget(2.0)]
        )
        self.log_p = unn.LogEntmax(1.5)
        self.layers = torch.nn.ModuleList(
            [unn.ArgmaxableLinear(9, 9), unn.KActiveLinear(9, 9, k=2)]
        )

    def forward(self, z):
        made = [module(z) for module in (*self.of_logits, *self.layers)]
        logs = [self.log_p(z), F.log_alpha_relu(z, 1.5, 0.2)]
        return torch.stack([*made, F.entmax(z, 3.0), *(one.exp() for one in logs)])


def through_onnx(module, example, other, open_sizes=None):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    program = torch.onnx.export(
        module.eval(), (example,), dynamo=True, verbose=False, optimize=False,
        dynamic_shapes=(open_sizes or {0: torch.export.Dim("batch")},),
    )  # fmt: skip
    file = io.BytesIO()
    program.save(file)
    session = onnxruntime.InferenceSession(file.getvalue())
    (found,) = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    return torch.from_numpy(found)


@pytest.mark.slow
def test_modules_go_through_onnx():
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    batch = torch.cat([z.flip(0), 3 * z])
    module = Modules()
    found = through_onnx(module, z, batch)
    torch.testing.assert_close(found, module(batch).detach(), atol=1e-6, rtol=1e-5)


class Losses(torch.nn.Module):
    """Every loss, of logits and with its layer. Targets are those of the batch's size."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(9, 9))
        self.of_logits = torch.nn.ModuleList(
            [unn.SparsemaxLoss(), unn.EntmaxLoss(1.3), unn.AlphaReLULoss(tau=0.2),
             unn.NormmaxLoss()]
        )  # fmt: skip
        self.of_layers = torch.nn.ModuleList(
            [unn.LinearCrossEntropyLoss(z_loss=0.1), unn.LinearSparsemaxLoss(),
             unn.LinearEntmaxLoss(1.3, label_smoothing=0.1), unn.LinearNormmaxLoss(),
             unn.LinearAlphaReLULoss(tau=0.2)]
        )  # fmt: skip

    def forward(self, z):
        target = torch.where(z[:, 0] > 0, 3, -100)
        made = [loss(z, target) for loss in self.of_logits]
        return torch.stack([*made, *(loss(z, self.weight, target) for loss in self.of_layers)])


@pytest.mark.slow
def test_losses_go_through_onnx():
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    batch = torch.cat([z.flip(0), 3 * z])
    module = Losses()
    found = through_onnx(module, z, batch)
    torch.testing.assert_close(found, module(batch).detach(), atol=1e-5, rtol=1e-5)


class OfAnyWidth(torch.nn.Module):
    def forward(self, z):
        return torch.stack([F.entmax(z, 1.3), F.entmax(z, 3.0), F.normmax(z), F.budget(z)])


@pytest.mark.slow
def test_the_number_of_classes_may_stay_open_in_onnx():
    z = torch.randn(4, 9, generator=torch.Generator().manual_seed(0))
    wider = torch.cat([z, z.flip(0)], 1)
    classes = {1: torch.export.Dim("classes")}
    found = through_onnx(OfAnyWidth(), z, wider, classes)
    torch.testing.assert_close(found, OfAnyWidth()(wider), atol=1e-6, rtol=1e-5)


class Heads(torch.nn.Module):
    """All, as one model for the same reason."""

    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleList(made(name, dtype=torch.float32) for name in HEADS)

    def forward(self, hidden):
        return torch.stack([head(hidden) for head in self.heads])


@pytest.mark.slow
def test_heads_go_through_onnx():
    hidden = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    batch = torch.cat([hidden, 2 * hidden.flip(0), 40 * hidden])  # logits far from 0 too
    heads = Heads()
    for name, found, expected in zip(
        HEADS, through_onnx(heads, hidden, batch), heads(batch).detach(), strict=True
    ):
        if name in SPARSE:  # log p of the edge of the support: in p it is the last bit
            found, expected = found.exp(), expected.exp()
        torch.testing.assert_close(
            found, expected, atol=1e-5, rtol=1e-5, msg=lambda why, name=name: f"{name}: {why}"
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_head_is_exported_with_batches_of_any_size(name):
    hidden = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    head = made(name)
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(head, (hidden,), dynamic_shapes=(batch,)).module()
    for other in (hidden, torch.cat([hidden, hidden.flip(0)])):
        torch.testing.assert_close(exported(other), head(other))


class HeadsLoss(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden, target):
        return self.head.loss(hidden, target)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_heads_loss_is_exported_with_batches_of_any_size(name):
    hidden = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([1, 0, -100, 2, 3])
    module = HeadsLoss(made(name))
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(module, (hidden, target), dynamic_shapes=(batch, batch)).module()
    more = torch.cat([hidden, hidden.flip(0)]), torch.cat([target, target])
    torch.testing.assert_close(exported(*more), module(*more))


class Decoding(torch.nn.Module):
    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, hidden):
        return self.head.argmax(hidden), *self.head.top_k(hidden, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_every_heads_best_classes_are_exported_with_batches_of_any_size(name):
    hidden = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    module = Decoding(made(name))
    batch = {0: torch.export.Dim("batch")}
    exported = torch.export.export(module, (hidden,), dynamic_shapes=(batch,)).module()
    more = torch.cat([hidden.flip(0), 2 * hidden])
    torch.testing.assert_close(exported(more), module(more))


class OfRows(torch.nn.Module):
    """What trainers ask of a layer, of as many rows as there are."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(9, 4, dtype=torch.float64))
        self.places = torch.nn.Parameter(torch.randn(9, 2, 4, dtype=torch.float64))

    def forward(self, hidden, target, teacher):
        log_prob, taught = F.linear_log_prob, F.linear_distillation_loss
        best = teacher.topk(3)
        return torch.stack([
            log_prob(hidden, self.weight, target, alpha=1.5, ignore_index=-100).exp().sum(),
            sum(log_prob(hidden, self.weight, target.abs() % 9, return_entropy=True)).sum(),
            taught(hidden, self.weight, teacher),
            taught(hidden, self.weight, hidden, teacher_weight=2 * self.weight, divergence="jsd"),
            taught(hidden, self.weight, best.values, teacher_classes=best.indices),
            F.linear_cross_entropy(hidden, self.weight, teacher.softmax(-1), z_loss=0.1),
            F.linear_entmax_loss(hidden, self.weight, target, weight=teacher[0].abs(), z_loss=0.1),
            F.linear_cross_entropy(hidden, self.places, torch.stack([target, target], 1)),
        ])  # fmt: skip


@pytest.mark.slow
def test_losses_of_trainers_are_exported_with_batches_of_any_size():
    random = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, dtype=torch.float64, generator=random)
    teacher = torch.randn(5, 9, dtype=torch.float64, generator=random)
    given = hidden, torch.tensor([1, 0, -100, 2, 3]), teacher
    batch = {0: torch.export.Dim("batch")}
    module = OfRows()
    exported = torch.export.export(module, given, dynamic_shapes=(batch,) * 3).module()
    more = tuple(torch.cat([one, one.flip(0)]) for one in given)
    torch.testing.assert_close(exported(*more), module(*more))
