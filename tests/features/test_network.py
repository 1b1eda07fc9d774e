"""A network that is trained on public records, once, and then frozen."""

import numpy as np
import pytest
import torch

from pacdp.data import load_dataset
from pacdp.errors import InputError
from pacdp.features.network import Network
from pacdp.progress import ignore_progress


def trained(records, seed=0, epochs=1):
    network = Network(records.features.shape[1:], width=4, epochs=epochs)
    network.fit(records, classes=10, seed=seed, progress=ignore_progress)
    return network


def test_a_seed_says_it_all(drawn):
    few = drawn.train.take(np.arange(256))
    torch.manual_seed(1)
    one = trained(few)
    after = torch.rand(1)
    torch.manual_seed(2)
    same, other = trained(few), trained(few, seed=1)
    for name, value in one.state_dict().items():
        assert torch.equal(value, same.state_dict()[name])
    assert not torch.equal(one.head.weight, other.head.weight)
    torch.manual_seed(1)
    assert torch.equal(after, torch.rand(1))


def test_one_epoch_is_better_than_chance():
    data = load_dataset("strokes", records=3000, seed=5)
    network = trained(data.train)
    images, labels = data.test.tensors(data.task)
    with torch.no_grad():
        right = (network(images).argmax(1) == labels).float().mean()
    assert right > 0.25


def test_a_frozen_network_sees_each_record_by_itself(drawn):
    images = drawn.test.inputs()[:6]
    network = trained(drawn.train.take(np.arange(256)))
    with torch.no_grad():
        alone = torch.cat([network.transform(image[None]) for image in images])
        assert torch.allclose(network.transform(images), alone, atol=1e-5)


def test_photographs_mean_the_same_in_a_mirror_and_letters_do_not():
    for channels, mirrored in ((3, True), (1, False)):
        torch.manual_seed(0)
        images = torch.rand(2, channels, 32, 32)
        for early in (0, 1):
            network = Network((channels, 32, 32), width=4, early=early).build(10).eval()
            one, other = (network.transform(x) for x in (images, images.flip(3)))
            assert torch.allclose(one, other, atol=1e-5) == mirrored


def test_early_features_do_not_know_the_last_layer():
    networks = [Network((3, 32, 32), width=4, early=early).build(10).eval() for early in (0, 1)]
    images = torch.rand(2, 3, 32, 32)
    before = [network.transform(images) for network in networks]
    with torch.no_grad():
        for network in networks:
            for value in network.blocks[-1].parameters():
                value.add_(0.5)
    late, early = (network.transform(images) for network in networks)
    assert torch.equal(early, before[1])
    assert not torch.equal(late, before[0])
    # Eight parts of the first block's 8 maps, two of the middle one's 16.
    assert early.shape == (2, 8 * 8 + 2 * 16)


def test_fewer_records_than_a_batch_are_refused(drawn):
    with pytest.raises(InputError, match="public network: 127 records, must be at least 128"):
        trained(drawn.train.take(np.arange(127)))
