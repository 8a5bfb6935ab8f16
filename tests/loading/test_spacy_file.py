"""spaCy: scores, labels and ranges are those of the library's own components, and of a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy

from models import CZECH_TAGGER
from uncork import UncorkError, audit
from uncork.domain import Box, LayerNorm
from uncork.loading import describe, find, load
from uncork.loading.contents import AmbiguousError

TEXT = "The old man saw a dog near London . He gave it two apples yesterday ."
COMPONENTS = ("tagger", "morphologizer", "parser", "ner", "senter", "trainable_lemmatizer",
              "spancat_singlelabel", "textcat_one", "textcat_many")  # fmt: skip
_CNN = {"@architectures": "spacy.TextCatReduce.v1", "use_reduce_first": True,
        "use_reduce_last": False, "use_reduce_max": True, "use_reduce_mean": True,
        "tok2vec": {"@architectures": "spacy.Tok2VecListener.v1", "width": 16,
                    "upstream": "*"}}  # fmt: skip
_TOK2VEC = {"@architectures": "spacy.HashEmbedCNN.v2", "width": 16, "depth": 2, "embed_size": 50,
            "window_size": 1, "maxout_pieces": 3, "subword_features": True,
            "pretrained_vectors": None}  # fmt: skip


def _listening(name: str) -> dict[str, Any]:
    listener = _CNN["tok2vec"]
    if name in ("parser", "ner"):
        return {"model": {"@architectures": "spacy.TransitionBasedParser.v2", "state_type": name,
                          "extra_state_tokens": False, "hidden_width": 12, "maxout_pieces": 2,
                          "use_upper": True, "tok2vec": listener}}  # fmt: skip
    if name == "senter":  # with layers of its own
        return {"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": _TOK2VEC}}
    if name == "spancat_singlelabel":
        return {"model": {"@architectures": "spacy.SpanCategorizer.v1", "tok2vec": listener,
                          "reducer": {"@layers": "spacy.mean_max_reducer.v1", "hidden_size": 8},
                          "scorer": {"@layers": "Softmax.v2", "nO": None, "nI": None}}}  # fmt: skip
    if name == "textcat_one":
        return {"model": {**_CNN, "exclusive_classes": True}}
    if name == "textcat_many":
        return {"model": {**_CNN, "exclusive_classes": False}}
    tagger = {"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": listener}}
    return tagger | ({"min_tree_freq": 1} if name == "trainable_lemmatizer" else {})


@pytest.fixture(scope="module")
def nlp() -> Any:
    """A pipeline with a component of each kind, its output layers filled at random."""
    from spacy.training import Example

    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": _TOK2VEC})
    for name in COMPONENTS:
        factory = {"textcat_one": "textcat", "textcat_many": "textcat_multilabel"}.get(name, name)
        nlp.add_pipe(factory, name=name, config=_listening(name))
    doc = spacy.blank("en")(TEXT)
    words = len(doc)
    doc.ents = [spacy.tokens.Span(doc, 7, 8, "GPE"), spacy.tokens.Span(doc, 13, 14, "CARDINAL")]
    example = Example.from_dict(doc, {
        "tags": ["DT", "JJ", "NN", "VB"] * 4, "pos": ["DET", "ADJ", "NOUN", "VERB"] * 4,
        "morphs": ["", "Degree=Pos", "Number=Sing", "Tense=Past"] * 4,
        "heads": [2, 2, 3, 3, 5, 3, 3, 6, 3, 10, 10, 10, 13, 10, 10, 10][:words],
        "deps": ["det", "amod", "nsubj", "ROOT", "det", "obj", "prep", "pobj", "punct", "nsubj",
                 "ROOT", "iobj", "nummod", "obj", "advmod", "punct"],
        "sent_starts": [1, *[0] * 8, 1, *[0] * 6], "lemmas": [t.text.lower()[:3] for t in doc],
        "spans": {"sc": [(0, 11, "PERSON"), (16, 21, "PET")]},
        "cats": {"good": 1.0, "bad": 0.0, "odd": 0.0},
    })  # fmt: skip
    nlp.initialize(lambda: [example])
    rng = np.random.default_rng(3)
    for layer in (node for name in COMPONENTS for node in nlp.get_pipe(name).model.walk()):
        if layer.name in ("softmax", "linear"):
            for key in ("W", "b"):
                shape = layer.get_param(key).shape
                layer.set_param(key, rng.normal(size=shape).astype(np.float32))
    return nlp


@pytest.fixture(scope="module")
def pipeline(nlp: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = Path(tmp_path_factory.mktemp("spacy"), "en_made-1.0")
    nlp.to_disk(path)
    return path


@pytest.fixture(scope="module")
def doc(nlp: Any) -> Any:
    """A text with what the shared component says of its words."""
    return nlp.get_pipe("tok2vec")(nlp.make_doc("A cat saw two old apples in Paris . It slept ."))


def scored(nlp: Any, name: str, doc: Any) -> tuple[np.ndarray, np.ndarray]:
    """What arrives at a component's output layer and what leaves it, by the library itself."""
    pipe = nlp.get_pipe(name)
    if name in ("parser", "ner"):
        step = pipe.model.predict([doc])
        states = pipe.moves.init_batch([doc])
        given, found = [], []
        while states:
            tokens = step.get_token_ids(states)
            given.append(step.state2vec(tokens, False)[0])
            found.append(step.predict(states))
            pipe.transition_states(states, found[-1])
            states = [state for state in states if not state.is_final()]
        return np.concatenate(given), np.concatenate(found)
    seen: list[np.ndarray] = []
    output = next(
        node for node in pipe.model.walk() if node.name in ("softmax", "linear")
    )  # fmt: skip
    forward = output._func

    def watched(model: Any, x: Any, is_train: bool) -> Any:
        seen.append(np.array(x))
        y, back = forward(model, x, is_train)
        seen.append(np.array(y))
        return y, back

    output._func = watched
    try:
        if name.startswith("spancat"):
            pipe.model.predict(([doc], pipe.suggester([doc], ops=pipe.model.ops)))
        else:
            pipe.model.predict([doc])
    finally:
        output._func = forward
    return seen[0], seen[1]


