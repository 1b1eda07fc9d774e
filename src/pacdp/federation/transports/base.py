"""The interface of transports."""

from collections.abc import Sequence
from typing import Protocol

from pacdp.federation.messages import Answers, Broadcast


class Transport(Protocol):
    """Carries a broadcast to clients, and their answers back."""

    def ask(self, broadcast: Broadcast, client_ids: Sequence[int]) -> Answers:
        """Ask these clients, and return the replies and refusals that came back, by client.

        A client that is missing from the answers has failed: it may have paid, and the server
        cannot know.
        """
