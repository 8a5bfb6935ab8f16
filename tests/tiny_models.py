"""Tiny models saved with the real libraries, for tests that run models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORDS = [f"w{k}" for k in range(40)]
TEXTS = [" ".join(WORDS[(3 * k + j) % 40] for j in range(3 + k % 5)) for k in range(23)]


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "</s>", "<unk>"]
    words = {word: k for k, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


def save_transformer(folder: Path, kind: str, **changes: Any) -> Path:
    """A random model of that kind with its tokenizer; weights large enough to disagree."""
    import torch
    import transformers as t

    torch.manual_seed(0)
    small: dict[str, Any] = {"vocab_size": 48, "pad_token_id": 0, "eos_token_id": 1} | changes
    model: Any
    if kind == "gpt2":
        model = t.GPT2LMHeadModel(
            t.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=32, bos_token_id=1, **small)
        )
    elif kind == "gpt2 classifier":
        model = t.GPT2ForSequenceClassification(
            t.GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=32, num_labels=5,
                         bos_token_id=1, **small)
        )  # fmt: skip
    elif kind == "bert classifier":
        model = t.BertForSequenceClassification(
            t.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_labels=5,
                         intermediate_size=16, max_position_embeddings=32, **small)
        )  # fmt: skip
    else:
        model = t.T5ForConditionalGeneration(
            t.T5Config(d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2,
                       decoder_start_token_id=0, **small)
        )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(20)
    model.save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_texts(path: Path, texts: list[str] | None = None) -> Path:
    path.write_text("\n".join(TEXTS if texts is None else texts) + "\n", encoding="utf-8")
    return path


def node(op: str, inputs: list[str], output: str | list[str], **attributes: Any) -> Any:
    outputs = [output] if isinstance(output, str) else output
    return helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", **attributes)


def number(value: Any) -> np.ndarray:
    """A constant as exporters store it."""
    return np.asarray(value, dtype=np.float32)


def save_onnx(
    path: Path,
    nodes: list[Any],
    constants: dict[str, Any],
    shape: list[Any],
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> Path:
    """A graph from one input x of that shape to one output called out."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("out", kind, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    return path


def run_onnx(path: Path, x: np.ndarray, *names: str) -> list[np.ndarray]:
    """Values of the graph by name, as onnxruntime computes them."""
    import onnxruntime

    model = onnx.load(path)
    for name in names:
        if name not in {output.name for output in model.graph.output}:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(list(names), {"x": x})


def rows_of(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, values.shape[-1]).astype(np.float64)
