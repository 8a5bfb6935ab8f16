"""Kaldi's acoustic models of nnet3: the output layer, priors as its bias, states as its labels."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np

from uncork.core.errors import UncorkError
from uncork.core.text import printable
from uncork.loading.arriving.known import found_by
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    UnknownDomain,
    Vocabulary,
)
from uncork.loading.kaldi.domain import Matrix, arriving, matrix_of
from uncork.loading.kaldi.nnet import Component, Network, Node, read_network

_OUTPUT = "output"  # the node that decoders ask for
_SAME = ("LogSoftmaxComponent", "SoftmaxComponent", "NoOpComponent", "DropoutComponent",
         "GeneralDropoutComponent")  # fmt: skip
_MOST_STEPS = 16
_MOST_PHONES = 16 << 20
_SHOWN = 3
_PRIORS = "priors"
# Where lists of phones lie, from the folder of the model.
_PHONES = ("phones.txt", "graph/phones.txt", "../graph/phones.txt", "../phones.txt",
           "../lang/phones.txt")  # fmt: skip
_SEARCH = (
    "the classes are pdfs of states (senones), scored for each frame; decoders search for a path "
    "through a graph with these scores, so that a class that never comes first can still lie on it"
)


def read_kaldi(path: Path) -> Contents:
    """A .mdl or .raw file, or the folder of a model for Vosk."""
    file = path
    if path.is_dir():
        file = next(
            (one for one in (path / "am" / "final.mdl", path / "final.mdl") if one.is_file()), path
        )
        if file is path:
            raise UncorkError(f"{path} holds no final.mdl: give the model's file")
    network = read_network(file)
    tensors = {}
    for name, component in network.components.items():
        for key, array in component.fields.items():
            if hasattr(array, "shape") and array.shape and 0 not in array.shape:
                called = _called(name, key)
                tensors[called] = Tensor(called, array.shape, array.dtype, array.read)
    if network.priors is not None:
        tensors[_PRIORS] = Tensor(
            _PRIORS, network.priors.shape, network.priors.dtype, network.priors.read
        )
    return Contents(
        path,
        "kaldi",
        tensors,
        functools.partial(_choose, network),
        functools.partial(_around, network),
        vocabulary=functools.partial(_vocabulary, network, file.parent),
        domain=functools.partial(_domain, network),
    )


def _called(component: str, field: str) -> str:
    """A parameter's name: of linear layers as elsewhere, of others as Kaldi has it."""
    ends = {"<LinearParams>": "weight", "<Params>": "weight", "<BiasParams>": "bias"}
    return f"{component}.{ends.get(field, field.strip('<>'))}"


def _head(network: Network, output: Node) -> tuple[Node, list[tuple[Node, Component]]]:
    """The linear node behind an output, and what lies between them."""
    between: list[tuple[Node, Component]] = []
    node = network.before(output)
    for _ in range(_MOST_STEPS):
        component = None if node is None else network.component(node)
        if node is None or component is None:
            break
        if matrix_of(component) is not None:
            return node, between
        if component.kind not in (*_SAME, "FixedScaleComponent", "FixedBiasComponent"):
            break
        between.append((node, component))
        node = network.before(node)
    came = output.input if node is None else node.name
    raise AmbiguousError(
        f"{network.path}: output {printable(output.name)!r} does not come from one linear layer "
        f"(it comes from {printable(came)[:80]}): name a weight with --weight"
    )


def _choose(network: Network) -> Choice:
    outputs = network.outputs()
    if not outputs:
        raise UncorkError(f"{network.path} is damaged: the network has no output")
    named = [node for node in outputs if node.name == _OUTPUT]
    if not named and len(outputs) > 1:
        weights = [_called(_head(network, one)[0].component, "<Params>") for one in outputs]
        raise AmbiguousError(
            f"{network.path} has {len(outputs)} outputs and none is called {_OUTPUT!r}: name one "
            f"of their weights with --weight: {', '.join(map(printable, weights[:8]))}"
        )
    output = named[0] if named else outputs[0]
    head, between = _head(network, output)
    others = [printable(one.name) for one in outputs if one is not output]
    notes = []
    if others:
        notes.append(
            f"output {output.name!r} is the one that decoders use; there are also "
            f"{', '.join(others[:8])}, for training: name their weight with --weight"
        )
    why = f"the last linear layer before output {printable(output.name)!r}"
    return _choice(network, head, between, why, notes, with_priors=output.name == _OUTPUT)


def _around(network: Network, name: str) -> Choice | None:
    """The head of a linear component, as an output uses it where one does."""
    for output in network.outputs():
        try:
            head, between = _head(network, output)
        except AmbiguousError:
            continue
        if _called(head.component, "<Params>") == name:
            why = f"the last linear layer before output {printable(output.name)!r}"
            used = output.name == _OUTPUT or len(network.outputs()) == 1
            return _choice(network, head, between, why, [], with_priors=used)
    for node in network.nodes.values():
        component = network.component(node)
        if component is None or _called(node.component, "<Params>") != name:
            continue
        if matrix_of(component) is not None:
            why = f"a {printable(component.kind)[:40]} inside the network"
            return _choice(network, node, [], why, [], with_priors=False)
    return None


