"""Engines by the name that a plan gives them."""

from __future__ import annotations

import torch

from ...core.errors import Unsupported
from .cuda_graph import CudaGraphs
from .engine import EAGER, Engine
from .graph import Graph

AUTO, GRAPH = "auto", "graph"  # the former is a plan's word: its cases have the engine that it becomes


def refused(name: str, device: str) -> str:
    """The reason why an engine does not run on a device, or nothing."""
    return f"the graph engine records CUDA graphs, and the device is {device!r}" if name == GRAPH and device == "cpu" else ""


def engine(name: str, device: str) -> Engine:
    """A new engine for one case. ``eager`` and ``reference`` run their passes as written: it is the methods and models of the latter
    that differ. Raises Unsupported where the device has no such engine."""
    if name != GRAPH:
        return EAGER
    if reason := refused(name, device):
        raise Unsupported(f"{reason[0].upper()}{reason[1:]}.", remedy='Use engine = "eager".')
    return Graph(CudaGraphs(device), torch.device(device))
