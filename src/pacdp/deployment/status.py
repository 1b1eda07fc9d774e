"""The status of a whole federation: its processes, its run and its sites."""

from typing import Any

from pacdp.coordinator import CoordinatorSettings
from pacdp.coordinator.status import read_status as read_coordinator
from pacdp.deployment.layout import FederationFolder
from pacdp.deployment.processes import ProcessTable
from pacdp.site import SiteSettings
from pacdp.site.status import read_status as read_site


def read_federation(folder: FederationFolder) -> dict[str, Any]:
    """Return the status as plain values, without affecting running processes."""
    settings = folder.load_settings()
    table = ProcessTable.load(folder.processes)
    return {
        "run": settings.run,
        "supervised": table.is_supervised,
        "processes": {
            name: {"pid": process.pid, "running": process.is_alive()}
            for name, process in table.processes.items()
        },
        "coordinator": read_coordinator(CoordinatorSettings.load_toml(folder.coordinator_settings)),
        "sites": {
            name: read_site(SiteSettings.load_toml(folder.site_settings(name)))
            for name in settings.sites
        },
    }