@pytest.mark.parametrize("name", COMPONENTS)
def test_scores_are_the_components_own_and_inputs_lie_in_the_domain(
    name: str, nlp: Any, doc: Any, pipeline: Path
) -> None:
    head = load(pipeline / name, domain="auto")
    given, found = scored(nlp, name, doc)
    logits = given @ head.weight.T + head.bias
    if head.weight.shape[0] > 1 and np.allclose(found.sum(axis=1), 1, atol=1e-4):
        logits -= logits.max(axis=1, keepdims=True)
        logits = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(logits, found, rtol=1e-4, atol=1e-5)
    assert head.domain.contains(given.astype(np.float64), 1e-6).all()


@pytest.mark.parametrize("name", COMPONENTS)
def test_labels_are_the_components_own(name: str, nlp: Any, pipeline: Path) -> None:
    pipe, labels = nlp.get_pipe(name), load(pipeline / name).labels
    if name in ("parser", "ner"):
        moves = pipe.moves
        assert list(labels) == [moves.get_class_name(n) for n in range(moves.n_moves)]
    elif name == "trainable_lemmatizer":
        assert list(labels) == [f"edit tree {n}" for n in pipe.labels]
    elif name == "spancat_singlelabel":
        assert list(labels) == [*pipe.labels, "<no label>"]
    else:
        assert list(labels) == list(pipe.labels)


def test_a_pipeline_of_several_heads_asks_for_one(pipeline: Path) -> None:
    with pytest.raises(AmbiguousError, match=r"a pipeline with 9 heads.*tagger/softmax\.W"):
        load(pipeline)
    assert "--weight" in describe(pipeline).problem
    found = find(pipeline, weight="tagger/softmax.W")
    assert found.head.labels == load(pipeline / "tagger").labels
    np.testing.assert_array_equal(found.head.weight, load(pipeline / "tagger" / "model").weight)
    assert found.bias_name == "tagger/softmax.b"


def test_what_precedes_the_head_is_followed_to_the_shared_component(pipeline: Path) -> None:
    shown = find(pipeline / "tagger", domain="auto").shown_domain
    assert shown is not None
    assert isinstance(shown.domain, Box)
    assert "layernorm with residual connections of tok2vec" in shown.why
    assert "tok2vec runs before it" in shown.assumed
    spans = find(pipeline / "spancat_singlelabel", domain="auto").shown_domain
    assert spans is not None
    assert isinstance(spans.domain, LayerNorm)


