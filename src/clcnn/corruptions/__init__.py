"""Common corruptions: what weather, lenses, sensors and files do to images, without any intent.

x_bad = corrupt(x, "fog", 3)                # images in [0,1], severity 1 to 5
for name in NAMES: ...                      # the fifteen of CIFAR-10-C
"""

from clcnn.corruptions.corrupt import NAMES, SEVERITIES, Corruption, corrupt

__all__ = ["NAMES", "SEVERITIES", "Corruption", "corrupt"]
