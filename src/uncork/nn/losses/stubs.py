"""Signatures of all forms of the losses, written out for type checkers and editors.

    python -m uncork.nn.losses.stubs

writes `functions.pyi` and `modules.pyi` beside this file and `of_losses.pyi` in `heads`: to be run
whenever a loss, or what all losses take, has changed. The tests compare.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from uncork.nn.losses.forms import LossModule, annotation_of
from uncork.nn.losses.specification import LOSSES, Loss, Reduction

_OPENING = "# Written by `python -m uncork.nn.losses.stubs`.\n\n"


def stubs(losses: Iterable[Loss]) -> dict[Path, str]:
    """What each stub file should say."""
    from uncork.nn.heads import of_losses
    from uncork.nn.losses import functions, modules

    losses, here = list(losses), Path(__file__).parent
    names = [loss.names for loss in losses]
    made_functions = [
        getattr(functions, name) for n in names for name in (n.function, n.linear_function)
    ]
    made_modules = [
        getattr(modules, name) for n in names for name in (n.module, n.linear_module) if name
    ]
    made_heads = [getattr(of_losses, n.head) for n in names if n.head]
    return {
        here / "functions.pyi": _OPENING
        + "from typing import Any, Literal, overload\n\n"
        + "from torch import Tensor\n\n"
        + "from uncork.nn.losses.specification import LinearLossResult\n\n"
        + _all(made_functions)
        + _apart([_function(one) for one in made_functions]),
        here / "modules.pyi": _OPENING
        + "from typing import Any\n\n"
        + "from torch import Tensor\n\n"
        + "from uncork.nn.losses.forms import LinearLayerLossModule, LinearLossModule, "
        + "LossModule\n\n"
        + _all(made_modules)
        + "".join(f"\n{_class(one, _kept(one))}" for one in made_modules),
        here.parent / "heads" / "of_losses.pyi": _OPENING
        + "import torch\nfrom torch import Tensor\n\n"
        + "from uncork.nn.heads.loss_head import LossHead, ThresholdHead\n\n"
        + _all(made_heads)
        + "".join(f"\n{_class(one, _numbers(one.specification))}" for one in made_heads),
    }


def _all(made: Iterable[Any]) -> str:
    names = "".join(f'    "{name}",\n' for name in sorted(one.__name__ for one in made))
    return f"__all__ = [\n{names}]\n"


def _docstring(made: Any) -> str:
    lines = inspect.cleandoc(made.__doc__).splitlines()
    closing = '"""' if len(lines) == 1 else '\n"""'
    return textwrap.indent('"""' + "\n".join(lines) + closing, "    ") + "\n"


def _header(name: str, signature: inspect.Signature) -> str:
    """`def name(` and so on, one parameter a line."""
    lines, starred = [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            lines.append("*")
            starred = True
        lines.append(str(one).replace("'", "") if one.default is one.empty else _default(one))
    body = "".join(f"    {line},\n" for line in lines)
    return f"def {name}(\n{body}) -> {signature.return_annotation!s}"


def _default(one: inspect.Parameter) -> str:
    value = f'"{one.default}"' if isinstance(one.default, str) else repr(one.default)
    return f"{one.name}: {one.annotation} = {value}"


# What the flags of a linear function make of its result.
_FLAGS = (
    ("Literal[False] = False", "Literal[False] = False", "Tensor"),
    ("Literal[True]", "bool = False", "LinearLossResult"),
    ("bool = False", "Literal[True]", "LinearLossResult"),
)


def _function(made: Callable[..., Any]) -> str:
    header = _header(made.__name__, inspect.signature(made))
    if "return_lse" not in inspect.signature(made).parameters:
        return f"{header}:\n{_docstring(made)}"
    text = ""
    for lse, predictions, result in _FLAGS:
        one = header.replace("return_lse: bool = False", f"return_lse: {lse}")
        one = one.replace("return_predictions: bool = False", f"return_predictions: {predictions}")
        body = f"\n{_docstring(made)}\n" if result == "Tensor" else " ...\n"
        text += f"@overload\n{one.replace('-> Tensor', f'-> {result}')}:{body}"
    return text


def _apart(texts: list[str]) -> str:
    """Definitions one after the other, as the formatter has them: a blank line before each, but not
    after one whose body is `...`."""
    before = ["", *texts]
    return "".join(
        text if last.endswith("...\n") else f"\n{text}"
        for last, text in zip(before, texts, strict=False)
    )


def _class(made: Any, members: str) -> str:
    own = inspect.signature(made.__init__)
    header = textwrap.indent(_header("__init__", own), "    ")
    base = made.__mro__[1].__name__
    return f"class {made.__name__}({base}):\n{_docstring(made)}\n{members}{header}: ...\n"


def _kept(module: type[LossModule]) -> str:
    """Attributes of a module: its options, and what every loss takes."""
    loss, linear = module.specification, "Linear" in module.__mro__[1].__name__
    made = ""
    for option in loss.options:
        kind = "Tensor" if option is loss.threshold else annotation_of(option, loss, linear)
        made += f"    {option.name}: {kind}\n"
    for name, kind in Reduction.__annotations__.items():
        if name != "weight":
            made += f"    {name}: {kind.__forward_arg__}\n"
    return made


def _numbers(loss: Loss) -> str:
    return "".join(
        f"    {option.name}: float\n" for option in loss.options if option is not loss.threshold
    )


def main() -> None:
    for path, text in stubs(LOSSES.values()).items():
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
