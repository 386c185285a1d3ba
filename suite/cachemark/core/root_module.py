"""The type of the module ``cachemark``, set when this file is imported."""

import sys
from types import ModuleType
from typing import Any


class RootModule(ModuleType):
    """A package whose lazy names are not replaced by submodules.

    Importing ``cachemark.report`` leaves the function ``cm.report``."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in vars(self).get("_HOMES", ()):
            super().__setattr__(name, value)


sys.modules[__name__.partition(".")[0]].__class__ = RootModule
