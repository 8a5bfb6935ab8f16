"""ExecuTorch's .pte: the program as an ONNX graph, and the head found there."""
