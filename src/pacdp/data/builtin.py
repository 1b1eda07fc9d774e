"""Small public data sets that need no download: two from scikit-learn, and a generator.

They serve as proxies. Breast cancer is scaled by its own minima and maxima, which is allowed
because the data set is public; a private one must never be scaled by its own statistics.
"""

import math
from collections.abc import Sequence

import numpy as np

from pacdp.data.digests import digest_rows
from pacdp.data.records import (
    Dataset,
    Records,
    draw_stratified,
    make_generator,
    split_dataset,
)
from pacdp.data.sources import generated_provenance, published_provenance
from pacdp.errors import InputError
from pacdp.tasks import Classification
from pacdp.validation import require_count, require_positive_number

TEST_SHARE = 0.2


def load_digits(*, split: int = 0) -> Dataset:
    """Load 1,797 handwritten digits of 8×8 pixels, as bytes.

    >>> load_digits().shape
    (1, 8, 8)
    """
    from sklearn import datasets

    bunch = datasets.load_digits()
    # The source has 17 grey levels; 16 becomes 255.
    pixels = np.round(bunch.images * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target.astype(np.int64)
    return split_dataset(
        Records(features=pixels, labels=labels),
        draw_stratified(labels, TEST_SHARE, split),
        name="digits",
        task=Classification.named(tuple("0123456789")),
        provenance=published_provenance("digits"),
    )


def load_breast_cancer(*, split: int = 0) -> Dataset:
    """Load 569 tumours with thirty measurements in [−1, 1].

    >>> load_breast_cancer().shape
    (30,)
    """
    from sklearn import datasets

    bunch = datasets.load_breast_cancer()
    low, high = bunch.data.min(0), bunch.data.max(0)
    features = (2 * (bunch.data - low) / (high - low) - 1).astype(np.float32)
    labels = 1 - bunch.target.astype(np.int64)
    return split_dataset(
        Records(features=features, labels=labels, keys=digest_rows(bunch.data)),
        draw_stratified(labels, TEST_SHARE, split),
        name="breast-cancer",
        task=Classification.named(("benign", "malignant")),
        provenance=published_provenance("breast-cancer"),
    )


def generate_synthetic(
    *,
    records: int = 2000,
    features: int = 13,
    shape: Sequence[int] | None = None,
    classes: int = 2,
    clients: int = 4,
    separation: float = 2.0,
    split: int = 0,
    seed: int = 0,
) -> Dataset:
    """Generate one Gaussian cluster per class, with centres ``separation`` apart on average.

    With ``shape`` the records are images of that shape (channels, height, width) instead of rows.

    >>> data = generate_synthetic(records=100, features=5, clients=3)
    >>> data.shape, len(data.clients)
    ((5,), 3)
    >>> generate_synthetic(shape=[3, 8, 8], classes=10).shape
    (3, 8, 8)
    """
    size = int(require_count("records", records))
    sides = [int(require_count("shape", side)) for side in shape or [features]]
    dimensions = math.prod(sides)
    kinds = int(require_count("classes", classes))
    holders = int(require_count("clients", clients))
    distance = require_positive_number("separation", separation)
    if kinds < 2 or size < 5 * kinds * holders:
        raise InputError(
            f"records = {size}: must be at least 5 for each of {kinds} classes (at least 2) "
            f"and {holders} clients"
        )
    random = make_generator("seed", seed)
    centres = random.normal(size=(kinds, dimensions))
    # Two standard normal centres are √(2d) apart on average.
    centres *= distance / np.sqrt(2 * dimensions)
    labels = np.arange(size, dtype=np.int64) % kinds
    values = centres[labels] + random.normal(size=(size, dimensions)) / np.sqrt(dimensions)
    generated = Records(
        # Most values lie in [−1, 1]; the others are clipped, as values outside medical ranges are.
        features=np.clip(values, -1, 1).astype(np.float32).reshape(size, *sides),
        labels=labels,
        clients=(np.arange(size, dtype=np.int64) // kinds) % holders,
    )
    return split_dataset(
        generated,
        draw_stratified(labels, TEST_SHARE, split),
        name="synthetic",
        task=Classification.named([f"class {number}" for number in range(kinds)]),
        clients=tuple(f"client {number}" for number in range(holders)),
        provenance=generated_provenance(seed),
    )
