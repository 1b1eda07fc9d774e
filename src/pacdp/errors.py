"""The exceptions of pacdp.

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


class StaleLedgerError(LedgerError):
    """A ledger file is an older copy, so its remaining budget is unknown."""


class DataError(PacdpError):
    """A data set is missing, damaged, or not what it says it is."""


class TrainingError(PacdpError):
    """A client's training broke down; the message names client, round and step.

    The exception to the rule: a participation is paid for before it is computed, and stays so.
    """


def add_location(error: Exception, where: str) -> PacdpError:
    """Add the location to an error, in one line; foreign errors become a TrainingError.

    >>> add_location(ZeroDivisionError("by zero"), "client a, round 3, step 1")
    TrainingError('client a, round 3, step 1: ZeroDivisionError: by zero')
    """
    message = " ".join(str(error).split())
    if isinstance(error, PacdpError):
        return type(error)(f"{where}: {message}")
    return TrainingError(f"{where}: {type(error).__name__}: {message}")


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has no message.

    >>> first_line(ValueError("wrong shape\\nin a long trace"))
    'wrong shape'
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
