"""Plans: from a TOML file to cases, their price and what of them is done already. Called with a name, this package reads that plan."""

import sys
from types import ModuleType


class _PlanPackage(ModuleType):
    """A package that can be called: ``cachemark.plan("demo")`` beside ``cachemark.plan.schema``."""

    def __call__(self, name_or_path: str) -> object:
        from .schema import load

        return load(name_or_path)


sys.modules[__name__].__class__ = _PlanPackage
