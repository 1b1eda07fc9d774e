"""Every way in which pacdp says no.

All of them derive from :class:`PacdpError`, whose message is one line that says what is wrong,
where, and what is allowed. The command line prints that line and exits with code 2.
"""


class PacdpError(Exception):
    """Something was refused; nothing was written and nothing was spent."""


class InputError(PacdpError, ValueError):
    """A parameter is outside what is allowed."""


class BudgetExceededError(PacdpError):
    """A release would cost more than the budget has left."""


class LedgerError(PacdpError):
    """A ledger file cannot be trusted, read or written."""


class DataError(PacdpError):
    """A data set is missing, damaged, or not what it says it is."""
