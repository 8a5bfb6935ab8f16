"""Models on the hub: the real client against a server on this machine that speaks its protocol."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.numpy import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from hub_server import COMMIT, Hub, serving
from uncork import UncorkError
from uncork.domain import LayerNorm
from uncork.loading import find, load
from uncork.loading.hugging_face import remote
from uncork.loading.hugging_face.hub import fetch
from uncork.loading.hugging_face.hub_address import Address, is_address, parse_address


def small_gpt2(folder: Path, shard: str = "50GB") -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=8, n_layer=3, n_head=2,
                        tie_word_embeddings=False)  # fmt: skip
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt2")
    small_gpt2(folder)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The client's cache in a folder of the test's own; the client reads its environment once."""
    folder = tmp_path / "home"
    for name, value in {
        "HF_HOME": folder, "HF_HUB_CACHE": folder / "hub", "HF_ASSETS_CACHE": folder / "assets",
        "HF_XET_CACHE": folder / "xet", "HF_TOKEN_PATH": folder / "token",
    }.items():  # fmt: skip
        monkeypatch.setattr(constants, name, str(value))
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return folder


def use(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub.close_session()
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_ENDPOINT", url)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as server:
        use(server.url, monkeypatch)
        yield server
        huggingface_hub.close_session()
    remote._ELSEWHERE.clear()


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "uncork", *arguments], capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


# Addresses


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("hf:gpt2", Address("gpt2")),
        ("hf:owner/name", Address("owner/name")),
        ("hf://owner/name", Address("owner/name")),
        ("hf:owner/name@v1.0", Address("owner/name", "v1.0")),
        ("hf:owner/name@refs/pr/7", Address("owner/name", "refs/pr/7")),
        ("hf:owner/name@refs/pr/7/a/b.gguf", Address("owner/name", "refs/pr/7", "a/b.gguf")),
        ("hf:owner/name/sub/m.gguf", Address("owner/name", None, "sub/m.gguf")),
        ("hf:gpt2@main/model.safetensors", Address("gpt2", None, "model.safetensors")),
        ("https://huggingface.co/gpt2", Address("gpt2")),
        ("huggingface.co/owner/name/", Address("owner/name")),
        ("https://hf.co/owner/name?library=x#y", Address("owner/name")),
        ("https://huggingface.co/owner/name/tree/main", Address("owner/name")),
        ("https://huggingface.co/owner/name/tree/v2", Address("owner/name", "v2")),
        ("https://huggingface.co/gpt2/blob/main/model.safetensors",
         Address("gpt2", None, "model.safetensors")),
        ("https://huggingface.co/a/b/resolve/refs%2Fpr%2F7/c/d.onnx?download=true",
         Address("a/b", "refs/pr/7", "c/d.onnx")),
    ],
)  # fmt: skip
def test_an_address_is_read_as_people_write_it(text: str, address: Address) -> None:
    assert is_address(text)
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "hf:", "hf:/", "hf:a b/c", "hf:../..", "hf:a/b/../../c", "hf:a/b@..", "hf:a/b\n", "hf:a/.b",
        "https://huggingface.co/datasets/a/b", "https://huggingface.co/spaces/a/b",
        "https://huggingface.co/", "https://huggingface.co/a/b/blob/main/../../c",
        "hf:a/b/c\\..\\d",
    ],
)  # fmt: skip
def test_what_is_no_model_on_the_hub_is_refused_before_any_request(text: str) -> None:
    with pytest.raises(UncorkError, match="not a model on the hub"):
        load(text)


@pytest.mark.parametrize(
    "text", ["model.onnx", "owner/name", "C:/model.npz", "http://else.where/x"]
)
def test_paths_are_no_addresses(text: str) -> None:
    assert not is_address(text)


# What crosses the network


def test_of_a_model_only_the_head_and_its_norm_are_fetched(hub: Hub, tmp_path: Path) -> None:
    model = small_gpt2(tmp_path / "model")
    hub.repositories["me/tiny"] = tmp_path / "model"
    found = find("hf:me/tiny", domain="auto")
    np.testing.assert_array_equal(found.head.weight, model.lm_head.weight.detach().numpy())
    norm = model.transformer.ln_f
    assert found.head.domain == LayerNorm(norm.weight.detach().numpy(), norm.bias.detach().numpy())
    assert found.head.source == "hf:me/tiny"
    asked = {request.file for request in hub.requests} - {""}
    assert asked == {"config.json", "model.safetensors"}
    ranges = [r.range for r in hub.requests if r.file == "model.safetensors" and r.sent]
    assert len(ranges) == 4  # the header, the weight, gain and offset of the norm
    assert all(ranges)


