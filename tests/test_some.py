"""Samples from everywhere in the data, for what cannot look at all of them."""

import torch
from torch.utils.data import DataLoader, TensorDataset

from clcnn.states import Batches


def test_sorted_data_are_met_from_end_to_end() -> None:
    x = torch.arange(10_000.0).reshape(-1, 1)
    found = torch.cat(Batches(x).some(1000)).squeeze(1)
    assert len(found) == len(found.unique()) == 1000
    tenths = (found / 1000).long().bincount(minlength=10)
    assert tenths.min() > 60  # 100 each, standard deviation 9
    assert tenths.max() < 150


def test_a_loader_gives_the_same_samples_as_the_tensor() -> None:
    x = torch.arange(1000.0).reshape(-1, 1)
    loader = DataLoader(TensorDataset(x), batch_size=7)
    assert torch.equal(torch.cat(Batches(loader).some(50)), torch.cat(Batches(x).some(50)))


def test_few_data_are_all_there() -> None:
    x = torch.arange(30.0).reshape(-1, 1)
    assert torch.equal(torch.cat(Batches(x).some(50)), x)
    assert torch.equal(torch.cat(Batches(x).some(30)), x)


def test_batches_are_no_larger_than_those_given() -> None:
    x = torch.arange(100.0).reshape(-1, 1)
    loader = DataLoader(TensorDataset(x), batch_size=4)
    assert {len(part) for part in Batches(loader).some(50)} == {4, 2}
    whole = Batches([torch.arange(1000.0).reshape(-1, 1)]).some(600)
    assert [len(part) for part in whole] == [256, 256, 88]
