"""Running a transformers model over text, and taking what arrives at its output layer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from uncork.activations.batch import Batch
from uncork.activations.data import Lines, digest_of, files_of
from uncork.core.errors import UncorkError
from uncork.core.head import Head
from uncork.loading import find

_LOGIT_BYTES = 512 << 20  # of one batch: longer texts are cut so that they fit
_CHECKED = 8  # inputs on which the head as read is held against the model
_UNITS = {"torch.float16": 2.0**-11, "torch.bfloat16": 2.0**-8, "torch.float64": 2.0**-53}
_NOT_TEXT = ("CTC", "SpeechSeq2Seq", "AudioClassification", "ImageClassification", "VisionEncoder")


class TransformersRunner:
    """A saved model, with hooks on its output layer.

    Causal and masked language models and classifiers see each text whole; every position that is
    no padding counts. Encoder-decoder models write greedily, or, where a line holds a source, a
    tab and a target, read the target. No code that comes with a model is ever run.
    """

    def __init__(
        self, folder: Path, data: Sequence[str | os.PathLike[str]], *,
        weight: str | None = None, batch_size: int = 16, max_length: int = 512,
        max_new_tokens: int = 64,
    ) -> None:  # fmt: skip
        try:
            import torch
            import transformers
        except ImportError:
            raise UncorkError(
                "running transformers models needs torch and transformers: "
                "pip install 'uncork[torch]' 'transformers>=5'"
            ) from None
        self.torch = torch
        self.name = str(folder)
        found = find(folder, weight=weight)
        self.head: Head = found.head
        self.weight_name = found.weight_name
        files = files_of(data)
        self.lines = Lines(files)
        self.total = self.lines.total
        self.max_new_tokens = max_new_tokens
        with _quiet(transformers):
            self.model, self.tokenizer = _opened(transformers, folder)
        self.model.eval()
        self.unit = _UNITS.get(str(self.model.dtype), 2.0**-24)
        self.module = self._head_module()
        self.generates = bool(getattr(self.model.config, "is_encoder_decoder", False)) and hasattr(
            self.model, "generate"
        )
        tokens = max(1, _LOGIT_BYTES // (4 * self.head.classes))
        self.max_length = max(1, min(max_length, self._positions(), tokens))
        self.batch_size = max(1, min(batch_size, tokens // self.max_length))
        self.checked = False
        settings = (self.weight_name, self.batch_size, self.max_length, max_new_tokens)
        weights = sorted(p for p in folder.iterdir() if p.is_file())
        self.identity = digest_of("transformers", *settings, files=[*weights, *files])

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        texts: list[str] = []
        for line in self.lines.between(start, stop):
            texts.append(line)
            if len(texts) == self.batch_size:
                yield self._run(texts)
                texts = []
        if texts:
            yield self._run(texts)

    def _positions(self) -> int:
        config = self.model.config
        for name in ("max_position_embeddings", "n_positions", "max_sequence_length"):
            most = getattr(config, name, None)
            if isinstance(most, int) and most > 1:
                # RoBERTa and its like start counting after the padding id.
                return most - 2 if config.model_type in _OFFSET else most
        return 1 << 20

    def _head_module(self) -> Any:
        """The module whose weight is the head's: named by it, or the one the model calls so."""
        modules = dict(self.model.named_modules())
        shape = tuple(self.head.weight.shape)

        def fits(module: Any) -> bool:
            weight = getattr(module, "weight", None)
            embeds = isinstance(module, self.torch.nn.Embedding)
            return weight is not None and tuple(weight.shape) == shape and not embeds

        named = modules.get(self.weight_name.removesuffix(".weight"))
        if named is not None and fits(named):
            return named
        found = self.model.get_output_embeddings()
        if found is not None and fits(found):
            return found
        every = [module for module in modules.values() if fits(module)]
        if len(every) != 1:
            raise UncorkError(
                f"{self.name}: {len(every)} layers have the shape of the head "
                f"{self.weight_name!r}, {shape[0]} × {shape[1]}: its inputs cannot be told"
            )
        return every[0]

    def _run(self, texts: list[str]) -> Batch:
        rows: list[tuple[Any, Any, Any]] = []
        pairs = [text.split("\t", 1) for text in texts] if self.generates else []
        if not self.generates:
            rows.append(self._read(texts))
        else:
            alone = [pair[0] for pair in pairs if len(pair) == 1]
            both = [pair for pair in pairs if len(pair) == 2]
            if alone:
                rows.append(self._write(alone))
            if both:
                rows.append(self._read([p[0] for p in both], [p[1] for p in both]))
        inputs = self.torch.cat([x for x, _, _ in rows])
        logits = [z for _, z, _ in rows]
        known = [y for _, _, y in rows if y is not None]
        targets = self.torch.cat(known).numpy() if len(known) == len(rows) else None
        first = self.torch.cat([z.argmax(dim=-1) for z in logits])
        shared = self.torch.cat([(z == z.max(dim=-1, keepdim=True)[0]).sum(-1) > 1 for z in logits])
        batch = Batch(inputs.double().numpy(), first.numpy(), shared.numpy(), len(texts), targets)
        if not self.checked:
            self._check(batch)
            self.checked = True
        return batch

    def _read(self, texts: list[str], targets: list[str] | None = None) -> tuple[Any, Any, Any]:
        """Inputs (n, d), logits (n, C) and, of a language model, targets (n,) of one pass over
        whole texts."""
        ids, mask = self._tokens(texts)
        given = {"input_ids": ids, "attention_mask": mask}
        if targets is not None:
            labels, mask = self._tokens(targets, target=True)
            given["labels"] = labels.masked_fill(mask == 0, -100)
        with self._hooked() as (seen, left), self.torch.inference_mode():
            logits = self.model(**given).logits
        x, own = seen[-1], left[-1]
        if tuple(logits.shape[:-1]) != tuple(x.shape[:-1]):
            # A classifier that scores every position and keeps one: find it by its scores.
            if x.ndim == 3 and logits.ndim == 2 and own.shape[-1] == logits.shape[-1]:
                kept = (own == logits[:, None, :]).all(-1)
                last = kept.float().cumsum(1).argmax(1)  # the last that matches
                return x[self.torch.arange(len(x)), last], logits, None
            raise UncorkError(
                f"{self.name}: the head sees {list(x.shape)} and the logits are "
                f"{list(logits.shape)}: which input belongs to which is not clear"
            )
        if x.ndim == 2:
            return x, logits, None
        kept = mask.bool() if mask.shape == x.shape[:2] else self.torch.ones(x.shape[:2]).bool()
        following = self._following(ids, given.get("labels"), given["attention_mask"])
        return x[kept], logits[kept], None if following is None else following[kept]

    def _following(self, ids: Any, labels: Any, mask: Any) -> Any | None:
        """What each position is to predict: the labels, or of a causal model the next token."""
        if labels is not None:
            return labels
        if not type(self.model).__name__.endswith(("ForCausalLM", "LMHeadModel")):
            return None
        following = self.torch.full_like(ids, -100)
        following[:, :-1] = ids[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        return following

    def _write(self, texts: list[str]) -> tuple[Any, Any, Any]:
        """Inputs and logits of every step of greedy decoding, up to each text's end."""
        ids, mask = self._tokens(texts)
        with self._hooked() as (seen, _), self.torch.inference_mode():
            written = self.model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=self.max_new_tokens,
                do_sample=False, num_beams=1, return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        logits = self.torch.stack(written.logits, dim=1)  # (B, T, C)
        steps = logits.shape[1]
        x = self.torch.stack([s[:, -1] for s in seen[-steps:]], dim=1)
        tokens = written.sequences[:, -steps:]
        ends = self.model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        over = self.torch.zeros_like(tokens, dtype=self.torch.bool)
        for end in ends:
            over |= tokens == end
        before = over.cumsum(1) - over.long()
        return x[before == 0], logits[before == 0], None

    def _tokens(self, texts: list[str], target: bool = False) -> tuple[Any, Any]:
        how = {"truncation": True, "max_length": self.max_length}
        taken = self.tokenizer(text_target=texts, **how) if target else self.tokenizer(texts, **how)
        every = [ids or [0] for ids in taken["input_ids"]]
        longest = max(map(len, every))
        padding = self.tokenizer.pad_token_id or 0
        ids = self.torch.full((len(every), longest), padding, dtype=self.torch.long)
        mask = self.torch.zeros_like(ids)
        for k, text in enumerate(every):
            ids[k, : len(text)] = self.torch.tensor(text)
            mask[k, : len(text)] = 1
        return ids, mask

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[tuple[list[Any], list[Any]]]:
        seen: list[Any] = []
        left: list[Any] = []
        hooks = [
            self.module.register_forward_pre_hook(lambda m, given: seen.append(given[0].detach())),
            self.module.register_forward_hook(lambda m, given, made: left.append(made.detach())),
        ]
        try:
            yield seen, left
        finally:
            for hook in hooks:
                hook.remove()
        if not seen:
            raise UncorkError(f"{self.name}: the head {self.weight_name!r} was never used")

    def _check(self, batch: Batch) -> None:
        """The head that uncork reads must put first what the model puts first."""
        x, first = batch.inputs[:_CHECKED], batch.first[:_CHECKED]
        best = np.full(len(x), -np.inf)
        size = np.zeros(len(x))
        own = np.zeros(len(x))
        for start, block in self.head.blocks(8192):
            offsets = self.head.offsets[start : start + len(block)]
            z = x @ block.T + offsets
            best = np.maximum(best, z.max(axis=1))
            size = np.maximum(size, (np.abs(x) @ np.abs(block).T + np.abs(offsets)).max(axis=1))
            inside = (first >= start) & (first < start + len(block))
            own[inside] = z[inside, first[inside] - start]
        behind = (best - own) > (self.head.features + 16) * self.unit * size
        if behind.any():
            k = int(np.argmax(behind))
            raise UncorkError(
                f"{self.name}: the model puts class {int(first[k])} first where the head read from "
                f"{self.weight_name!r} puts another {best[k] - own[k]:.3g} ahead: they are not the "
                "same layer; name the weight with --weight"
            )


_OFFSET = ("roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "data2vec-text")


def _opened(transformers: Any, folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer, by classes of the installed library only."""
    safe = {"trust_remote_code": False, "local_files_only": True}
    try:
        config = transformers.AutoConfig.from_pretrained(folder, **safe)
        names = getattr(config, "architectures", None) or []
        kind = getattr(transformers, names[0], None) if names else None
        if kind is None:
            what = names[0] if names else "an unnamed architecture"
            raise UncorkError(
                f"{folder}: transformers {transformers.__version__} has no {what}, and code that "
                "comes with a model is never run"
            )
        if any(part in names[0] for part in _NOT_TEXT):
            raise UncorkError(
                f"{folder}: {names[0]} takes no text: export it to ONNX and give its inputs as .npz"
            )
        model = kind.from_pretrained(folder, config=config, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **safe)
    except UncorkError:
        raise
    except Exception as error:  # damaged or missing files make the library raise nearly anything
        text = " ".join(str(error).split())[:300]
        raise UncorkError(f"{folder} cannot be run by transformers: {text}") from None
    return model, tokenizer


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars and no advice from the library while it loads."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()
