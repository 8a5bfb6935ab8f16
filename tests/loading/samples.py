"""A small valid file of every format that is read, by the real tool where there is one."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

W = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
B = np.arange(6, dtype=np.float32)
_COREML = "Data/com.apple.CoreML"  # where a package has its model


def _npy(path: Path) -> None:
    np.save(path, W)


def _npz(path: Path) -> None:
    np.savez(path, weight=W, bias=B)


def _compressed(path: Path) -> None:
    np.savez_compressed(path, weight=W, bias=B)


def _pickle(path: Path) -> None:
    import pickle

    path.write_bytes(pickle.dumps({"weight": W, "bias": B}))


def _marian(path: Path) -> None:
    text = b"type: transformer\ndec-depth: 1\ntransformer-postprocess: dan\n"
    np.savez(path, **{
        "special:model.yml": np.frombuffer(text, np.int8), "Wemb": W,
        "decoder_ff_logit_out_b": B[None], "decoder_l1_ffn_ffn_ln_scale": W[:1] ** 2 + 1,
        "decoder_l1_ffn_ffn_ln_bias": W[1:2],
    })  # fmt: skip


def _safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weight": W, "bias": B}, path)


def _codes(path: Path) -> None:
    """4-bit codes as bitsandbytes lays them out."""
    from safetensors.numpy import save_file

    said = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": [6, 4]}
    state = np.frombuffer(json.dumps(said).encode(), np.uint8)
    save_file({
        "weight": np.arange(12, dtype=np.uint8)[:, None], "weight.absmax": B[:1] + 1,
        "weight.quant_state.bitsandbytes__nf4": state,
    }, path)  # fmt: skip


def _torch(path: Path, zipped: bool = True) -> None:
    import torch

    state = {"lm_head.weight": torch.from_numpy(W), "lm_head.bias": torch.from_numpy(B)}
    torch.save({"state_dict": state}, path, _use_new_zipfile_serialization=zipped)


def _legacy(path: Path) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _torch(path, zipped=False)


def _onnx(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Gemm", ["h", "weight", "bias"], ["y"], transB=1),
        helper.make_node("Softmax", ["y"], ["p"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, size])
        for name, size in (("x", 4), ("p", 6))
    ]
    stored = [numpy_helper.from_array(W, "weight"), numpy_helper.from_array(B, "bias")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph), path)


def _ort(path: Path) -> None:
    from test_ort_file import classifier, converted

    plain = classifier(path.with_name("plain.onnx"))
    converted(plain).rename(path)
    plain.unlink()


def _gguf(path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list([f"t{n}" for n in range(6)])
    writer.add_tensor("output.weight", np.repeat(W, 8, axis=1))
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _fasttext(path: Path) -> None:
    import fasttext

    text = path.with_suffix(".txt")
    text.write_text("".join(f"__label__{n % 6} w{n % 6} w{n % 5}\n" for n in range(60)))
    # The real tool fills its matrices in tenths, by ten threads, and leaves a remainder unset.
    options = {"dim": 10, "thread": 10, "verbose": 0, "epoch": 1, "bucket": 0, "loss": "softmax"}
    fasttext.train_supervised(str(text), **options).save_model(str(path))
    text.unlink()


def _keras(path: Path) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    import logging

    import keras

    logging.getLogger("absl").setLevel(logging.ERROR)
    layers = [keras.Input((3,)), keras.layers.Dense(4, activation="relu"), keras.layers.Dense(6)]
    keras.Sequential(layers).save(path)


def _skops(path: Path) -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression().fit(
        np.random.default_rng(1).normal(size=(30, 4)), np.arange(30) % 6
    )
    skops.io.dump(model, path)


def _tflite(path: Path) -> None:
    from test_tflite_file import network

    network(path)


def _ctranslate2(path: Path) -> None:
    from test_ctranslate2_file import sample

    sample(path)


def _marian_binary(path: Path) -> None:
    from test_marian_binary import CODES, coded, write

    text = np.frombuffer(b"type: transformer\ndec-depth: 1\ntransformer-postprocess: dan\n", "i1")
    write(path, {
        "special:model.yml": text, "Wemb": (CODES["int8"], coded(W, 20.0)),
        "decoder_ff_logit_out_b": B[None], "decoder_l1_ffn_ffn_ln_scale": W[:1] ** 2 + 1,
        "decoder_l1_ffn_ffn_ln_bias": W[1:2],
    })  # fmt: skip


def _openvino(path: Path) -> None:
    """A network; its weights lie beside it."""
    from test_openvino_file import small

    small(path)


def _ncnn(path: Path) -> None:
    """A network; its weights lie beside it."""
    from test_ncnn_file import small

    small(path)


def _ncnn_weights(path: Path) -> None:
    _ncnn(path.with_suffix(".param"))


def _coreml(path: Path) -> None:
    from test_coreml_file import small

    small(path)


def _tesseract(path: Path) -> None:
    from test_tesseract_file import traineddata

    traineddata(path)


def _variable(path: Path) -> None:
    """A parameter of Paddle's in a file of its own."""
    described = b"\x08\x05\x10\x04\x10\x06"  # float32, 4 × 6
    start = struct.pack("<IQIi", 0, 0, 0, len(described))
    path.write_bytes(start + described + W.T.tobytes())


