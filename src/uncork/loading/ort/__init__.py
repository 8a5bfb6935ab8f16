"""ONNX models in the format of ONNX Runtime, `.ort`."""
