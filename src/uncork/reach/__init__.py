"""reach: what a head can be made to say, beyond the yes or no of an audit."""

from uncork.reach.certificates import (
    Certificates,
    check_certificates,
    read_certificates,
    write_certificates,
)
from uncork.reach.outlooks import Outlook, outlook
from uncork.reach.probability import HighestProbability, highest_probability
from uncork.reach.rank import BestRank, best_rank
from uncork.reach.sets import Arrangement, can_be_top, can_lead, can_rank_above
from uncork.reach.sparse import SparseProbability, sparse_probability

__all__ = [
    "Arrangement",
    "BestRank",
    "Certificates",
    "HighestProbability",
    "Outlook",
    "SparseProbability",
    "best_rank",
    "can_be_top",
    "can_lead",
    "can_rank_above",
    "check_certificates",
    "highest_probability",
    "outlook",
    "read_certificates",
    "sparse_probability",
    "write_certificates",
]
