"""Figures of partitions."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pacdp.data.partition import Partition
from pacdp.data.records import Dataset

# Beyond these numbers, names on an axis or numbers in cells would be illegible.
MOST_NAMES = 30
MOST_CELLS = 120


def draw_partition(dataset: Dataset, partition: Partition) -> Figure:
    """Draw the number of records of each class at each client, and the size of each client.

    >>> from pacdp.data import load_dataset, partition_records
    >>> data = load_dataset("heart")
    >>> len(draw_partition(data, partition_records(data, "natural")).axes)
    3
    """
    counts = partition.class_counts(dataset)
    clients, classes = counts.shape
    figure = Figure(figsize=(9, min(2.8 + 0.22 * clients, 12)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1])
    # Empty cells are left white.
    shown = np.ma.masked_equal(counts, 0)
    image = left.imshow(shown, aspect="auto", cmap="viridis_r", interpolation="nearest", vmin=0)
    left.set_facecolor("white")
    bar = figure.colorbar(image, ax=left, ticks=MaxNLocator(integer=True))
    bar.ax.set_title("records", fontsize="medium")
    if counts.size <= MOST_CELLS:
        for (client, kind), number in np.ndenumerate(counts):
            colour = "white" if number > 0.5 * counts.max() else "black"
            if number:
                left.text(kind, client, str(number), ha="center", va="center", color=colour)
    left.set_xlabel("class" if dataset.task.class_names else "all records")
    left.set_ylabel("client")
    if classes <= MOST_NAMES:
        names = [name if len(name) < 14 else f"{name[:12]}…" for name in dataset.task.class_names]
        rotation, alignment = (45, "right") if sum(map(len, names)) > 50 else (0, "center")
        left.set_xticks(range(len(names)), names, rotation=rotation, ha=alignment)
    else:
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
    if clients <= MOST_NAMES:
        left.set_yticks(range(clients), partition.clients)
    else:
        left.yaxis.set_major_locator(MaxNLocator(integer=True))
    height = 0.8 if clients <= MOST_NAMES else 1
    right.barh(range(clients), partition.sizes, color="tab:gray", height=height)
    right.set_xlabel("records in all")
    right.grid(axis="x", alpha=0.3)
    settings = "".join(f", {name} = {value:g}" for name, value in partition.settings.items())
    drawn = "" if partition.kind == "natural" else f", seed {partition.seed}"
    figure.suptitle(f"{dataset.name}: {partition.kind}{settings}, {clients} clients{drawn}")
    return figure
