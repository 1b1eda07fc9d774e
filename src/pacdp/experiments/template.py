"""A commented experiment to start from, and a schema that lets an editor help."""

import json
from typing import Any

from pacdp.experiments.experiment import Experiment

SCHEMA = "pacdp.schema.json"


def render_template(name: str, data: str) -> str:
    """The text of a new experiment.

    >>> render_template("mine", "heart").splitlines()[0]
    '#:schema ./pacdp.schema.json'
    """
    title, source = (json.dumps(text, ensure_ascii=False) for text in (name, data))
    return f"""#:schema ./{SCHEMA}
# Everything about a training but its seed. See what it will do: pacdp plan {name}.toml
name = {title}
description = "what it is, in a line"
method = "pac-dp"           # or fixed, dp-fedavg, fedavg

[data]
name = {source}           # a name of `pacdp data list`, or a folder with a file for each client
# partition = "dirichlet"   # natural, iid, dirichlet, shards, quantity, near-global
# clients = 50
# settings = {{ alpha = 0.5 }}

# [representation]          # what the model sees instead of the records; public, costs nothing
# name = "gradients"        # plain for rows; gradients, scattering, patches, combined, network
# dimension = 64            # principal directions that are kept; fewer weights, less noise
# whitening = 0.5           # 0 leaves them as they are, 1 gives all the same spread
# public = "handwriting"    # learned from public records; without it from generated images

[model]
name = "logistic"           # logistic, mlp, cnn, resnet18, resnet34, sequence

[training]
rounds = 10
clients_per_round = "all"   # or a number
sampling = "balanced"       # everyone equally often; "uniform" asks anyone, as the paper does
batch = "full"              # or the number of records in a step
local_steps = 1             # or local_epochs: passes over a client's records in a round
optimiser = {{ name = "sgd", lr = 1.0 }}

[privacy]
epsilon = 1.0               # or one for each client: [0.1, 0.5, 1.0]
# epsilon = {{ levels = [0.05, 0.1, 1.0], shares = [0.6, 0.3, 0.1] }}
delta = 1e-5
adjacency = "zero-out"      # or "replace-one"
# spending = {{ policy = "late", growth = 4.0 }}   # even, late or replan

[server]
weights = "tempered"        # size, epsilon, inverse-noise, tempered, inverse-variance
optimiser = "average"       # average, momentum, adam
average_last = 0.0          # the share of last rounds whose models are averaged

# [hot_start]               # a first model from a public proxy
# epochs = 20

[methods.pac-dp]            # F(ε), from budgets to clipping bounds; or the path of a curve file
curve = {{ family = "power", coefficients = [1.0, 0.4], domain = [0.01, 10.0] }}
schedule = {{ kind = "cosine", hold_fraction = 0.6, min_factor = 0.1 }}

[methods.fixed]
clipping_bound = 1.0

[profiles.smoke]            # pacdp run {name}.toml --profile smoke
training.rounds = 2
"""


def make_schema() -> dict[str, Any]:
    """The JSON Schema of experiment files.

    >>> make_schema()["title"]
    'Experiment'
    """
    return Experiment.model_json_schema()
