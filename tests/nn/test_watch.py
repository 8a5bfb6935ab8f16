"""The watch on a training head: its counts are those of a full audit, whatever the head does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import uncork
from uncork import Box, Head, UncorkError
from uncork.nn import Watch, heads
from uncork.nn.watch.leads import leads


def audited(layer: nn.Linear, domain: uncork.Domain) -> dict[str, int]:
    bias = None if layer.bias is None else layer.bias.detach()
    return uncork.audit(Head(layer.weight.detach(), bias, domain=domain), device="cpu").counts


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("coarse", [False, True])
def test_counts_equal_a_full_audit_at_every_count(
    bias: bool, coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watch, "_coarse", lambda self, weight: coarse)  # as on a GPU
    torch.manual_seed(0)
    layer = nn.Linear(4, 60, bias=bias)
    watch = Watch(layer, every=5, domain=Box(10))
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.5)
    inputs, targets = torch.randn(64, 4), torch.randint(0, 20, (64,))  # most classes never occur
    seen = []
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(layer(inputs), targets).backward()
        optimiser.step()
        counts = watch.step()
        if counts is not None:
            full = audited(layer, Box(10))
            for verdict in ("unargmaxable", "tied", "undecided"):
                assert counts[verdict] == full[verdict]
            seen.append(counts)
    assert len(seen) == 6
    assert seen[-1]["unargmaxable"] > 0
    assert len(watch.history) == 6


def test_what_was_won_before_is_not_audited_again() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(16, 200)
    watch = Watch(layer)
    assert watch.count()["audited"] == 200
    with torch.no_grad():
        layer.weight += 1e-4 * torch.randn_like(layer.weight)
    again = watch.count()
    assert again["audited"] < 20
    assert again["unargmaxable"] == audited(layer, Box(100))["unargmaxable"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_lead_is_never_claimed_beyond_what_it_is(dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    weight, bias = torch.randn(300, 24), 3 * torch.randn(300)
    x = weight + 0.5 * torch.randn_like(weight)
    claimed = leads(weight, bias, x, torch.arange(300), dtype).double()
    z = x.double() @ weight.double().T + bias.double()
    own = z.diagonal().clone()
    z.fill_diagonal_(-torch.inf)
    size = x.double().norm(dim=1) * weight.double().norm(dim=1).mean()
    true = (own - z.max(dim=1).values) / size
    assert (claimed <= true).all()
    assert (claimed >= true - (0.3 if dtype == torch.bfloat16 else 1e-3)).all()
    assert 0 < int((claimed > 0).sum()) < 300


def test_a_class_that_hardly_wins_is_nearly_lost() -> None:
    layer = nn.Linear(2, 4, bias=False)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, -1.0], [0.0, 1.0001]])
    counts = Watch(layer).count()
    assert counts["unargmaxable"] == 0
    assert counts["nearly_lost"] == 1


def test_it_follows_a_layer_that_changes_its_size_and_a_function_in_place_of_one() -> None:
    weights = [torch.randn(30, 3), torch.randn(50, 3)]
    watch = Watch(lambda: (weights[0], None))
    watch.count()
    weights.pop(0)
    assert watch.count()["unargmaxable"] == uncork.audit(Head(weights[0])).counts["unargmaxable"]


@pytest.mark.filterwarnings("ignore")
def test_the_transformers_trainer_logs_the_counts(tmp_path) -> None:  # type: ignore[no-untyped-def]
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 30)

        def forward(self, x=None, labels=None):  # type: ignore[no-untyped-def]
            logits = self.head(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    model = Model()
    data = [{"x": torch.randn(3), "labels": torch.tensor(k % 30)} for k in range(24)]
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=6, per_device_train_batch_size=4, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    Watch(model.head, every=3).attach(trainer)
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "uncork/unargmaxable" in entry]
    assert [entry["step"] for entry in logged] == [3, 6]
    counts = audited(model.head, Box(100))
    assert logged[-1]["uncork/unargmaxable"] == counts["unargmaxable"]


@pytest.mark.filterwarnings("ignore")
def test_lightning_logs_the_counts(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lightning = pytest.importorskip("lightning")

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 30)

        def training_step(self, batch, index):  # type: ignore[no-untyped-def]
            x, y = batch
            return nn.functional.cross_entropy(self.head(x), y)

        def configure_optimizers(self):  # type: ignore[no-untyped-def]
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Model()
    data = torch.utils.data.TensorDataset(torch.randn(24, 3), torch.arange(24))
    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        callbacks=[Watch(model.head, every=4).lightning()],
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=6))
    counts = audited(model.head, Box(100))
    assert float(trainer.logged_metrics["uncork/unargmaxable"]) == counts["unargmaxable"]


def test_what_cannot_be_watched_is_refused() -> None:
    every: Any
    for every in (0, 1.5, "a", None, np.nan, np.inf):
        with pytest.raises(UncorkError, match="every must be one step or more"):
            Watch(nn.Linear(2, 3), every=every)
    near: Any
    for near in (-1, "a", np.nan):
        with pytest.raises(UncorkError, match="near must be a number"):
            Watch(nn.Linear(2, 3), near=near)
    with pytest.raises(UncorkError, match="trackers: expected a list of them, got 3"):
        Watch(nn.Linear(2, 3), trackers=3)  # type: ignore[arg-type]
    with pytest.raises(UncorkError, match="not Tensor"):
        Watch(torch.randn(3, 2))
    with pytest.raises(UncorkError, match="classes × features"):
        Watch(lambda: (torch.randn(3), None)).count()
    assert np.isfinite(Watch(nn.Linear(2, 3)).count()["seconds"])


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (torch.nn.Sequential(torch.nn.Linear(4, 9)), "name its last layer, or give a function"),
        (torch.nn.LSTM(4, 9), "name its last layer, or give a function"),
        (torch.nn.Conv1d(4, 9, 1), "classes × features: give a function"),
        (torch.nn.Linear(4, 9).weight.detach, "gives Tensor: give a function"),
        (torch.nn.LazyLinear(9), "run the model once first"),
        (lambda: (torch.eye(4), [0] * 4), "the bias to watch is a list"),
        (lambda: (torch.eye(4).to_sparse(), None), "sparse_coo: give a function .*, dense"),
        (torch.nn.Linear(4, 9, device="meta"), "on the device meta, without values"),
        (lambda: (torch.eye(4) * 1j, None), "complex64, of complex numbers"),
        (lambda: (torch.eye(4).to(torch.int8), None), "int8, codes whose scales are elsewhere"),
        (lambda: (torch.eye(4).to(torch.float8_e4m3fn), None), "float8_e4m3fn, codes"),
    ],
)
def test_what_has_no_weight_to_watch_is_told_what_to_give(layer: Any, says: str) -> None:
    with pytest.raises(UncorkError, match=says):
        Watch(layer).count()


@pytest.mark.parametrize("layer", [torch.nn.Sequential(torch.nn.Linear(4, 9)), torch.nn.LSTM(4, 9)])
def test_what_has_no_weight_is_refused_before_the_training_and_not_in_it(layer: Any) -> None:
    with pytest.raises(UncorkError, match="has no weight tensor to watch"):
        Watch(layer)
    for other in (torch.nn.LazyLinear(9), torch.nn.Linear(4, 9, device="meta")):
        Watch(other)  # by its first count it may have one


def test_a_weight_that_is_kept_transposed_is_not_taken_for_classes_by_features() -> None:
    layers = pytest.importorskip("transformers.pytorch_utils")
    with pytest.raises(UncorkError, match="transposed: give a function"):
        Watch(layers.Conv1D(4, 4)).count()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_training_that_diverges_is_not_ended_by_the_watch(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    layer = nn.Linear(3, 9)
    watch = Watch(layer, every=1)
    assert watch.step() is not None
    with torch.no_grad():
        layer.weight[0, 0] = value
    assert watch.step() is None
    assert watch.step(last=True) is None
    assert watch.count() == {}
    assert watch.finish() is None
    assert len(watch.history) == 1
    (line,) = (each.message for each in caplog.records)
    assert "not finite at step 2" in line


def test_a_second_training_is_counted_as_the_first() -> None:
    watch = Watch(nn.Linear(3, 9), every=4)
    for _ in range(2):
        watch.begin()
        counted = [watch.step() is not None for _ in range(6)]
        assert counted == [False, False, False, True, False, False]
        assert watch.finish() is not None
    assert [each["step"] for each in watch.history] == [4, 6, 4, 6]
    watch.begin()
    assert watch.step(6) is None  # where the last training ended, and a count of its own
    assert watch.finish() is not None
    assert watch.count()
    assert watch.finish() is None


@pytest.mark.parametrize("name", heads.HEADS)
def test_a_head_behind_a_wrapper_is_watched_as_the_head_that_it_is(name: str) -> None:
    wrapper = pytest.importorskip("peft.utils.other").ModulesToSaveWrapper
    torch.manual_seed(0)
    head = heads.HEADS[name](4, 60)
    nn.init.normal_(head.weight)
    given = torch.randn(20, 4), torch.randint(60, (20,))

    def counted(layer: Any) -> Any:
        try:
            counts = Watch(layer, trackers=[], tokens=lambda: given).count()
        except UncorkError as error:
            return str(error)
        return {key: value for key, value in counts.items() if key not in ("seconds", "share")}

    expected = counted(head)
    for wrapped in (torch.compile(head, backend="eager"), wrapper(head, "default")):
        assert counted(wrapped) == expected


def test_a_layer_under_an_adapter_is_watched_with_it_or_not_at_all() -> None:
    lora = pytest.importorskip("peft").LoraConfig(target_modules=["0"])
    model = pytest.importorskip("peft").get_peft_model(nn.Sequential(nn.Linear(4, 9)), lora)
    layer = model.base_model.model[0]
    nn.init.normal_(layer.lora_B["default"].weight)
    with pytest.raises(UncorkError, match="without its adapter's: give a function"):
        Watch(layer).count()
    made = layer.base_layer.weight + layer.get_delta_weight("default")
    expected = Watch(lambda: (made, layer.base_layer.bias)).count()
    layer.merge()
    found = Watch(layer).count()
    assert found["unargmaxable"] == expected["unargmaxable"]


@pytest.mark.parametrize("name", ["mos", "moc"])
def test_a_mixture_is_counted_as_its_own_audit_counts(name: str) -> None:
    """Its weight sees contexts within ±1, not hidden states within ±100."""
    torch.manual_seed(0)
    head = uncork.nn.heads.HEADS[name](6, 80, components=3)
    with torch.no_grad():
        head.bias.normal_(0, 3.0)
    own = head.audit(device="cpu", steps=1, restarts=0)
    watch = Watch(head)
    assert watch.count()["unargmaxable"] == len(own.unargmaxable) > 0
    with torch.no_grad():
        head.weight.mul_(1.001)
    assert watch.count()["unargmaxable"] == len(head.audit(device="cpu").unargmaxable)


def test_mixtape_is_not_watched() -> None:
    with pytest.raises(UncorkError, match="audit"):
        Watch(uncork.nn.heads.HEADS["mixtape"](6, 80))
