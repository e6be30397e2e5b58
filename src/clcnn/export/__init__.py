"""Controlled networks as one straight graph, for torch.export and ONNX."""

from clcnn.export.checks import ExportError as ExportError
from clcnn.export.files import metadata as metadata
from clcnn.export.programs import Subject as Subject
from clcnn.export.programs import export as export
