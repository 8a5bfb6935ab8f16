"""What can arrive at the head of an ONNX graph: node after node, by the table of rules."""
