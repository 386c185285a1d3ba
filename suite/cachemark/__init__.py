"""cachemark: honest speed-ups for cache methods in autoregressive image generation.

``import cachemark as cm`` is quick: every name below is imported when it is asked for.
"""

import importlib
from typing import TYPE_CHECKING

from .core.version import __version__

if TYPE_CHECKING:
    from .contract.method import Method
    from .core.result import Outcome
    from .core.spec import Case
    from .decoders.registry import decoder
    from .export.frames import frame, samples_frame
    from .methods.base.evicting import Evicting, Scored
    from .methods.registry import method
    from .plans.schema import Plan
    from .plans.schema import load as plan
    from .workflows.report import Report
    from .workflows.results import Run
    from .workflows.results import open_run as open
    from .workflows.run import run
    from .workflows.session import Machine

_HOMES = {
    "Case": "core.spec.Case", "Evicting": "methods.base.evicting.Evicting", "Machine": "workflows.session.Machine",
    "Method": "contract.method.Method", "Outcome": "core.result.Outcome", "Plan": "plans.schema.Plan",
    "Report": "workflows.report.Report", "Run": "workflows.results.Run", "Scored": "methods.base.evicting.Scored",
    "frame": "export.frames.frame", "decoder": "decoders.registry.decoder",
    "method": "methods.registry.method", "open": "workflows.results.open_run",
    "plan": "plans.schema.load", "run": "workflows.run.run", "samples_frame": "export.frames.samples_frame",
}
__all__ = [
    "Case", "Evicting", "Machine", "Method", "Outcome", "Plan", "Report", "Run", "Scored", "__version__", "decoder", "frame", "method",
    "open", "plan", "run", "samples_frame",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _HOMES[name].rpartition(".")
    return getattr(importlib.import_module(f".{module}", __name__), attribute)
