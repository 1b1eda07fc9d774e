"""Transports: how a server reaches its clients."""

from pacdp.federation.transports.base import Transport
from pacdp.federation.transports.in_process import InProcessTransport
from pacdp.federation.transports.unreliable import UnreliableTransport

__all__ = ["InProcessTransport", "Transport", "UnreliableTransport"]
