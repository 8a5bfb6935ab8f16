"""Rules of ONNX ops: what each leaves, given what is known of what goes in."""
