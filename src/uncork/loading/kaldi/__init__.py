"""Kaldi acoustic models, `.mdl` and `.raw` of nnet3."""
