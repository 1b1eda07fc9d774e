"""The settings of a training run, as they are written in an experiment file."""

from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from pacdp.config import Count, Real, Settings, Whole
from pacdp.features import Features, Track
from pacdp.federation.budget_schedule import BudgetSchedule
from pacdp.federation.budgets import Levels, RecordBudgets
from pacdp.federation.client_sampling import ClientSampling
from pacdp.privacy import DEFAULT_DELTA


class Model(Settings):
    """The model and its initial weights."""

    name: str = Field(
        "logistic", description="logistic, mlp, cnn, resnet18, resnet34, sequence or module:name."
    )
    settings: dict[str, Real] = Field({}, description="Settings of the model, such as hidden = 16.")
    seed: Whole | None = Field(
        None, ge=0, lt=2**63, description="Seed of the initial weights; default: the run's seed."
    )


class Optimiser(Settings):
    """A client's optimiser, created anew for each participation."""

    name: Literal["sgd", "momentum", "adam"] = Field("sgd", description="sgd, momentum or adam.")
    lr: Real = Field(0.1, gt=0, allow_inf_nan=False, description="Learning rate.")
    momentum: Real = Field(
        0.9, ge=0, lt=1, description="Momentum coefficient; used by momentum only."
    )


class Training(Settings):
    """Rounds, client sampling and local training."""

    rounds: Count = Field(20, description="Number of rounds T.")
    clients_per_round: Count | Literal["all"] = Field(
        "all", description="Number of clients that take part in each round."
    )
    sampling: Literal["balanced", "uniform"] = Field(
        "balanced",
        description="How clients are sampled: balanced (all equally often) or uniform (at random "
        "in each round, as in the paper).",
    )
    cap: Real | Literal["rounds"] = Field(
        0.95,
        description="Under uniform sampling: the probability that a client is sampled no more "
        'often than its noise is planned for (afterwards it refuses); or "rounds", which plans for '
        "every round, so that no client refuses.",
    )
    batch: Count | Literal["full"] = Field("full", description="Number of records per local step.")
    local_epochs: Count | None = Field(
        None, description="Local passes E over the records per round."
    )
    local_steps: Count | None = Field(
        None, description="Local steps per round, instead of local_epochs."
    )
    optimiser: Optimiser = Field(Optimiser(), description="The client's optimiser.")
    upload: Literal["exact", "coarse"] = Field(
        "exact",
        description="What clients send: updates as they are (exact), or rounded to a quarter of "
        "the standard deviation of their noise (coarse), which is six to eight times smaller.",
        # Plans with exact uploads keep the digest that they had before this setting existed.
        exclude_if=lambda upload: upload == "exact",
    )

    def client_sampling(self, clients: int) -> ClientSampling:
        """Return the sampling scheme for this number of clients."""
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
    """How the server combines updates, which is post-processing."""

    weights: Literal["size", "epsilon", "inverse-noise", "tempered", "inverse-variance"] = Field(
        "tempered",
        description="How client updates are weighted: size (records n), epsilon (n·ε), "
        "inverse-noise (n/z), tempered (n/(z² + median z²)) or inverse-variance of the noise; "
        "z is the noise multiplier.",
    )
    optimiser: Literal["average", "momentum", "adam"] = Field(
        "average",
        description="How the weighted mean of the updates is applied: average adds it to the "
        "model, momentum and adam treat it as a gradient.",
    )
    lr: Real = Field(1.0, gt=0, allow_inf_nan=False, description="The server's learning rate.")
    momentum: Real = Field(
        0.9, ge=0, lt=1, description="Momentum coefficient; used by momentum only."
    )
    average_last: Real = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of the rounds, at the end, whose models are averaged.",
    )


class Privacy(Settings):
    """The privacy guarantee of each client."""

    epsilon: Real | tuple[Real, ...] | Levels = Field(
        1.0, description="Budget ε: one for all clients, one for each, or levels with shares."
    )
    delta: Real = Field(DEFAULT_DELTA, gt=0, lt=1, description="δ of (ε, δ)-differential privacy.")
    adjacency: Literal["zero-out", "replace-one"] = Field(
        "zero-out",
        description="Neighbouring data sets: one record or unit replaced by a null one (zero-out) "
        "or by any other (replace-one).",
    )
    scope: Literal["total", "per-release"] = Field(
        "total",
        description="What ε covers: the whole run, or each release alone (as in the paper).",
    )
    accountant: str | None = Field(None, description="Privacy accountant; default: exact.")
    spending: BudgetSchedule = Field(
        BudgetSchedule(), description="How a client's budget is divided among its participations."
    )
    records: RecordBudgets | None = Field(
        None,
        description="Budgets of single records, in levels; each client's ε is then a cap on them. "
        "If epsilon is not given, the cap is the largest level.",
        exclude_if=lambda records: records is None,
    )

    @model_validator(mode="before")
    @classmethod
    def _use_largest_level(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("records") and "epsilon" not in given:
            try:
                records = RecordBudgets.model_validate(given["records"])
            except ValidationError:
                return given
            return given | {"epsilon": max(records.levels)}
        return given


class WarmStart(Settings):
    """A warm start: pre-training of the initial model on public data."""

    proxy: str | None = Field(
        None,
        description="Name of a built-in proxy or a data set, or a folder; by default the first "
        "built-in proxy.",
    )
    epochs: Count = Field(20, description="Passes over the public records.")
    batch: Count = Field(64, description="Number of records per step.")
    lr: Real = Field(1e-3, gt=0, allow_inf_nan=False, description="Learning rate of Adam.")


class Recipe(Settings):
    """What is trained, and how: all public settings except the clients and the method."""

    model: Model = Field(Model(), description="The model.")
    training: Training = Field(description="Rounds, client sampling and local training.")
    server: Aggregation = Field(Aggregation(), description="How the server combines updates.")
    privacy: Privacy = Field(Privacy(), description="The privacy guarantee of each client.")
    hot_start: WarmStart | None = Field(
        None, description="Warm start: pre-training of the initial model on public data."
    )
    representation: Features | None = Field(
        None, description="Features on which the model is trained instead of the raw records."
    )

    @property
    def recipe(self) -> "Recipe":
        """The recipe part of a plan or an experiment."""
        return Recipe(**{name: getattr(self, name) for name in Recipe.model_fields})

    @property
    def track(self) -> Track:
        """Whether public records were used, for the initial model or for its features."""
        if self.hot_start is not None:
            return "public"
        return "private-only" if self.representation is None else self.representation.track
