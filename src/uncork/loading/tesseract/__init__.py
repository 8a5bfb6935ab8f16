"""Tesseract recognisers, `.traineddata`."""
