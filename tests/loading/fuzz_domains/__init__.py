"""Random models, run on inputs that are driven towards the bounds of their claimed domains.

What arrives at the head is held against the domain that was found, and the model's output against
the head's own logits. `python -m fuzz_domains --count 1000 --seed 1` takes ONNX graphs over every
op with a rule; `fuzz_domains.torch_modules`, `.keras_models` and `.tflite_models` theirs.
"""
