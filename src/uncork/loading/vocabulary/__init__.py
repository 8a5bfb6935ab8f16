"""What the classes are called: tokenizer files, label files, scripts."""

from uncork.loading.vocabulary.finding import find_vocabulary, read_vocabulary, vocabulary_of

__all__ = ["find_vocabulary", "read_vocabulary", "vocabulary_of"]
