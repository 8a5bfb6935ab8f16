"""Fixtures that several tests share."""

import pytest


@pytest.fixture(params=["narrow", "wide"])
def width(request, monkeypatch):
    """Both kernels of α-entmax, by the width of the rows."""
    if request.param == "narrow":
        return 601
    from uncork.nn.kernels import entmax

    monkeypatch.setattr(entmax, "WIDEST", 600)
    return 5003  # more than four tiles of the wide kernel, and a multiple of nothing


@pytest.fixture
def accelerator():
    accelerate = pytest.importorskip("accelerate")
    state = accelerate.state.AcceleratorState  # one for the whole process, until it is told so
    state._reset_state(reset_partial_state=True)
    yield accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    state._reset_state(reset_partial_state=True)
