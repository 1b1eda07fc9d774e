"""Proxies: the right shape, where they came from, and never a private record."""

import numpy as np
import pytest

from pacdp.data import Records, load_dataset, load_proxy, partition_records, refuse_overlap
from pacdp.data.proxy import PROXIES
from pacdp.errors import DataError, InputError
from pacdp.tasks import Classification


@pytest.mark.parametrize("name", PROXIES["heart"])
def test_heart_proxies_fit_heart(name):
    heart, made = load_dataset("heart"), load_proxy("heart", name)
    assert made.data.shape == heart.shape
    assert made.data.task == Classification(2)
    assert np.abs(made.data.train.features).max() <= 1
    refuse_overlap(made.data, heart)
    sizes = partition_records(made.data, "natural").sizes
    assert sizes / sizes.sum() == pytest.approx(np.array([303, 261, 46, 130]) / 740, abs=0.01)


def test_digits_in_mnists_frame():
    made = load_proxy("mnist", copies=3)
    plain = load_dataset("digits")
    assert made.data.shape == (1, 28, 28)
    assert len(made.data.train) == 3 * len(plain.train)
    images = made.data.test.features[:, 0].astype(float)
    rows = np.arange(28)
    mass = images.sum((1, 2))
    centres = (images.sum(2) @ rows / mass, images.sum(1) @ rows / mass)
    assert np.abs(np.array(centres) - 14).mean() < 0.3  # centred by mass, as MNIST is
    assert (images[:, [0, -1]] == 0).all()
    same = load_proxy("mnist", copies=3)
    assert np.array_equal(made.data.train.features, same.data.train.features)


def test_bent_copies_do_not_hide_whose_they_are():
    made = load_proxy("mnist", copies=2)
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(made.data, load_dataset("digits"))
    turned = load_proxy("heart", "breast-cancer")
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(turned.data, load_dataset("breast-cancer"))


def test_pixels_are_the_same_in_any_type():
    data = load_dataset("digits")
    images = data.train.features
    for same in (images / 255, (images / 255).astype(np.float32), images.astype(int), images * 1.0):
        copy = Records(features=same, labels=data.train.labels)
        with pytest.raises(DataError, match="shares records with private data"):
            refuse_overlap(data, [copy])


def test_features_are_compared_as_well_as_sources():
    data = load_dataset("heart")
    bare = Records(features=data.train.features, labels=data.train.labels)
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(data, [bare])
    refuse_overlap(data, [])


def test_a_record_is_the_same_whatever_else_is_in_its_table():
    def rows(*values):
        return Records(features=np.array(values), labels=np.zeros(len(values), np.int64))

    data = load_dataset("breast-cancer")
    for other in (300.0, 200.5, -1.0):
        made = {"train": rows([54.0, 156.0], [60.0, other]), "test": rows([1.0, 2.0])}
        public = type(data)(**vars(data) | made)
        with pytest.raises(DataError, match="shares records with private data"):
            refuse_overlap(public, [rows([54, 156], [61, 200])])


def test_one_shared_record_is_enough():
    data = load_dataset("digits")
    half = partition_records(data, "iid", clients=2).client_records(data)
    apart = type(data)(**vars(data) | {"train": half[0]})
    refuse_overlap(apart, [half[1]])
    index = np.append(np.arange(len(half[0])), 0)
    mixed = half[0].take(index)
    features = mixed.features.copy()
    features[-1] = half[1].features[0]
    same = type(mixed)(features=features, labels=mixed.labels)
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(type(data)(**vars(data) | {"train": same}), [half[1]])


def test_what_the_two_cifars_share_is_left_out(cifar10, cifar100, monkeypatch):
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(cifar100, cifar10)
    sets = {"cifar10": cifar10, "cifar100": cifar100}
    monkeypatch.setattr("pacdp.data.proxy.load_dataset", lambda name: sets[name])
    made = load_proxy("cifar100").data
    refuse_overlap(made, cifar100)
    assert len(made.train) + len(made.test) == 59_997


def test_ten_superclasses_for_ten_classes(cifar100, cifar100_folder, monkeypatch):
    monkeypatch.setenv("PACDP_DATA_DIR", str(cifar100_folder))
    made = load_proxy("cifar10")
    counts = np.bincount(made.data.train.labels) + np.bincount(made.data.test.labels)
    assert counts.tolist() == pytest.approx([3000] * 10, abs=3)
    assert len(set(made.data.task.class_names)) == 10
    with pytest.raises(DataError, match="shares records with private data"):
        refuse_overlap(made.data, cifar100)


def test_unknown_pairs():
    with pytest.raises(InputError, match="none is built in, only for mnist"):
        load_proxy("synthetic")
    with pytest.raises(
        InputError, match="proxy = 'mnist': must be one of synthetic, breast-cancer"
    ):
        load_proxy("heart", "mnist")
    with pytest.raises(InputError, match="has no option features; there are seed, records"):
        load_proxy("heart", "synthetic", features=5)
    assert "breast-cancer-for-heart for heart" in str(load_proxy("heart", "breast-cancer"))
