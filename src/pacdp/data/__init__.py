"""Data sets by name, one's own data, who holds what, and public stand-ins."""

from pacdp.data.catalogue import CATALOGUE, load
from pacdp.data.partition import Partition, partition
from pacdp.data.proxy import Proxy, proxy_for, refuse_overlap
from pacdp.data.records import Dataset, Provenance, Records
from pacdp.data.storage import data_folder
from pacdp.data.user_folder import from_torch, read_folder

__all__ = [
    "CATALOGUE",
    "Dataset",
    "Partition",
    "Provenance",
    "Proxy",
    "Records",
    "data_folder",
    "from_torch",
    "load",
    "partition",
    "proxy_for",
    "read_folder",
    "refuse_overlap",
]
