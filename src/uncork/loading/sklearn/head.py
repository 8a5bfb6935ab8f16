"""The head of a scikit-learn classifier, whether it is a live object or a skops file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uncork.core.errors import UncorkError
from uncork.domain import Ball, Box, Domain
from uncork.loading.contents import (
    AmbiguousError,
    Choice,
    Contents,
    FoundDomain,
    Tensor,
    Vocabulary,
    listing,
)
from uncork.loading.decisions import MULTI_LABEL

# Weight and bias of the classifiers whose prediction is the argmax of W x + b.
_LINEAR = {
    **dict.fromkeys(
        (
            "LogisticRegression", "LogisticRegressionCV", "LinearSVC", "SGDClassifier",
            "RidgeClassifier", "RidgeClassifierCV", "Perceptron", "PassiveAggressiveClassifier",
            "LinearDiscriminantAnalysis",
        ),
        ("coef_", "intercept_"),
    ),
    "MultinomialNB": ("feature_log_prob_", "class_log_prior_"),
    "ComplementNB": ("feature_log_prob_", None),
}  # fmt: skip
_SEARCHES = ("GridSearchCV", "RandomizedSearchCV", "HalvingGridSearchCV", "HalvingRandomSearchCV")
_REFUSED = {
    "CalibratedClassifierCV": "calibration bends each class's score by a curve of its own, so the "
    "argmax is no longer that of a linear map: load the estimator inside it",
    "SVC": "it votes over pairs of classes: use LinearSVC, or load one of its pairs by hand",
    "NuSVC": "it votes over pairs of classes: use LinearSVC, or load one of its pairs by hand",
    "ClassifierChain": "it has several outputs, each a classifier of its own: load one of its "
    "estimators_",
    "OneVsOneClassifier": "it votes over pairs of classes: there is no single linear map",
}
# They hold one classifier for each of their labels.
_ONE_EACH = ("OneVsRestClassifier", "MultiOutputClassifier")
_ACTIVATIONS: dict[str, Domain] = {
    "relu": Box(0, np.inf), "tanh": Box(-1, 1), "logistic": Box(0, 1),
}  # fmt: skip
_SELECTORS = (  # they drop features and leave the others as they are
    "SelectKBest", "SelectPercentile", "SelectFdr", "SelectFpr", "SelectFwe", "SelectFromModel",
    "VarianceThreshold", "RFE", "RFECV", "SequentialFeatureSelector",
)  # fmt: skip


@dataclass(frozen=True)
class Estimator:
    """A scikit-learn object by the name of its class and its attributes.

    `get(name)` is an attribute as a Tensor, text, a number, a list of these, another Estimator, or
    None where there is none; `arrays` are the names of those that are tensors or lists of them.
    """

    kind: str
    get: Callable[[str], Any]
    arrays: tuple[str, ...]


def contents_of(path: Path, form: str, estimator: Estimator) -> Contents:
    """The contents of a classifier, or of the pipeline or search around one."""
    model, before = _innermost(path, estimator)
    tensors: dict[str, Tensor] = {}
    for name in model.arrays:
        value = model.get(name)
        parts = {f"{name}.{k}": part for k, part in enumerate(value)} if isinstance(value, list) \
            else {name: value}  # fmt: skip
        for key, part in parts.items():
            if isinstance(part, Tensor):
                tensors[key] = Tensor(key, part.shape, part.dtype, part.read)
    if model.kind in _ONE_EACH:
        tensors |= _stacked(path, model)
    choose = functools.partial(_choose, path, model, tensors)
    return Contents(
        path,
        form,
        tensors,
        choose,
        around=functools.partial(_around, choose, model, tensors),
        vocabulary=functools.partial(_vocabulary, model),
        domain=functools.partial(_domain, model, before),
    )


def _innermost(path: Path, estimator: Estimator) -> tuple[Estimator, list[Estimator]]:
    """The classifier at the end of pipelines and searches, and the steps before it in order."""
    before: list[Estimator] = []
    for _ in range(20):
        if estimator.kind in _SEARCHES:
            inner = estimator.get("best_estimator_")
            if not isinstance(inner, Estimator):
                raise UncorkError(f"{path}: {estimator.kind} is not fitted: call fit first")
        elif estimator.kind == "Pipeline":
            steps = estimator.get("steps")
            steps = [step[-1] for step in steps if isinstance(step, list) and step] \
                if isinstance(steps, list) else []  # fmt: skip
            steps = [step for step in steps if isinstance(step, Estimator)]  # not "passthrough"
            if not steps:
                raise UncorkError(f"{path}: the pipeline has no steps")
            before += steps[:-1]
            inner = steps[-1]
        else:
            return estimator, before
        estimator = inner
    raise UncorkError(f"{path}: pipelines are nested more than 20 deep")


def _choose(path: Path, model: Estimator, tensors: Mapping[str, Tensor]) -> Choice:
    if model.kind in _REFUSED:
        raise UncorkError(f"{path}: {model.kind} is not read: {_REFUSED[model.kind]}")
    if model.kind == "MLPClassifier":
        return _network(path, model, tensors)
    if model.kind in _ONE_EACH:
        return _one_each(model, tensors)
    if model.kind not in _LINEAR:
        raise AmbiguousError(
            f"{path}: {model.kind} is not known to predict by the argmax of a linear map; it has "
            f"{listing(tensors.values())}: if one of them is a head, name it with --weight"
        )
    weight_name, bias_name = _LINEAR[model.kind]
    matrix, bias = _array(tensors, weight_name), _array(tensors, bias_name)
    if matrix is None:
        raise UncorkError(f"{path}: {model.kind} is not fitted (it has no {weight_name}): call fit")
    if matrix.ndim == 1:
        matrix = matrix.reshape(1, -1)
    constant = model.get(bias_name) if bias is None and bias_name is not None else None
    if isinstance(constant, int | float):  # without an intercept some keep a single 0.0
        bias = np.array([float(constant)])
    if bias is not None and bias.size == 1:
        bias = np.full(max(1, matrix.shape[0]), bias.reshape(-1)[0])
    why = f"{weight_name} of {model.kind}"
    used = bias_name if bias is not None else None
    return _rows(path, model, matrix, bias, weight_name, used, why)


def _stacked(path: Path, model: Estimator) -> dict[str, Tensor]:
    """The rows of classifiers that tell one label from the rest, one below the other."""
    inner = model.get("estimators_")
    if not isinstance(inner, list) or not inner:
        raise UncorkError(f"{path}: {model.kind} is not fitted (it has no estimators_): call fit")
    rows, biases = [], []
    for k, estimator in enumerate(inner):
        kind = estimator.kind if isinstance(estimator, Estimator) else "nothing"
        names = _LINEAR.get(kind)
        row = estimator.get("coef_") if names == ("coef_", "intercept_") else None
        if not isinstance(row, Tensor) or 1 not in (len(row.shape), row.shape[0]):
            raise UncorkError(
                f"{path}: estimators_[{k}] of {model.kind} is {kind}, not a linear classifier of "
                "one label: there is no row for it"
            )
        bias = estimator.get("intercept_")
        value = bias.read().reshape(-1) if isinstance(bias, Tensor) else np.array([bias or 0.0])
        rows.append(row.read().reshape(-1))
        biases.append(float(value[0]))
    weight, bias_row = np.array(rows), np.array(biases)
    return {
        name: Tensor(name, array.shape, str(array.dtype), functools.partial(np.asarray, array))
        for name, array in (("estimators_.coef_", weight), ("estimators_.intercept_", bias_row))
    }


def _one_each(model: Estimator, tensors: Mapping[str, Tensor]) -> Choice:
    names = "estimators_.coef_", "estimators_.intercept_"
    binarizer = model.get("label_binarizer_")
    kind = binarizer.get("y_type_") if isinstance(binarizer, Estimator) else "multilabel"
    several = isinstance(kind, str) and kind.startswith("multilabel")
    return Choice(
        tensors[names[0]].read(), tensors[names[1]].read(), *names,
        f"one row for each of the classifiers in {model.kind}",
        notes=(MULTI_LABEL,) if several else (),
    )  # fmt: skip


def _network(path: Path, model: Estimator, tensors: Mapping[str, Tensor]) -> Choice:
    layers = model.get("coefs_")
    if not isinstance(layers, list) or not layers:
        raise UncorkError(f"{path}: {model.kind} is not fitted (it has no coefs_): call fit")
    last = len(layers) - 1
    names = f"coefs_.{last}", f"intercepts_.{last}"
    matrix, bias = _array(tensors, names[0]), _array(tensors, names[1])
    if matrix is None or matrix.ndim != 2:
        raise UncorkError(f"{path}: {model.kind} has no readable {names[0]}")
    why = f"the last layer of {model.kind}, classes are its columns"
    bias_name = None if bias is None else names[1]
    return _rows(path, model, matrix.T, bias, names[0], bias_name, why)


def _rows(
    path: Path,
    model: Estimator,
    matrix: np.ndarray,
    bias: np.ndarray | None,
    weight_name: str,
    bias_name: str | None,
    why: str,
) -> Choice:
    """The head, with two rows where scikit-learn keeps one for two classes."""
    classes = model.get("_label_binarizer")
    kind = classes.get("y_type_") if isinstance(classes, Estimator) else None
    logistic = model.get("out_activation_") == "logistic" and matrix.shape[0] > 1
    if logistic or (isinstance(kind, str) and kind.startswith("multilabel")):
        return Choice(matrix, bias, weight_name, bias_name, why, notes=(MULTI_LABEL,))
    if matrix.shape[0] == 1:
        matrix = np.concatenate([np.zeros_like(matrix), matrix])
        if bias is not None:
            bias = np.concatenate([np.zeros(1, bias.dtype), bias.reshape(-1)])
        why += (
            "; of two classes scikit-learn keeps one row, and its sign decides: the first class "
            "has a row of zeros, the second that row"
        )
    return Choice(matrix, bias, weight_name, bias_name, why)


def _around(
    choose: Callable[[], Choice], model: Estimator, tensors: Mapping[str, Tensor], name: str
) -> Choice | None:
    if model.kind in ("MLPClassifier", *_ONE_EACH) or _LINEAR.get(model.kind, ("",))[0] == name:
        choice = choose()
        return choice if choice.weight_name == name else None
    return None


def _array(tensors: Mapping[str, Tensor], name: str | None) -> np.ndarray | None:
    tensor = tensors.get(name) if name is not None else None
    return None if tensor is None else tensor.read()


def _vocabulary(model: Estimator, classes: int) -> Vocabulary:
    names = model.get("classes_")
    for binarizer in ("_label_binarizer", "label_binarizer_"):
        if names is None and isinstance(model.get(binarizer), Estimator):
            names = model.get(binarizer).get("classes_")
    if isinstance(names, Tensor) and len(names.shape) == 1:
        names = names.read().tolist()
    if not isinstance(names, list) or len(names) != classes:
        return Vocabulary()
    return Vocabulary(tuple(str(name) for name in names), "classes_")


def _domain(model: Estimator, before: list[Estimator], choice: Choice) -> FoundDomain | None:
    if model.kind == "MLPClassifier":
        layers, activation = model.get("coefs_"), model.get("activation")
        if isinstance(layers, list) and len(layers) > 1 and activation in _ACTIVATIONS:
            why = f"the hidden layers of {model.kind} end in {activation}"
            return FoundDomain(_ACTIVATIONS[activation], why)
        if isinstance(layers, list) and len(layers) > 1:
            return None
    for step in reversed(before):
        if step.kind in _SELECTORS:
            continue
        domain = _range(step)
        if domain is None:
            return None
        assumed = ""
        if step.kind == "TfidfTransformer":
            assumed = "that the counts it is given are not negative"
        return FoundDomain(domain, f"{step.kind} precedes the classifier", assumed)
    return None


def _range(step: Estimator) -> Domain | None:
    """What a transformer can hand on, None where that depends on the data."""
    norm = step.get("norm")
    if step.kind in ("Binarizer", "OneHotEncoder"):
        return Box(0, 1)
    if step.kind == "Normalizer":
        return Ball(1) if norm == "l2" else Box(1)
    if step.kind == "HashingVectorizer" and step.get("alternate_sign") is True:
        return Ball(1) if norm == "l2" else Box(1) if norm == "l1" else None
    if step.kind in ("TfidfVectorizer", "TfidfTransformer", "HashingVectorizer"):
        return Box(0, 1) if norm in ("l1", "l2") else Box(0, np.inf)
    if step.kind == "CountVectorizer":
        return Box(0, 1) if step.get("binary") is True else Box(0, np.inf)
    if step.kind == "MinMaxScaler" and step.get("clip") is True:
        sides = step.get("feature_range")
        if isinstance(sides, list) and len(sides) == 2:
            return Box(float(sides[0]), float(sides[1]))
    return None
