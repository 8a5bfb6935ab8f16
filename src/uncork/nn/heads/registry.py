"""Every head by name, and a head as a few words of JSON: `describe` it, `make` it again."""

from __future__ import annotations

import inspect
from typing import Any

from uncork.core.errors import UncorkError
from uncork.nn._torch import torch
from uncork.nn.heads import of_losses
from uncork.nn.heads.argmaxable import ArgmaxableHead
from uncork.nn.heads.base import OutputHead
from uncork.nn.heads.contexts import MixtureOfContexts
from uncork.nn.heads.mixtape import MixtapeHead
from uncork.nn.heads.mixture import MixtureOfSoftmaxes
from uncork.nn.heads.plif import PlifHead
from uncork.nn.heads.sigsoftmax import MixtureOfSigSoftmaxes, SigSoftmaxHead
from uncork.nn.heads.softmax import SoftmaxHead
from uncork.nn.losses.specification import Loss, for_each_loss

#: every head by the name that `replace` and saved models know it by
HEADS: dict[str, type[OutputHead]] = {
    head.name: head
    for head in (
        SoftmaxHead,
        MixtureOfSoftmaxes,
        MixtureOfContexts,
        SigSoftmaxHead,
        MixtureOfSigSoftmaxes,
        PlifHead,
        MixtapeHead,
        ArgmaxableHead,
    )
}


def _add(loss: Loss) -> None:
    if loss.names.head is not None:
        head: type[OutputHead] = getattr(of_losses, loss.names.head)
        HEADS[head.name] = head


for_each_loss(_add)


def describe(head: OutputHead) -> dict[str, Any]:
    """What :func:`make` needs to make such a head again: its parameters are not in it."""
    return {
        "name": head.name,
        "features": head.features,
        "classes": head.classes,
        **head.options(),
    }


def make(
    described: Any,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> OutputHead:
    """A new head from its description: {"name": "mos", "features": …, "classes": …, options}."""
    if not isinstance(described, dict) or described.get("name") not in HEADS:
        name = described.get("name") if isinstance(described, dict) else described
        raise UncorkError(f"head must be one of {', '.join(HEADS)}, got {name!r}")
    options = {key: value for key, value in described.items() if key != "name"}
    kind = HEADS[described["name"]]
    known = _options(kind)
    for option in options:
        if option not in known:
            raise UncorkError(
                f"the {kind.name} head has no option {option!r}: {', '.join(sorted(known))}"
            )
    for needed in ("features", "classes"):
        if needed not in options:
            raise UncorkError(f"the description of a {kind.name} head does not say its {needed}")
    return kind(**options, device=device, dtype=dtype)


def _options(kind: type) -> set[str]:
    """Names that the constructors from this class up to OutputHead take."""
    names: set[str] = set()
    for base in kind.__mro__:
        if "__init__" in vars(base) and issubclass(base, OutputHead):
            names |= set(inspect.signature(base.__init__).parameters)
    return names - {"self", "settings", "device", "dtype", "weight"}
