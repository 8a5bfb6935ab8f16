"""Where the tests of kernels run: on a GPU, or in Triton's interpreter."""

import contextlib
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from uncork.nn import kernels  # noqa: E402

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
MARKS = [
    pytest.mark.skipif(
        not ON_GPU and os.environ.get("TRITON_INTERPRET") != "1",
        reason="needs a GPU, or TRITON_INTERPRET=1",
    ),
    # The interpreter computes with NumPy, which warns of what the kernels then mask.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@contextlib.contextmanager
def kernels_on():
    """Kernels in place of their torch twins."""
    if ON_GPU:
        yield
    else:
        with kernels.interpreted():
            yield
