"""Close-loop control for trained neural networks."""

from clcnn._version import __version__ as __version__
