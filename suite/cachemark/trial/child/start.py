"""Entry of a trial's process: ``python -m cachemark.trial.child.start``.

The trial is a copy below this process, which imports nothing large and finally ends the trial and everything that it started."""

from __future__ import annotations

from ...machine.keeper import keep


def main() -> None:
    keep(_trial)


def _trial() -> None:
    from .main import main as run

    run()


if __name__ == "__main__":
    main()
