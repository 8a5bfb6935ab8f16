"""`uncork rank`: ranks, spectra and bounds of files, heads and running models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from running import Run

from uncork.theory.bottleneck import log_softmax


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weight, bias = rng.standard_normal((400, 24)), rng.standard_normal(400)
    hidden = rng.standard_normal((150, 24)).astype(np.float32)
    logits = (hidden @ weight.T + bias).astype(np.float32)
    np.savez(tmp_path / "head.npz", weight=weight, bias=bias)
    np.save(tmp_path / "hidden.npy", hidden)
    np.save(tmp_path / "logits.npy", logits)
    np.save(tmp_path / "logp.npy", log_softmax(logits).astype(np.float32))
    return tmp_path


def test_a_head_and_hidden_states_reach_the_bound(run: Run, folder: Path) -> None:
    ran = run("rank", folder / "head.npz", "--hidden", folder / "hidden.npy", "--json", "-")
    found = ran.json()
    assert (found["log_probabilities"]["rank"], found["bound"]) == (26, 26)
    assert (found["head"]["rank"], found["features"], found["bias"]) == (24, 24, True)
    directions = found["log_probabilities"]["directions"]
    assert directions["0.9"] <= directions["0.99"] <= directions["0.999"] <= 26
    assert len(found["log_probabilities"]["singular_values"]) == 26
    ran = run(
        "rank", folder / "head.npz", "--hidden", folder / "hidden.npy", "--drop-bias", "--json", "-"
    )
    assert (ran.json()["log_probabilities"]["rank"], ran.json()["bound"]) == (25, 25)


def test_a_file_of_log_probabilities_is_known_as_one(run: Run, folder: Path) -> None:
    found = run("rank", folder / "logp.npy", "--json", "-").json()
    assert found["log_probabilities"]["rank"] == 26
    assert found["log_probabilities"]["dtype"] == "float32"
    assert found["hidden_width"]["width"] == 24
    assert found["hidden_width"]["ranks"] == [25, 24]
    text = " ".join(run("rank", folder / "logp.npy").out.split())
    assert "rank 26 (tolerance" in text
    assert "hidden width 24: an RMSNorm or none precedes a head with bias" in text


def test_logits_are_made_log_probabilities(run: Run, folder: Path) -> None:
    ran = run("rank", folder / "logits.npy", "--logits", "--norm", "layernorm", "--json", "-")
    assert ran.json()["log_probabilities"]["rank"] == 26
    assert ran.json()["hidden_width"]["width"] == 25
    few = run("rank", folder / "logits.npy", "--logits", "--contexts", "10", "--json", "-").json()
    assert few["log_probabilities"]["rank"] == 10
    assert few["hidden_width"]["width"] is None


def test_a_head_alone_gives_its_spectrum_and_the_bound(run: Run, folder: Path) -> None:
    text = " ".join(run("rank", folder / "head.npz").out.split())
    assert "head's own rank 24 of 24" in text
    assert "bound 26 = d + 2, whatever the contexts" in text
    assert "give --hidden or --data" in text


@pytest.mark.parametrize("scale", [1e-310, 1.0, 1e160, 1e300])
@pytest.mark.filterwarnings("error")
def test_shares_of_the_energy_do_not_depend_on_the_scale(
    run: Run, tmp_path: Path, scale: float
) -> None:
    np.savez(tmp_path / "head.npz", weight=np.array([[1.0, 0], [0, 0.9], [-1, 0]]) * scale)
    text = " ".join(run("rank", tmp_path / "head.npz").out.split())
    assert "energy: 90% in 2, 99% in 2, 99.9% in 2 directions" in text


def test_an_array_that_may_be_outputs_is_said_to_be_taken_for_a_head(
    run: Run, folder: Path
) -> None:
    for name in ("logits.npy", "hidden.npy"):  # wider than long, longer than wide
        notes = run("rank", folder / name, "--json", "-").json()["notes"]
        assert any("if this is a file of outputs, use --logits" in note for note in notes)


def test_the_spectrum_is_drawn(run: Run, folder: Path) -> None:
    for name in ("s.png", "s.svg"):
        arguments = ["rank", folder / "head.npz", "--hidden", folder / "hidden.npy"]
        assert run(*arguments, "--plot", folder / name).status == 0
        assert (folder / name).stat().st_size > 5000
    assert "bound 26" in (folder / "s.svg").read_text("utf-8")


@pytest.mark.filterwarnings("ignore")
def test_a_transformers_model_runs_over_text(run: Run, tmp_path: Path) -> None:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    words = [f"w{k}" for k in range(120)]
    tokenizer = Tokenizer(models.WordLevel({w: k for k, w in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(tmp_path)
    config = LlamaConfig(
        vocab_size=120, hidden_size=16, intermediate_size=24, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    lines = "\n".join(" ".join(rng.choice(words, 12)) for _ in range(20))
    (tmp_path / "text.txt").write_text(lines, "utf-8")
    ran = run("rank", tmp_path, "--data", tmp_path / "text.txt", "--contexts", "90", "--json", "-")
    found = ran.json()
    assert found["log_probabilities"]["contexts"] == 90
    assert (found["log_probabilities"]["rank"], found["bound"]) == (17, 17)
    ran = run("rank", tmp_path, "--data", tmp_path / "text.txt", "--gradient", "--json", "-")
    found = ran.json()
    assert found["tokens"] == 20 * 11  # each word but a line's last has a next one
    assert found["share"] == pytest.approx(np.sqrt(16 / 120), rel=0.2)


def test_the_gradient_passes_as_far_as_the_head_is_wide(run: Run, folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(folder / "wide.npz", weight=rng.normal(size=(200, 24)))
    states, targets = rng.normal(size=(50, 24)), rng.integers(0, 200, 50)
    np.savez(folder / "tokens.npz", hidden=states, targets=targets)
    np.save(folder / "states.npy", states)
    np.save(folder / "targets.npy", targets)
    one = run("rank", folder / "wide.npz", "--gradient", "--hidden", folder / "tokens.npz",
              "--json", "-").json()  # fmt: skip
    two = run("rank", folder / "wide.npz", "--gradient", "--hidden", folder / "states.npy",
              "--targets", folder / "targets.npy", "--json", "-").json()  # fmt: skip
    assert one == two
    assert one["rank"] == 24
    assert one["expected_share_of_a_random_gradient"] == pytest.approx(np.sqrt(24 / 200), rel=0.02)
    text = run("rank", folder / "wide.npz", "--gradient", "--hidden", folder / "tokens.npz",
               "--output", "entmax").out  # fmt: skip
    assert "can be followed" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["mos", "entmax", "alpha-relu"])
def test_a_saved_head_of_ours_is_measured_with_its_own_output(
    run: Run, tmp_path: Path, kind: str
) -> None:
    import torch

    from tiny_models import save_texts, save_transformer
    from uncork.nn import heads
    from uncork.nn.watch.gradient import passing_of

    folder = save_transformer(tmp_path / "plain", "gpt2")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    model = heads.replace(AutoModelForCausalLM.from_pretrained(folder), kind).eval()
    layer = model.get_output_embeddings()
    if kind == "alpha-relu":
        layer.tau.fill_(0.25)
    model.save_pretrained(folder)
    text = save_texts(tmp_path / "text.txt")
    found = run("rank", folder, "--data", text, "--gradient", "--json", "-").json()
    assert found["output"]["name"] == kind
    assert found["output"].get("tau", 0.25) == 0.25
    # The same by hand, a text at a time.
    tokenizer = AutoTokenizer.from_pretrained(folder)
    shares: list[float] = []
    seen: list[torch.Tensor] = []
    layer.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    for line in text.read_text("utf-8").splitlines():
        ids = tokenizer(line, return_tensors="pt").input_ids
        if ids.shape[1] < 2:
            continue
        with torch.no_grad():
            model(ids)
        states = seen.pop().reshape(-1, layer.features)[:-1]
        shares += passing_of(layer, states, ids[0, 1:]).share.tolist()
    assert found["tokens"] == len(shares)
    assert found["share"] == pytest.approx(np.mean(shares), rel=1e-4)
    plain = run("rank", folder, "--data", text, "--gradient", "--json", "-", "--output", "softmax")
    if kind != "mos":
        assert plain.json()["share"] != found["share"]
    else:
        assert plain.status != 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.npy"], "does not exist"),
        (["head.npz", "--gradient"], "--gradient needs tokens"),
        (["head.npz", "--gradient", "--hidden", "hidden.npy"], "which array holds the targets"),
        (["head.npz", "--targets", "hidden.npy"], "--targets is for --gradient"),
        (["head.npz", "--gradient", "--plot", "a.png"], "--gradient draws nothing"),
        (["head.npz", "--gradient", "--output", "entmax", "--alpha", "1"], "alpha 1: expected"),
        (["head.npz", "--hidden", "logits.npy"], "expected contexts × 24 features"),
        (["head.npz", "--hidden", "hidden.npy", "--data", "hidden.npy"], "use one of them"),
        (["logp.npy", "--contexts", "1"], "--contexts 1: expected two or more"),
        (["logp.npy", "--plot", "s.exe"], "ends in .png"),
        (["logp.npy", "--json", "nowhere/x.json"], "there is no folder"),
        (["logits.npy", "--tensor", "array"], "not natural logarithms"),
        (["logits.npy", "--softcap", "1"], "was never there"),
        (["head.npz", "--tensor", "nothing"], "no tensor 'nothing'"),
        (["head.npz", "--hidden", "none.npy"], "array (0 × 24) is empty"),
        (["head.npz", "--hidden", "one.npy"], "one.npy holds one context"),
        (["none.npy", "--logits"], "array (0 × 24) is empty"),
        (["narrow.npy", "--logits"], "array (3 × 0) is empty"),
        (["head.npz", "--hidden", ""], "--hidden: the name is empty"),
        (["head.npz", "--data", ""], "--data: a name is empty"),
        (["head.npz", "--json", "head.npz"], "would overwrite the model"),
        (["head.npz", "--hidden", "hidden.npy", "--json", "hidden.npy"], "the hidden states"),
        (["head.npz", "--data", "one.npy", "--json", "one.npy"], "overwrite the data"),
        (["head.npz", "--data", "o*.npy", "--json", "one.npy"], "overwrite the data one.npy"),
        (["head.npz", "--json", "x.svg", "--plot", "x.svg"], "overwrite what --"),
    ],
)
def test_mistakes_are_answered_with_one_line(
    run: Run, folder: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    np.save("none.npy", np.zeros((0, 24)))
    np.save("narrow.npy", np.zeros((3, 0)))
    np.save("one.npy", np.ones((1, 24)))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert message in run("rank", *arguments).error
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
