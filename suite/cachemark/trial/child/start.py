"""Entry of a trial's process: ``python -m cachemark.trial.child.start``. The trial itself is a copy below this process, which imports
nothing large and ends, with the trial, whatever that has started and left behind (:mod:`cachemark.machine.keeper`)."""

from __future__ import annotations

from ...machine.keeper import keep


def main() -> None:
    keep(_trial)


def _trial() -> None:
    from .main import main as trial

    trial()


if __name__ == "__main__":
    main()
