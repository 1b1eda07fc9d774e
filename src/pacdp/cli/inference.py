"""``pacdp evaluate`` and ``pacdp predict``: use the model of a finished run."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pacdp.cli import options
from pacdp.cli.output import print_json, print_rows
from pacdp.errors import InputError
from pacdp.storage import require_new_file

if TYPE_CHECKING:
    from pacdp.data import Dataset
    from pacdp.experiments import RunResult
    from pacdp.federation import Plan
    from pacdp.tasks import Task

RunPath = Annotated[Path, Argument(metavar="RUN", help="Folder of a finished run.")]
DataPath = Annotated[
    str, Option("--data", metavar="DATA", help="Name of a data set, or your own data folder.")
]


def evaluate_command(
    run: RunPath, data: DataPath, device: options.Device = "cpu", as_json: options.Json = False
) -> None:
    """Evaluate a trained model on the test records of a data set, or on all of your own folder."""
    from pacdp.experiments import RunResult

    task, predicted, labels = _predict(RunResult.load(run, for_inference=True), data, device)
    metrics = {**task.full_metrics(predicted, labels), "chance": task.baseline(labels)}
    if as_json:
        print_json({"run": str(run), "data": data, "records": len(labels), **metrics})
        return
    rows = {"records": str(len(labels))}
    print_rows(rows | {key: f"{value:.4g}" for key, value in metrics.items() if value is not None})


def predict_command(
    run: RunPath,
    data: DataPath,
    out: Annotated[Path, Option(help="CSV file to write; must not exist yet.")],
    device: options.Device = "cpu",
) -> None:
    """Write a trained model's predictions to CSV: class and probabilities, or the value."""
    from pacdp.experiments import RunResult

    loaded = RunResult.load(run, for_inference=True)
    require_new_file(out)
    task, predicted, _ = _predict(loaded, data, device)
    with out.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["record", *task.table_header()])
        for number, prediction in enumerate(predicted):
            writer.writerow([number, *task.table_row(prediction)])
    typer.echo(f"{len(predicted)} predictions: {out}")


def apply_features(plan: "Plan", data: str, dataset: "Dataset") -> "Dataset":
    """Apply the features that the run's model was trained on."""
    from pacdp.cli.progress import show_progress
    from pacdp.features import fit_features

    assert plan.representation is not None
    with show_progress() as progress:
        ready = fit_features(plan.representation, dataset.shape, progress=progress)
        # Features fitted to other public data have the same shape but a different meaning.
        apart = [key for key, was in plan.provenance.items() if ready.provenance.get(key) != was]
        if apart:
            raise InputError(
                f"--data {data}: its records have another representation than the model's "
                f"({apart[0]} is {ready.provenance.get(apart[0])}, must be "
                f"{plan.provenance[apart[0]]})"
            )
        return ready.transform(dataset, progress=progress)


def _predict(run: "RunResult", data: str, device: str) -> "tuple[Task, Any, Any]":
    """Return the task, predictions and labels of a data set's test records, or of a folder."""
    import numpy as np
    import torch

    from pacdp.data import CATALOGUE, load_dataset
    from pacdp.federation.evaluation import predict

    plan = run.plan
    options.device(device)
    known = data in CATALOGUE
    dataset = load_dataset(data) if known else load_dataset(data, task=plan.task)
    if plan.representation is not None:
        dataset = apply_features(plan, data, dataset)
    if dataset.shape != plan.shape:
        raise InputError(
            f"--data {data}: has records {dataset.shape}, the model takes {plan.shape}"
        )
    parts = [dataset.test] if known else [dataset.train, dataset.test]
    labels = np.concatenate([part.labels for part in parts])
    plan.task.require_labels(f"--data {data}", labels)
    inputs = torch.cat([part.inputs(device) for part in parts])
    return plan.task, predict(run.model().to(device), inputs, plan.task), labels
