"""The coordinator of a federation: the server as a process, with sites on other machines."""

from pacdp.coordinator.coordinator import Coordinator
from pacdp.coordinator.log import RunLog
from pacdp.coordinator.settings import CoordinatorSettings
from pacdp.coordinator.transport import RunFailedError, StoppedError

__all__ = ["Coordinator", "CoordinatorSettings", "RunFailedError", "RunLog", "StoppedError"]
