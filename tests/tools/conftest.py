"""The sample run of the report's tests stands beside them; and training that holds little out."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Few held-out scenes, and few encoded ahead."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cachemark.tools.train.tokenizers.HELD_OUT", 8)
        patch.setattr("cachemark.tools.train.generators.HELD_OUT", 8)
        patch.setattr("cachemark.tools.train.generators.CHUNK", 2)
        yield
