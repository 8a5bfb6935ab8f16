"""OpenVINO models."""
