"""Auditing: which classes of a head can some input make the argmax, and which can none?"""

from uncork.auditing.certify.verify import Verification
from uncork.auditing.proofs.verdict import Mixture, Verdict, Witness
from uncork.auditing.result import Audit
from uncork.auditing.run import Interrupted, audit

__all__ = ["Audit", "Interrupted", "Mixture", "Verdict", "Verification", "Witness", "audit"]
