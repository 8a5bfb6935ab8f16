"""Every model class of transformers with an output head, made small and random, and watched.

The classes are those of the library's own registry. Each configuration is shrunk by the names of
its settings (`small_settings` has what a type needs beyond that). Gains, offsets and biases are
random: with those of a new model, all ones and zeros, a wrong one would go unnoticed. While the
model runs, every product whose result has one number a class is written down, so that the input of
the true output layer is known without asking the loader or the table.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from small_settings import EXTRA, INPUTS, REGISTRIES, SETTINGS, VARIANTS
from torch.overrides import TorchFunctionMode
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

CLASSES = 211  # a prime, so that no other size is taken for it
LABELS = 29
_SEQUENCES, _POSITIONS = 6, 8
_MOST_PARAMETERS = 25_000_000
_DEEPEST = 4


class NotBuiltError(Exception):
    """The class cannot be made small by these means; the text says why."""


@dataclass(frozen=True)
class Product:
    """One linear map while the model ran: its inputs (n, features) and outputs (n, classes)."""

    hidden: np.ndarray
    output: np.ndarray

    def averages(self, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """As it is, then over the positions of each of so many rows: some models average logits."""
        yield self.hidden, self.output
        if len(self.output) != rows and len(self.output) % rows == 0:
            yield (
                self.hidden.reshape(rows, -1, self.hidden.shape[1]).mean(axis=1),
                self.output.reshape(rows, -1, self.output.shape[1]).mean(axis=1),
            )


@dataclass(frozen=True)
class Made:
    """A model with what it did: its logits (n, classes), and products that may have made them."""

    name: str
    model: Any
    logits: np.ndarray
    products: tuple[Product, ...] = field(repr=False)

    @property
    def hidden(self) -> np.ndarray:
        """The inputs of the output layer: of the last product that makes the logits."""
        for product in reversed(self.products):
            for hidden, output in product.averages(len(self.logits)):
                if makes(output, self.logits):
                    return hidden
        for first, second in itertools.pairwise(self.products):  # heads whose mean they are
            if first.output.shape == second.output.shape == self.logits.shape and makes(
                (first.output + second.output) / 2, self.logits
            ):
                same = np.array_equal(first.hidden, second.hidden)
                return first.hidden if same else np.hstack([first.hidden, second.hidden])
        raise NotBuiltError("no product makes the logits")

    @property
    def first(self) -> np.ndarray:
        return self.logits.argmax(axis=1)

    def save(self, folder: Path, **options: Any) -> Path:
        self.model.save_pretrained(folder, **options)
        return folder


def registry() -> dict[str, str]:
    """Every class with an output head by the library's registry, and the model type it is of."""
    found: dict[str, str] = {}
    for mapping in REGISTRIES:
        table = getattr(modeling_auto, f"MODEL_FOR_{mapping}_MAPPING_NAMES")
        for kind, names in table.items():
            for name in (names,) if isinstance(names, str) else names:
                found.setdefault(name, kind)
    return {**found, **EXTRA}


