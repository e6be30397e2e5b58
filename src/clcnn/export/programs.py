"""A controlled network as a torch.export or ONNX program."""

from __future__ import annotations

import copy
import json
import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from clcnn._version import __version__
from clcnn.dynamics.base import Dynamics
from clcnn.dynamics.hooked import HookedDynamics
from clcnn.errors import ClcnnError
from clcnn.export import files
from clcnn.export.checks import ExportError, check_batch, check_dtype, exportable
from clcnn.export.files import Format
from clcnn.export.graphs import record
from clcnn.export.straight import controlled_logits
from clcnn.objective import Objective
from clcnn.solvers.base import Solver
from clcnn.solvers.problem import no_autocast

OPSET = 20
INPUT, OUTPUT, BATCH = "x", "logits", "batch"
_LARGEST = 2**31 - 1  # bytes that one ONNX file can hold
_ANY = 5  # samples of the example when any number shall do: a size that few networks name


@dataclass(frozen=True)
class Subject:
    """What is exported: the parts of a fitted controlled network, and how it describes itself."""

    dynamics: Dynamics
    objective: Objective
    solver: Solver
    input_shape: tuple[int, ...]
    input_like: Tensor
    tensors: Mapping[str, Tensor]  # every weight and buffer under its name
    header: Mapping[str, Any]


def export(
    subject: Subject,
    path: str | os.PathLike[str] | None = None,
    *,
    format: Format | None = None,
    batch: int | None = None,
) -> Any:
    """x -> logits under control as one graph; see `ControlledModule.export`."""
    format = files.choose_format(path, format)
    check_batch(batch)
    check_dtype(subject.input_like.dtype)
    files.check_folder(path)
    subject.dynamics.check_mode()
    if format == "onnx":
        files.require("onnx")
        files.require("onnxscript")
    example = subject.input_like.new_zeros(batch or _ANY, *subject.input_shape)
    text = json.dumps(_description(subject, format, batch))
    program = _torch_program(_graph(subject, example, batch), example, batch)
    if format == "torch":
        if path is not None:
            with files.replacing(path) as partial, warnings.catch_warnings():
                # Weights whose channels are last in memory: torch writes them whole all the same.
                warnings.filterwarnings("ignore", "No complete tensor found in the group")
                torch.export.save(program, partial, extra_files={files.ENTRY: text})
        return program
    model = _onnx_model(program, text, batch)
    if path is not None:
        with files.replacing(path) as partial:
            partial.write_bytes(model.SerializeToString())
    return model


def _graph(subject: Subject, example: Tensor, batch: int | None) -> fx.GraphModule:
    solver = exportable(subject.solver)
    dynamics = _of_own_modules(subject.dynamics)

    def logits(x: Tensor) -> Tensor:
        return controlled_logits(dynamics, subject.objective, solver, x)

    with torch.inference_mode(False), no_autocast(example):
        try:
            return record(logits, example, subject.tensors, any_batch=batch is None)
        except ClcnnError:
            raise
        except Exception as error:
            raise ExportError(
                "the network or an embedding cannot be recorded as a graph "
                f"({type(error).__name__}: {_first_line(error)}). Expected a forward pass that "
                "takes the same way for every input: no branch on values, no call outside of torch."
            ) from error


def _of_own_modules(dynamics: Dynamics) -> Dynamics:
    """The dynamics of the user's own modules, without a faster copy that may stand in for them."""
    if isinstance(dynamics, HookedDynamics) and dynamics.stand_in is not None:
        dynamics = copy.copy(dynamics)
        dynamics.stand_in = None
    return dynamics


def _torch_program(
    graph: fx.GraphModule, example: Tensor, batch: int | None
) -> torch.export.ExportedProgram:
    sizes = {0: torch.export.Dim(BATCH, min=1)} if batch is None else None
    return torch.export.export(graph, (example,), dynamic_shapes=(sizes,), strict=False)


def _onnx_model(program: torch.export.ExportedProgram, text: str, batch: int | None) -> Any:
    """The program as an onnx.ModelProto, with our description among its metadata."""
    with _quiet():
        try:
            made: Any = torch.onnx.export(
                program,
                dynamo=True,
                # With the exporter's optimiser the logits of a residual network were off by 0.02
                # (9e-8 without). The graph is lean already, and runtimes optimise it themselves.
                optimize=False,
                verbose=False,
                opset_version=OPSET,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: BATCH},) if batch is None else None,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise _without_counterpart(error) from error
    made.model.metadata_props[files.KEY] = text
    model = made.model_proto
    if model.ByteSize() > _LARGEST:
        raise ExportError(
            f"the program takes {model.ByteSize()} bytes; an ONNX file holds at most {_LARGEST}. "
            "Fit embeddings of lower rank, or export with format='torch'."
        )
    return model


def _without_counterpart(error: Exception) -> ExportError:
    missing = sorted(
        set(re.findall(r"No ONNX function found for <OpOverload\(op='(\S+)'", str(error)))
    )
    what = f"the operations {', '.join(missing)}" if missing else _first_line(error)
    return ExportError(
        f"found no counterpart in ONNX for a part of the network or its derivative: {what}. Export "
        "with format='torch', or replace that part."
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells of packages that it misses and of its own old ways: nobody's concern."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        log.setLevel(level)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0][:300]


def _description(subject: Subject, format: Format, batch: int | None) -> dict[str, Any]:
    return {
        "clcnn": __version__,
        "torch": torch.__version__,
        "format": format,
        "batch": "any" if batch is None else batch,
        **subject.header,
    }
