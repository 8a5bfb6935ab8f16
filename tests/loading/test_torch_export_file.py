"""torch.export's .pt2: heads and what precedes them, held to what torch computes."""

from __future__ import annotations

import copy
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from uncork import UncorkError
from uncork.cli import app
from uncork.loading import find, load

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch._export.serde.schema import SCHEMA_VERSION  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
CLASSES, FEATURES = 30, 8


class InPlace(nn.Module):
    """Activations that write into their input, a residual sum, and an alias of what was there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(6, FEATURES), nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        hidden += 1.0
        torch.relu_(hidden)
        return self.head(hidden)


class Written(InPlace):
    """The head takes a view made before the values were replaced."""

    def forward(self, x: Any) -> Any:
        hidden = torch.relu(self.first(x))
        seen = hidden.view(-1, FEATURES)
        hidden.sub_(3.0)
        return self.head(seen)


class Gated(nn.Module):
    """RMSNorm as language models write it, and a head without a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(FEATURES) + 0.5)
        self.first, self.head = nn.Linear(6, FEATURES), nn.Linear(FEATURES, CLASSES, bias=False)

    def forward(self, x: Any) -> Any:
        hidden = self.first(x)
        scale = torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.head(self.gain * (hidden * scale))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, FEATURES // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, FEATURES, 3, padding=1), nn.BatchNorm2d(FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Any) -> Any:
        hidden = nn.functional.relu6(self.norm(self.conv(x)), inplace=True)
        hidden = nn.functional.max_pool2d(hidden, 2)
        hidden = nn.functional.adaptive_avg_pool2d(hidden, 1)
        return self.head(nn.functional.dropout(torch.flatten(hidden, 1), training=self.training))


class Unbatched(Pooled):
    """One picture without a batch axis."""

    def forward(self, x: Any) -> Any:
        hidden = nn.functional.adaptive_avg_pool2d(torch.relu(self.conv(x)), 1)
        return self.head(hidden.flatten())


class Pointwise(nn.Module):
    """SqueezeNet's kind of head: a 1×1 convolution, then a mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, FEATURES, 3), nn.Conv2d(FEATURES, CLASSES, 1)

    def forward(self, x: Any) -> Any:
        return self.head(torch.sigmoid(self.first(x))).mean((2, 3))


def stack(*layers: Any, last: Any = None) -> Any:
    """Layers in a row, the head last, and what may follow it."""
    model = nn.Sequential(nn.Linear(6, FEATURES), *layers, nn.Linear(FEATURES, CLASSES))
    if last is not None:
        model.append(last)
    return model


class Tied(nn.Module):
    """The embedding is the head, and stored once."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.embed(x.long().clamp(0, 29)).mean(1)))


# The model, its input's shape, the head's name, and the domain (None: the program shows none).
MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...], str, str | None]] = {
    "layer norm": (lambda: stack(nn.LayerNorm(FEATURES)), (4, 6), "2", "rmsnorm"),
    "softmax": (lambda: stack(nn.ReLU(), last=nn.Softmax(-1)), (4, 6), "2", "box:0,inf"),
    "log-softmax": (lambda: stack(nn.Tanh(), last=nn.LogSoftmax(-1)), (4, 6), "2", "box:-1.0"),
    "gelu": (lambda: stack(nn.GELU()), (4, 6), "2", "box:-0.16"),
    "silu": (lambda: stack(nn.SiLU()), (4, 6), "2", "box:-0.27"),
    "hardtanh": (lambda: stack(nn.Hardtanh(-2.0, 3.0)), (4, 6), "2", "box:-2"),
    "elu": (lambda: stack(nn.ELU(0.5)), (4, 6), "2", "box:-0.5"),
    "hardswish": (lambda: stack(nn.Hardswish()), (4, 6), "2", "box:-0.37"),
    "rms norm": (lambda: stack(nn.RMSNorm(FEATURES)), (4, 6), "2", "rmsnorm"),
    "no rule": (lambda: stack(nn.Softplus()), (4, 6), "2", None),
    "in place": (InPlace, (4, 6), "head", "box:0,inf"),
    "written": (Written, (4, 6), "head", None),
    "gated": (Gated, (4, 6), "head", "rmsnorm"),
    "recurrent": (Recurrent, (4, 5, 6), "head", "box:-1.0"),
    "pooled": (Pooled, (4, 3, 8, 8), "head", "box:"),
    "unbatched": (Unbatched, (3, 8, 8), "head", None),
    "pointwise": (Pointwise, (4, 3, 8, 8), "head", "box:"),
    "tied": (Tied, (4, 6), "embed", "box"),
}  # fmt: skip


