"""The functions of every loss, by name. For type checkers `functions.pyi` has them written out."""

from uncork.nn.losses import forms
from uncork.nn.losses.specification import Loss, for_each_loss

__all__: list[str] = []


def _add(loss: Loss) -> None:
    for made in (forms.function_of(loss), forms.linear_function_of(loss)):
        globals()[made.__name__] = made
        __all__.append(made.__name__)


for_each_loss(_add)
