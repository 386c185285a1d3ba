"""Warnings about measured times that contradict the limits of their device."""

from __future__ import annotations

from ..core.limits import Limit

ARTEFACT = 1.1  # measured over roofline speedup from which the baseline, not the method, is the likelier cause
IDLE = 0.4  # of a full cache that uses less of both the copy and the peak FLOP/s, a speedup says little
FITS = 0.9  # fraction of the variance that a line must explain before its slope is stated
CACHED = 0.95  # measured over roofline time below which the device's own caches must have served


def artefact(measured: float, allowed: float) -> str:
    """Return why a speedup is implausible, or nothing; a method that is no faster is always plausible."""
    if measured <= max(1.0, ARTEFACT * allowed):
        return ""
    return (f"{measured:.2f}× is more than the {allowed:.2f}× that the bytes and FLOPs saved allow: the full cache beside it is slow "
            "for another reason.")


def beyond_passes(measured: float, tokens: float, alone: float = 1.0) -> str:
    """Return why a speedup by several ``tokens`` per pass is implausible, or nothing.

    ``alone``: the speedup that its method and codec allow at one token per pass."""
    if measured <= max(1.0, ARTEFACT * tokens * alone):
        return ""
    if alone == 1:
        return f"{measured:.2f}× is more than the {tokens:.2f} tokens that it draws a pass, and fewer passes are all that a decoder gains."
    return (f"{measured:.2f}× is more than {tokens * alone:.2f}×: the {tokens:.2f} tokens that it draws a pass, times the {alone:.2f}× "
            "that the bytes and FLOPs saved allow at one.")


def idle(full: Limit, seconds: float) -> str:
    """Return a warning where the full cache leaves the device idle, or nothing."""
    mbu, mfu = full.mbu(seconds), full.mfu(seconds)
    if max(mbu, mfu) >= IDLE:
        return ""
    return (f"The full cache leaves the device idle: it uses {100 * mbu:.0f} % of the bandwidth and {100 * mfu:.0f} % of the peak FLOP/s, "
            f"neither of them {100 * IDLE:.0f} %. A speedup over it says little of a device that is used.")


def no_gain(measured: float, allowed: float) -> str:
    """Return why to use the full cache, or nothing; ``measured`` is the upper end of the speedup's interval."""
    if measured > 1:
        return ""
    if allowed < 1:
        return "Use the full cache: the method is no faster here, and it saves no bytes or FLOPs at this batch."
    return f"Use the full cache: here the method is no faster, and bytes and FLOPs saved would allow {allowed:.2f}× at this batch."


def no_gain_by_passes(measured: float, tokens: float) -> str:
    """Return why not to draw several ``tokens`` per pass, or nothing; ``measured`` as in :func:`no_gain`."""
    if measured > 1:
        return ""
    return f"Use the full cache, one token a pass: {tokens:.2f} tokens a pass are no faster here, since each pass takes longer."


def too_fast(limit: Limit, seconds: float) -> str:
    """Return why a time is below its roofline time, or nothing: the bandwidth does not bind where everything fits a cache of the device."""
    if limit.over(seconds) >= CACHED:
        return ""
    return ("Faster than its roofline time: keys, values or weights fit a cache of the device, which is faster than the memory that was "
            "measured.")
