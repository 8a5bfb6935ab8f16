"""Retrieval: which sets of items can some query bring to the top, and which can none?"""

from uncork.retrieval.decide import retrieve
from uncork.retrieval.judgements import Judgements, read_judgements
from uncork.retrieval.result import Retrieval, TopSet
from uncork.retrieval.verify import verify_retrieval

__all__ = [
    "Judgements",
    "Retrieval",
    "TopSet",
    "read_judgements",
    "retrieve",
    "verify_retrieval",
]
