"""Fixtures that tests of several kernels share."""

import pytest


@pytest.fixture(params=["narrow", "wide"])
def width(request, monkeypatch):
    """Both kernels of α-entmax, by the width of the rows."""
    if request.param == "narrow":
        return 601
    from uncork.nn.kernels import transforms

    monkeypatch.setattr(transforms, "WIDEST", 600)
    return 5003  # more than four tiles of the wide kernel, and a multiple of nothing
