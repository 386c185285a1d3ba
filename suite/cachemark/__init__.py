"""cachemark: honest speedups for cache methods in autoregressive image generation.

``import cachemark as cm`` is quick: every name of ``__all__`` is imported when it is first used. Everything else is private and may move.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from .core.root_module import RootModule as RootModule
from .core.version import __version__

if TYPE_CHECKING:
    from .contract.method import Method
    from .decoders.registry import decoder
    from .methods.base.evicting import Evicting, Scored
    from .methods.registry import method
    from .metrics.base import CostMetric, ImageMetric, SetMetric
    from .plans.schema import load as plan
    from .workflows.attach import attach
    from .workflows.check import check
    from .workflows.compare import Terms, compare
    from .workflows.frames import advise, methods, models, plans, price, roofline, score
    from .workflows.generate import load
    from .workflows.measure import measure
    from .workflows.report import report
    from .workflows.results import open_run as open
    from .workflows.run import run
    from .workflows.session import Machine

_HOMES = {
    **{name: f"workflows.frames.{name}" for name in ("advise", "methods", "models", "plans", "price", "roofline", "score")},
    "CostMetric": "metrics.base.CostMetric", "Evicting": "methods.base.evicting.Evicting", "ImageMetric": "metrics.base.ImageMetric",
    "Machine": "workflows.session.Machine", "Method": "contract.method.Method", "Scored": "methods.base.evicting.Scored",
    "SetMetric": "metrics.base.SetMetric", "Terms": "workflows.compare.Terms", "attach": "workflows.attach.attach",
    "check": "workflows.check.check", "compare": "workflows.compare.compare", "decoder": "decoders.registry.decoder",
    "load": "workflows.generate.load", "measure": "workflows.measure.measure", "method": "methods.registry.method",
    "open": "workflows.results.open_run", "plan": "plans.schema.load", "report": "workflows.report.report", "run": "workflows.run.run",
}
__all__ = [
    "CostMetric", "Evicting", "ImageMetric", "Machine", "Method", "Scored", "SetMetric", "Terms", "__version__", "advise", "attach",
    "check", "compare", "decoder", "load", "measure", "method", "methods", "models", "open", "plan", "plans", "price", "report", "roofline",
    "run", "score",
]


_INSTEAD = {"generate": "cm.load(NAME).generate(…)", "list": "cm.methods(), cm.models() or cm.plans()", "list_models": "cm.models()",
            "list_methods": "cm.methods()", "benchmark": "cm.measure", "bench": "cm.measure",
            "evaluate": "cm.measure, or cm.score for images",
            "load_model": "cm.load", "leaderboard": "cm.open(STORE)", "explain": "cachemark explain PLAN, a command",
            "doctor": "cachemark doctor, a command", "plot": "run.plot(\"tradeoff\"), of cm.run(…) or cm.open(STORE)",
            "frame": "run.frame(), of cm.run(…) or cm.open(STORE)", "table": "run.frame(), of cm.run(…) or cm.open(STORE)",
            "results": "run.frame(), of cm.run(…) or cm.open(STORE)", "show": "cm.open(STORE)", "runs": "cm.open(STORE)"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}." + (f" Write {_INSTEAD[name]}." if name in _INSTEAD else ""))
    module, _, attribute = _HOMES[name].rpartition(".")
    value = getattr(importlib.import_module(f".{module}", __name__), attribute)
    if package := sys.modules.get(f"{__name__}.{name}"):  # of the same name, whose modules are found through the function
        vars(value).update({key: inner for key, inner in vars(package).items() if isinstance(inner, ModuleType)})
    return value
