"""Weights stored as codes are the writing library's own dequantised weights, or are refused.

Held to the library itself: bitsandbytes, compressed-tensors, MLX and transformers' float8 and MXFP4
converters. Held to the formula that the library documents, written out here: GPTQ (gptqmodel), AWQ
(autoawq) and ModelOpt's NVFP4.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from bounds import bounded
from safetensors.torch import save_file

from uncork import UncorkError, audit
from uncork.loading import describe, find, load
from uncork.loading.codes import layer
from uncork.loading.codes.decoded import decoded
from uncork.loading.contents import Tensor
from uncork.loading.live.objects import open_live
from uncork.save import check_format, write_head

CLASSES, FEATURES = 96, 128
UNLISTED = {"model_type": "nobody_knows_this", "vocab_size": CLASSES}
Tensors = dict[str, torch.Tensor]
INTS = torch.ones(CLASSES, FEATURES, dtype=torch.int8)


def weight(rows: int = CLASSES, columns: int = FEATURES, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def values(array: Any) -> np.ndarray:
    """Any array in float64, exactly."""
    if isinstance(array, torch.Tensor):
        return array.detach().to(torch.float64).numpy()
    return np.asarray(array).astype(np.float64)


def kind(array: torch.Tensor) -> str:
    return str(array.dtype).removeprefix("torch.")


def expect(source: Path, expected: torch.Tensor, **options: Any) -> None:
    """The head is the expected matrix, in its type, and the folding is said."""
    found = find(source, **options)
    assert found.head.dtype == kind(expected)
    np.testing.assert_array_equal(values(found.head.weight), values(expected))
    assert any(note.startswith("dequantised: ") for note in found.notes)


def saved(path: Path, tensors: Tensors, config: Mapping[str, Any] | None = None) -> Path:
    """A lone file, or a folder where there is a configuration."""
    if config is None:
        save_file({k: v.contiguous() for k, v in tensors.items()}, path / "head.safetensors")
        return path / "head.safetensors"
    save_file({k: v.contiguous() for k, v in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path


# float8 and int8 with scales: compressed-tensors' decompressor, transformers' Fp8Dequantize


def compressed(
    tmp_path: Path, form: str, config: Mapping[str, Any] | None, scale: torch.dtype, **args: Any
) -> tuple[Path, torch.Tensor]:
    """A head as compressed-tensors stores it, and what it makes of that again."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    W = weight().to(scale)
    quantisation = QuantizationArgs(**args)
    scheme = QuantizationScheme(targets=["Linear"], weights=quantisation)
    size = args.get("group_size") or FEATURES
    if args["strategy"] == "tensor":
        low, high = W.min().reshape(1), W.max().reshape(1)
    elif args["strategy"] == "block":
        height, width = args["block_structure"]
        padded = torch.zeros(-(-CLASSES // height) * height, -(-FEATURES // width) * width)
        padded[:CLASSES, :FEATURES] = W
        blocks = padded.reshape(-1, height, padded.shape[1] // width, width).float()
        low, high = blocks.amin((1, 3)).to(scale), blocks.amax((1, 3)).to(scale)
    else:
        groups = W.reshape(CLASSES, -1, size)
        low, high = groups.amin(-1), groups.amax(-1)
    shared = None
    if form == "nvfp4-pack-quantized":
        shared = (448.0 * 6.0 / W.abs().max().float()).reshape(1)
        scales = (shared * groups.abs().amax(-1).float() / 6.0).to(torch.float8_e4m3fn).float()
        state = {"weight": W, "weight_scale": scales, "weight_global_scale": shared}
    elif form.startswith("mxfp"):
        scales = 2.0 ** torch.floor(torch.log2(groups.abs().amax(-1).float() / 6.0))
        state = {"weight": W, "weight_scale": scales}
    else:
        scales, zeros = calculate_qparams(low, high, quantisation)
        state = {"weight": W, "weight_scale": scales.to(scale), "weight_zero_point": zeros}
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    back = compressor.decompress(stored, scheme)["weight"]
    path = saved(tmp_path, {f"lm_head.{name}": value for name, value in stored.items()}, config)
    return path, back


@pytest.mark.parametrize("config", [None, UNLISTED, {"model_type": "llama"}])
@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("form", "args"),
    [
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
        ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block",
                             "block_structure": [128, 128]}),
        ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
        ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel",
                           "symmetric": False}),
        ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "group", "group_size": 32}),
        ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}),
        ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64,
                            "symmetric": False}),
        ("pack-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
        ("pack-quantized", {"num_bits": 2, "type": "int", "strategy": "group", "group_size": 32}),
        ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group",
                                  "group_size": 16}),
        ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "group",
                                  "group_size": 32}),
        ("mxfp8-quantized", {"num_bits": 8, "type": "float", "strategy": "group",
                             "group_size": 32, "scale_dtype": torch.uint8}),
    ],
)  # fmt: skip
def test_compressed_tensors(
    tmp_path: Path, form: str, args: dict[str, Any], scale: torch.dtype, config: Any
) -> None:
    path, expected = compressed(tmp_path, form, config, scale, **args)
    expect(path, expected)


