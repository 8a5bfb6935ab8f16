"""Programs of torch's own operators, whichever file they lie in, written down as ONNX graphs."""
