"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachemark.core.files import replacing


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    with replacing(path) as part:
        part.write_text("old")
    with pytest.raises(FileNotFoundError), replacing(path) as part:
        part.with_name("elsewhere").read_text()
    assert path.read_text() == "old"
    with replacing(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]
