"""Data sets, partitions among clients, and public proxies."""

from pacdp.data.catalogue import CATALOGUE, load_dataset, register_dataset
from pacdp.data.partition import Partition, partition_records
from pacdp.data.proxy import Proxy, load_proxy, refuse_overlap
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
    "load_dataset",
    "load_proxy",
    "partition_records",
    "read_folder",
    "refuse_overlap",
    "register_dataset",
]
