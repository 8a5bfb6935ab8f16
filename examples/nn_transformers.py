"""Sparse losses and sparse decoding with transformers (5 or later).

    pip install transformers
    python examples/nn_transformers.py

A tiny language model learns to count, trained with 1.5-entmax by one line, then samples and
beam-searches from its sparse distribution. The model is built here: nothing is downloaded.
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import uncork.nn as unn
import uncork.nn.functional as F


def tiny_model(vocabulary: int = 40) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def counting(rows: int, length: int = 12, vocabulary: int = 40) -> torch.Tensor:
    return (torch.randint(vocabulary, (rows, 1)) + torch.arange(length)) % vocabulary


def train(model: LlamaForCausalLM, steps: int = 60) -> list[float]:
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        tokens = counting(32)
        loss = model(input_ids=tokens, labels=tokens).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> dict[str, object]:
    model = tiny_model()
    model.loss_function = unn.hf.causal_lm_loss("entmax", alpha=1.5)  # the one line
    losses = train(model)
    print(f"entmax loss {losses[0]:.3f} -> {losses[-1]:.3f}")

    prompt = counting(2, 4)
    processor = unn.hf.EntmaxLogitsProcessor(alpha=1.5)
    options = {"max_new_tokens": 5, "logits_processor": [processor]}
    sampled = model.generate(prompt, do_sample=True, **options)
    beamed = model.generate(prompt, num_beams=3, **options)
    print("sampled", sampled[0].tolist())
    print("beamed ", beamed[0].tolist())

    # α-ReLU depends on a constant added to the logits, which beam search drops: give the model.
    relu = tiny_model()
    tau = unn.tau_from_data(relu(prompt).logits.detach())
    relu.loss_function = unn.hf.causal_lm_loss("alpha_relu", tau=tau)
    relu_losses = train(relu)
    print(f"alpha_relu loss {relu_losses[0]:.3f} -> {relu_losses[-1]:.3f}   tau {tau:.3f}")
    with unn.hf.AlphaReLULogitsProcessor(1.5, tau, model=relu) as processor:
        relu_beamed = relu.generate(
            prompt, max_new_tokens=5, num_beams=3, logits_processor=[processor]
        )
    print("alpha_relu beamed", relu_beamed[0].tolist())
    support = (F.entmax(model(prompt).logits, 1.5) > 0).sum(-1).float().mean()
    print(f"classes above zero: {float(support):.1f} of 40")
    return {
        "losses": losses,
        "relu_losses": relu_losses,
        "sampled": sampled,
        "beamed": beamed,
        "relu_beamed": relu_beamed,
    }


if __name__ == "__main__":
    main()