def test_of_a_large_model_next_to_nothing_is_fetched(hub: Hub, tmp_path: Path) -> None:
    tensors = {f"model.layers.{n}.weight": np.zeros((500, 1000), np.float32) for n in range(5)}
    tensors["lm_head.weight"] = np.eye(100, dtype=np.float32)
    (tmp_path / "model").mkdir()
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    hub.repositories["me/large"] = tmp_path / "model"
    np.testing.assert_array_equal(load("hf:me/large").weight, np.eye(100))
    assert hub.fetched()["model.safetensors"] <= 40_000 + (64 << 10)  # of 10 MB


def test_of_a_sharded_model_only_the_heads_shard_is_fetched(hub: Hub, tmp_path: Path) -> None:
    model = small_gpt2(tmp_path / "model", shard="2KB")
    shards = list((tmp_path / "model").glob("*.safetensors"))
    assert len(shards) > 3
    hub.repositories["me/sharded"] = tmp_path / "model"
    head = load("hf:me/sharded")
    np.testing.assert_array_equal(head.weight, model.lm_head.weight.detach().numpy())
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    norm = {index["weight_map"][f"transformer.ln_f.{part}"] for part in ("weight", "bias")}
    fetched = {file for file in hub.fetched() if file.endswith(".safetensors")}
    assert index["weight_map"]["lm_head.weight"] in fetched
    assert fetched <= {index["weight_map"]["lm_head.weight"], *norm}


