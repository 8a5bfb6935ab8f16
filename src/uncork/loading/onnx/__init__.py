"""ONNX models: the file, the head in its graph, and what can arrive there."""
