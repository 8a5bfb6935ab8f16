"""Marian and Nematus: the head by their own naming, and what precedes it by their options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from uncork import Box, UncorkError
from uncork.domain import LayerNorm
from uncork.loading import find, load

RANDOM = np.random.default_rng(0)
V, D = 9, 4


def values(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float32)


def marian(path: Path, options: dict[str, object], **arrays: np.ndarray) -> Path:
    """A file as Marian writes it: parameters, and its options as YAML in a row of bytes."""
    text = "".join(f"{key}: {value}\n" for key, value in options.items()) + "version: v1.9.0\n"
    config = np.frombuffer(text.encode() + b"\0", np.int8)
    np.savez(path, **{"special:model.yml": config, **arrays})  # type: ignore[arg-type]
    return path


def decoder(depth: int = 2) -> dict[str, np.ndarray]:
    arrays = {}
    for n in range(1, depth + 1):
        arrays[f"decoder_l{n}_ffn_ffn_ln_scale"] = values(1, D)
        arrays[f"decoder_l{n}_ffn_ffn_ln_bias"] = values(1, D)
        arrays[f"decoder_l{n}_ffn_W2"] = values(5, D)
    return arrays


POST = {"type": "transformer", "dec-depth": 2, "transformer-postprocess": "dan",
        "transformer-preprocess": '""', "transformer-postprocess-top": '""'}  # fmt: skip
BIAS = {"decoder_ff_logit_out_b": values(1, V)}


@pytest.mark.parametrize(
    ("options", "arrays", "name", "turned"),
    [
        ({"tied-embeddings-all": "true"}, {"Wemb": values(V, D)}, "Wemb", False),
        ({"tied-embeddings": "true"}, {"encoder_Wemb": values(7, D), "decoder_Wemb": values(V, D)},
         "decoder_Wemb", False),
        ({"tied-embeddings-src": "true", "tied-embeddings": "true"}, {"Wemb": values(V, D)}, "Wemb",
         False),
        ({}, {"decoder_Wemb": values(V, D), "decoder_ff_logit_out_Wt": values(V, D)},
         "decoder_ff_logit_out_Wt", False),
        ({}, {"decoder_Wemb": values(V, D), "decoder_ff_logit_out_W": values(D, V)},
         "decoder_ff_logit_out_W", True),
    ],
)  # fmt: skip
def test_marians_output_layer_is_found(
    tmp_path: Path,
    options: dict[str, object],
    arrays: dict[str, np.ndarray],
    name: str,
    turned: bool,
) -> None:
    path = marian(tmp_path / "m.npz", POST | options, **arrays, **BIAS, **decoder())
    found = find(path)
    assert found.contents.format == "marian npz"
    assert found.weight_name == name
    np.testing.assert_array_equal(found.head.weight, arrays[name].T if turned else arrays[name])
    np.testing.assert_array_equal(found.head.bias, BIAS["decoder_ff_logit_out_b"][0])


def test_classes_that_were_found_in_the_columns_are_not_looked_for_in_the_rows(
    tmp_path: Path,
) -> None:
    weight = values(D, V)
    path = marian(tmp_path / "m.npz", {}, decoder_ff_logit_out_W=weight, **BIAS)
    for transpose in (False, True):
        head = load(path, transpose=transpose)
        np.testing.assert_array_equal(head.weight, weight.T)
        np.testing.assert_array_equal(head.bias, BIAS["decoder_ff_logit_out_b"][0])


def test_a_decoder_that_normalises_after_ends_in_its_last_layers_norm(tmp_path: Path) -> None:
    layers = decoder()
    path = marian(tmp_path / "m.npz", POST, Wemb=values(V, D), **BIAS, **layers)
    found = find(path, domain="auto")
    expected = LayerNorm(
        layers["decoder_l2_ffn_ffn_ln_scale"][0], layers["decoder_l2_ffn_ffn_ln_bias"][0]
    )
    assert found.head.domain == expected
    assert "decoder_l2_ffn_ffn_ln" in found.domain_from


def test_tied_layers_end_in_the_layer_they_name(tmp_path: Path) -> None:
    layers = decoder()
    options = POST | {"dec-depth": 3, "transformer-tied-layers": "\n  - 1\n  - 2\n  - 1"}
    path = marian(tmp_path / "m.npz", options, Wemb=values(V, D), **BIAS, **layers)
    assert "decoder_l1_ffn_ffn_ln" in find(path, domain="auto").domain_from


def test_a_decoder_that_normalises_before_ends_in_the_top_norm(tmp_path: Path) -> None:
    options = POST | {"transformer-preprocess": "n", "transformer-postprocess": "da",
                      "transformer-postprocess-top": "n"}  # fmt: skip
    top = {"decoder_top_ln_scale": values(1, D), "decoder_top_ln_bias": values(1, D)}
    path = marian(tmp_path / "m.npz", options, Wemb=values(V, D), **BIAS, **top)
    assert find(path, domain="auto").head.domain == LayerNorm(
        top["decoder_top_ln_scale"][0], top["decoder_top_ln_bias"][0]
    )


@pytest.mark.parametrize(
    "options",
    [
        POST | {"transformer-postprocess": "da"},  # no norm at the end
        POST | {"transformer-postprocess-top": "a"},  # something after the norm
        POST | {"transformer-postprocess-top": "n"},  # the norm it promises is not there
        POST | {"type": "transformer-new"},
        POST | {"dec-depth": 3},
        {},
    ],
)
def test_where_the_options_leave_doubts_nothing_is_claimed(
    tmp_path: Path, options: dict[str, object]
) -> None:
    path = marian(tmp_path / "m.npz", options, Wemb=values(V, D), **BIAS, **decoder())
    assert find(path, domain="auto").shown_domain is None


def test_marians_recurrent_decoder_ends_in_tanh(tmp_path: Path) -> None:
    arrays = {"decoder_Wemb": values(V, D), "decoder_ff_logit_l2_b": values(1, V),
              "decoder_ff_logit_l1_b": values(1, D), "encoder_Wemb": values(7, D)}  # fmt: skip
    path = marian(tmp_path / "m.npz", {"type": "s2s", "tied-embeddings": "true"}, **arrays)
    found = find(path, domain="auto")
    assert found.weight_name == "decoder_Wemb"
    assert found.bias_name == "decoder_ff_logit_l2_b"
    assert found.head.domain == Box(1)


def test_a_factored_vocabulary_is_refused(tmp_path: Path) -> None:
    path = marian(tmp_path / "m.npz", POST | {"lemma-dim-emb": 8}, Wemb=values(V, D), **BIAS)
    with pytest.raises(UncorkError, match="factored vocabulary"):
        load(path)


def nematus(**more: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "Wemb": values(7, D), "ff_logit_lstm_W": values(5, D), "ff_logit_prev_W": values(D, D),
        "ff_logit_ctx_W": values(6, D), "ff_logit_b": values(V), **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"ff_logit_W": values(D, V), "Wemb_dec": values(V, D)}, "ff_logit_W"),
        ({"Wemb_dec": values(V, D)}, "Wemb_dec"),
        ({"Wemb": values(V, D)}, "Wemb"),
    ],
)
def test_nematus_takes_its_output_layer_else_the_targets_embedding(
    tmp_path: Path, more: dict[str, np.ndarray], name: str
) -> None:
    np.savez(tmp_path / "m.npz", **nematus(**more))
    found = find(tmp_path / "m.npz", domain="auto")
    assert (found.weight_name, found.bias_name) == (name, "ff_logit_b")
    assert found.head.classes == V
    assert found.head.domain == Box(1)
    assert "tanh" in found.domain_from


def test_a_nematus_fork_with_layers_in_between_shows_no_domain(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **nematus(Wemb_dec=values(V, D), ff_deep_output_1_W=values(D, D)))
    assert find(tmp_path / "m.npz", domain="auto").shown_domain is None


@pytest.mark.parametrize(
    "config", [b"", b"\xff\xfe\x00", b"[" * 5000, b"type: " * 5000, b"- a\n- b", b":\n:\n"]
)
def test_options_that_are_no_yaml_do_no_harm(tmp_path: Path, config: bytes) -> None:
    np.savez(
        tmp_path / "m.npz",
        **{"special:model.yml": np.frombuffer(config, np.int8), "Wemb": values(V, D)},
    )
    assert load(tmp_path / "m.npz", domain="auto").domain == Box(100)
