"""The register of incidents: listed, and changed by the people who look after them."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from ..gate import incidents
from ..gate.incidents import Incident


def known_incidents(register: Path, *, fixed: bool = False) -> list[Incident]:
    """Incidents of a register, those that are ``fixed`` only where they are asked for."""
    return [incident for incident in incidents.load(register) if fixed or incident.state != incidents.FIXED]


def acknowledge(register: Path, key: str, who: str, until: date, link: str = "") -> None:
    """Write down who looks after an incident, and until when."""
    incidents.save(register, incidents.acknowledge(incidents.load(register), key, who, until, link))


def accept(register: Path, key: str, who: str, link: str = "") -> None:
    """Accept an incident as it is."""
    incidents.save(register, incidents.accept(incidents.load(register), key, who, link))
