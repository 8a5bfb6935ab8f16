"""Files and folders that people try and uncork does not read: what each is, and what to do.

Recognised by their first bytes or by what lies beside them where that is certain, else by name.
Nothing is opened further than that says.
"""

from __future__ import annotations

import io
import json
import pickletools
from collections.abc import Collection
from pathlib import Path

from uncork.core.text import printable

_MOST_LOOKED_AT = 1 << 20
_PICKLES = (".pkl", ".pickle", ".joblib", ".dump", ".sav")  # how pickles of models are called
_PICKLED = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_EXPORT = "export the model to ONNX, or save its weights as .safetensors, and give that"
_SAVE = "give the model it was made from (a Hugging Face folder, .safetensors or .onnx)"
_PROCESS_GROUP = (
    "put the pieces together first: python -m torch.distributed.checkpoint.format_utils "
    "dcp_to_torch FOLDER model.pt, and give model.pt"
)
_DEEPSPEED = (
    "put the pieces together first: python zero_to_fp32.py FOLDER OUT (the script lies beside "
    "them), and give OUT"
)
_MEGATRON = "convert it to a Hugging Face folder with Megatron's or NeMo's own tool, and give that"
_CHECKPOINT = (
    "a TensorFlow checkpoint: give its .index file, and the variable that is the head with --weight"
)

_STARTS = {  # the first bytes of files people will try
    b"\x1f\x8b": "gzip-compressed: unpack it first",
    b"BZh": "bzip2-compressed: unpack it first",
    b"\xfd7zX": "xz-compressed: unpack it first",
    b"7z\xbc\xaf": "7z-compressed: unpack it first",
    b"(\xb5/\xfd": "zstd-compressed: unpack it first",
    b"version https://git-lfs": "a Git LFS pointer, not the file itself: run git lfs pull",
    b"<!DOCTYPE": "a web page, not a model: was the download refused?",
    b"<html": "a web page, not a model: was the download refused?",
    b"\xf5\x17\x34\x01\xd5\x48\x1a\xf1": "a lexical shortlist of Bergamot: give the model itself",
    b"ftrt": f"a TensorRT engine, whose weights are not kept as such: {_SAVE}",
    b"SQLite format 3": "a database, not a model: an uncork store is read by uncork table and "
    "uncork serve",
    b"%PDF": "a PDF document, not a model",
    b"\x89PNG": "a picture, not a model",
    b"\xff\xd8\xff": "a picture, not a model",
}
_INSIDE = {  # the identifier of a flatbuffer, bytes 4 to 8
    b"FT01": "the weights of an ExecuTorch program, without it (.ptd): lower the model with its "
    "constants inside, or give the exported program (.pt2)",
    b"BP08": "an ExecuTorch program bundled with test inputs: give the .pte inside",
}
_ENDINGS = {  # names, where the first bytes say nothing
    ".safetensors.index.json": "the index of a model in several files: give the folder it lies in",
    ".bin.index.json": "the index of a model in several files: give the folder it lies in",
    ".msgpack": "Flax weights: load them with from_flax=True in transformers 4, or in Flax, and "
    "save the model as .safetensors",
    ".mlpackage": "a Core ML package, which is a folder: give that, unpacked",
    ".mlmodelc": f"a compiled Core ML model without the text of a program (model.mil): {_SAVE}",
    ".engine": f"a TensorRT engine, whose weights are not kept as such: {_SAVE}",
    ".plan": f"a TensorRT engine, whose weights are not kept as such: {_SAVE}",
    ".trt": f"a TensorRT engine, whose weights are not kept as such: {_SAVE}",
    ".nemo": "a NeMo archive: unpack it (tar -xf) and give the model_weights.ckpt inside",
    ".mar": "a TorchServe archive: unpack it (unzip) and give the model file inside",
    ".distcp": f"a piece of a distributed checkpoint of PyTorch: {_PROCESS_GROUP}",
    ".metadata": f"the index of a distributed checkpoint of PyTorch: {_PROCESS_GROUP}",
    ".pb": f"a TensorFlow graph: {_EXPORT}",
    ".ckpt.index": _CHECKPOINT,
    ".ckpt.meta": _CHECKPOINT,
    ".pdparams": "PaddlePaddle weights: convert the model with paddle2onnx and give the .onnx",
    ".caffemodel": f"a Caffe model: {_EXPORT}",
    ".mnn": f"an MNN model: {_SAVE}",
    ".rknn": f"an RKNN model: {_SAVE}",
    ".snapshot": "a snapshot of Qdrant, in its own storage: scroll through the collection with its "
    "vectors (with_vectors) and save the points as JSON lines",
    ".tar": "a tar archive: unpack it and give the model inside",
    ".mlir": f"a program in MLIR: {_SAVE}",
    ".pb.gz": "a network of Leela Chess Zero, whose policy comes from attention between squares in "
    "recent networks: convert it (lc0 leela2onnx --input=FILE --output=net.onnx) and give net.onnx",
    ".imatrix": "an importance matrix of llama.cpp, not a model: give the .gguf file",
    ".py": "source code, not a model: give the file or folder that holds its weights",
    ".ipynb": "a notebook, not a model: give the file or folder that holds the weights",
    ".md": "a text about a model, not the model: give the folder it lies in, or its weights",
    ".yaml": "a configuration, not a model: give the folder it lies in, or the file of weights",
    ".yml": "a configuration, not a model: give the folder it lies in, or the file of weights",
    ".toml": "a configuration, not a model (a manifest? then uncork sweep): give the weights",
    ".csv": "a table, not a model: save its numbers with numpy.save and give the .npy",
    ".tsv": "a table, not a model: save its numbers with numpy.save and give the .npy",
    ".txt": "a text, not a model (labels go with --labels): give the file of weights (a matrix of "
    "numbers is saved with numpy.save)",
    ".jinja": "a chat template, not a model: give the folder it lies in",
}
_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model",
               "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm",
               "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
               "tekken.json", "sentencepiece.model")  # fmt: skip
