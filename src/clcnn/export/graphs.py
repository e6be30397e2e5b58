"""A function of one batch recorded as a graph of plain tensor operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.fx.node import Argument, Node
from torch.nn.attention import SDPBackend, sdpa_kernel

from clcnn.export.checks import ExportError
from clcnn.export.decompositions import table

_aten = torch.ops.aten
_IDENTITIES = (
    _aten.detach.default,
    _aten.detach_.default,
    _aten.alias.default,
    _aten.lift_fresh.default,
    _aten.lift_fresh_copy.default,
)

Function = Callable[[Tensor], Tensor]


def record(
    function: Function, example: Tensor, names: Mapping[str, Tensor], *, any_batch: bool
) -> fx.GraphModule:
    """y = function(x) as a graph: derivatives and mutations inside it become plain operations.

    Nothing is computed: the function sees tensors that have a shape only. Tensors that it reads
    beside x are kept once, under their ``names``, as buffers. With ``any_batch`` the first axis of
    x stays open.
    """
    size = DimDynamic.DYNAMIC if any_batch else DimDynamic.STATIC
    context: Any = StatelessSymbolicContext([size, *[DimDynamic.STATIC] * (example.dim() - 1)])
    # A mode for each pass: the second must not find what the first learned of constants.
    graph = _pass(function, example, context)
    graph = _pass(functionalize(graph, remove="mutations"), example, context, table())
    _drop_identities(graph.graph)
    _merge_equal(graph.graph)
    _fold_constants(graph)
    graph.graph.eliminate_dead_code()
    return _named(graph, names)


def _pass(
    function: Function,
    example: Tensor,
    context: Any,
    decompositions: Mapping[Any, Any] | None = None,
) -> fx.GraphModule:
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    x = mode.from_tensor(example, symbolic_context=context)
    trace: Any = make_fx(
        function,
        decomposition_table=dict(decompositions or {}),
        tracing_mode="real",
        _allow_non_fake_inputs=True,
    )
    # The fused attention kernels have no counterpart elsewhere; the plain one has.
    with mode, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        graph: fx.GraphModule = trace(x)
    n: Any = x.shape[0]
    if isinstance(n, torch.SymInt) and n.node.expr.is_number:
        raise ExportError(
            f"the network or an embedding makes a plain number of the batch size (here {n}), so "
            "that the graph would hold for that size only. Pass batch=N for the size you need, or "
            "write x.shape[0] where it takes len(x) or int(x.shape[0])."
        )
    return graph


def _drop_identities(graph: fx.Graph) -> None:
    """Without derivatives and mutations, a detached or lifted tensor is the tensor itself."""
    for node in graph.nodes:
        if node.op == "call_function" and node.target in _IDENTITIES:
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)


def _merge_equal(graph: fx.Graph) -> None:
    """One node for equal operations on equal arguments: each iteration repeats some of them."""
    seen: dict[Hashable, Node] = {}
    for node in graph.nodes:
        if node.op not in ("call_function", "get_attr") or _is_random(node):
            continue
        key = (node.op, node.target, _key(node.args), _key(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _key(value: Argument) -> Hashable:
    if isinstance(value, (tuple, list)):
        return tuple(_key(one) for one in value)
    if isinstance(value, dict):
        return tuple((name, _key(one)) for name, one in sorted(value.items()))
    if isinstance(value, Node):
        return value
    # With the type: 1, 1.0 and True are equal, but not the same argument.
    return type(value), repr(value)


def _is_random(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _fold_constants(graph: fx.GraphModule) -> None:
    """What does not depend on x is computed once, here, and stored.

    A constant that is a view of another, as V' is of V, or that is made from nothing, stays an
    operation: it costs nothing.
    """
    values: dict[Node, Any] = {}
    stored: dict[Node, Tensor] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            values[node] = getattr(graph, str(node.target))
        elif _is_constant(node, values):
            args = fx.node.map_arg(node.args, values.__getitem__)
            kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
            values[node] = node.target(*args, **kwargs)
            memory = {_memory(values[one]) for one in node.all_input_nodes}
            if isinstance(values[node], Tensor) and memory and _memory(values[node]) not in memory:
                stored[node] = values[node]
    for node, value in stored.items():
        if any(user not in stored for user in node.users):
            name = f"_folded_constant{len(graph._buffers)}"
            graph.register_buffer(name, value)
            with graph.graph.inserting_before(node):
                node.replace_all_uses_with(graph.graph.get_attr(name))


def _memory(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None


def _is_constant(node: Node, values: Mapping[Node, Any]) -> bool:
    known = all(one in values for one in node.all_input_nodes)
    return node.op == "call_function" and known and not _is_random(node)


def _named(graph: fx.GraphModule, names: Mapping[str, Tensor]) -> fx.GraphModule:
    """The graph with its constants under the names that the controlled network gives them."""
    known = {id(value): name for name, value in names.items()}
    held: dict[str, Tensor] = {}
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            value = getattr(graph, str(node.target))
            node.target = known.get(id(value), f"constants.{str(node.target).lstrip('_')}")
            # Detached: a graph for inference holds no parameters to be trained.
            held[node.target] = value.detach()
    return fx.GraphModule(held, graph.graph, class_name="ControlledNetwork")
