"""Rows 1 and 6: one clipped, noised step against a plain one and against Opacus."""

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.harness import Row, interleaved, versions
from pacdp.clipping import ClippedGradient, CrossEntropy, SimulatedNoise, release
from pacdp.models import build_model

BOUND, NOISE, RATE = 0.5, 1.0, 0.01
PACKAGES = ("pacdp", "torch", "opacus", "numpy")
Step = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A model, its batch, and what is to be reached against a plain step."""

    name: str
    model: str
    inputs: Tensor
    goal: float | None
    repeats: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    classes: int = 10

    def make(self) -> nn.Module:
        """The model."""
        shape = tuple(self.inputs.shape[1:])
        return build_model(self.model, shape=shape, outputs=self.classes, **self.settings)

    @property
    def targets(self) -> Tensor:
        """Some class for each example."""
        return torch.arange(len(self.inputs)) % self.classes


def cases() -> list[Case]:
    """What is measured."""
    tokens = torch.randint(0, 80, (128, 20))
    digits, heart = torch.randn(128, 1, 28, 28), torch.randn(128, 13)
    images = torch.randn(16, 3, 32, 32)
    return [
        Case("CNN (21,840 parameters), B = 128", "cnn", digits, 1.0, 60),
        Case("MLP 13-16-2 (Heart), B = 128", "mlp", heart, 1.0, 600, classes=2),
        Case("MLP 784-100-10, B = 128", "mlp", digits, 1.0, 300, {"hidden": 100}),
        Case("logistic 784-10, B = 128", "logistic", digits, 1.0, 600),
        Case("GroupNorm ResNet-18, B = 16", "resnet18", images, 1.5, 10, {"dropout": 0.0}),
        Case("Embedding + GRU, B = 128", "sequence", tokens, None, 30),
    ]


def rows() -> Iterator[Row]:
    """A step of each model, all peers in turns, on one thread."""
    # Opacus warns at every first layer.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    speed = _multiplications_per_second()
    for case in cases():
        peers = {} if case.goal is None else opacus_steps(case)
        plain, ours, *others = interleaved(
            *(plain_step(case), clipped_step(case), *peers.values()), repeats=case.repeats
        )
        details = {"seconds_plain": plain, "seconds_pacdp": ours}
        if case.model == "cnn":
            # 0.4 GFLOP is what the step's products need; the rest is memory and overhead.
            details["share_of_the_processors_limit"] = 0.4e9 / speed / ours
        yield Row(
            row=1,
            work=f"one clipped, noised step: {case.name}",
            against="plain PyTorch step",
            ratio=ours / plain,
            goal="shown without a goal" if case.goal is None else f"<= {case.goal}x",
            holds=case.goal is None or ours / plain <= case.goal,
            versions=versions(*PACKAGES),
            details=details,
        )
        if peers:
            best = min(zip(others, peers, strict=True))
            yield Row(
                row=1,
                work=f"one clipped, noised step: {case.name}",
                against=f"the best of Opacus hooks, functorch, ghost ({best[1]})",
                ratio=best[0] / ours,
                goal=">= 2x faster",
                holds=best[0] / ours >= 2,
                versions=versions(*PACKAGES),
                details={f"seconds_{n}": s for n, s in zip(peers, others, strict=True)},
            )
    yield memory()


def plain_step(case: Case) -> Step:
    """Forward, backward and SGD, without privacy."""
    model, inputs, targets = case.make(), case.inputs, case.targets
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def clipped_step(case: Case) -> Step:
    """The same step, clipped and noised."""
    model, inputs, targets = case.make(), case.inputs, case.targets
    gradient = ClippedGradient(model, CrossEntropy(), adjacency="zero-out")
    parameters: list[Tensor] = list(model.parameters())
    noise = SimulatedNoise(seed=0, client=0, round=0)

    def step() -> None:
        total = gradient(inputs, targets, clipping_bound=BOUND)
        released = release(total, z=NOISE, divisor=float(len(inputs)), noise=noise)
        with torch.no_grad():
            torch._foreach_add_(parameters, list(released.values()), alpha=-RATE)

    return step


def opacus_steps(case: Case) -> dict[str, Step]:
    """The same step by Opacus, in each of its modes."""
    from opacus import GradSampleModule
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model, inputs, targets = case.make(), case.inputs, case.targets
    settings = {
        "noise_multiplier": NOISE,
        "max_grad_norm": BOUND,
        "expected_batch_size": len(inputs),
    }

    def sampled(force_functorch: bool) -> Step:
        wrapped = GradSampleModule(copy.deepcopy(model), force_functorch=force_functorch)
        optimizer = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=RATE), **settings)

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(wrapped(inputs), targets).backward()
            optimizer.step()

        return step

    def ghost() -> Step:
        wrapped = GradSampleModuleFastGradientClipping(
            copy.deepcopy(model), max_grad_norm=BOUND, use_ghost_clipping=True
        )
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(wrapped.parameters(), lr=RATE), **settings
        )
        loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

        def step() -> None:
            optimizer.zero_grad()
            loss(wrapped(inputs), targets).backward()
            optimizer.step()

        return step

    return {"hooks": sampled(False), "functorch": sampled(True), "ghost": ghost()}


def memory() -> Row:
    """Row 6: the most memory of a ResNet-18 step, each in a process of its own."""
    plain, ours = (_peak(name) for name in ("plain_step", "clipped_step"))
    return Row(
        row=6,
        work="peak memory of a GroupNorm ResNet-18 step, B = 16",
        against="plain PyTorch step (both beyond what importing takes)",
        ratio=ours / plain,
        goal="<= 1.3x",
        holds=ours / plain <= 1.3,
        versions=versions(*PACKAGES),
        details={"megabytes_plain": plain, "megabytes_pacdp": ours},
    )


_PEAK = """
import sys
from benchmarks import clipping
import torch
torch.set_num_threads(1)
def used():
    # Unlike getrusage, this starts anew with the program.
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024
before = used()
case = next(case for case in clipping.cases() if "ResNet" in case.name)
step = getattr(clipping, sys.argv[1])(case)
for _ in range(3):
    step()
print(used() - before)
"""


def _peak(name: str) -> float:
    found = subprocess.run(
        [sys.executable, "-c", _PEAK, name], capture_output=True, text=True, check=True
    )
    return float(found.stdout)


def _multiplications_per_second() -> float:
    """What one core reaches in a large matrix product, in floating-point operations."""
    size = 1024
    a, b = torch.randn(size, size), torch.randn(size, size)
    (seconds,) = interleaved(lambda: a @ b, repeats=10)
    return 2.0 * size**3 / seconds
