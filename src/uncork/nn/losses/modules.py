"""The modules of every loss, by name. For type checkers `modules.pyi` has them written out."""

from uncork.nn.losses import forms
from uncork.nn.losses.specification import Loss, for_each_loss

__all__: list[str] = []


def _add(loss: Loss) -> None:
    made: list[type[forms.LossModule]] = [forms.linear_module_of(loss)]
    if loss.names.module is not None:
        made.insert(0, forms.module_of(loss, loss.names.module))
    for module in made:
        globals()[module.__name__] = module
        __all__.append(module.__name__)


for_each_loss(_add)
