"""Progress on standard error: a bar on a terminal and in a notebook, lines anywhere."""

from __future__ import annotations

from tqdm import tqdm

from ..core.wording import printed
from ..plugins.streams import own_stderr

LONG = 2.0  # seconds after which a bar is shown


def interactive() -> bool:
    """Return whether standard error is a terminal or the output of a notebook's cell."""
    return own_stderr().isatty() or type(own_stderr()).__module__.startswith("ipykernel")


def print_line(text: str) -> None:
    """Print one line that may contain foreign text on standard error, above a bar."""
    tqdm.write(printed(text), file=own_stderr())


class ProgressBar:
    """A bar on standard error for work of more than a few seconds; only where it is ``interactive``.

    A context manager, which ends its line.
    """

    def __init__(self, title: str, steps: int, shown: bool = True, delay: float = LONG) -> None:
        self._bar = tqdm(total=steps, desc=printed(title), delay=delay, leave=False, file=own_stderr(),
                         disable=not (shown and interactive()), bar_format="{desc} {bar:20} {percentage:3.0f} %{postfix}")

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    @property
    def shown(self) -> bool:
        """Return whether the bar is shown at all."""
        return not self._bar.disable

    def reach(self, step: float, title: str = "", note: str = "") -> None:
        """Show that so many steps are done, with the ``title`` of the next one and a ``note`` behind the bar."""
        if title:
            self._bar.set_description(printed(title), refresh=False)
        if note:
            self._bar.set_postfix_str(printed(note), refresh=False)
        self._bar.update(step - self._bar.n)