def test_a_component_alone_is_read_without_what_it_listens_to(
    pipeline: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "model"
    alone.write_bytes((pipeline / "tagger" / "model").read_bytes())
    found = find(alone, domain="auto")
    assert found.head.labels is None
    assert found.shown_domain is None
    assert "what it listens to is not said beside it" in found.domain_from


def test_moves_and_labels_that_compete_otherwise_are_said(pipeline: Path) -> None:
    assert "the moves of a transition system" in " ".join(load(pipeline / "ner").reading.notes)
    assert "multi-label" in " ".join(load(pipeline / "textcat_many").reading.notes)
    assert "multi-label" not in " ".join(load(pipeline / "textcat_one").reading.notes)


def test_a_model_of_thincs_without_spacy(tmp_path: Path) -> None:
    thinc_model(tmp_path / "a.thinc")
    found = find(tmp_path / "a.thinc", domain="auto")
    assert found.head.weight.shape == (6, 4)
    assert found.head.domain == Box(0, np.inf)
    assert audit(found.head).counts["undecided"] == 0


def test_a_parser_without_an_upper_layer_is_refused(tmp_path: Path, pipeline: Path) -> None:
    data = (pipeline / "ner" / "model").read_bytes()
    lower = data.replace(b"\xa9has_upper\xc4\x01\xc3", b"\xa9has_upper\xc4\x01\xc2")
    assert lower != data
    (tmp_path / "model").write_bytes(lower)
    with pytest.raises(AmbiguousError, match="use_upper = false"):
        load(tmp_path / "model")


def test_a_model_whose_tree_is_not_known_is_read_with_a_doubt(
    tmp_path: Path, pipeline: Path
) -> None:
    data = (pipeline / "tagger" / "model").read_bytes()
    broken = data.replace(b"\xb3with_array(softmax)", b"\xb3other_name_of_layer")
    assert broken != data
    (tmp_path / "model").write_bytes(broken)
    found = find(tmp_path / "model", domain="auto")
    np.testing.assert_array_equal(found.head.weight, load(pipeline / "tagger").weight)
    assert "does not show how its layers" in " ".join(found.head.reading.doubts)
    assert found.shown_domain is None


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("cfg", lambda data: b"[1]", "expected a JSON table"),
        ("cfg", lambda data: data[:-20], "damaged"),
        ("model", lambda data: data[:300], "truncated or damaged"),
        ("model", lambda data: data + b"\0", "bytes are left"),
        ("model", lambda data: data.replace(b"\xa5nodes", b"\xa5modes"), "not a model"),
        ("model", lambda data: data.replace(b"<f4", b"|O8"), "which is not read"),
    ],
)
def test_damage_is_named(
    name: str, change: Any, message: str, pipeline: Path, tmp_path: Path
) -> None:
    for one in ("cfg", "model"):
        (tmp_path / one).write_bytes((pipeline / "tagger" / one).read_bytes())
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UncorkError, match=message):
        load(tmp_path)


def test_labels_of_another_number_are_not_used(pipeline: Path, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes((pipeline / "tagger" / "model").read_bytes())
    (tmp_path / "cfg").write_text(json.dumps({"labels": ["a", "b"]}))
    found = find(tmp_path)
    assert found.head.labels is None
    assert "names 2 for 4 classes" in " ".join(found.notes)


@pytest.mark.parametrize("name", ["", "../other", "/etc", "a\\b"])
def test_a_components_name_does_not_lead_out_of_its_pipeline(name: str, tmp_path: Path) -> None:
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "config.cfg").write_text(f'[components.{name}]\nfactory = "x"\n')
    with pytest.raises(UncorkError, match="a component is called"):
        load(tmp_path)


def test_the_package_around_a_pipeline_names_the_folder_inside(
    pipeline: Path, tmp_path: Path
) -> None:
    (tmp_path / "meta.json").write_text("{}")
    (tmp_path / "en_made-1.0").symlink_to(pipeline)
    with pytest.raises(UncorkError, match=r"give the folder en_made-1\.0 inside"):
        load(tmp_path)


def test_a_shipped_czech_tagger_loses_five_classes_and_ties_twelve() -> None:
    found = find(CZECH_TAGGER, domain="auto")
    assert found.head.weight.shape == (2503, 96)
    assert found.head.labels is not None
    assert found.head.labels[0] == "NumType=Mult|POS=ADV"
    for domain in (Box(100), found.head.domain):
        counts = audit(found.head.replace(domain=domain), jobs=1).counts
        assert counts == {"argmaxable": 2486, "unargmaxable": 5, "tied": 12, "undecided": 0}


def thinc_model(path: Path) -> None:
    """A small model by Thinc alone: a ReLU layer and a softmax of six classes."""
    from thinc.api import Relu, Softmax, chain, with_array

    model = with_array(chain(Relu(4, 3), Softmax(6, 4)))
    model.initialize(X=np.zeros((2, 3), np.float32), Y=np.zeros((2, 6), np.float32))
    rng = np.random.default_rng(0)
    softmax = model.layers[0].layers[1]
    softmax.set_param("W", rng.normal(size=(6, 4)).astype(np.float32))
    softmax.set_param("b", np.arange(6, dtype=np.float32))
    model.to_disk(path)


def entity_recogniser(path: Path) -> None:
    """A component's folder; the file to damage is its list of moves."""
    from spacy.training import Example

    nlp = spacy.blank("en")
    nlp.add_pipe("ner", config=_listening("ner") | {"model": {
        **_listening("ner")["model"], "tok2vec": _TOK2VEC, "hidden_width": 4}})  # fmt: skip
    doc = nlp.make_doc("I saw London")
    example = Example.from_dict(doc, {"entities": [(6, 12, "GPE")]})
    nlp.initialize(lambda: [example])
    nlp.get_pipe("ner").to_disk(path.parent)
