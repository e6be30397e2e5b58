"""The greedy solver is the control that Theorem 1 speaks of."""

from __future__ import annotations

import pytest
import torch

from clcnn import Greedy, LinearEmbedding, StagedDynamics, theory
from clcnn.objective import Objective


@pytest.mark.parametrize("c", [0.0, 0.4, 5.0])
def test_greedy_follows_the_trajectory_of_the_theory(c: float) -> None:
    d, r, T = 6, 2, 4
    thetas = [torch.randn(d, d, dtype=torch.float64) for _ in range(T)]
    V_0 = torch.linalg.qr(torch.randn(d, r, dtype=torch.float64)).Q
    bases = theory.transport_bases(thetas, V_0)
    layers = [torch.nn.Linear(d, d, bias=False).double().eval() for _ in range(T)]
    for layer, theta in zip(layers, thetas, strict=True):
        layer.weight.data.copy_(theta)
    embeddings = []
    for V in bases[:T]:
        states = torch.randn(50, r, dtype=torch.float64) @ V.T
        embedding = LinearEmbedding(rank=r).fit([torch.cat([states, -states])])  # mean 0
        embeddings.append(embedding)
    objective = Objective(embeddings, [c] * T, [1.0] * T)
    clean = torch.randn(3, r, dtype=torch.float64) @ V_0.T
    z = torch.randn(3, d, dtype=torch.float64)
    solution = Greedy().solve(StagedDynamics(layers), objective, clean + z)
    expected = theory.greedy_trajectory(thetas, bases, clean + z, c)[-1]
    torch.testing.assert_close(solution.logits, expected, atol=1e-8, rtol=1e-8)
    error = (solution.logits - clean @ theory.products(thetas)[-1].T).square().sum(-1)
    bound = theory.theorem_bound(thetas, V_0, z, c, T)
    assert (error <= bound * (1 + 1e-9)).all()
