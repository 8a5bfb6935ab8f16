"""Where kernels are launched with several GPUs, and that an old one has none: both pretended."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from uncork.nn import kernels  # noqa: E402
from uncork.nn.kernels import launch as launching  # noqa: E402


@pytest.fixture
def devices(monkeypatch):
    """Two GPUs, the first of them current; what was entered, in order."""
    current, entered = [0], []

    @contextmanager
    def device(chosen):
        before, current[0] = current[0], chosen.index
        entered.append(chosen.index)
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    return SimpleNamespace(current=current, entered=entered)


def on(device):
    return SimpleNamespace(device=torch.device(device), dtype=torch.float32, numel=lambda: 1)


@pytest.mark.parametrize(
    ("device", "entered", "launched_on"), [("cuda:1", [1], 1), ("cuda:0", [], 0), ("cpu", [], 0)]
)
def test_kernels_are_launched_on_the_device_of_their_tensors(devices, device, entered, launched_on):
    @launching.on_its_device
    def launch(first, second, *, third):
        return devices.current[0], second, third

    assert launch(on(device), "b", third="c") == (launched_on, "b", "c")
    assert devices.entered == entered
    assert devices.current == [0]


def test_every_launcher_has_its_device_chosen():
    pytest.importorskip("triton")
    from uncork.nn.kernels import alpha_relu, ends, entmax, losses
    from uncork.nn.linear import cuda

    launchers = [
        cuda._compute, ends.scale, ends.add, losses.reduced, losses.loss_backward,
        entmax.entmax_forward, entmax.entmax_shift, entmax.power_level, entmax.entmax_losses,
        entmax.entmax_backward, alpha_relu.alpha_relu_forward, alpha_relu.alpha_relu_backward,
        alpha_relu.alpha_relu_losses,
    ]  # fmt: skip
    assert [
        launcher.__name__ for launcher in launchers if not hasattr(launcher, "__wrapped__")
    ] == []


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), True), ((8, 0), True), ((7, 5), False)]
)
def test_a_gpu_too_old_for_triton_has_torchs_versions(monkeypatch, capability, expected):
    kernels._runs_triton.cache_clear()
    monkeypatch.setattr(kernels, "_HAS_TRITON", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    try:
        assert kernels.usable(on("cuda:0")) is expected
    finally:
        kernels._runs_triton.cache_clear()
