"""The settings of a training, as they are written in an experiment file."""

from typing import Literal, Self

from pydantic import Field, model_validator

from pacdp.config import Count, Real, Settings, Whole
from pacdp.features import Features, Track
from pacdp.federation.budget_schedule import BudgetSchedule
from pacdp.federation.budgets import Levels
from pacdp.federation.client_sampling import ClientSampling
from pacdp.privacy import DEFAULT_DELTA


class Model(Settings):
    """The model, by name."""

    name: str = Field("logistic", description="logistic, mlp, cnn, resnet18, resnet34 or sequence.")
    settings: dict[str, Real] = Field({}, description="Settings of the model, such as hidden = 16.")
    seed: Whole | None = Field(
        None, ge=0, lt=2**63, description="Seed of the initial weights; by default the run's seed."
    )


class Optimiser(Settings):
    """A client's optimiser. It is created for each participation."""

    name: Literal["sgd", "momentum", "adam"] = Field("sgd", description="sgd, momentum or adam.")
    lr: Real = Field(0.1, gt=0, allow_inf_nan=False, description="Learning rate.")
    momentum: Real = Field(0.9, ge=0, lt=1, description="Momentum, for momentum only.")


class Training(Settings):
    """Rounds, client sampling and local training."""

    rounds: Count = Field(20, description="Number of rounds T.")
    clients_per_round: Count | Literal["all"] = Field(
        "all", description="Number of clients that are asked in a round."
    )
    sampling: Literal["balanced", "uniform"] = Field(
        "balanced",
        description="balanced asks all clients equally often, uniform any (as in the paper).",
    )
    cap: Real | Literal["rounds"] = Field(
        0.95,
        description="Under uniform sampling, the probability that a client is never asked more "
        'often than planned, or "rounds" to plan for every round, so that no client refuses.',
    )
    batch: Count | Literal["full"] = Field("full", description="Number of records in a local step.")
    local_epochs: Count | None = Field(None, description="Passes E over the records per round.")
    local_steps: Count | None = Field(
        None, description="Local steps per round, instead of local_epochs."
    )
    optimiser: Optimiser = Field(Optimiser(), description="The client's optimiser.")

    def client_sampling(self, clients: int) -> ClientSampling:
        """Return how so many clients are sampled."""
        per_round = clients if self.clients_per_round == "all" else self.clients_per_round
        unlimited = self.cap == "rounds" or per_round == clients
        return ClientSampling(
            kind=self.sampling,
            clients=clients,
            per_round=per_round,
            rounds=self.rounds,
            quantile=None if unlimited else float(self.cap),
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.local_epochs is None) == (self.local_steps is None):
            raise ValueError("must have either local_epochs or local_steps")
        if self.cap != "rounds" and not 0 < float(self.cap) < 1:
            raise ValueError(f'cap = {self.cap}: must be in (0, 1), or "rounds"')
        return self


class Aggregation(Settings):
    """How the server combines updates. All of it is post-processing."""

    weights: Literal["size", "epsilon", "inverse-noise", "tempered", "inverse-variance"] = Field(
        "tempered", description="Rule for the weights of the clients' updates."
    )
    optimiser: Literal["average", "momentum", "adam"] = Field(
        "average", description="Server optimiser that applies the weighted mean of the updates."
    )
    lr: Real = Field(1.0, gt=0, allow_inf_nan=False, description="The server's learning rate.")
    momentum: Real = Field(0.9, ge=0, lt=1, description="Momentum, for momentum only.")
    average_last: Real = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of the last rounds whose models are averaged for the final model.",
    )


class Privacy(Settings):
    """The guarantees of the clients."""

    epsilon: Real | tuple[Real, ...] | Levels = Field(
        1.0, description="ε: one number, one for each client, or levels with shares."
    )
    delta: Real = Field(DEFAULT_DELTA, gt=0, lt=1, description="δ.")
    adjacency: Literal["zero-out", "replace-one"] = Field(
        "zero-out", description="Adjacency: which data sets are neighbours."
    )
    scope: Literal["total", "per-release"] = Field(
        "total",
        description="What ε covers: the whole training, or each release alone (as in the paper).",
    )
    accountant: str | None = Field(None, description="Name of the accountant; exact by default.")
    spending: BudgetSchedule = Field(
        BudgetSchedule(), description="How a budget is distributed over a client's participations."
    )


class WarmStart(Settings):
    """A warm start: a first model that is trained on public data."""

    proxy: str | None = Field(
        None,
        description="Name of a built-in proxy or a data set, or a folder; by default the first "
        "built-in proxy.",
    )
    epochs: Count = Field(20, description="Number of passes over the proxy.")
    batch: Count = Field(64, description="Number of records in a step.")
    lr: Real = Field(1e-3, gt=0, allow_inf_nan=False, description="Learning rate of Adam.")


class Recipe(Settings):
    """What is trained, and how: everything public except the clients and the method."""

    model: Model = Field(Model(), description="The model.")
    training: Training = Field(description="Rounds, client sampling and local training.")
    server: Aggregation = Field(Aggregation(), description="How updates are combined.")
    privacy: Privacy = Field(Privacy(), description="Budgets and guarantees of the clients.")
    hot_start: WarmStart | None = Field(
        None, description="Warm start: a first model from public data."
    )
    representation: Features | None = Field(
        None, description="Features that the model uses instead of the raw records."
    )

    @property
    def recipe(self) -> "Recipe":
        """The recipe part of a plan or an experiment."""
        return Recipe(**{name: getattr(self, name) for name in Recipe.model_fields})

    @property
    def track(self) -> Track:
        """Whether public records were used for the first model or for its features."""
        if self.hot_start is not None:
            return "public"
        return "private-only" if self.representation is None else self.representation.track
