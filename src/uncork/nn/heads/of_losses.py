"""The heads of the losses, by name. For type checkers `of_losses.pyi` has them written out."""

from uncork.nn.heads.loss_head import head_of
from uncork.nn.losses.specification import Loss, for_each_loss

__all__: list[str] = []


def _add(loss: Loss) -> None:
    if loss.names.head is not None:
        globals()[loss.names.head] = head_of(loss, loss.names.head)
        __all__.append(loss.names.head)


for_each_loss(_add)
