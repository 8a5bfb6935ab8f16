"""A model's class with another forward: the change goes with copies, pickles, replicas, wrappers.

A model that is changed becomes an instance of a subclass of its own class, of the same name. An
attribute `forward` of the model itself would do less: a copy's would run the model it was copied
from, and pickle knows no closures.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from uncork.core.errors import UncorkError


class Change:
    """What is changed: a subclass says so, and is put in front of the class of a model."""

    #: what another change is answered
    in_the_way: ClassVar[str]

    def forward_named(self, given: dict[str, Any], own: Callable[[], Any]) -> Any:
        """The new forward: its arguments by name, and the model's own answer to them."""
        raise NotImplementedError


def change_class(model: Any, change: type[Change]) -> None:
    """Give the model its class with this change."""
    kind: Any = type(model)
    model.__class__ = changed(kind, change)


def undo_change(model: Any, change: type[Change]) -> None:
    """Give the model its class back, unless another one (FSDP's) lies over ours."""
    kind: Any = type(model)
    if issubclass(kind, change) and "_uncork_plain" in vars(kind):
        model.__class__ = kind._uncork_plain


def changed(plain: Any, change: Any) -> Any:
    """The class `plain` with this change, which may be in it already."""
    return plain if issubclass(plain, change) else _made(plain, change)


def plain_class(kind: Any) -> Any:
    """The class as it was, also where another one (FSDP's) lies over ours."""
    ours = next((base for base in kind.__mro__ if "_uncork_plain" in vars(base)), None)
    return kind if ours is None else ours._uncork_plain


def check_changeable(model: Any, change: type[Change], what: str) -> None:
    """Raise where changing the model's class would not do; `what` is done, "fuse the loss" say."""
    if isinstance(model, change):
        return
    if isinstance(model, Change):
        raise UncorkError(model.in_the_way)
    if "forward" in vars(model):
        raise UncorkError(
            "something (accelerate, say) has put its own forward in front of this model's: "
            f"{what} before that"
        )


@functools.cache
def _made(plain: Any, change: Any) -> Any:
    signature = inspect.signature(plain.forward)

    @functools.wraps(plain.forward)
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        given = _named(signature, (self, *arguments), keywords)
        del given["self"]
        own = functools.partial(plain.forward, self, *arguments, **keywords)
        # By the class: accelerate leaves this forward with a model whose change is undone.
        return change.forward_named(self, given, own)

    def reduce(self: Any, protocol: Any) -> Any:
        if type(self) is not made:
            return plain.__reduce_ex__(self, protocol)
        return _empty, (plain, change), plain.__reduce_ex__(self, 2)[2]

    # By its signature a Trainer chooses columns; but whoever unwraps a forward is to stop here.
    vars(forward)["__signature__"] = signature
    del vars(forward)["__wrapped__"]
    # The name under which a checkpoint says what it is.
    named = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    ours = {"forward": forward, "__reduce_ex__": reduce, "_uncork_plain": plain}
    made: Any = type(plain)(plain.__name__, (change, plain), named | ours)
    return made


def _empty(plain: Any, change: type[Change]) -> Any:
    """For pickle and copy: a model yet without contents."""
    kind = changed(plain, change)
    return kind.__new__(kind)


def _named(
    signature: inspect.Signature, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> dict[str, Any]:
    """All arguments by their names."""
    bound = dict(signature.bind(*arguments, **keywords).arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound |= bound.pop(name, {})
    return bound
