"""pfl-research: federated averaging in one process, without any differential privacy."""

import dataclasses
import itertools
import os
import time
from typing import Any

# Without it pfl looks for a GPU at every batch.
os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional
from work import LR, asked, tell


class Network(nn.Module):
    """A model with the two methods that pfl asks for. It counts its losses."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.steps = itertools.count()

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Of a batch."""
        next(self.steps)
        return functional.cross_entropy(self.layers(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        """Never asked for."""
        raise AssertionError("nothing is evaluated during training")


class Averaging(FederatedAveraging):
    """Federated averaging that evaluates nothing, which no setting of pfl's says."""

    def get_next_central_contexts(self, *args: Any, **kwargs: Any) -> Any:
        """The same, without evaluation."""
        contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
        if contexts is not None:
            contexts = tuple(dataclasses.replace(one, do_evaluation=False) for one in contexts)
        return contexts, model, metrics


def main() -> None:
    """Run its simulation."""
    path, work = asked()
    with np.load(path) as file:
        inputs, labels, owner = file["inputs"], file["labels"], file["owner"]
    users = {
        user: PyTorchTensorDataset(
            tuple(torch.from_numpy(values[owner == user]) for values in (inputs, labels)),
            user_id=user,
        )
        for user in range(work.clients)
    }
    network = Network(work.network())
    before = [value.detach().clone() for value in network.parameters()]
    data = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    started = time.perf_counter()
    Averaging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.per_round,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=None),
        model=PyTorchModel(
            network,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs,
            local_learning_rate=LR,
            local_batch_size=work.batch,
        ),
        send_metrics_to_platform=False,
    )
    seconds = time.perf_counter() - started
    if all(map(torch.equal, network.parameters(), before)):
        raise SystemExit("the model did not move")
    tell(seconds=seconds, steps=next(network.steps), threads=torch.get_num_threads())


if __name__ == "__main__":
    main()