@pytest.mark.parametrize("model_type", ["llama", "nobody_knows_this"])
@pytest.mark.parametrize("scale", [torch.float32, torch.bfloat16, "exponents"])
@pytest.mark.parametrize("name", ["weight_scale_inv", "weight_scale", "scale"])
def test_blocks_as_transformers_dequantises_them(
    tmp_path: Path, name: str, scale: Any, model_type: str
) -> None:
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    codes = (weight(256, 384) * 1000).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, generator=torch.Generator().manual_seed(1)) + 0.1
    if scale == "exponents":
        scales = torch.randint(110, 130, (2, 3)).to(torch.uint8)
    else:
        scales = scales.to(scale)
    config = {
        "model_type": model_type,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    }
    path = saved(tmp_path, {"lm_head.weight": codes, f"lm_head.{name}": scales}, config)
    expect(path, Fp8Dequantize(None)._dequantize_one(codes, scales))


def test_blocks_at_the_edges_are_shorter(tmp_path: Path) -> None:
    """DeepSeek's own kernel: block (i // 128, j // 128), whatever is left at the edges."""
    codes = (weight(200, 300) * 1000).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, generator=torch.Generator().manual_seed(1)) + 0.1
    path = saved(tmp_path, {"lm_head.weight": codes, "lm_head.weight_scale_inv": scales})
    every = scales.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    expect(path, codes.float() * every)


def test_a_float8_head_loses_the_classes_that_its_dequantised_weight_loses(tmp_path: Path) -> None:
    """Row scales: 146 of 200 classes are lost, where the codes alone have none that are."""
    generator = torch.Generator().manual_seed(5)
    directions = torch.randn(200, 16, generator=generator)
    W = directions / directions.norm(dim=1, keepdim=True)
    W = W * torch.cat([torch.full((146, 1), 0.01), torch.ones(54, 1)])
    scales = W.abs().amax(1, keepdim=True) / 448
    codes = (W / scales).to(torch.float8_e4m3fn)
    path = saved(tmp_path, {"lm_head.weight": codes, "lm_head.weight_scale": scales})
    assert len(audit(load(path)).unargmaxable) == 146
    raw = saved(tmp_path, {"lm_head.weight": codes.float()})
    assert len(audit(load(raw)).unargmaxable) == 0


# bitsandbytes


@pytest.mark.parametrize("form", ["safetensors", "pt", "npz"])
def test_int8_with_scb(tmp_path: Path, form: str) -> None:
    from bitsandbytes.functional import int8_vectorwise_dequant

    W = weight()
    scb = W.abs().amax(1)
    codes = (W / scb[:, None] * 127).round().to(torch.int8)
    tensors = {"lm_head.weight": codes, "lm_head.SCB": scb,
               "lm_head.weight_format": torch.tensor(0, dtype=torch.uint8)}  # fmt: skip
    path = tmp_path / f"m.{form}"
    if form == "safetensors":
        save_file(tensors, path)
    elif form == "pt":
        torch.save(tensors, path)
    else:
        np.savez(path, **{name: value.numpy() for name, value in tensors.items()})
    expect(path, int8_vectorwise_dequant(codes, scb))


def four_bit(
    kind: str, dtype: torch.dtype, nested: bool, block: int, features: int = 256, **options: Any
) -> Any:
    import bitsandbytes as bnb

    linear = bnb.nn.Linear4bit(
        features, 100, bias=False, quant_type=kind, compress_statistics=nested, **options
    )
    linear.weight = bnb.nn.Params4bit(
        weight(100, features).to(dtype), requires_grad=False, quant_type=kind,
        compress_statistics=nested, blocksize=block, **options,
    )  # fmt: skip
    return linear.to("cpu")


@pytest.mark.parametrize("block", [64, 256])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("quant_type", ["nf4", "fp4"])
def test_four_bit_without_a_configuration(
    tmp_path: Path, quant_type: str, dtype: torch.dtype, nested: bool, block: int
) -> None:
    from bitsandbytes.functional import dequantize_4bit

    linear = four_bit(quant_type, dtype, nested, block)
    expected = dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    assert expected.shape == (100, 256)
    tensors = {f"lm_head.{name}": value for name, value in linear.state_dict().items()}
    expect(saved(tmp_path, tensors), expected)
    torch.save(tensors, tmp_path / "m.pt")
    expect(tmp_path / "m.pt", expected)


@pytest.mark.parametrize("features", [96, 100, 50])
def test_four_bit_blocks_that_go_across_rows(tmp_path: Path, features: int) -> None:
    """Its CUDA kernel and plain torch version count on over the rows; its CPU kernel does not."""
    from bitsandbytes.functional import get_4bit_type

    linear = four_bit("nf4", torch.float32, False, 64, features)
    flat = linear.weight.data.reshape(-1).long()
    codes = torch.stack([flat >> 4, flat & 15], -1).reshape(-1)
    blocks = linear.weight.quant_state.absmax.repeat_interleave(64)[: len(codes)]
    expected = (get_4bit_type("nf4", "cpu")[codes] * blocks).reshape(100, features)
    assert (expected - weight(100, features)).abs().max() < 0.05
    tensors = {f"lm_head.{name}": value for name, value in linear.state_dict().items()}
    expect(saved(tmp_path, tensors), expected)


