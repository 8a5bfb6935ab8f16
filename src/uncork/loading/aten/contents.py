"""What a reader hands back of a program of torch's operators."""

from __future__ import annotations

from dataclasses import replace

from uncork.core.errors import UncorkError
from uncork.loading.aten.operators import Translation
from uncork.loading.aten.program import Program
from uncork.loading.contents import Choice, Contents, FoundDomain, UnknownDomain
from uncork.loading.onnx.file import OnnxModel
from uncork.loading.vocabulary import find_vocabulary


def contents_of_program(program: Program, form: str, assumed: str) -> Contents:
    """The constants of a program, the head that its outputs come from, and what precedes it."""
    if not program.operations or not program.outputs:
        raise UncorkError(f"{program.path} holds a program without operators or outputs: damaged")
    translation = Translation(program)
    model = OnnxModel(program.path, translation.draft)
    tensors = model.constants.tensors()
    for name, folded in translation.folded.items():
        if folded and name in tensors:
            tensors[name] = replace(tensors[name], folded=folded)

    def domain(choice: Choice) -> FoundDomain | UnknownDomain | None:
        found = model.domain(choice)
        if not isinstance(found, FoundDomain):
            return found
        return replace(found, assumed="; ".join(filter(None, (found.assumed, assumed))))

    def around(name: str) -> Choice | None:
        found = model.around(name)
        return None if found is None else replace(found, bias_settled=True)

    return Contents(
        program.path,
        form,
        tensors,
        lambda: replace(model.choose(), bias_settled=True),
        around,
        lambda classes: find_vocabulary(program.path.parent, classes),
        domain,
    )
