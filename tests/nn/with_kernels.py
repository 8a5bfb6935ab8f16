"""Where the tests of kernels run: on a GPU, or in Triton's interpreter."""

import contextlib
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

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


def _patch_language_once():
    """Triton's interpreter looks through all of its language whenever a kernel calls a function,
    to replace what the kernel's launch has replaced already: two fifths of its time."""
    patch = interpreter._patch_lang

    def patch_if_not_done(fn):
        languages = [value for value in fn.__globals__.values() if value is tl or value is tl.core]
        if not languages or any(tl.core.is_builtin(language.load) for language in languages):
            return patch(fn)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = patch_if_not_done


if hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope"):
    _patch_language_once()
