"""Cutting any network by hooks: nothing rewritten, nothing left behind."""

from __future__ import annotations

import threading

import pytest
import torch
from networks import NETWORKS, Block, build, inputs
from torch import Tensor, nn

import clcnn
from clcnn import CutError, HookedDynamics


def hook_count(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def leave(t: int, x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NETWORKS)
def test_zero_control_is_bitwise_the_plain_model(name: str, dtype: torch.dtype) -> None:
    model = build(name, dtype)
    x = inputs(model, 7, dtype)
    dynamics = HookedDynamics(model, model.cuts)
    dynamics.inspect(x)
    with torch.no_grad():
        assert torch.equal(dynamics.rollout(x, leave), model(x))
        added = dynamics.rollout(x, lambda t, state: state + torch.zeros_like(state))
        assert torch.equal(added, model(x))


def test_states_are_the_inputs_of_the_named_modules() -> None:
    model = build("mlp")
    x = inputs(model, 4)
    states: list[Tensor] = []
    HookedDynamics(model, model.cuts).rollout(x, lambda t, s: states.append(s) or s)
    h = model.stem(x)
    for found, expected in zip(states, (x, h, model.hidden(h)), strict=True):
        torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_what_steer_returns_goes_on() -> None:
    model = build("mlp")
    x = inputs(model, 4)
    logits = HookedDynamics(model, ["hidden"]).rollout(x, lambda t, s: torch.zeros_like(s))
    torch.testing.assert_close(logits, model.head(model.hidden(torch.zeros(4, 8).double())))


def test_sweep_stops_at_the_last_cut() -> None:
    model = build("mlp")
    ran: list[str] = []
    model.head.register_forward_hook(lambda *_: ran.append("head"))
    model.hidden.register_forward_hook(lambda *_: ran.append("hidden"))
    HookedDynamics(model, model.cuts).sweep(inputs(model, 2), leave)
    assert ran == ["hidden"]


@pytest.mark.parametrize("method", ["rollout", "sweep"])
def test_hooks_never_outlive_a_call(method: str) -> None:
    model = build("residual")
    dynamics = HookedDynamics(model, model.cuts)
    run = getattr(dynamics, method)
    run(inputs(model, 2), leave)
    assert hook_count(model) == 0

    class Interrupted(BaseException):
        pass

    for error in (ValueError, Interrupted, KeyboardInterrupt):

        def fail(t: int, x: Tensor, error: type[BaseException] = error) -> Tensor:
            if t == 2:
                raise error
            return x

        with pytest.raises(error):
            run(inputs(model, 2), fail)
        assert hook_count(model) == 0
    with pytest.raises(RuntimeError):
        run(torch.zeros(2, 5, 8, 8).double(), leave)
    assert hook_count(model) == 0


def test_other_hooks_of_the_user_stay() -> None:
    model = build("mlp")
    seen: list[int] = []
    model.hidden.register_forward_pre_hook(lambda m, args: seen.append(1))
    HookedDynamics(model, model.cuts).rollout(inputs(model, 2), leave)
    assert hook_count(model) == 1
    assert seen == [1]


def test_a_plain_call_in_another_thread_is_not_steered() -> None:
    model = build("mlp")
    x = inputs(model, 3)
    plain = model(x)
    results: list[Tensor] = []

    def steer(t: int, state: Tensor) -> Tensor:
        if t == 1:
            other = threading.Thread(target=lambda: results.append(model(x)))
            other.start()
            other.join()
        return state + 1.0

    steered = HookedDynamics(model, model.cuts).rollout(x, steer)
    assert torch.equal(results[0], plain)
    assert not torch.equal(steered, plain)


class Awkward(nn.Module):
    """Every kind of cut that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.relu = nn.ReLU()
        self.unused = nn.Linear(4, 4)
        self.pair = Pair()
        self.branch = nn.Linear(4, 4)
        self.detaching = Detaching()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu(self.stem(x))
        h = self.relu(self.pair([h, h]))
        return self.head(h + self.branch(h) + self.detaching(h))


class Pair(nn.Module):
    def forward(self, values: list[Tensor]) -> Tensor:
        return values[0] + values[1]


class Detaching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach()


AWKWARD = [
    (["stemm"], r"unknown cut 'stemm'.*Did you mean 'stem'"),
    (["zzz"], r"unknown cut 'zzz'.*Top-level names: input, stem"),
    (["relu"], r"'relu' fired twice.*shared ReLU"),
    (["unused"], r"never ran cut 'unused'"),
    (["pair"], r"'pair' is not one tensor but a list of 2.*boundary"),
    (["branch"], r"'branch' is bypassed: the output still depends on the network's input"),
    (["input", "branch", "head"], r"'branch' is bypassed: cut 'head' still depends on 'input'"),
    (["input", "detaching", "head"], r"'detaching' has no influence on cut 'head'"),
    (["head", "stem"], r"'stem' fired before 'head'.*order"),
    (["stem", "stem"], r"listed 2 times"),
    (["stem", "input"], r"'input' stands at place 2"),
    ([], r"no cut was given"),
    ([3], r"a cut is a int"),
]


@pytest.mark.parametrize(("cuts", "message"), AWKWARD, ids=lambda v: str(v)[:30])
def test_unsound_cuts_are_refused_with_a_remedy(cuts: list[str], message: str) -> None:
    model = Awkward().eval()
    with pytest.raises(CutError, match=message):
        HookedDynamics(model, cuts).inspect(torch.rand(2, 4))
    assert hook_count(model) == 0


def test_a_skip_connection_around_a_cut_is_found_and_can_be_allowed() -> None:
    model = nn.Sequential(Block(3, 4, 1), nn.Flatten(), nn.Linear(256, 2)).eval()
    x = torch.rand(2, 3, 8, 8)
    with pytest.raises(CutError, match=r"'0.conv2' is bypassed.*allow_bypass=True"):
        HookedDynamics(model, ["input", "0.conv2", "2"]).inspect(x)
    shapes = HookedDynamics(model, ["input", "0.conv2", "2"], allow_bypass=True).inspect(x)
    assert shapes == ((3, 8, 8), (4, 8, 8), (256,))


def test_train_mode_is_refused_even_of_one_submodule() -> None:
    model = build("residual")
    model.layer1.bn2.train()
    with pytest.raises(CutError, match=r"train mode \(found it in layer1.bn2\).*model.eval\(\)"):
        HookedDynamics(model, model.cuts).inspect(inputs(model, 2))


def test_compiled_models_are_refused() -> None:
    compiled = torch.compile(build("mlp"))
    with pytest.raises(CutError, match=r"already compiled.*_orig_mod"):
        HookedDynamics(compiled, ["input"])
    in_place = build("mlp")
    in_place.hidden.compile()
    with pytest.raises(CutError, match="submodule 'hidden' is already compiled"):
        clcnn.control(in_place, ["input", "hidden"])
    assert HookedDynamics(in_place, ["input", "head"]).cuts == ("input", "head")
    traced = torch.jit.trace(build("mlp"), inputs(build("mlp"), 2))
    with pytest.raises(CutError, match="the model is already compiled"):
        HookedDynamics(traced, ["input"])


def test_a_model_that_returns_a_tuple_is_refused() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.head(x), x

    with pytest.raises(CutError, match="returned a tuple of 2; expected one tensor"):
        HookedDynamics(Two().eval(), ["input"]).inspect(torch.rand(2, 3))


def test_keyword_inputs_are_steered_too() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(input=2 * x)

    model = Keyword().eval()
    x = torch.rand(2, 3)
    dynamics = HookedDynamics(model, ["head"])
    assert torch.equal(dynamics.rollout(x, lambda t, s: s * 0), model(x * 0))


def test_in_place_layers_do_not_change_what_was_scored() -> None:
    model = build("residual")
    x = inputs(model, 3)
    dynamics = HookedDynamics(model, model.cuts)
    dynamics.inspect(x)
    assert dynamics.copied == {"act"}
    states: list[Tensor] = []
    dynamics.rollout(x, lambda t, s: states.append(s) or s)
    torch.testing.assert_close(states[2], model.layer1(states[1]) - 0.3)
    assert (states[2] < 0).any()


def test_cuts_are_chosen_and_said() -> None:
    model = build("residual")
    robust = clcnn.control(model, embedding=clcnn.LinearEmbedding(rank=2)).fit(inputs(model, 20))
    assert robust.cuts == ("input", "layer1", "act", "layer2", "head")
    vit = build("vit")
    robust = clcnn.control(vit, embedding=clcnn.LinearEmbedding(rank=2)).fit(inputs(vit, 20))
    assert robust.cuts == ("input", "block1", "block2", "head")
    awkward = Awkward().eval()
    robust = clcnn.control(awkward, embedding=clcnn.LinearEmbedding(rank=2)).fit(torch.rand(20, 4))
    assert robust.cuts == ("input", "head")


@pytest.mark.parametrize(
    ("cuts", "place"), [(["input"], "the model's output"), (["input", "2"], "the state at cut '2'")]
)
def test_a_network_that_gives_nan_is_told_so(cuts: list[str], place: str) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).eval()
    model[0].weight.data[0, 0] = torch.nan
    with pytest.raises(CutError, match=f"{place} is NaN in .* expected numbers"):
        HookedDynamics(model, cuts).inspect(torch.randn(2, 6))
