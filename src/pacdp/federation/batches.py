"""Batches of several clients, padded to one size for one tensor program."""

from collections.abc import Iterable, Sequence

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

    def __init__(self, records: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.sizes = np.array([len(inputs) for inputs, _ in records])
        self.inputs = pad_sequence([inputs for inputs, _ in records], batch_first=True)
        self.targets = pad_sequence([targets for _, targets in records], batch_first=True)


class PaddedBatches:
    """The batches of several clients step by step, padded to the longest.

    ``orders`` hold the record indices of each client's steps, or None for all records.

    >>> records = Padded([(torch.ones(3, 2), torch.ones(3)), (torch.ones(2, 2), torch.ones(2))])
    >>> inputs, _, present = PaddedBatches(records, [iter([None]), iter([None])]).next(2)
    >>> inputs.shape, present.tolist()
    (torch.Size([2, 3, 2]), [[True, True, True], [True, True, False]])
    """

    def __init__(
        self, records: Padded, orders: Sequence[Iterable[NDArray[np.int64] | None]]
    ) -> None:
        self._sizes, self._inputs, self._targets = records.sizes, records.inputs, records.targets
        self._index, self._lengths = self._lay_out([list(order) for order in orders])
        self._rows = (self._inputs.flatten(0, 1), self._targets.flatten(0, 1))
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

    def next(self, active: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the next batch of the first clients: inputs, targets and which examples are real.

        Shapes are (clients, examples, ...). The mask is None where nothing is padded.
        """
        step, self._step = self._step, self._step + 1
        lengths = self._lengths[:active, step]
        longest = int(lengths.max())
        present = None if lengths.min() == longest else self._present[:active, step, :longest]
        if self._index is None:
            return self._inputs[:active], self._targets[:active], present
        chosen = torch.from_numpy(self._index[:active, step, :longest]).to(self._inputs.device)
        # Selecting whole rows by a flat index is several times faster than indexing.
        inputs, targets = (
            rows.index_select(0, chosen.flatten()).unflatten(0, chosen.shape) for rows in self._rows
        )
        return inputs, targets, present