def _choice(
    network: Network,
    head: Node,
    between: list[tuple[Node, Component]],
    why: str,
    notes: list[str],
    with_priors: bool,
) -> Choice:
    linear = matrix_of(network.components[head.component])
    assert linear is not None
    weight, bias = linear.weight, linear.bias
    bias_name = None if bias is None else _called(head.component, "<BiasParams>")
    folded: list[str] = []
    for node, component in reversed(between):
        weight, bias = _folded(network, node, component, weight, bias, folded)
    if between or with_priors:
        notes = [*notes, _SEARCH]
    if linear.frames > 1:
        notes.append(
            f"the layer takes {linear.frames} frames, one beside the other, as its features"
        )
    if network.written_out:
        notes.append(
            "the file has its numbers written out: they are rounded to float32, as Kaldi does"
        )
    if with_priors and network.priors is not None:
        bias = _less_priors(network, bias, len(weight))
        bias_name = bias_name or _PRIORS
        folded.append(
            "the logarithms of the priors are subtracted from the bias (in float64), as decoders "
            "do: the question is which class has the highest likelihood, not the highest "
            "posterior; for that one give --bias with the layer's own"
        )
    return Choice(
        weight, bias, _called(head.component, "<Params>"), bias_name, why, tuple(notes),
        folded=tuple(folded), bias_settled=True,
    )  # fmt: skip


def _folded(
    network: Network,
    node: Node,
    component: Component,
    weight: np.ndarray,
    bias: np.ndarray | None,
    folded: list[str],
) -> tuple[np.ndarray, np.ndarray | None]:
    """A scale or an offset for each class that follows the layer, worked into it."""
    key = {"FixedScaleComponent": "<Scales>", "FixedBiasComponent": "<Bias>"}.get(component.kind)
    if key is None:
        return weight, bias
    stored = component.array(key, 1)
    if stored is None or stored.shape != weight.shape[:1]:
        raise UncorkError(
            f"{network.path} is damaged: {printable(node.name)} does not fit its input"
        )
    values = stored.read().astype(np.float64)
    folded.append(f"{printable(node.name)}, a number for each class, is part of weight and bias")
    if component.kind == "FixedScaleComponent":
        # float32 × float32 is exact in float64.
        return weight.astype(np.float64) * values[:, None], (
            None if bias is None else bias.astype(np.float64) * values
        )
    return weight, values if bias is None else bias.astype(np.float64) + values


def _less_priors(network: Network, bias: np.ndarray | None, classes: int) -> np.ndarray:
    assert network.priors is not None
    priors = network.priors.read().astype(np.float64)
    if priors.shape != (classes,) or not (priors > 0).all() or not np.isfinite(priors).all():
        raise UncorkError(
            f"{network.path}: the {priors.size} priors are not positive numbers for {classes} "
            "classes: damaged"
        )
    return (0.0 if bias is None else bias.astype(np.float64)) - np.log(priors)


def _vocabulary(network: Network, folder: Path, classes: int) -> Vocabulary:
    """Each pdf by the phones whose states have it."""
    if not network.states:
        return Vocabulary(None, "there is no transition model in the file that says what they are")
    if max(max(one[2:]) for one in network.states) >= classes or (
        min(min(one[2:]) for one in network.states) < 0
    ):
        return Vocabulary(None, f"the transition model has other pdfs than the {classes} classes")
    names, source = _phones(folder)
    users: list[dict[str, None]] = [{} for _ in range(classes)]
    many = any(state for _, state, _, _ in network.states)
    for phone, state, pdf, loop in network.states:
        name = names.get(phone, f"phone {phone}") + (f".{state}" if many else "")
        users[pdf][name] = None
        if loop != pdf:
            users[loop][f"{name} (loop)"] = None
    labels = []
    for pdf, used in enumerate(users):
        shown = " ".join(list(used)[:_SHOWN]) + (" …" if len(used) > _SHOWN else "")
        labels.append(f"{pdf}: {shown}" if used else f"{pdf}: no phone")
    unused = tuple(pdf for pdf, used in enumerate(users) if not used)
    return Vocabulary(tuple(labels), f"the transition model{source}", unused=unused)


def _phones(folder: Path) -> tuple[dict[int, str], str]:
    """Phones by number, from the list of symbols that lies beside models."""
    for name in _PHONES:
        path = folder / name
        if not path.is_file() or path.stat().st_size > _MOST_PHONES:
            continue
        found = {}
        for line in path.read_text("utf-8", "backslashreplace").splitlines():
            symbol, _, number = line.strip().rpartition(" ")
            if symbol and number.isdecimal() and len(number) < 10:
                found[int(number)] = symbol.strip()
        if found:
            return found, f" and {Path(name).name}"
    return {}, ""


def _domain(network: Network, choice: Choice) -> FoundDomain | UnknownDomain | None:
    for node in network.nodes.values():
        component = network.component(node)
        if component is None or _called(node.component, "<Params>") != choice.weight_name:
            continue
        linear: Matrix | None = matrix_of(component)
        if linear is not None:
            frames, features = linear.frames, linear.weight.shape[1]
            return found_by(lambda: arriving(network, node, frames, features))  # noqa: B023
    return None