def _made(model: str, damaged: str = "") -> Callable[[Path], None]:
    """A model that its own library wrote (made/); the file to damage is one of those it is of."""

    def make(path: Path) -> None:
        shutil.copytree(Path(__file__).parent / "made" / model, path.parent, dirs_exist_ok=True)
        if damaged:  # called as fuzz-files calls it, and still where it belongs
            (path.parent / damaged).unlink()
            (path.parent / damaged).symlink_to(path)
            shutil.copy(Path(__file__).parent / "made" / model / damaged, path)

    return make


def _one(model: str) -> Callable[[Path], None]:
    """A model in one file that its own library wrote."""
    made = Path(__file__).parent / "made" / model
    return lambda path: (shutil.copy(made / f"m{path.suffix}", path), None)[1]


def _flair(path: Path) -> None:
    shutil.copy(Path(__file__).parent / "made" / "flair" / "classifier.pt", path)


def _json_weights(path: Path) -> None:
    from test_json_weights import plain

    plain(path)


def _brain_js(path: Path) -> None:
    shutil.copy(Path(__file__).parent / "made" / "brain_js" / "1-tanh.json", path)


def _compiled(path: Path) -> None:
    """A compiled Core ML model; the file to damage is its program."""
    from test_coreml_compiled import compiled

    compiled(path.parent)
    shutil.copy(path.parent / "model.mil", path)
    (path.parent / "model.mil").unlink()
    (path.parent / "model.mil").symlink_to(path)


def _kaldi(path: Path) -> None:
    from test_kaldi_file import chain

    chain(path, binary=path.name != "text.mdl")


def _thinc(path: Path) -> None:
    from test_spacy_file import thinc_model

    thinc_model(path)


def _moves(path: Path) -> None:
    """A component of a spaCy pipeline; the file to damage is its list of moves."""
    from test_spacy_file import entity_recogniser

    entity_recogniser(path)


def _torch_export(path: Path) -> None:
    from test_torch_export_file import small

    small(path)


def _slovnet(path: Path) -> None:
    from test_slovnet_file import tagger

    tagger(path)


def _folder(path: Path) -> None:
    """A sharded Hugging Face folder; the file to damage is its index."""
    from safetensors.numpy import save_file

    folder = path.parent
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 6,
              "hidden_size": 4}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shards = {"lm_head.weight": "model-00001-of-00002.safetensors",
              "model.norm.weight": "model-00002-of-00002.safetensors"}  # fmt: skip
    save_file({"lm_head.weight": W}, folder / shards["lm_head.weight"])
    save_file({"model.norm.weight": B[:4] + 1}, folder / shards["model.norm.weight"])
    path.write_text(json.dumps({"metadata": {"total_size": 112}, "weight_map": shards}))


def _config(path: Path) -> None:
    """The same; the file to damage is its configuration."""
    _folder(path.parent / "model.safetensors.index.json")


SAMPLES: dict[str, Callable[[Path], None]] = {
    "m.npy": _npy, "m.npz": _npz, "m.pkl": _pickle, "c.npz": _compressed, "marian.npz": _marian,
    "m.safetensors": _safetensors, "codes.safetensors": _codes, "m.pt": _torch,
    "legacy.bin": _legacy, "m.onnx": _onnx, "m.ort": _ort,
    "m.gguf": _gguf, "fasttext.bin": _fasttext, "m.keras": _keras, "m.h5": _keras,
    "m.skops": _skops, "ctranslate2.bin": _ctranslate2, "marian.bin": _marian_binary,
    "openvino.xml": _openvino, "ncnn.param": _ncnn, "weights.bin": _ncnn_weights,
    "m.pte": _one("executorch/images"), "xnnpack.pte": _one("executorch/xnnpack-int8"),
    "flair.pt": _flair, "weights.js": _json_weights, "brain.js": _brain_js,
    "m.mlmodel": _coreml, "m.pt2": _torch_export, "m.tar": _slovnet,
    "text.part": _compiled,
    "program.part": _made("coreml/text/m.mlpackage", f"{_COREML}/model.mlmodel"),
    "blob.part": _made("coreml/table-6/m.mlpackage", f"{_COREML}/weights/weight.bin"),
    "m.tflite": _tflite, "m.traineddata": _tesseract,
    "fc_0.w_0": _variable, "inference.pdmodel": _made("paddle/older/recogniser"),
    "inference.pdiparams": _made("paddle/older/recogniser"),
    "inference.json": _made("paddle/newer/recogniser"),
    "frozen.pb": _made("tensorflow/images-frozen"), "saved_model.pb": _made("tensorflow/images"),
    "model.json": _made("tensorflow_js/graph-uint8"),
    "layers.json": _made("tensorflow_js/layers", "model.json"),
    "variables.index": _made("tensorflow/images", "variables/variables.index"),
    "m.mdl": _kaldi, "text.mdl": _kaldi, "m.thinc": _thinc, "moves": _moves,
    "model.safetensors.index.json": _folder, "config.json": _config,
}  # fmt: skip


def source(path: Path) -> Path:
    """What to load: a folder where the damaged file is only part of the model."""
    part = path.suffix in (".json", ".index", ".part") or path.name == "moves"
    return path.parent if part else path
