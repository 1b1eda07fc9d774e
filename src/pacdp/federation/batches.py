"""The batches of several clients side by side, for one tensor program."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


class PaddedBatches:
    """The records of each step of several clients, padded to the longest.

    ``orders`` give the records of each client's steps, or None where they are all.

    >>> held = [(torch.ones(3, 2), torch.ones(3)), (torch.ones(2, 2), torch.ones(2))]
    >>> inputs, _, present = PaddedBatches(held, [iter([None]), iter([None])]).next(2)
    >>> inputs.shape, present.tolist()
    (torch.Size([2, 3, 2]), [[True, True, True], [True, True, False]])
    """

    def __init__(
        self,
        records: Sequence[tuple[Tensor, Tensor]],
        orders: Sequence[Iterator[NDArray[np.int64] | None]],
    ) -> None:
        self._sizes = [len(inputs) for inputs, _ in records]
        self._inputs = pad_sequence([inputs for inputs, _ in records], batch_first=True)
        self._targets = pad_sequence([targets for _, targets in records], batch_first=True)
        self._orders = orders

    def next(self, active: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs and targets (clients, examples, ...) and which are there, of the first clients.

        None where nothing is padded.
        """
        chosen = [next(order) for order in self._orders[:active]]
        if all(one is None for one in chosen):
            present = self._present(self._sizes[:active])
            return self._inputs[:active], self._targets[:active], present
        lists = [
            np.arange(size) if one is None else one
            for one, size in zip(chosen, self._sizes, strict=False)
        ]
        lengths = [len(one) for one in lists]
        index = np.zeros((active, max(lengths)), np.int64)
        for row, one in enumerate(lists):
            index[row, : len(one)] = one
        index += np.arange(active)[:, None] * self._inputs.shape[1]
        flat = torch.from_numpy(index).to(self._inputs.device)
        inputs, targets = self._inputs.flatten(0, 1)[flat], self._targets.flatten(0, 1)[flat]
        return inputs, targets, self._present(lengths)

    def _present(self, lengths: Sequence[int]) -> Tensor | None:
        longest = max(lengths)
        if min(lengths) == longest:
            return None
        device = self._inputs.device
        return torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
