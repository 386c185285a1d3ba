"""Registry of cache methods. Each file of this folder defines the method of its name."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from ..contract.method import Method
from ..core.registry import Registry

_OTHERS = ("registry",)
_FILES = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if not module.ispkg and module.name not in _OTHERS]

METHODS: Registry[type[Method]] = Registry("method", Method, classes=True, built_in={name: f"{__package__}.{name}" for name in _FILES})
method = METHODS.add
"""Decorator that gives the class of a method its name: ``@cm.method("mine")``."""
