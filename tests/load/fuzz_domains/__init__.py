"""Domains of ONNX graphs, fuzzed: random graphs over every op with a rule, run by onnxruntime.

What arrives at the head is held against the domain that was found, and the model's output against
the head's own logits. `python -m fuzz_domains --count 1000 --seed 1`, or `make fuzz`.
"""
