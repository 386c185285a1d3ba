"""Long description for PyPI: README.md with absolute links, because PyPI has no other file of the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
REPOSITORY = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
RELATIVE = re.compile(r'(\]\(|src="|srcset=")(?!https?:|#)([^)"\s]+)')


def absolute(link: re.Match[str]) -> str:
    """Return a link to a file of the repository: to its page, or to the bytes of a picture."""
    before, path = link.groups()
    kind = "blob" if before == "](" else "raw"
    return f"{before}{REPOSITORY}/{kind}/main/{path}"


setup(
    long_description=RELATIVE.sub(absolute, (HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
)
