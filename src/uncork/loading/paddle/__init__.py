"""PaddlePaddle's inference models."""
