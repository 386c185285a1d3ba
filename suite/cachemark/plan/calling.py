"""The package as a function: ``cachemark.plan("demo")`` reads a plan, and ``cachemark.plan.schema`` is a module of it.

Python sets a package's attribute to the subpackage of that name as soon as anybody imports it, so that no function can stand there.
"""

import sys
from types import ModuleType


class _PlanPackage(ModuleType):
    """A package that reads the plan of a name or a path when it is called."""

    def __call__(self, name_or_path: str) -> object:
        from .schema import load

        return load(name_or_path)


sys.modules[__name__.rpartition(".")[0]].__class__ = _PlanPackage
