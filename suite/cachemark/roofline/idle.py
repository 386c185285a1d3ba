"""Methods that cannot change anything on a model, so that their values are the full cache's."""

from __future__ import annotations

from ..cache.layout import Layout, Site, raster_steps, scale_steps
from ..cache.masked_layout import MaskedLayout
from ..contract.method import Method
from ..core.spec import FULL
from .masked_flops import share

SAVES_NOTHING = "With these parameters it computes and reads on this model all that the full cache does: it saves nothing."


def idle_reason(method: Method, layout: Layout) -> str:
    """Return why a method cannot change anything on this layout, or "".

    The reason is the method's own, or that all its passes cost as much as the full cache's. The full cache has none. Raises what
    :meth:`Method.resolve` raises.
    """
    if method.name == FULL:
        return ""
    method.resolve(layout)
    return method.idle_reason(layout) or (SAVES_NOTHING if _as_full(method, layout) else "")


def _as_full(method: Method, layout: Layout) -> bool:
    if isinstance(layout, MaskedLayout):
        return share(method, layout) == 1
    full, sites = Method(), [Site("decoder", layer) for layer in range(layout.layers)]
    if any(method.capacity(layout, site) != full.capacity(layout, site) for site in sites):
        return False
    steps = scale_steps(layout) if layout.scales else raster_steps(layout)
    return all(method.attended(layout, site, step) == full.attended(layout, site, step) for site in sites for step in steps)
