"""The one place that imports torch for `uncork.nn`, so that its absence is explained once."""

try:
    import torch as torch
except ModuleNotFoundError as error:
    raise ImportError(
        "uncork.nn needs PyTorch, which is not installed: pip install 'uncork[torch]' "
        "(uncork.nn.reference has the same transforms in NumPy)"
    ) from error

__all__ = ["torch"]
