"""Auditing: which classes of a head can some input make the argmax, and which can none?"""

from uncork.audit.result import Audit
from uncork.audit.run import Interrupted, audit
from uncork.audit.verdict import Mixture, Verdict, Witness
from uncork.audit.verify import Verification

__all__ = ["Audit", "Interrupted", "Mixture", "Verdict", "Verification", "Witness", "audit"]