def made(name: str, dtype: Any = None) -> tuple[Any, Any]:
    """A model of random weights, and an input for it."""
    torch.manual_seed(0)
    model = MODELS[name][0]().to(dtype or torch.float32).eval()
    for part in model.modules():
        if isinstance(part, nn.LayerNorm | nn.RMSNorm | nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 2.0)
    return model, (3 * torch.randn(MODELS[name][1])).to(dtype or torch.float32)


def program_of(model: Any, given: Any, dynamic: bool = False) -> Any:
    shapes = ({0: torch.export.Dim("batch", min=2, max=64)},) if dynamic else None
    return torch.export.export(model, (given,), dynamic_shapes=shapes)


def assert_same(path: Path, model: Any, given: Any, name: str) -> None:
    """What was read of a file against what torch computes with the model."""
    arrived: list[Any] = []
    head = dict(model.named_modules())[{"embed": "head"}.get(name, name)]
    handle = head.register_forward_hook(lambda m, args, out: arrived.append(args[0]))
    with torch.no_grad():
        scores = model(given)
    handle.remove()
    found = find(path, domain="auto")
    weight = dict(model.named_parameters())[f"{name}.weight"].detach().float().numpy()
    np.testing.assert_array_equal(found.head.weight.astype(np.float32), weight.reshape(CLASSES, -1))
    inputs = arrived[0].float().numpy()
    if inputs.ndim == 4:
        inputs = inputs.mean((2, 3))
    inputs = inputs.reshape(-1, FEATURES).astype(np.float64)
    own = inputs @ np.asarray(found.head.weight, np.float64).T
    if found.head.bias is not None:
        own = own + np.asarray(found.head.bias, np.float64)
    np.testing.assert_array_equal(own.argmax(-1), scores.reshape(-1, CLASSES).argmax(-1).numpy())
    assert found.head.reading is not None
    assert not found.head.reading.doubts
    if found.shown_domain is not None:
        assert all(found.head.domain.contains(row) for row in inputs)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("lowered", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_head_and_what_precedes_it_are_what_torch_computes(
    name: str, lowered: bool, dynamic: bool, tmp_path: Path
) -> None:
    model, given = made(name)
    if name in ("recurrent", "unbatched") and dynamic:
        pytest.skip("torch fixes the first axis")
    program = program_of(model, given, dynamic)
    if lowered:
        program = program.run_decompositions()
    torch.export.save(program, tmp_path / "data.pt2")
    assert_same(tmp_path / "data.pt2", model, given, MODELS[name][2])
    found = find(tmp_path / "data.pt2", domain="auto")
    expected = MODELS[name][3]
    if expected is None:
        # Lowered operators are pure, and pooling is a mean: what was hidden is in sight again.
        assert found.shown_domain is None or (lowered and name in ("written", "unbatched"))
    elif not (lowered and name == "recurrent"):  # a loop of single steps
        assert str(found.head.domain).startswith(expected)


def test_half_precision_keeps_its_type(tmp_path: Path) -> None:
    model, given = made("layer norm", torch.bfloat16)
    torch.export.save(program_of(model, given), tmp_path / "m.pt2")
    assert load(tmp_path / "m.pt2").dtype == "bfloat16"
    assert_same(tmp_path / "m.pt2", model, given, "2")


def test_a_causal_language_model_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=50, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(ids).logits

    given = torch.randint(0, 50, (1, 7))
    torch.export.save(torch.export.export(Logits(), (given,), strict=False), tmp_path / "m.pt2")
    found = find(tmp_path / "m.pt2", domain="auto")
    np.testing.assert_array_equal(found.head.weight, model.lm_head.weight.detach().numpy())
    assert found.weight_name == "model.lm_head.weight"
    assert str(found.head.domain).startswith("rmsnorm")


def older(path: Path, program: Any, layout: str) -> None:
    """The archive as torch 2.8 ("one checkpoint") and 2.7 ("serialized") laid it out."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    weights, constants = io.BytesIO(), io.BytesIO()
    torch.save(dict(program.state_dict), weights)
    torch.save(dict(program.constants), constants)
    with zipfile.ZipFile(buffer) as new, zipfile.ZipFile(path, "w") as old:
        members = {name.partition("/")[2]: new.read(name) for name in new.namelist()}
        if layout == "serialized":
            old.writestr("version", ".".join(map(str, SCHEMA_VERSION)))
            old.writestr("serialized_exported_program.json", members["models/model.json"])
            old.writestr("serialized_state_dict.pt", weights.getvalue())
            old.writestr("serialized_constants.pt", constants.getvalue())
            old.writestr("serialized_example_inputs.pt", members["data/sample_inputs/model.pt"])
            return
        for name, data in members.items():
            if not name.startswith(("data/weights", "data/constants")):
                old.writestr(f"m/{name}", data)
        old.writestr("m/data/weights/model.pt", weights.getvalue())
        old.writestr("m/data/constants/model.pt", constants.getvalue())


@pytest.mark.parametrize("layout", ["one checkpoint", "serialized"])
@pytest.mark.parametrize("name", ["layer norm", "tied", "pooled"])
def test_older_layouts_are_read_as_the_new_one(name: str, layout: str, tmp_path: Path) -> None:
    model, given = made(name)
    older(tmp_path / "m.pt2", program_of(model, given), layout)
    torch.export.load(tmp_path / "m.pt2")  # torch still takes it for one of its own
    assert_same(tmp_path / "m.pt2", model, given, MODELS[name][2])


def small(path: Path) -> None:
    """A small program, for the damaged files."""
    program = program_of(*made("layer norm"))
    program.graph_module.meta.clear()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
        node.meta.pop("nn_module_stack", None)
    torch.export.save(program, path)


def changed(path: Path, change: Callable[[dict[str, bytes]], None], how: int = 0) -> None:
    """A saved program with its members changed and packed anew."""
    buffer = io.BytesIO()
    torch.export.save(program_of(*made("layer norm")), buffer)
    with zipfile.ZipFile(buffer) as old:
        members = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", how) as new:
        for name, data in members.items():
            new.writestr(f"m/{name}", data)


def without_program(members: dict[str, bytes]) -> None:
    del members["models/model.json"]
    members["data/aotinductor/model/code.so"] = b"\x7fELF"


def two_programs(members: dict[str, bytes]) -> None:
    members["models/other.json"] = members["models/model.json"]


def other_shape(members: dict[str, bytes]) -> None:
    name = "data/weights/model_weights_config.json"
    config = json.loads(members[name])
    config["config"]["2.weight"]["tensor_meta"]["sizes"][0]["as_int"] = 31
    members[name] = json.dumps(config).encode()


def past_the_end(members: dict[str, bytes]) -> None:
    name = "data/weights/model_weights_config.json"
    config = json.loads(members[name])
    file = config["config"]["2.weight"]["path_name"]
    members[f"data/weights/{file}"] = members[f"data/weights/{file}"][:-4]


def no_graph(members: dict[str, bytes]) -> None:
    members["models/model.json"] = b'{"graph_module": []}'


def not_json(members: dict[str, bytes]) -> None:
    members["models/model.json"] = b"[" * 100_000


DAMAGE: dict[str, Callable[[dict[str, bytes]], None]] = {
    "compiled by AOTInductor and no exported program": without_program,
    "2 programs": two_programs,
    "another shape in the graph": other_shape,
    "reaches past its storage": past_the_end,
    "of a version of torch.export that is not known": no_graph,
    "is not JSON": not_json,
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_and_other_archives_are_refused(message: str, tmp_path: Path) -> None:
    changed(tmp_path / "m.pt2", DAMAGE[message])
    with pytest.raises(UncorkError, match=message):
        load(tmp_path / "m.pt2")
    refused = CliRunner().invoke(app, ["audit", str(tmp_path / "m.pt2")])
    assert (refused.exit_code, refused.stdout) == (2, "")


def test_a_compressed_program_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    def bomb(members: dict[str, bytes]) -> None:
        members["models/model.json"] += b" " * (64 << 20)

    changed(tmp_path / "m.pt2", bomb, zipfile.ZIP_DEFLATED)
    with pytest.raises(UncorkError, match="is compressed"):
        load(tmp_path / "m.pt2")


def test_a_saved_program_does_not_change_under_a_copy(tmp_path: Path) -> None:
    """The fingerprint is that of the live model's own head."""
    model, given = made("layer norm")
    torch.export.save(program_of(copy.deepcopy(model), given), tmp_path / "m.pt2")
    assert load(tmp_path / "m.pt2").fingerprint == load(model).fingerprint


class Changing(InPlace):
    """A gain that doubles at each call, or a write through something that shares memory."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("gain", torch.ones(FEATURES))
        self.register_buffer("rows", torch.randn(CLASSES, FEATURES))

    def forward(self, x: Any) -> Any:
        hidden = torch.sigmoid(self.first(x))
        if self.how == "gain":
            hidden = hidden * self.gain
            self.gain.mul_(2.0)
        elif self.how == "rows":
            scores = nn.functional.linear(hidden, self.rows)
            self.rows.neg_()
            return scores
        elif self.how == "some rows":
            scores = nn.functional.linear(hidden, self.rows)
            self.rows[1:].neg_()
            return scores
        elif self.how == "swapped":
            hidden.swapdims(0, 1).mul_(-5.0)
        elif self.how == "einsum":
            torch.einsum("ij->ji", hidden).mul_(-5.0)
        else:
            scores = self.head(hidden)
            scores.swapdims(0, 1).neg_()
            return scores
        return self.head(hidden)


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("how", ["gain", "rows", "some rows", "swapped", "einsum", "after"])
def test_what_is_written_through_other_names_is_not_counted_on(
    tmp_path: Path, how: str, decomposed: bool
) -> None:
    model = Changing(how).eval()
    program = torch.export.export(copy.deepcopy(model), (torch.randn(3, 6),))
    path = tmp_path / "model.pt2"
    torch.export.save(program.run_decompositions() if decomposed else program, path)
    try:
        found = find(path, domain="auto")
    except UncorkError:
        return
    seen: list[Any] = []
    model.head.register_forward_pre_hook(lambda _, given: seen.append(given[0].clone()))
    with torch.no_grad():
        for _ in range(4):
            scores = model(torch.randn(3, 6))
    assert found.weight_name == "head.weight"  # not the rows that change
    if found.shown_domain is not None:
        assert found.shown_domain.domain.contains(torch.cat(seen).double().numpy(), 1e-6).all()
    if not found.contents.choose().doubts:
        ours = seen[-1].numpy() @ found.head.rows(0, CLASSES).T + found.head.offsets
        assert (ours.argmax(1) == scores.numpy().argmax(1)).all()
