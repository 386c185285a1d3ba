"""The embedded masked model: a MAR of 3 M parameters on the tokens of :mod:`~cachemark.models.tiny.tiny_kl`.

Its head takes one step of each 25th of the process, the least noisy one, and so begins at time 960. The published models begin
at 999, where almost nothing is left of the token and an error in the predicted noise is magnified a thousandfold: that takes
a longer training.
"""

from __future__ import annotations

from ..mar import MARConfig
from .tiny_kl import TinyKLConfig

NAME = "tiny-mar"
TINY_MAR = MARConfig(
    dim=160, depth=(4, 4), heads=5, head_depth=3, head_width=128, grid=16, channels=TinyKLConfig().channels, classes=10, buffer=8, steps=20,
    diffusion=(1,) * 25,
)
