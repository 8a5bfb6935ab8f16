"""Live scikit-learn classifiers: the head predicts what the estimator predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import (
    LogisticRegression,
    Perceptron,
    RidgeClassifier,
    SGDClassifier,
)
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import ComplementNB, MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, Normalizer, StandardScaler
from sklearn.svm import SVC, LinearSVC

from uncork import Head, UncorkError
from uncork.domain import Ball, Box
from uncork.loading import find, load
from uncork.loading.decisions import MULTI_LABEL

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(90, 6))
NAMES = np.array(["ant", "bee", "cat", "dog"])
MANY = NAMES[(X[:, :4] + 0.3 * GENERATOR.normal(size=(90, 4))).argmax(axis=1)]
TWO = NAMES[(X[:, 0] > 0).astype(int)]
TEXTS = ["a b b", "b c c", "c d a", "d d e", "e a b", "b b c"] * 3
TOPICS = ["x", "y", "z", "x", "y", "z"] * 3


def predicted(head: Head, inputs: np.ndarray) -> list[str]:
    assert head.labels is not None
    logits = inputs @ head.rows(0, head.classes).T + head.offsets
    return [head.labels[k] for k in logits.argmax(axis=1)]


CLASSIFIERS = {
    "LogisticRegression": LogisticRegression(),
    "LogisticRegression without intercept": LogisticRegression(fit_intercept=False),
    "LinearSVC": LinearSVC(),
    "LinearSVC without intercept": LinearSVC(fit_intercept=False),
    "SGDClassifier": SGDClassifier(random_state=0),
    "RidgeClassifier": RidgeClassifier(),
    "RidgeClassifier without intercept": RidgeClassifier(fit_intercept=False),
    "Perceptron": Perceptron(),
    "LinearDiscriminantAnalysis": LinearDiscriminantAnalysis(),
}


@pytest.mark.parametrize("target", [MANY, TWO], ids=["four classes", "two classes"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_the_head_predicts_what_the_classifier_predicts(name: str, target: np.ndarray) -> None:
    model = CLASSIFIERS[name].fit(X, target)
    head = load(model)
    assert head.labels == tuple(np.unique(target))
    inputs = np.random.default_rng(1).normal(size=(500, 6))
    assert predicted(head, inputs) == model.predict(inputs).tolist()


def test_two_classes_are_a_row_of_zeros_and_the_row_of_scikit_learn() -> None:
    model = LogisticRegression().fit(X, TWO)
    found = find(model)
    np.testing.assert_array_equal(found.head.weight, [np.zeros(6), model.coef_[0]])
    np.testing.assert_array_equal(found.head.bias, [0, model.intercept_[0]])
    assert "one row, and its sign decides" in found.why
    assert load(model, weight="coef_").fingerprint == found.head.fingerprint


@pytest.mark.parametrize("kind", [MultinomialNB, ComplementNB])
def test_naive_bayes_is_linear_in_the_counts(kind: Any) -> None:
    counts = np.random.default_rng(2).poisson(2.0, size=(90, 6))
    model = kind().fit(counts, MANY)
    assert predicted(load(model), counts) == model.predict(counts).tolist()


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(
    ("activation", "domain"),
    [("relu", Box(0, np.inf)), ("tanh", Box(-1, 1)), ("logistic", Box(0, 1)), ("identity", None)],
)
@pytest.mark.parametrize("target", [MANY, TWO], ids=["four classes", "two classes"])
def test_a_network_ends_in_its_last_layer(
    target: np.ndarray, activation: str, domain: Box | None
) -> None:
    model = MLPClassifier((7, 5), activation=activation, max_iter=20, random_state=0)
    model.fit(X, target)
    found = find(model, domain="auto")
    functions = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "logistic": lambda x: 1 / (1 + np.exp(-x)),
        "identity": lambda x: x,
    }
    hidden = X
    for weight, bias in zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True):
        hidden = functions[activation](hidden @ weight + bias)
    assert predicted(found.head, hidden) == model.predict(X).tolist()
    assert (None if found.shown_domain is None else found.shown_domain.domain) == domain
    assert found.head.domain.contains(hidden).all()


def test_a_pipeline_is_its_last_step_and_what_comes_before() -> None:
    model = make_pipeline(StandardScaler(), SelectKBest(k=4), Normalizer(), LogisticRegression())
    model.fit(X, MANY)
    found = find(model, domain="auto")
    inputs = model[:-1].transform(X)
    assert predicted(found.head, inputs) == model.predict(X).tolist()
    assert found.head.domain == Ball(1)
    assert found.head.domain.contains(inputs, 1e-12).all()
    assert "Normalizer precedes the classifier" in found.domain_from


@pytest.mark.parametrize(
    ("steps", "domain"),
    [
        ([MinMaxScaler((-1, 2), clip=True)], Box(-1, 2)),
        ([MinMaxScaler()], None),
        ([StandardScaler()], None),
        ([MinMaxScaler(clip=True), SelectKBest(k=3)], Box(0, 1)),
        ([MinMaxScaler(clip=True), StandardScaler()], None),
    ],
)
def test_ranges_of_transformers(steps: list[Any], domain: Box | None) -> None:
    model = make_pipeline(*steps, LogisticRegression()).fit(X, MANY)
    shown = find(model).shown_domain
    assert (None if shown is None else shown.domain) == domain


@pytest.mark.parametrize(
    ("vectoriser", "domain"),
    [
        (TfidfVectorizer(token_pattern=r"\w"), Box(0, 1)),
        (TfidfVectorizer(token_pattern=r"\w", norm=None), Box(0, np.inf)),
        (CountVectorizer(token_pattern=r"\w"), Box(0, np.inf)),
    ],
)
def test_text_classifiers(vectoriser: Any, domain: Box) -> None:
    model = make_pipeline(vectoriser, LogisticRegression()).fit(TEXTS, TOPICS)
    found = find(model, domain="auto")
    inputs = model[:-1].transform(TEXTS).toarray()
    assert found.head.domain == domain
    assert domain.contains(inputs, 1e-12).all()
    assert predicted(found.head, inputs) == model.predict(TEXTS).tolist()


def test_a_search_is_its_best_estimator_and_passthrough_steps_are_stepped_over() -> None:
    inner = Pipeline([("nothing", "passthrough"), ("last", LogisticRegression())])
    model = GridSearchCV(inner, {"last__C": [0.1, 10.0]}, cv=2).fit(X, MANY)
    assert predicted(load(model), X) == model.predict(X).tolist()


def test_sparse_coefficients_are_read() -> None:
    model = SGDClassifier(penalty="l1", random_state=0).fit(X, MANY)
    dense = model.coef_.copy()
    np.testing.assert_array_equal(load(model.sparsify()).weight, dense)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LogisticRegression(), "not fitted"),
        (MLPClassifier(), "not fitted"),
        (GridSearchCV(LogisticRegression(), {}), "not fitted"),
        (SVC(kernel="linear").fit(X, MANY), "votes over pairs"),
        (CalibratedClassifierCV(LinearSVC(), cv=2).fit(X, MANY), "calibration bends"),
        (RandomForestClassifier(2).fit(X, MANY), "not known to predict by the argmax"),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "get_params") else "",
)
def test_what_is_no_argmax_of_a_linear_map_is_refused(model: Any, message: str) -> None:
    with pytest.raises(UncorkError, match=message) as raised:
        load(model)
    assert "\n" not in str(raised.value)


SEVERAL = X[:, :3] > 0


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(
    "model",
    [
        MLPClassifier((3,), max_iter=2),
        RidgeClassifier(),
        OneVsRestClassifier(LogisticRegression()),
        OneVsRestClassifier(LinearSVC()),
        MultiOutputClassifier(LogisticRegression()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_classifier_of_several_labels_is_read_and_said_to_be_one(model: Any) -> None:
    head = load(model.fit(X, SEVERAL))
    assert head.classes == 3
    assert head.reading is not None
    assert MULTI_LABEL in head.reading.notes
    if hasattr(model, "coefs_"):
        return  # its inputs are those of a hidden layer
    z = X @ head.weight.T + head.offsets
    np.testing.assert_array_equal(z > 0, model.predict(X).astype(bool))


def test_one_classifier_against_the_rest_is_an_argmax_too() -> None:
    model = OneVsRestClassifier(LinearSVC()).fit(X, MANY)
    head = load(model)
    assert head.reading is not None
    assert MULTI_LABEL not in head.reading.notes
    best = (X @ head.weight.T + head.offsets).argmax(axis=1)
    np.testing.assert_array_equal(model.classes_[best], model.predict(X))


def test_classifiers_of_one_label_that_are_not_linear_are_refused() -> None:
    model = OneVsRestClassifier(RandomForestClassifier(2)).fit(X, SEVERAL)
    with pytest.raises(UncorkError, match="not a linear classifier of one label"):
        load(model)