def test_four_bit_codes_in_another_type(tmp_path: Path) -> None:
    from bitsandbytes.functional import dequantize_4bit

    linear = four_bit("nf4", torch.bfloat16, True, 64, quant_storage=torch.bfloat16)
    assert linear.weight.dtype == torch.bfloat16
    tensors = {f"lm_head.{name}": value for name, value in linear.state_dict().items()}
    expect(saved(tmp_path, tensors), dequantize_4bit(linear.weight.data, linear.weight.quant_state))


def test_a_live_layer_of_bitsandbytes() -> None:
    from bitsandbytes.functional import dequantize_4bit

    linear = four_bit("nf4", torch.bfloat16, False, 64)
    model = torch.nn.Sequential(torch.nn.Linear(4, 256), linear)
    found = find(model, weight="1.weight")
    expected = dequantize_4bit(linear.weight.data, linear.weight.quant_state)
    np.testing.assert_array_equal(values(found.head.weight), values(expected))
    assert open_live(model).tensors["1.weight"].shape == (100, 256)


class Halves(torch.Tensor):
    """Codes in a tensor that looks like its dequantised self, as torchao's classes are made."""

    codes: torch.Tensor

    @staticmethod
    def __new__(cls, codes: torch.Tensor) -> Halves:
        made = torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)
        made.codes = codes
        return made

    def dequantize(self) -> torch.Tensor:  # type: ignore[override]
        return self.codes.float() / 2

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return Halves(args[0].codes)
        raise NotImplementedError(func)


def test_a_live_tensor_that_dequantises_itself() -> None:
    model = torch.nn.Linear(FEATURES, CLASSES, bias=False)
    model.weight = torch.nn.Parameter(Halves(INTS), requires_grad=False)
    found = find(model)
    np.testing.assert_array_equal(values(found.head.weight), values(INTS) / 2)
    assert found.notes == ("dequantised by Halves.dequantize()",)


def test_a_live_int8_layer_of_bitsandbytes() -> None:
    import bitsandbytes as bnb

    linear = bnb.nn.Linear8bitLt(FEATURES, CLASSES, bias=False, has_fp16_weights=False)
    linear.load_state_dict({"weight": weight()})
    linear = linear.to("cpu")
    codes, scale = linear.weight.data, linear.state_dict()["SCB"]
    assert codes.dtype == torch.int8
    expected = bnb.functional.int8_vectorwise_dequant(codes, scale)
    found = find(linear, weight="weight")
    np.testing.assert_array_equal(values(found.head.weight), values(expected))


# MLX


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("configured", [True, False])
def test_affine_codes_of_mlx(
    tmp_path: Path, bits: int, group: int, dtype: str, configured: bool
) -> None:
    import mlx.core as mx

    with mx.stream(mx.cpu):
        W = mx.array(weight().numpy()).astype(getattr(mx, dtype))
        codes, scales, biases = mx.quantize(W, group_size=group, bits=bits)
        back = np.array(mx.dequantize(codes, scales, biases, group, bits).astype(mx.float32))
        parts = {"lm_head.weight": codes, "lm_head.scales": scales, "lm_head.biases": biases}
        path = tmp_path / "model.safetensors"
        mx.save_safetensors(str(path), parts, {"format": "mlx"})
    if configured:
        config = {"model_type": "llama", "quantization": {"bits": bits, "group_size": group}}
        (tmp_path / "config.json").write_text(json.dumps(config))
    found = find(tmp_path if configured else path)
    assert found.head.dtype == dtype
    np.testing.assert_array_equal(values(found.head.weight), back)


def test_a_layer_with_bits_of_its_own(tmp_path: Path) -> None:
    import mlx.core as mx

    with mx.stream(mx.cpu):
        parts = dict(zip(("weight", "scales", "biases"),
                         mx.quantize(mx.array(weight().numpy()), group_size=32, bits=8),
                         strict=True))  # fmt: skip
        path = str(tmp_path / "model.safetensors")
        mx.save_safetensors(path, {f"lm_head.{name}": value for name, value in parts.items()})
    said = {"bits": 4, "group_size": 64, "lm_head": {"bits": 8, "group_size": 32}}
    config = {"model_type": "llama", "quantization": said}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load(tmp_path).features == FEATURES


# GPTQ and AWQ: the libraries' formulas


