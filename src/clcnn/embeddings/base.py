"""What every embedding is: a map E onto the manifold that clean states live on."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn

from clcnn.errors import LoadError


@dataclass(frozen=True)
class Lesson:
    """Clean states, the classes wanted of them, and the frozen network from these states on.

    ``answer`` maps states of the same samples, in the same order, to logits; it has gradients.
    """

    state: Tensor
    wanted: Tensor
    answer: Callable[[Tensor], Tensor]


class Embedding(nn.Module, ABC):
    """E(x), with E(x) = x on the manifold; a new one writes `fit` and `project` only.

    States have shape (batch, *state). What `fit` learns belongs in buffers or parameters, where
    ``.to(device)`` and saving find it. Constructor arguments that are JSON values kept in
    attributes of their own names are saved and restored without further code.
    """

    choice_: dict[str, Any] | None = None
    """Why this embedding, where it was chosen among several; JSON values, saved with it."""

    wants_gradients: bool = False
    """Whether `hear` is to be called after `fit`, with gradients of the network at these states."""

    lesson_size: int = 0
    """Samples a `Lesson`, where `learn` is to be called after `fit` and `hear`; 0: it is not."""

    @abstractmethod
    def fit(self, states: Iterable[Tensor]) -> Embedding:
        """Learn the manifold from batches of clean states; ``states`` may be iterated again.

        Returns the fitted embedding: this one, or another that it chose.
        """

    def hear(self, gradients: Iterable[Tensor], states: Iterable[Tensor]) -> Embedding:
        """Learn what the network is sensitive to, from its gradients at the states fitted."""
        raise NotImplementedError(f"{type(self).__name__} does not listen to gradients")

    def learn(self, lessons: Iterable[Lesson]) -> Embedding:
        """Learn through the network; ``lessons`` may be iterated again, in another order."""
        raise NotImplementedError(f"{type(self).__name__} takes no lessons")

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """E(x), of x's shape, each sample by itself."""

    def residual(self, x: Tensor) -> Tensor:
        """E(x) - x."""
        return self.project(x) - x

    def energy(self, x: Tensor) -> Tensor:
        """||E(x) - x||^2 per sample, shape (batch,), differentiable twice."""
        return self.residual(x).flatten(1).square().sum(1)

    def departure(self, x: Tensor) -> Tensor:
        """How little each sample looks like clean data, shape (batch,): ||E(x) - x||^2."""
        return self.energy(x)

    def forward(self, x: Tensor) -> Tensor:
        """E(x)."""
        return self.project(x)

    def in_bfloat16(self) -> Embedding:
        """The same map with its products in bfloat16; itself, where it has no such form.

        States come and go in their own dtype. For iterations alone (`ControlledModule.accelerate`):
        the residual is the small difference of two large numbers, and loses digits.
        """
        return self

    def for_cut(self, t: int, T: int) -> Embedding:
        """A fresh copy to be fitted at cut t of T, so that one prototype serves all cuts."""
        return copy.deepcopy(self)

    def config(self) -> dict[str, Any]:
        """The constructor arguments, as JSON values, with which an equal embedding is made."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` learned: ``tensors`` is a saved state dict, ``shape`` one state's.

        The default suits embeddings whose learned tensors are their own buffers or parameters, or
        whose submodules exist before `fit`; one that builds submodules in `fit` overrides this.
        """
        for name, value in tensors.items():
            if "." not in name and name not in dict(self.named_parameters(recurse=False)):
                self.register_buffer(name, value.clone())
        try:
            self.load_state_dict(dict(tensors))
        except RuntimeError as error:
            raise LoadError(
                f"{type(self).__name__} cannot take back its saved tensors: {error}. Override "
                "`restore` so that it first builds the submodules that `fit` builds."
            ) from error
        return self


def check_saved(
    embedding: Embedding,
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    shape: tuple[int, ...],
) -> None:
    """Raise where saved tensors do not have the names and shapes that states of ``shape`` ask."""
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if found != expected:
        raise LoadError(
            f"the saved tensors of a {type(embedding).__name__} for states of shape {tuple(shape)} "
            f"have shapes {found}, expected {expected}. Load the file with the network and the "
            "embedding that saved it."
        )
