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
    from .workflows.machines import Machine
    from .workflows.report import Report
    from .workflows.running import run
    from .workflows.stored_run import Run
    from .workflows.stored_run import open_run as open

_HOMES = {
    "Case": "core.spec.Case", "Evicting": "methods.base.evicting.Evicting", "Machine": "workflows.machines.Machine",
    "Method": "contract.method.Method", "Outcome": "core.result.Outcome", "Plan": "plans.schema.Plan",
    "Report": "workflows.report.Report", "Run": "workflows.stored_run.Run", "Scored": "methods.base.evicting.Scored",
    "frame": "export.frames.frame", "decoder": "decoders.registry.decoder",
    "method": "methods.registry.method", "open": "workflows.stored_run.open_run",
    "plan": "plans.schema.load", "run": "workflows.running.run", "samples_frame": "export.frames.samples_frame",
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