_TOKENIZER = (
    "a tokenizer's file, not a model: give the folder it lies in, or the weights (as names of the "
    "classes it goes with --labels)"
)


# What saves the items' factors of a recommender under the names that are read.
_FACTORS = {
    "surprise": 'numpy.savez("factors.npz", qi=algo.qi, bi=algo.bi, pu=algo.pu)',
    "lightfm": 'b, e = model.get_item_representations(features); numpy.savez("factors.npz", '
    "item_embeddings=e, item_biases=b, user_embeddings=e[:1])",
}


def file_not_read(path: Path, start: bytes) -> str | None:
    """What a file is that is not read, and what to do; None where it may be a model."""
    name = path.name.lower()
    if name.endswith(".pb.gz"):
        return _ENDINGS[".pb.gz"]
    for magic, what in _STARTS.items():
        if start.startswith(magic):
            return what
    if start[4:8] in _INSIDE:
        return _INSIDE[start[4:8]]
    if name in _TOKENIZERS:
        return _TOKENIZER
    if start.startswith((b"{", b"[")) or name.endswith(".json"):
        return _json(path)
    if start.startswith(_PICKLED) and path.suffix in _PICKLES:
        return _pickle(path)
    if start.startswith(b"\x08") and name.endswith(".pb"):
        return None  # ONNX, which has been saved under this name too
    return next((what for end, what in _ENDINGS.items() if name.endswith(end)), None)


def archive_not_read(names: Collection[str]) -> str | None:
    """What an archive with these members is, where it is not a model that is read."""
    inside = {name.partition("/")[2] for name in names} | set(names)
    if "MAR-INF/MANIFEST.json" in inside:
        return _ENDINGS[".mar"]
    if any(name.endswith(".mlmodel") for name in inside):
        return _ENDINGS[".mlpackage"]
    return None


