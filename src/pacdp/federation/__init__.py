"""Federated training: plans, clients, servers, and their simulation."""

from pacdp.federation.budget_schedule import BudgetSchedule
from pacdp.federation.budgets import Levels
from pacdp.federation.checkpoint import Checkpoint
from pacdp.federation.client import Client
from pacdp.federation.configuration import (
    Aggregation,
    Model,
    Optimiser,
    Privacy,
    Recipe,
    Training,
    WarmStart,
)
from pacdp.federation.local_model import LocalModel
from pacdp.federation.messages import Broadcast, Reply
from pacdp.federation.plan import Plan
from pacdp.federation.planning import make_plan
from pacdp.federation.population import Population
from pacdp.federation.results import ClientResult, Result, RoundResult
from pacdp.federation.rounds import Callback, run_rounds
from pacdp.federation.server import Server
from pacdp.federation.simulation import simulate
from pacdp.methods import ClientPlan

__all__ = [
    "Aggregation",
    "Broadcast",
    "BudgetSchedule",
    "Callback",
    "Checkpoint",
    "Client",
    "ClientPlan",
    "ClientResult",
    "Levels",
    "LocalModel",
    "Model",
    "Optimiser",
    "Plan",
    "Population",
    "Privacy",
    "Recipe",
    "Reply",
    "Result",
    "RoundResult",
    "Server",
    "Training",
    "WarmStart",
    "make_plan",
    "run_rounds",
    "simulate",
]
