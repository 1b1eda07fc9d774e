"""Adjacency, releases, accountants, calibration and ledgers, without torch.

The flow: a :class:`Guarantee` is a budget; :func:`calibrate` turns it into noise before training;
each :class:`Release` is debited from a :class:`Ledger` before it leaves; :func:`account` says what
was certified.
"""

from pacdp.privacy.accountants import ACCOUNTANTS
from pacdp.privacy.accounting import Calibration, account, calibrate, calibrate_sampling_rate
from pacdp.privacy.filter import Filter, Tally
from pacdp.privacy.gaussian import delta_for, epsilon_for, mu_for
from pacdp.privacy.guarantee import DEFAULT_DELTA, Adjacency, Guarantee, Scope
from pacdp.privacy.ledger import Ledger, MemoryLedger
from pacdp.privacy.releases import LevelTerms, Release, total_mu
from pacdp.privacy.rounds import RoundRecord, RoundRequest
from pacdp.privacy.sqlite_ledger import Entry, SQLiteLedger

__all__ = [
    "ACCOUNTANTS",
    "DEFAULT_DELTA",
    "Adjacency",
    "Calibration",
    "Entry",
    "Filter",
    "Guarantee",
    "Ledger",
    "LevelTerms",
    "MemoryLedger",
    "Release",
    "RoundRecord",
    "RoundRequest",
    "SQLiteLedger",
    "Scope",
    "Tally",
    "account",
    "calibrate",
    "calibrate_sampling_rate",
    "delta_for",
    "epsilon_for",
    "mu_for",
    "total_mu",
]