def test_of_pickled_shards_only_those_with_the_head_are_fetched(hub: Hub, tmp_path: Path) -> None:
    model = small_gpt2(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    where = {}
    for name in model.state_dict():
        blocks = [part for part in name.split(".") if part.isdigit()]
        number = int(blocks[0]) + 1 if blocks else 9
        where[name] = f"pytorch_model-0000{number}-of-00009.bin"
    for shard in set(where.values()):
        part = {n: t for n, t in model.state_dict().items() if where[n] == shard}
        torch.save(part, tmp_path / "model" / shard)
    index = tmp_path / "model" / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    hub.repositories["me/pickled"] = tmp_path / "model"
    np.testing.assert_array_equal(load("hf:me/pickled").weight, model.lm_head.weight.detach())
    fetched = {file for file in hub.fetched() if file.endswith(".bin")}
    assert "pytorch_model-00009-of-00009.bin" in fetched
    assert "pytorch_model-00001-of-00009.bin" not in fetched


def test_a_second_run_fetches_nothing_but_the_listing(hub: Hub, gpt2: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    first = load("hf:me/tiny")
    hub.requests.clear()
    remote._ELSEWHERE.clear()
    assert load("https://huggingface.co/me/tiny").fingerprint == first.fingerprint
    assert [r.path for r in hub.requests] == ["/api/models/me/tiny/revision/main"]


def test_what_other_programs_downloaded_is_used(hub: Hub, gpt2: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    huggingface_hub.snapshot_download("me/tiny")
    hub.requests.clear()
    np.testing.assert_array_equal(load("hf:me/tiny").weight, load(gpt2).weight)
    assert {r.file for r in hub.requests} == {""}


def test_a_revision_is_asked_for_by_name(hub: Hub, gpt2: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    load("hf:me/tiny@v1")
    assert any(r.path.endswith("/revision/v1") for r in hub.requests)
    with pytest.raises(UncorkError, match=r"hf:me/tiny@v9 has no revision 'v9'"):
        load("hf:me/tiny@v9")


def test_one_file_by_name(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "model" / "deep"
    folder.mkdir(parents=True)
    np.savez(folder / "a.npz", weight=np.eye(3))
    np.savez(folder.parent / "b.npz", weight=np.eye(4))
    save_file({"weight": np.eye(5)}, folder / "c.safetensors")
    hub.repositories["me/files"] = tmp_path / "model"
    assert load("hf:me/files/deep/a.npz").classes == 3
    assert load(f"{hub.url}/me/files/blob/main/b.npz").classes == 4
    assert load("hf:me/files/deep/c.safetensors").classes == 5
    with pytest.raises(UncorkError, match=r"no file x\.npz; it has b\.npz"):
        load("hf:me/files/x.npz")


def test_several_models_are_listed_and_none_is_guessed(hub: Hub, tmp_path: Path) -> None:
    for name in ("m.Q4.gguf", "m.Q8.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    hub.repositories["me/many"] = tmp_path
    with pytest.raises(
        UncorkError, match=r"2 models: m\.Q4\.gguf, m\.Q8\.gguf: name one, as in hf:me/many/m\.Q4"
    ):
        load("hf:me/many")
    assert not hub.fetched()


# Trouble


def test_a_download_cut_in_the_middle_goes_on_where_it_stopped(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32)
    (tmp_path / "model").mkdir()
    save_file({"lm_head.weight": weight}, tmp_path / "model" / "model.safetensors")
    hub.repositories["me/cut"] = tmp_path / "model"
    hub.cut, hub.cuts_left = {"model.safetensors": 400_000}, 2
    np.testing.assert_array_equal(load("hf:me/cut").weight, weight)
    starts = [r.range for r in hub.requests if r.file == "model.safetensors" and r.sent][1:]
    begin = int(starts[0].removeprefix("bytes=").split("-")[0])
    assert starts == [f"bytes={begin + done}-{begin + weight.nbytes - 1}"
                      for done in (0, 400_000, 800_000)]  # fmt: skip
    assert hub.fetched()["model.safetensors"] <= weight.nbytes + (64 << 10)


def test_a_run_that_died_is_continued_by_the_next(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {"weight": torch.arange(200_000.0).reshape(400, 500)}
    (tmp_path / "model").mkdir()
    torch.save(data, tmp_path / "model" / "pytorch_model.bin")
    hub.repositories["me/died"] = tmp_path / "model"
    hub.cut, hub.cuts_left = {"pytorch_model.bin": 100_000}, 1
    monkeypatch.setattr(remote, "_ATTEMPTS", 0)
    with pytest.raises(UncorkError, match=r"broke off after 100000 of \d+ bytes.*run the command"):
        load("hf:me/died")
    hub.requests.clear()
    np.testing.assert_array_equal(load("hf:me/died").weight, data["weight"].numpy())
    ranges = [r.range for r in hub.requests if r.file == "pytorch_model.bin" and r.sent]
    assert len(ranges) == 1
    assert ranges[0].startswith("bytes=100000-")


def test_a_server_without_ranges_sends_the_whole_file(hub: Hub, gpt2: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    hub.no_ranges = True
    np.testing.assert_array_equal(load("hf:me/tiny").weight, load(gpt2).weight)


def test_a_file_that_arrives_damaged_is_refused(hub: Hub, tmp_path: Path) -> None:
    torch.save({"weight": torch.eye(3)}, tmp_path / "pytorch_model.bin")
    hub.repositories["me/damaged"] = tmp_path
    hub.tampered.add("pytorch_model.bin")
    with pytest.raises(UncorkError, match="arrived damaged"):
        load("hf:me/damaged")
    hub.tampered.clear()
    assert load("hf:me/damaged").classes == 3


def test_a_missing_repository(hub: Hub) -> None:
    with pytest.raises(UncorkError, match=r"^hf:me/none is not on the hub .*or private.*log in"):
        load("hf:me/none")


def test_a_gated_repository_and_the_token_that_opens_it(
    hub: Hub, gpt2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["me/gated"] = gpt2
    hub.gated.add("me/gated")
    with pytest.raises(UncorkError, match=r"^hf:me/gated is gated: ask for access at .*HF_TOKEN"):
        load("hf:me/gated")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert load("hf:me/gated").classes == 40
    assert any(r.token == "Bearer hf_secret" for r in hub.requests)


@pytest.mark.parametrize(
    ("status", "message"),
    [(403, "answered 403"), (429, "too many requests"), (500, "no connection"), (418, "418")],
)
def test_a_server_that_says_no(hub: Hub, status: int, message: str) -> None:
    hub.status = status
    with pytest.raises(UncorkError, match=message) as raised:
        load("hf:me/tiny")
    assert "\n" not in str(raised.value)


def test_without_a_network(hub: Hub, gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["me/tiny"] = gpt2
    first = load("hf:me/tiny")
    use("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(
        UncorkError, match=r"cannot be fetched: no connection to http://127.0.0.1:9"
    ):
        load("hf:me/other")
    assert load("hf:me/tiny").fingerprint == first.fingerprint


def test_offline_by_choice(hub: Hub, gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["me/tiny"] = gpt2
    huggingface_hub.snapshot_download("me/tiny")
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UncorkError, match="not in the cache, and HF_HUB_OFFLINE"):
        load("hf:me/other")
    np.testing.assert_array_equal(load("hf:me/tiny").weight, load(gpt2).weight)
    assert not hub.requests


def test_no_room_on_the_disk(hub: Hub, gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["me/tiny"] = gpt2
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr(remote.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(UncorkError, match="has room for 0 MB: make room, or set HF_HOME"):
        load("hf:me/tiny")


def test_a_cache_that_cannot_be_written(
    hub: Hub, gpt2: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repositories["me/tiny"] = gpt2
    home.write_text("a file where a folder should be")
    with pytest.raises(UncorkError, match="cannot be kept in") as raised:
        load("hf:me/tiny")
    assert "\n" not in str(raised.value)


def test_names_that_the_server_chose_stay_in_the_cache(hub: Hub, gpt2: Path, home: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    hub.extra_siblings = [
        {"rfilename": name, "size": 3}
        for name in ("../../../dict.txt", "/dict.txt", "a/../../dict.txt", "..\\dict.txt", "a//b")
    ]
    assert load("hf:me/tiny").classes == 40
    hub.commit = "../../../../evil"
    with pytest.raises(UncorkError, match="which is none"):
        load("hf:me/tiny")


def test_an_index_that_names_files_elsewhere_is_refused(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"lm_head.weight": "../../../secret.safetensors"}})
    )
    hub.repositories["me/evil"] = tmp_path
    with pytest.raises(UncorkError, match=r"names \.\./.*no such file"):
        load("hf:me/evil")


def test_a_file_on_disk_never_reaches_for_the_network(hub: Hub, gpt2: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    folder = fetch("hf:me/tiny")
    remote._ELSEWHERE.clear()
    hub.requests.clear()
    with pytest.raises(UncorkError, match=r"empty|truncated"):
        load(folder)
    assert not hub.requests


def test_without_the_client_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UncorkError, match=r"pip install 'uncork\[hf\]'"):
        load("hf:me/tiny")


def test_a_refusal_names_the_id_and_not_the_cache(hub: Hub, gpt2: Path, tmp_path: Path) -> None:
    headless = shutil.copytree(gpt2, tmp_path / "headless")
    tensors = load_file(headless / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, headless / "model.safetensors")
    hub.repositories["me/headless"] = headless
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "m.gguf").write_bytes(b"GGUF" + bytes(40))
    hub.repositories["me/damaged"] = tmp_path / "damaged"
    for name, message in (("me/headless", "no head"), ("me/damaged", "GGUF|gguf")):
        with pytest.raises(UncorkError, match=message) as raised:
            load(f"hf:{name}")
        assert str(raised.value).startswith(f"hf:{name}")
        assert str(tmp_path) not in str(raised.value)


def test_an_adapter_and_its_base_are_fetched(hub: Hub, gpt2: Path, tmp_path: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 8), (40, 2)))
    prefix = "base_model.model.lm_head.lora_"
    save_file({f"{prefix}A.weight": a, f"{prefix}B.weight": b},
              tmp_path / "adapter_model.safetensors")  # fmt: skip
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "me/tiny"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    hub.repositories["me/lora"] = tmp_path
    with pytest.raises(UncorkError, match=r"^hf:me/lora is an adapter for me/tiny.* hf:me/tiny$"):
        load("hf:me/lora")
    found = find("hf:me/lora", base="hf:me/tiny")
    before = find(gpt2).head.weight
    np.testing.assert_array_equal(found.head.weight, before + b @ a * np.float32(2))
    assert found.head.source == "hf:me/lora"
    np.testing.assert_array_equal(find("hf:me/lora", base=gpt2).head.weight, found.head.weight)
    np.testing.assert_array_equal(find(tmp_path, base="hf:me/tiny").head.weight, found.head.weight)


# The program


def test_the_program_audits_a_model_by_its_id(hub: Hub, gpt2: Path) -> None:
    hub.repositories["me/tiny"] = gpt2
    ran = program("audit", "hf:me/tiny", "--domain", "auto", "--json", "-")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    result = json.loads(ran.stdout)
    assert result["source"] == "hf:me/tiny"
    assert (result["classes"], result["features"], result["proven"]) == (40, 8, True)
    assert COMMIT not in ran.stdout


def test_the_program_says_in_one_line_that_there_is_no_network(home: Path) -> None:
    ran = program("audit", "hf:me/tiny", HF_ENDPOINT="http://127.0.0.1:9")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("uncork: error: hf:me/tiny cannot be fetched: no connection to ")
    assert ran.stderr.count("\n") == 1
