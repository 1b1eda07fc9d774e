"""Batches of several clients, padded to one size for one tensor program."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class Padded:
    """The records of several clients, padded to the longest.

    >>> Padded([(torch.ones(3, 2), torch.ones(3)), (torch.ones(2, 2), torch.ones(2))]).inputs.shape
    torch.Size([2, 3, 2])
    """

    def __init__(
        self, records: Sequence[tuple[Tensor, Tensor]], levels: Sequence[Tensor] | None = None
    ) -> None:
        """``levels`` are the budget levels of each client's records, where they have their own."""
        self.sizes = np.array([len(inputs) for inputs, _ in records])
        self.inputs = pad_sequence([inputs for inputs, _ in records], batch_first=True)
        self.targets = pad_sequence([targets for _, targets in records], batch_first=True)
        self.levels = None
        if levels is not None:
            self.levels = pad_sequence(list(levels), batch_first=True).to(self.inputs.device)


class PaddedBatch(NamedTuple):
    """A batch of several clients: tensors (clients, examples, ...)."""

    inputs: Tensor
    targets: Tensor
    present: Tensor | None
    """Which examples are real; None where nothing is padded."""
    levels: Tensor | None
    """The budget level of each example; None where they have no budgets of their own."""


class PaddedBatches:
    """The batches of several clients step by step, padded to the longest.

    ``orders`` hold the record indices of each client's steps, or None for all records.

    >>> records = Padded([(torch.ones(3, 2), torch.ones(3)), (torch.ones(2, 2), torch.ones(2))])
    >>> batch = PaddedBatches(records, [iter([None]), iter([None])]).next(2)
    >>> batch.inputs.shape, batch.present.tolist()
    (torch.Size([2, 3, 2]), [[True, True, True], [True, True, False]])
    """

    def __init__(
        self, records: Padded, orders: Sequence[Iterable[NDArray[np.int64] | None]]
    ) -> None:
        self._sizes, self._inputs, self._targets = records.sizes, records.inputs, records.targets
        self._index, self._lengths = self._lay_out([list(order) for order in orders])
        self._levels = records.levels
        self._rows = [
            None if values is None else values.flatten(0, 1)
            for values in (self._inputs, self._targets, self._levels)
        ]
        longest = torch.arange(int(self._lengths.max()), device=self._inputs.device)
        self._present = longest < torch.from_numpy(self._lengths).to(longest)[..., None]
        self._step = 0

    def _lay_out(
        self, orders: Sequence[Sequence[NDArray[np.int64] | None]]
    ) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
        """Return the positions of the records by (client, step, example), and batch lengths."""
        steps = max(len(order) for order in orders)
        lengths = np.zeros((len(orders), steps), np.int64)
        for row, (order, size) in enumerate(zip(orders, self._sizes, strict=True)):
            lengths[row, : len(order)] = [size if batch is None else len(batch) for batch in order]
        if all(batch is None for order in orders for batch in order):
            return None, lengths
        index = np.zeros((len(orders), steps, int(lengths.max())), np.int64)
        for row, (order, size) in enumerate(zip(orders, self._sizes, strict=True)):
            for step, batch in enumerate(order):
                chosen = np.arange(size) if batch is None else batch
                index[row, step, : lengths[row, step]] = chosen
        index += np.arange(len(orders))[:, None, None] * self._inputs.shape[1]
        return index, lengths

    def next(self, active: int) -> PaddedBatch:
        """Return the next batch of the first clients."""
        step, self._step = self._step, self._step + 1
        lengths = self._lengths[:active, step]
        longest = int(lengths.max())
        present = None if lengths.min() == longest else self._present[:active, step, :longest]
        if self._index is None:
            levels = None if self._levels is None else self._levels[:active]
            return PaddedBatch(self._inputs[:active], self._targets[:active], present, levels)
        chosen = torch.from_numpy(self._index[:active, step, :longest]).to(self._inputs.device)
        # Selecting whole rows by a flat index is several times faster than indexing.
        inputs, targets, levels = (
            None
            if rows is None
            else rows.index_select(0, chosen.flatten()).unflatten(0, chosen.shape)
            for rows in self._rows
        )
        assert inputs is not None
        assert targets is not None
        return PaddedBatch(inputs, targets, present, levels)
