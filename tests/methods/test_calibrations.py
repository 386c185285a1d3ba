"""Calibrations: found by weights, by name and by digest, whoever made them."""

from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import BadCalibration, UnknownName
from cachemark.methods.base import calibrations

FACTS: dict[str, Any] = {"model": "dot", "weights": "abc/def", "samples": 3, "scas": [0.5], "seconds": 1.5}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(calibrations.VARIABLE, str(tmp_path))
    monkeypatch.setattr(calibrations, "_remembered", {})


def test_a_file_is_found_by_the_transformers_weights_and_by_its_digest() -> None:
    """The digest is of what is said and not of what it cost; a file is of one method."""
    path, digest = calibrations.save("heatkv", FACTS), calibrations.fingerprint(FACTS)
    assert digest == calibrations.fingerprint({**FACTS, "seconds": 9.0}) != calibrations.fingerprint({**FACTS, "scas": [0.25]})
    assert (calibrations.measured("heatkv", "abc/another decoder"), calibrations.measured("heatkv", "abd/def")) == (FACTS, {})
    assert calibrations.named("heatkv", digest) == (digest, FACTS)
    with pytest.raises(BadCalibration, match="is a calibration for heatkv, not for hack"):
        calibrations.read(path, "hack")
    path.unlink()
    assert calibrations.named("heatkv", digest)[1] == FACTS, "this process has met it"


def test_what_comes_with_the_package_is_found_by_name_and_by_digest_behind_the_users_own() -> None:
    digest, facts = calibrations.named("heatkv", "infinity-8b")
    assert facts["layers"] == 40
    assert calibrations.named("heatkv", digest) == (digest, facts)
    assert calibrations.packaged("window") == {}
    weights = next(key for key, facts in calibrations.packaged("heatkv").items() if facts["model"] == "tiny-var")
    calibrations.save("heatkv", {**FACTS, "weights": weights})
    assert calibrations.measured("heatkv", weights)["model"] == "dot"
    with pytest.raises(UnknownName, match=r"Unknown calibration of heatkv 'infinity-8c'.* Did you mean 'infinity-8b'"):
        calibrations.named("heatkv", "infinity-8c")