def packed_rows(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes (rows, columns) packed along the rows into int32, bit after bit."""
    single = ((codes[:, None, :] >> np.arange(bits)[None, :, None]) & 1).reshape(-1, codes.shape[1])
    words = single.reshape(-1, 32, codes.shape[1]).astype(np.uint64)
    return (
        (words << np.arange(32, dtype=np.uint64)[None, :, None])
        .sum(1)
        .astype(np.uint32)
        .view(np.int32)
    )


def gptq(
    bits: int, symmetric: bool, reordered: bool, less: int, dtype: torch.dtype
) -> tuple[Tensors, torch.Tensor]:
    """Tensors as gptqmodel stores them, and its `dequantize_weight` of them."""
    random = np.random.default_rng(bits)
    groups = FEATURES // 32
    codes = random.integers(0, 2**bits, (FEATURES, CLASSES))
    zeros = np.full((groups, CLASSES), 2 ** (bits - 1))
    if not symmetric:
        zeros = random.integers(1, 2**bits, (groups, CLASSES))
    scales = torch.from_numpy(random.uniform(0.001, 0.1, (groups, CLASSES))).to(dtype)
    g_idx = torch.arange(FEATURES) // 32
    if reordered:
        g_idx = g_idx[torch.from_numpy(random.permutation(FEATURES))]
    tensors = {
        "lm_head.qweight": torch.from_numpy(packed_rows(codes, bits)),
        "lm_head.qzeros": torch.from_numpy(packed_rows((zeros - less).T, bits).T.copy()),
        "lm_head.scales": scales, "lm_head.g_idx": g_idx.to(torch.int32),
    }  # fmt: skip
    difference = torch.from_numpy(codes) - torch.from_numpy(zeros)[g_idx]
    return tensors, (scales[g_idx] * difference.to(torch.int16)).T


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reordered", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("version", "less"), [("gptq", 1), ("gptq_v2", 0), (None, 1)])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(
    tmp_path: Path, bits: int, version: str | None, less: int, symmetric: bool, reordered: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    tensors, expected = gptq(bits, symmetric, reordered, less, dtype)
    said: dict[str, Any] = {"quant_method": "gptq", "bits": bits, "group_size": 32}
    if version is not None:
        said["checkpoint_format"] = version
    config = {"model_type": "llama", "quantization_config": said}
    expect(saved(tmp_path, tensors, config), expected, weight="lm_head.weight")


@pytest.mark.parametrize("less", [0, 1])
def test_gptq_without_a_configuration_is_told_by_symmetric_zeros_alone(
    tmp_path: Path, less: int
) -> None:
    tensors, expected = gptq(4, True, False, less, torch.float16)
    expect(saved(tmp_path, tensors), expected)
    tensors, _ = gptq(4, False, False, less, torch.float16)
    with pytest.raises(UncorkError, match=r"less one \(checkpoint_format\): give the folder"):
        load(saved(tmp_path, tensors))


def awq() -> tuple[Tensors, torch.Tensor]:
    """Tensors as autoawq's gemm version stores them, and its `dequantize_gemm` of them."""
    random = np.random.default_rng(0)
    groups = FEATURES // 64
    codes = random.integers(0, 16, (FEATURES, CLASSES))
    zeros = random.integers(0, 16, (groups, CLASSES))
    scales = torch.from_numpy(random.uniform(0.001, 0.1, (groups, CLASSES))).to(torch.float16)

    def packed(numbers: np.ndarray) -> torch.Tensor:
        words = np.zeros((len(numbers), CLASSES // 8), np.uint32)
        for place, column in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
            words |= numbers[:, column::8].astype(np.uint32) << np.uint32(4 * place)
        return torch.from_numpy(words.view(np.int32))

    tensors = {"lm_head.qweight": packed(codes), "lm_head.qzeros": packed(zeros),
               "lm_head.scales": scales}  # fmt: skip
    whole = torch.from_numpy(codes) - torch.from_numpy(zeros).repeat_interleave(64, 0)
    return tensors, (whole.to(torch.int8) * scales.repeat_interleave(64, 0)).T


@pytest.mark.parametrize(
    "config",
    [None, UNLISTED, {"model_type": "llama", "quantization_config": {
        "quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"}}],
)  # fmt: skip
def test_awq(tmp_path: Path, config: Any) -> None:
    tensors, expected = awq()
    expect(saved(tmp_path, tensors, config), expected)


# 4-bit floats


def test_nvfp4_of_modelopt(tmp_path: Path) -> None:
    """ModelOpt's NVFP4QTensor.dequantize: the two scales first, then the codes, in float32."""
    codes = torch.randint(0, 256, (CLASSES, FEATURES // 2), dtype=torch.uint8)
    scales = (torch.rand(CLASSES, FEATURES // 16) * 100).to(torch.float8_e4m3fn)
    second = torch.tensor(0.000123)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    halves = torch.stack([codes & 15, codes >> 4], -1).reshape(CLASSES, -1, 16).long()
    expected = table[halves] * (scales.float() * second)[:, :, None]
    tensors = {
        "lm_head.weight": codes, "lm_head.weight_scale": scales,
        "lm_head.weight_scale_2": second, "lm_head.input_scale": torch.tensor(1.0),
    }  # fmt: skip
    for config in (None, UNLISTED):
        expect(saved(tmp_path, tensors, config), expected.reshape(CLASSES, FEATURES))


def test_mxfp4_blocks_as_transformers_converts_them(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.randint(0, 256, (1, CLASSES, FEATURES // 32, 16), dtype=torch.uint8)
    scales = torch.randint(100, 140, (1, CLASSES, FEATURES // 32), dtype=torch.uint8)
    expected = convert_moe_packed_tensors(blocks, scales)[0].T
    tensors = {"lm_head.blocks": blocks[0], "lm_head.scales": scales[0]}
    expect(saved(tmp_path, tensors), expected)


# What is refused, and how it is said


REFUSED: dict[str, tuple[Tensors, str]] = {
    "HQQ": ({"W_q": INTS.to(torch.uint8), "scale": torch.ones(CLASSES), "zero": torch.ones(96)},
            "by HQQ"),
    "Quanto": ({"weight._data": INTS, "weight._scale": torch.ones(CLASSES, 1)}, "by Quanto"),
    "torchao": ({"_weight_qdata": INTS, "_weight_scale": torch.ones(CLASSES, 1)}, "by torchao"),
    "AQLM": ({"codebooks": torch.ones(1, 256, 1, 8), "codes": INTS, "scales": torch.ones(96)},
             "by AQLM"),
    "VPTQ": ({"centroids.weight": torch.ones(1, 256), "indices": INTS}, "by VPTQ"),
    "SpQR": ({"dense_weights": INTS.long(), "row_offsets": torch.ones(9)}, "by SpQR"),
    "EETQ": ({"weight": INTS, "weight_scales": torch.ones(FEATURES)}, "by EETQ"),
    "BitNet": ({"weight": INTS.to(torch.uint8), "weight_scale": torch.ones(1)}, "weight_scale"),
    "NVFP4 of transformers": (
        {"weight": INTS.to(torch.uint8), "weight_sf": torch.ones(9, dtype=torch.int32)}, "NVFP4"),
    "a scale beside floats": ({"weight": weight(), "weight_scale": torch.ones(1)}, "weight_scale"),
    "zero points alone": ({"weight": INTS, "zero_point": torch.ones(CLASSES)}, "zero_point"),
    "words without a scheme": ({"weight": INTS.int(), "scales": torch.ones(CLASSES)}, "scales"),
    "AWQ for another kernel": ({"qweight": torch.ones(96, 16, dtype=torch.int32),
                                "qzeros": torch.ones(96, 1, dtype=torch.int32),
                                "scales": torch.ones(96, 8)}, "qweight"),
}  # fmt: skip


@pytest.mark.parametrize("config", [None, UNLISTED, {"model_type": "llama"}])
@pytest.mark.parametrize("name", REFUSED)
def test_other_codes_are_refused_by_name_with_what_to_do(
    tmp_path: Path, name: str, config: Any
) -> None:
    tensors, message = REFUSED[name]
    path = saved(tmp_path, {f"lm_head.{part}": value for part, value in tensors.items()}, config)
    with pytest.raises(UncorkError, match="dequantise the model with its own library") as raised:
        load(path)
    assert message in str(raised.value)
    assert "lm_head.weight is stored as codes" in str(raised.value)
    with pytest.raises(UncorkError):
        load(path, weight="lm_head.weight")


def test_a_method_of_the_configuration_that_is_not_known_is_refused(tmp_path: Path) -> None:
    codes = weight().to(torch.float8_e4m3fn)
    tensors = {"lm_head.weight": codes, "lm_head.weight_scale": torch.ones(1)}
    config = {"model_type": "llama", "quantization_config": {"quant_method": "quark"}}
    with pytest.raises(UncorkError, match="by Quark"):
        load(saved(tmp_path, tensors, config))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.int32])
def test_codes_without_a_scale_are_refused_in_a_model_and_doubted_in_a_plain_file(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors = {"lm_head.weight": (weight() * 500).to(dtype)}
    for config in (UNLISTED, {"model_type": "llama"}):
        with pytest.raises(UncorkError, match="quantised, and no scale lies beside it"):
            load(saved(tmp_path, tensors, config))
    found = find(saved(tmp_path, tensors))
    assert "has no scale beside it" in found.notes[0]
    np.testing.assert_array_equal(
        values(found.head.weight), values(tensors["lm_head.weight"].float())
    )


def test_floats_with_names_of_scales_near_them_are_taken_as_they_are(tmp_path: Path) -> None:
    """A learnt temperature beside a cosine classifier is no quantisation."""
    tensors = {"head.weight": weight(), "head.scale": torch.ones(1), "head.scales": torch.ones(9)}
    found = find(saved(tmp_path, tensors))
    np.testing.assert_array_equal(values(found.head.weight), values(weight()))
    assert not found.notes


def test_names_that_others_use_too_make_no_codes(tmp_path: Path) -> None:
    tensors = {"centroids.weight": weight(), "codebooks": torch.ones(3), "x.blocks": torch.ones(3)}
    found = find(saved(tmp_path, tensors))
    assert (found.weight_name, found.notes) == ("centroids.weight", ())


def test_integers_of_a_plain_array_are_as_they_were(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.arange(12).reshape(4, 3))
    assert not find(tmp_path / "m.npy").notes


# Names


def test_codes_stay_listed_and_are_no_weights_to_choose(tmp_path: Path) -> None:
    tensors, expected = awq()
    path = saved(tmp_path, tensors)
    shown = describe(path)
    by_name = {info.name: info for info in shown.tensors}
    assert by_name["lm_head.weight"].shape == (CLASSES, FEATURES)
    assert by_name["lm_head.weight"].role == "weight"
    assert by_name["lm_head.qweight"].shape == (FEATURES, CLASSES // 8)
    with pytest.raises(UncorkError, match=r"a part of lm_head.weight.*--weight lm_head.weight"):
        load(path, weight="lm_head.qweight")
    turned = load(path, weight="lm_head.weight", transpose=True)
    np.testing.assert_array_equal(values(turned.weight), values(expected.T))


def test_an_embedding_in_codes_that_is_tied_is_the_head(tmp_path: Path) -> None:
    codes = weight().to(torch.float8_e4m3fn)
    tensors = {"model.embed_tokens.weight": codes, "model.norm.weight": torch.ones(FEATURES),
               "model.embed_tokens.weight_scale": torch.full((CLASSES, 1), 0.5)}  # fmt: skip
    config = {"model_type": "llama", "tie_word_embeddings": True}
    expect(saved(tmp_path, tensors, config), codes.float() * 0.5)


@pytest.mark.parametrize("indexed", [True, False])
def test_one_shard_may_hold_codes_with_their_scales(tmp_path: Path, indexed: bool) -> None:
    codes = torch.randint(-127, 127, (CLASSES, FEATURES), dtype=torch.int8)
    head = {"lm_head.weight": codes, "lm_head.SCB": torch.rand(CLASSES)}
    shards = {"model-00001-of-00002.safetensors": {"model.layers.0.w": torch.ones(3, 3)},
              "model-00002-of-00002.safetensors": head}  # fmt: skip
    for name, tensors in shards.items():
        save_file(tensors, tmp_path / name)
    if indexed:
        where = {tensor: name for name, tensors in shards.items() for tensor in tensors}
        index = json.dumps({"weight_map": where})
        (tmp_path / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    save_file(head, tmp_path / "alone.safetensors")
    found, alone = load(tmp_path), load(tmp_path / "alone.safetensors")
    assert np.array_equal(found.weight, alone.weight)
    assert found.reading.folded == alone.reading.folded != ()


def test_shards_hold_codes_and_scales_apart(tmp_path: Path) -> None:
    tensors, expected = awq()
    where = {}
    for n, (name, value) in enumerate(tensors.items()):
        shard = f"model-0000{n}.safetensors"
        save_file({name: value}, tmp_path / shard)
        where[name] = shard
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    expect(tmp_path, expected)
    (tmp_path / "config.json").write_text(json.dumps(UNLISTED))
    expect(tmp_path, expected)


def test_large_weights_are_dequantised_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "_CHUNK", 1)
    random = np.random.default_rng(0)
    codes = random.integers(-127, 127, (1000, 16)).astype(np.int8)
    scale = random.normal(size=1000).astype(np.float32)
    np.savez(tmp_path / "m.npz", weight=codes, SCB=scale)
    expected = codes.astype(np.float32) * scale[:, None] * np.float32(1 / 127)
    np.testing.assert_allclose(load(tmp_path / "m.npz").weight, expected, rtol=1e-6)


def test_the_type_of_a_narrow_scale_is_the_weights(tmp_path: Path) -> None:
    stored = {
        "w.weight": np.ones((4, 2), ml_dtypes.float8_e4m3fn),
        "w.weight_scale": np.full((4, 1), 0.1, ml_dtypes.bfloat16),
    }
    tensors = {n: Tensor(n, a.shape, a.dtype.name, lambda a=a: a) for n, a in stored.items()}
    made = decoded(Path("m"), tensors)["w.weight"].read()
    assert made.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(made, np.full((4, 2), 0.1, ml_dtypes.bfloat16))


# Damage: every part made to lie about its size, its type or its values


def mlx_parts() -> Tensors:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 2**31, (CLASSES, 16), generator=generator)
    codes[:, ::8] &= ~15  # MLX's groups each have a code 0
    codes = codes.to(torch.uint32)
    return {"weight": codes, "scales": torch.ones(CLASSES, 2), "biases": torch.ones(CLASSES, 2)}


def gptq_parts() -> Tensors:
    tensors, _ = gptq(4, True, False, 1, torch.float16)
    return {name.removeprefix("lm_head."): value for name, value in tensors.items()}


def awq_parts() -> Tensors:
    return {name.removeprefix("lm_head."): value for name, value in awq()[0].items()}


def state(**changes: Any) -> torch.Tensor:
    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [CLASSES, FEATURES]}
    return torch.frombuffer(bytearray(json.dumps({**said, **changes}).encode()), dtype=torch.uint8)


STATE = "weight.quant_state.bitsandbytes__nf4"
COUNT = CLASSES * FEATURES
GOOD: dict[str, Callable[[], Tensors]] = {
    "float8": lambda: {"weight": weight().to(torch.float8_e4m3fn),
                       "weight_scale": torch.ones(CLASSES, 1)},
    "int8": lambda: {"weight": INTS, "SCB": torch.ones(CLASSES)},
    "four bit": lambda: {"weight": torch.ones(COUNT // 2, 1, dtype=torch.uint8),
                         "weight.absmax": torch.ones(COUNT // 64), STATE: state()},
    "nested": lambda: {"weight": torch.ones(COUNT // 2, 1, dtype=torch.uint8),
                       "weight.absmax": torch.ones(COUNT // 64, dtype=torch.uint8),
                       "weight.nested_absmax": torch.ones(1),
                       "weight.nested_quant_map": torch.ones(256),
                       STATE: state(nested_blocksize=256, nested_offset=0.5)},
    "mlx": mlx_parts, "gptq": gptq_parts, "awq": awq_parts,
    "nvfp4": lambda: {"weight": torch.ones(CLASSES, FEATURES // 2, dtype=torch.uint8),
                      "weight_scale": torch.ones(CLASSES, 8).to(torch.float8_e4m3fn),
                      "weight_scale_2": torch.tensor(0.5)},
    "packed": lambda: {"weight_packed": torch.ones(CLASSES, FEATURES // 8, dtype=torch.int32),
                       "weight_scale": torch.ones(CLASSES, 4),
                       "weight_shape": torch.tensor([CLASSES, FEATURES])},
    "mxfp4": lambda: {"blocks": torch.ones(CLASSES, 4, 16, dtype=torch.uint8),
                      "scales": torch.full((CLASSES, 4), 127, dtype=torch.uint8)},
}  # fmt: skip
NAN, INF = float("nan"), float("inf")
DAMAGE: list[tuple[str, str, torch.Tensor]] = [
    ("float8", "weight_scale", torch.full((CLASSES, 1), NAN)),
    ("float8", "weight_scale", torch.ones(CLASSES - 1, 1)),
    ("float8", "weight_scale", torch.ones(7)),
    ("float8", "weight_scale", torch.ones(0)),
    ("float8", "weight_scale", torch.ones(CLASSES, 1, dtype=torch.int32)),
    ("float8", "weight_scale", torch.ones(CLASSES, 1, 1)),
    ("float8", "weight_scale", torch.full((CLASSES, 1), 255, dtype=torch.uint8)),
    ("float8", "weight_zero_point", torch.ones(3, dtype=torch.int8)),
    ("int8", "SCB", torch.full((CLASSES,), INF)),
    ("int8", "SCB", torch.ones(CLASSES + 1)),
    ("int8", "SCB", torch.ones(CLASSES, dtype=torch.int64)),
    ("int8", "weight_format", torch.tensor(2, dtype=torch.uint8)),
    ("four bit", STATE, state(shape=[2**39, 2**39])),
    ("four bit", STATE, state(shape=[CLASSES, FEATURES * 2])),
    ("four bit", STATE, state(shape=[-1, -1])),
    ("four bit", STATE, state(shape=COUNT)),
    ("four bit", STATE, state(blocksize=0)),
    ("four bit", STATE, state(blocksize=True)),
    ("four bit", STATE, state(dtype="float64; import os")),
    ("four bit", STATE, torch.full((100_000,), 91, dtype=torch.uint8)),
    ("four bit", STATE, torch.full((60_000,), 91, dtype=torch.uint8)),
    ("four bit", "weight.absmax", torch.full((COUNT // 64,), NAN)),
    ("four bit", "weight.absmax", torch.ones(3)),
    ("four bit", "weight.quant_map", torch.ones(16)),
    ("four bit", "weight", torch.ones(COUNT, 1, dtype=torch.uint8)),
    ("four bit", "weight", torch.ones(1, COUNT // 2, dtype=torch.uint8)),
    ("nested", "weight.nested_absmax", torch.full((1,), INF)),
    ("nested", "weight.nested_absmax", torch.ones(0)),
    ("nested", "weight.nested_quant_map", torch.ones(3)),
    ("nested", STATE, state(nested_blocksize=0, nested_offset=0.5)),
    ("nested", STATE, state(nested_blocksize=256, nested_offset="x")),
    ("nested", STATE, state(nested_blocksize=256, nested_offset=NAN)),
    ("mlx", "scales", torch.full((CLASSES, 2), NAN)),
    ("mlx", "scales", torch.ones(CLASSES, 3)),
    ("mlx", "biases", torch.ones(CLASSES, 2, dtype=torch.float16)),
    ("mlx", "weight", torch.ones(CLASSES, 17, dtype=torch.uint32)),
    ("mlx", "weight", torch.ones(CLASSES, 0, dtype=torch.uint32)),
    ("gptq", "g_idx", torch.full((FEATURES,), 10**6, dtype=torch.int32)),
    ("gptq", "g_idx", torch.ones(3, dtype=torch.int32)),
    ("gptq", "qzeros", torch.ones(4, 1, dtype=torch.int32)),
    ("gptq", "scales", torch.full((4, CLASSES), INF, dtype=torch.float16)),
    ("awq", "scales", torch.full((2, CLASSES), NAN, dtype=torch.float16)),
    ("awq", "scales", torch.ones(3, CLASSES, dtype=torch.float16)),
    ("awq", "qzeros", torch.ones(2, 1, dtype=torch.int32)),
    ("nvfp4", "weight_scale_2", torch.tensor(NAN)),
    ("nvfp4", "weight_scale_2", torch.ones(4)),
    ("nvfp4", "weight_scale", torch.ones(CLASSES, 4).to(torch.float8_e4m3fn)),
    ("packed", "weight_shape", torch.tensor([2**40, 2**40])),
    ("packed", "weight_shape", torch.tensor([-CLASSES, -FEATURES])),
    ("packed", "weight_shape", torch.ones(9, dtype=torch.int64)),
    ("packed", "weight_scale", torch.full((CLASSES, 4), NAN)),
    ("packed", "weight_scale", torch.ones(CLASSES, 3)),
    ("packed", "weight_zero_point", torch.ones(4, 4, dtype=torch.int32)),
    ("packed", "weight_g_idx", torch.zeros(FEATURES, dtype=torch.int32)),
    ("mxfp4", "scales", torch.full((CLASSES, 4), 255, dtype=torch.uint8)),
    ("mxfp4", "scales", torch.full((CLASSES, 5), 127, dtype=torch.uint8)),
    ("mxfp4", "blocks", torch.ones(CLASSES, 4, 15, dtype=torch.uint8)),
]  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_the_parts_are_a_head_before_they_are_damaged(tmp_path: Path, name: str) -> None:
    parts = {f"lm_head.{part}": value for part, value in GOOD[name]().items()}
    assert load(saved(tmp_path, parts)).weight.shape == (CLASSES, FEATURES)


@pytest.mark.parametrize(
    ("name", "part", "value"), DAMAGE, ids=[f"{name}-{part}" for name, part, _ in DAMAGE]
)
def test_parts_that_lie_are_refused_in_one_line_and_hide_no_other_tensor(
    tmp_path: Path, name: str, part: str, value: torch.Tensor
) -> None:
    parts = {f"lm_head.{part}": value for part, value in GOOD[name]().items()}
    path = saved(tmp_path, {**parts, f"lm_head.{part}": value, "fine": weight()})
    with bounded(), pytest.raises(UncorkError, match=r"lm_head\.weight is stored as") as raised:
        load(path, weight="lm_head.weight")
    assert str(raised.value).isprintable()
    assert load(path, weight="fine").classes == CLASSES


# The commands


def test_the_audit_is_of_the_dequantised_weight_and_says_so(
    tmp_path: Path,
) -> None:
    path = saved(tmp_path, {f"lm_head.{part}": value for part, value in GOOD["mlx"]().items()})
    shown = describe(path)
    assert shown.head is not None
    assert shown.head.weight.shape == (CLASSES, FEATURES)
    assert shown.notes[0].startswith("dequantised: 4-bit codes times lm_head.scales")


def test_a_weight_in_codes_is_not_overwritten_and_its_bias_is(tmp_path: Path) -> None:
    parts = {f"lm_head.{part}": value for part, value in GOOD["int8"]().items()}
    source, out = saved(tmp_path, parts), tmp_path / "new.safetensors"
    found = find(source)
    new, bias = np.asarray(found.head.weight) * 2, np.arange(CLASSES) / 4
    with pytest.raises(UncorkError, match=r"as codes, which cannot hold a new weight.*npz"):
        check_format(found, out, needs_bias=False)
    with pytest.raises(UncorkError, match="as codes, which cannot hold a new weight"):
        write_head(found, new, bias, out)
    assert not out.exists()
    write_head(found, np.asarray(found.head.weight), bias, out)
    head = load(out)
    np.testing.assert_array_equal(head.weight, found.head.weight)
    np.testing.assert_array_equal(head.bias, bias)


def test_a_new_weight_in_the_place_of_codes_can_be_had_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "m.npz", **{"weight": INTS.numpy(), "SCB": np.ones(CLASSES, np.float32)})
    found = find(tmp_path / "m.npz")
    write_head(found, np.asarray(found.head.weight) * 2, None, tmp_path / "new.npz")
    assert set(np.load(tmp_path / "new.npz")) == {"weight"}
    head = find(tmp_path / "new.npz").head
    np.testing.assert_array_equal(head.weight, np.asarray(found.head.weight) * 2)