def architecture(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit, in one or two of them
        return getattr(transformers, name)


@functools.cache
def variant(name: str) -> Made:
    """One of the variants by its name, made once."""
    return make(VARIANTS[name].architecture, **VARIANTS[name].options)


def make(name: str, **options: Any) -> Made:
    """The class, small and random, with what it makes of random inputs."""
    torch.manual_seed(sum(map(ord, name)))
    kind = registry().get(name, "")
    made = architecture(name)
    config = small_config(made, kind, options)
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            size = sum(p.numel() for p in made(config).parameters())
        except (RuntimeError, NotImplementedError):  # what a constructor computes needs values
            size = 0
    if size > _MOST_PARAMETERS:
        raise NotBuiltError(f"{size} parameters")
    model = made(small_config(made, kind, options)).eval()
    randomise(model)
    problems: list[Exception] = []
    for inputs in _inputs(model, name, kind):
        try:
            return _observe(name, model, inputs)
        except Exception as error:  # the next kind of inputs may be the right one
            problems.append(error)
    if problems:
        raise problems[0]
    raise NotBuiltError(f"its main input {model.main_input_name} is not made here")


def small_config(made: Any, kind: str, options: Mapping[str, Any]) -> Any:
    config_class = made.config_class
    if config_class is None or not hasattr(config_class, "model_type"):
        raise NotBuiltError("no configuration class")
    if kind in CONFIG_MAPPING and issubclass(CONFIG_MAPPING[kind], config_class):
        config_class = CONFIG_MAPPING[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = shrunk(config_class, made.__name__, dict(options))
    config.architectures = [made.__name__]
    return config


def shrunk(
    config_class: Any, name: str = "", options: Mapping[str, Any] = {}, depth: int = 0
) -> Any:
    """The configuration of a class with every size in it made small."""
    kind = config_class.model_type
    own = {**SETTINGS.get(kind, {}), **SETTINGS.get(name, {}), **options}
    as_it_is = {k.removeprefix("!"): own.pop(k) for k in list(own) if k.startswith("!")}
    nested = {k: v for k, v in own.items() if isinstance(v, Mapping)}
    known = _known(config_class)
    settings = {key: value for key in known if (value := _small(key, known[key])) is not None}
    inner = getattr(config_class, "sub_configs", {})
    for key, inner_class in inner.items():
        if key in own and not isinstance(own[key], Mapping):
            continue
        chosen = dict(nested.get(key, {}))
        named = chosen.get("model_type")
        if named is None:
            named = _default_type(config_class, key)
        if named is not None and named in CONFIG_MAPPING:
            inner_class = CONFIG_MAPPING[named]
        if depth < _DEEPEST and hasattr(inner_class, "model_type") and inner_class.model_type:
            made = shrunk(inner_class, "", chosen, depth + 1).to_dict()
            settings[key] = made
    own = {k: v for k, v in own.items() if k not in inner or not isinstance(v, Mapping)}
    if depth == 0:
        settings["num_labels"] = LABELS
    return config_class(**{**settings, **own, **as_it_is})


def _known(config_class: Any) -> dict[str, Any]:
    """Every setting of a configuration class, with its default."""
    names = {key for base in config_class.__mro__ for key in getattr(base, "__annotations__", {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            default = config_class()
        except Exception:  # some have no default
            default = config_class
    return {key: _default(default, key) for key in names}


def _default(config: Any, key: str) -> Any:
    try:
        return getattr(config, key, None)
    except Exception:  # one number a layer
        return None


def _default_type(config_class: Any, key: str) -> str | None:
    """The type of an inner configuration that the outer one has by default."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inner = getattr(config_class(), key, None)
    except Exception:  # some have no default
        return None
    return getattr(inner, "model_type", None) or None


_EXACT: dict[str, Any] = {
    "hidden_size": 32, "d_model": 32, "dim": 32, "n_embd": 32, "embed_dim": 32, "emb_dim": 32,
    "embedding_size": 32, "word_embed_proj_dim": 32, "hidden_dim": 40, "n_inner": 40,
    "intermediate_size": 40, "d_ff": 40, "ffn_dim": 40, "d_inner": 40, "dff": 40,
    "head_dim": 8, "d_kv": 8, "d_head": 8, "max_position_embeddings": 64, "n_positions": 64,
    "n_ctx": 64, "context_length": 64, "max_source_positions": 64, "max_target_positions": 64,
    "max_seq_len": 64, "n_layer": 2, "n_layers": 2, "num_layers": 2, "n_head": 4, "n_heads": 4,
    "num_heads": 4, "num_attention_heads": 4, "num_hidden_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "num_key_value_heads": 4, "num_kv_heads": 4, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 3, "sep_token_id": 4,
    "decoder_start_token_id": 1, "forced_eos_token_id": None, "num_labels": LABELS,
    "image_size": 32, "patch_size": 8, "rotary_dim": 4, "rotary_pct": 1.0,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "num_shared_experts": 1, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "moe_k": 2,
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "qk_head_dim": 8, "num_mel_bins": 8, "mamba_d_state": 8, "state_size": 4,
    "mamba_d_conv": 4, "mamba_chunk_size": 8, "chunk_size": 8, "sliding_window": 16,
    "attention_window": 4, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2, "use_cache": False, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "tdnn_dim": (16, 16, 16, 16, 16), "xvector_output_dim": 16,
    "classifier_proj_size": 24, "num_codevectors_per_group": 8, "codevector_dim": 16,
    "proj_codevector_dim": 16, "num_frames": 2, "tubelet_size": 2, "type_vocab_size": 2,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1,
    "mamba_expand": 2, "vocab_size": CLASSES, "vocab_size_or_config_json_file": CLASSES,
    "projection_dim": 24, "output_hidden_size": 32, "out_hidden_size": 32,
}  # fmt: skip


def _small(key: str, default: Any) -> Any:
    """A small value for a setting of that name; None where it is left as it is."""
    several = isinstance(default, list | tuple)
    if several and isinstance(_EXACT.get(key), tuple):
        return _EXACT[key]
    if several and 0 < len(default) <= 8 and all(type(one) is int for one in default):
        return _small_list(key, default)
    if key in _EXACT and not several and not isinstance(_EXACT[key], tuple):
        return _EXACT[key]
    if type(default) is not int:
        return None
    if default > 2 and key.endswith(("_layers", "_depth", "_blocks")):
        return 2
    if default <= 64:
        return None
    if key.endswith(("_token_id", "_token_index")):
        return CLASSES - 3 if default >= CLASSES - 3 else None
    if "vocab" in key:
        return CLASSES
    if key.endswith(("_dim", "_size", "_width", "_channels", "_rank", "_features")):
        return 32 if "window" not in key else None
    if key.endswith(("_positions", "_length", "_len", "_embeddings")):
        return 64
    return None


def _small_list(key: str, default: Sequence[int]) -> Any:
    """Sizes that grow from stage to stage, one block a stage, two heads each."""
    if key in ("depths", "depth", "layers"):
        return [1] * len(default)
    if "heads" in key:
        return [2] * len(default)
    if key.endswith(("sizes", "dims", "channels", "embed_dim", "dim")) and max(default) > 16:
        return [16 * (k + 1) for k in range(len(default))]
    if key == "image_size":
        return [32] * len(default)
    return None


def randomise(model: Any, scale: float = 0.3) -> None:
    """Random weights, and random gains, offsets and statistics around those of a new model."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.ndim > 1:
                parameter.normal_(0, scale)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
        for name, buffer in model.named_buffers():
            if name.endswith(("final_logits_bias", "running_mean")):
                buffer.normal_(0, 0.5)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


class _Products(TorchFunctionMode):
    """Writes down every product with one number a class."""

    _LINEAR = (torch.nn.functional.linear, torch.matmul, torch.Tensor.matmul,
               torch.Tensor.__matmul__, torch.addmm, torch.bmm, torch.einsum,
               torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.conv1d,
               torch.conv2d)  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        output = function(*args, **(kwargs or {}))
        if function in self._LINEAR and isinstance(output, torch.Tensor) and output.ndim >= 2:
            tensors = [a for a in (*args, *(kwargs or {}).values()) if isinstance(a, torch.Tensor)]
            if function is torch.addmm:
                tensors = tensors[1:]
            if tensors:
                kind = "conv" if "conv" in function.__name__ else ""
                self.found.append((kind, tensors[0].detach(), output.detach()))
        return output


def _rows(kind: str, tensor: torch.Tensor) -> torch.Tensor:
    """(…, channels) from what a convolution or a linear layer takes or gives."""
    if kind == "conv":
        tensor = tensor.movedim(1, -1)
    return tensor.reshape(-1, tensor.shape[-1])


def _observe(name: str, model: Any, inputs: Mapping[str, Any]) -> Made:
    products = _Products()
    with torch.no_grad(), products, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outputs = model(**inputs)
    logits = _logits(outputs)
    classes = logits.shape[-1]
    logits = logits.reshape(-1, classes).double()
    if not torch.isfinite(logits).all():
        raise NotBuiltError("the logits are not finite")
    kept = []
    for kind, given, output in products.found:
        given, output = _rows(kind, given), _rows(kind, output)
        if output.shape[-1] % classes == 0 and len(given) == len(output):
            kept.append(Product(given.double().numpy(), output.double().numpy()))
    return Made(name, model, logits.numpy(), tuple(kept))


_LOGITS = ("logits", "prediction_logits", "lm_logits", "prediction_scores", "text_logits",
           "mlm_logits", "answer_logits", "question_answering_score",
           "prediction_outputs")  # fmt: skip


def _logits(outputs: Any) -> torch.Tensor:
    for key in _LOGITS:
        found = outputs.get(key) if isinstance(outputs, Mapping) else getattr(outputs, key, None)
        if isinstance(found, torch.Tensor) and found.is_floating_point() and found.ndim >= 2:
            return found
    last = getattr(outputs, "last_hidden_state", None)  # some put the classes' scores there
    if isinstance(last, torch.Tensor) and last.shape[-1] in (LABELS, CLASSES):
        return last
    raise NotBuiltError(f"no logits among {', '.join(outputs)[:80]}")


def makes(output: np.ndarray, logits: np.ndarray) -> bool:
    """Whether logits are a layer's outputs up to their order, or with one more bias on top."""
    if same_order(output, logits):
        return True
    if output.shape != logits.shape or len(output) < 3:
        return False
    added = logits - output
    return bool(np.ptp(added, axis=0).max() < 1e-4 * np.abs(logits).max())


def same_order(outputs: np.ndarray, logits: np.ndarray) -> bool:
    """Whether the logits are in the order of a layer's outputs, row by row (some rows may be gone).

    Positive factors, caps and shifts of a whole row keep the order; what a model sets to the
    lowest number is left out of it.
    """
    if outputs.shape[1] != logits.shape[1]:
        return False
    if len(outputs) != len(logits):
        outputs = _matching(outputs, logits)
        if outputs is None:
            return False
    for row, said in zip(outputs, logits, strict=True):
        live = said > -1e30
        if live.sum() < 2:
            return False
        ordered = said[live][row[live].argsort(kind="stable")]
        reach = np.ptp(ordered)
        if reach == 0 or np.diff(ordered).min() < -1e-3 * reach:
            return False
    return True


def _matching(outputs: np.ndarray, logits: np.ndarray) -> np.ndarray | None:
    """For each row of the logits the row of outputs that it is: one position of each sequence."""
    picked = []
    for said in logits:
        near = np.abs(outputs - said).max(axis=1).argmin()
        picked.append(outputs[near])
    return np.array(picked)


def _tokens() -> torch.Tensor:
    tokens = torch.randint(5, 90, (_SEQUENCES, _POSITIONS))
    tokens[:, -1] = 2  # classifiers of encoder-decoders look for the end
    return tokens


def _inputs(model: Any, name: str, kind: str) -> Iterator[dict[str, Any]]:
    """What the model may take, the likeliest first."""
    own = INPUTS.get(name) or INPUTS.get(kind)
    if own is not None:
        yield own(model.config)
        return
    accepted = inspect.signature(model.forward).parameters
    main = model.main_input_name
    image = _setting(model.config, "image_size", 32)
    size = (image, image) if isinstance(image, int) else tuple(image)[-2:]
    channels = _setting(model.config, "num_channels", 3)
    frames = _setting(model.config, "num_frames", 2)
    mels = _setting(model.config, "num_mel_bins", 8)
    candidates: list[dict[str, Any]] = []
    pictures = {"pixel_values": torch.randn(_SEQUENCES, channels, *size)}
    videos = {"pixel_values": torch.randn(2, frames, channels, *size)}
    sounds = {"input_values": torch.randn(_SEQUENCES, 200)}
    decoder = {"decoder_input_ids": torch.randint(5, 90, (_SEQUENCES, _POSITIONS))}
    features = [
        {"input_features": torch.randn(_SEQUENCES, mels, 32)},
        {"input_features": torch.randn(_SEQUENCES, mels, 128)},
        {"input_features": torch.randn(_SEQUENCES, 32, mels)},
        {"input_features": torch.randn(_SEQUENCES, 64, 80)},
        {"input_features": torch.randn(_SEQUENCES, 64, 160)},
    ]  # fmt: skip
    by_main: dict[str, list[dict[str, Any]]] = {
        "pixel_values": [pictures, videos],
        "input_values": [sounds, *({"input_values": f["input_features"]} for f in features)],
        "pixel_values_videos": [{"pixel_values_videos": videos["pixel_values"]}],
        "input_features": features,
        "input_ids": [{"input_ids": _tokens()}],
    }
    candidates += by_main.get(main, [])
    if main != "input_ids" and "input_ids" in accepted:
        candidates += [{**c, "input_ids": _tokens()} for c in by_main.get(main, [])]
        candidates.append({"input_ids": _tokens()})
    elif main == "input_ids" and "pixel_values" in accepted:
        candidates.append({"input_ids": _tokens(), **pictures})
    with_decoder = [{**c, **decoder} for c in candidates] if "decoder_input_ids" in accepted else []
    plain = {"use_cache": False} if "use_cache" in accepted else {}
    for candidate in (*with_decoder, *candidates):
        yield {**candidate, **plain}


def _setting(config: Any, key: str, default: Any) -> Any:
    for part in (
        config,
        *(getattr(config, k, None) for k in ("vision_config", "encoder", "audio_config")),
    ):
        found = getattr(part, key, None) if part is not None else None
        if found is not None:
            return found
    return default
