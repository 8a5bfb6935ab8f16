"""What every room of nn shares: bringing `dim` to the end, the dtype to compute in, checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch

Tensor = torch.Tensor
Alpha = float | Tensor

# Row blocks of this many elements stay in a core's cache between the passes made over them.
BLOCK_ELEMENTS = 1 << 19

_LOW_PRECISION = (torch.float16, torch.bfloat16)
# Asked once: torch.compile of torch 2.11 cannot trace the question.
_AUTOCAST = frozenset(
    device
    for device in ("cpu", "cuda", "mps", "xpu", "hpu", "xla", "mtia", "maia", "ipu",
                   torch._C._get_privateuse1_backend_name())
    if torch.amp.is_autocast_available(device)
)  # fmt: skip


def check_parameter(
    value: Alpha,
    name: str = "alpha",
    *,
    at_least: float | None = None,
    above: float | None = None,
) -> Alpha:
    """`value` as a float or a tensor, refused outside its bounds. (Tensors are read where that
    costs nothing: on a GPU the host would wait. A row's NaN is no error, and makes the row NaN.)"""
    bounds = {sign: bound for sign, bound in ((">=", at_least), (">", above)) if bound is not None}
    if not isinstance(value, Tensor):
        try:
            number = float(value)
        except (TypeError, ValueError):  # None, a list, a word
            raise UncorkError(f"{name} must be a number or a tensor, got {value!r}") from None
        _check_bounds(number, name, bounds)
        return number
    if bounds and not value.is_floating_point():
        raise UncorkError(f"{name} must be a floating-point tensor, got dtype {value.dtype}")
    if bounds and runs_eagerly_on_cpu(value):
        known = value.detach()[~value.detach().isnan()]
        for end in known.aminmax() if known.numel() else ():
            _check_bounds(float(end), name, bounds)
    return value


def _check_bounds(number: float, name: str, bounds: dict[str, float]) -> None:
    for sign, bound in bounds.items():
        inside = number > bound if sign == ">" else number >= bound
        if not inside or number == float("inf"):
            raise UncorkError(f"{name} must be finite and {sign} {bound:g}, got {number!r}")


def check_number(value: float, name: str, expected: str, inside: Callable[[float], bool]) -> None:
    """A number, or a tensor of one that is not to be learned: it would not be."""
    fits = not (isinstance(value, Tensor) and value.requires_grad)
    try:
        fits = fits and bool(inside(value))
    except (TypeError, ValueError, OverflowError, RuntimeError):  # no number, or several
        fits = False
    if not fits:
        raise UncorkError(f"{name} must be {expected}, got {value!r}")


def check_hint(k: int | None) -> None:
    """`k` is the peer's hint for partial sorting. Nothing here needs it: the group filter finds
    the support by itself. It is checked, and then it changes nothing."""
    if k is not None and int(k) < 1:
        raise UncorkError(f"k must be a positive integer or None, got {k!r}")


def check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")


def check_floating(input: Tensor, name: str = "input") -> None:
    check_tensor(name, input)
    if not input.is_floating_point():
        raise UncorkError(f"{name} must be a floating-point tensor, got dtype {input.dtype}")


def under_autocast(device: str) -> bool:
    """Whether autocast is on; it is not where there is none, on `meta` for one."""
    return device in _AUTOCAST and torch.is_autocast_enabled(device)


def without_autocast(device: str) -> AbstractContextManager[None]:
    """Autocast switched off, only where it is on: a small problem would notice the time."""
    if under_autocast(device):
        off: AbstractContextManager[None] = torch.autocast(device, enabled=False)
        return off
    return nullcontext()


def output_dtype(input: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """dtype of the result: as torch's softmax, `dtype` if given, float32 under autocast for
    16-bit input, and otherwise the input's own."""
    if dtype is not None:
        return dtype
    if input.dtype in _LOW_PRECISION and under_autocast(input.device.type):
        return torch.float32
    return input.dtype


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 inside for 16-bit values, otherwise the dtype itself."""
    return torch.float32 if dtype in _LOW_PRECISION else dtype


def rows_last(input: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """`input` in the dtype to compute in, with `dim` moved to the end: (..., n)."""
    wide = input.to(compute_dtype(dtype))
    if wide.dim() == 0:  # as softmax: a scalar is one class
        if dim not in (0, -1):
            raise IndexError(f"dim must be 0 or -1 for a scalar, got {dim}")
        return wide.unsqueeze(0)
    return wide.movedim(dim, -1)


def rows_back(rows: Tensor, like: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """The inverse of `rows_last`."""
    if like.dim() == 0:
        return rows.squeeze(0).to(dtype)
    if dim not in (-1, rows.dim() - 1):
        rows = rows.movedim(-1, dim)
    return rows.to(dtype)


def per_row(value: Alpha, input: Tensor, dim: int, rows: Tensor, name: str) -> Alpha:
    """A float unchanged; a tensor as (..., 1) beside `rows` (..., n), gradient kept.

    A tensor must broadcast against `input` with size 1 along `dim`: one value for all, for each
    row, or for each head. Or it has the rows' own shape, that of `input` without `dim`.
    """
    if not isinstance(value, Tensor):
        return value
    value = value.to(rows.dtype)
    if value.dim() == 0 or input.dim() == 0:
        return value.reshape([1] * rows.dim())
    if value.shape == rows.shape[:-1]:
        return value.unsqueeze(-1)
    if value.dim() > input.dim():
        raise UncorkError(
            f"{name} has shape {tuple(value.shape)}, more dimensions than input "
            f"{tuple(input.shape)}"
        )
    value = value.reshape([1] * (input.dim() - value.dim()) + list(value.shape))
    fits = all(
        size in (1, 1 if axis == dim % input.dim() else input.shape[axis])
        for axis, size in enumerate(value.shape)
    )
    if not fits:
        expected = list(input.shape)
        expected[dim] = 1
        raise UncorkError(
            f"{name} of shape {tuple(value.shape)} does not broadcast to {tuple(expected)}: "
            f"one value per row along dim={dim}"
        )
    return value.movedim(dim, -1)


def are_values(*tensors: Tensor) -> bool:
    """Whether these are their values and nothing more, which nobody traces: plain tensors outside
    torch.compile, tracers, vmap, grad transforms and forward mode."""
    if is_traced():
        return False
    plain = all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)
    return plain and not are_transformed(*tensors)


def is_traced() -> bool:
    """Whether operations are recorded, to be done with other values: by torch.compile and
    torch.export, torch.jit.trace and make_fx."""
    proxy = torch._C._TorchDispatchModeKey.PROXY
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._get_dispatch_mode(proxy) is not None
    )


def are_transformed(*tensors: Any) -> bool:
    """Whether torch.func, batched gradients or forward mode stand behind one of these, of which
    some may not be tensors."""
    functorch, forward = torch._C._functorch, torch.autograd.forward_ad
    dual = forward._current_level >= 0 and torch._C._is_fwd_grad_enabled()
    return any(
        isinstance(tensor, Tensor)
        and (
            functorch.is_functorch_wrapped_tensor(tensor)
            or functorch.is_legacy_batchedtensor(tensor)  # jacobian(vectorize=True)
            or (dual and forward.unpack_dual(tensor).tangent is not None)
        )
        for tensor in tensors
    )


def is_batched(tensor: Tensor) -> bool:
    """Whether it is one of many, under vmap or batched gradients: nobody can see its values."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return bool(functorch.is_legacy_batchedtensor(tensor))


def runs_eagerly_on_cpu(*tensors: Tensor) -> bool:
    """True where looking at values costs nothing and is allowed: plain CPU tensors, and nobody who
    would see what is done with them."""
    return (
        are_values(*tensors)
        and not torch._C._len_torch_dispatch_stack()
        and all(tensor.device.type == "cpu" for tensor in tensors)
    )


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Slices of `rows` rows of `width` elements that each fit in cache."""
    step = max(1, BLOCK_ELEMENTS // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