def folder_not_read(folder: Path, names: Collection[str]) -> str | None:
    """What a folder with these files is, where it holds no model that is read."""
    found = set(names)
    inner = {one.name for one in folder.iterdir() if one.is_dir()}
    if "saved_model.pbtxt" in found:
        return (
            "a TensorFlow SavedModel: convert it (python -m tf2onnx.convert --saved-model FOLDER "
            "--output model.onnx) and give model.onnx, or save the Keras model as .keras"
        )
    if ".metadata" in found or any(name.endswith(".distcp") for name in found):
        return f"a distributed checkpoint of PyTorch (FSDP, DCP): {_PROCESS_GROUP}"
    if any(name.startswith("pytorch_model_fsdp") for name in inner):
        return f"a checkpoint of FSDP in pieces: {_PROCESS_GROUP}"
    if "zero_to_fp32.py" in found or any(
        name.endswith(("_model_states.pt", "_optim_states.pt")) for name in found
    ):
        return f"a DeepSpeed checkpoint in pieces: {_DEEPSPEED}"
    if any(name.startswith("mp_rank_") for name in inner | found) or (
        "latest_checkpointed_iteration.txt" in found
    ):
        return f"a Megatron checkpoint in pieces: {_MEGATRON}"
    held = next((name for name in sorted(inner) if (folder / name / "config.cfg").is_file()), None)
    if held is not None and "meta.json" in found:
        return f"the package of a spaCy pipeline: give the folder {printable(held)} inside it"
    if "coremldata.bin" in found:
        return _ENDINGS[".mlmodelc"]
    if {"_METADATA", "_CHECKPOINT_METADATA"} & found or "ocdbt.process_0" in inner:
        return "an Orbax checkpoint of JAX: restore it in Python, save the head with numpy.savez"
    if any(name.endswith(".index") and ".ckpt" in name for name in found) or "checkpoint" in found:
        return _CHECKPOINT
    for end in (".msgpack", ".nemo", ".mar", ".engine", ".plan",
                ".pdparams", ".mnn", ".rknn"):  # fmt: skip
        one = next((name for name in sorted(found) if name.lower().endswith(end)), None)
        if one is not None:
            return f"the folder of {printable(one)}, which is {_ENDINGS[end]}"
    return None


def _json(path: Path) -> str:
    """A JSON file by what it holds."""
    name = path.name.lower()
    for end in (".safetensors.index.json", ".bin.index.json"):
        if name.endswith(end):
            return _ENDINGS[end]
    found: object = None
    if path.stat().st_size <= _MOST_LOOKED_AT:
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError):
            found = None
    keys = set(found) if isinstance(found, dict) else set()
    if "weight_map" in keys:
        return _ENDINGS[".safetensors.index.json"]
    if keys & {"peft_type", "base_model_name_or_path"}:
        return "the settings of an adapter, not the adapter: give the folder it lies in"
    if keys & {"model_type", "architectures"}:
        return "a model's configuration, not the model: give the folder it lies in"
    if keys & {"learner", "tree_info"}:
        return "a model of trees (XGBoost, LightGBM), which has no linear head"
    return "a JSON file, not a model: give the file of weights, or the folder it lies in"


def _pickle(path: Path) -> str | None:
    """A pickle by the classes that its opcodes name; none of it is run."""
    names = set()
    try:
        with path.open("rb") as file:
            for _, argument, _ in pickletools.genops(io.BytesIO(file.read(_MOST_LOOKED_AT))):
                if isinstance(argument, str):
                    names.add(argument.split(".")[0].split(" ")[0])
    except (OSError, ValueError, RecursionError):
        pass  # arrays lie raw between the opcodes of joblib's files: what came before is enough
    library = next((one for one in _FACTORS if one in names), None)
    if library is not None:
        return (
            f"a pickled model of {library}, and opening a pickle runs its code. If you trust it, "
            f"load it in Python, type {_FACTORS[library]}, and give factors.npz"
        )
    if "sklearn" not in names:
        return None
    name = printable(path.name)
    return (
        "a pickled scikit-learn model, and opening a pickle runs its code. If you trust it, type "
        f"in Python: import joblib, skops.io; skops.io.dump(joblib.load({name!r}), "
        f"{path.stem + '.skops'!r}); then: uncork audit {printable(path.stem)}.skops"
    )
