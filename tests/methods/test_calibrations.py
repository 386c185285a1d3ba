"""Calibrations: found by weights, by name and by digest, whoever made them."""

from pathlib import Path
from typing import Any

import pytest

from cachemark.core.errors import BadCalibration, UnknownName
from cachemark.methods.base import calibrations

FACTS: dict[str, Any] = {"model": "dot", "weights": "abc/def", "samples": 3, "scas": [0.5], "seconds": 1.5}


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(calibrations.VARIABLE, str(tmp_path))
    monkeypatch.setattr(calibrations, "_remembered", {})
    return tmp_path


def test_the_digest_is_of_what_is_said_and_not_of_what_it_cost() -> None:
    assert calibrations.fingerprint(FACTS) == calibrations.fingerprint({**FACTS, "seconds": 9.0})
    assert calibrations.fingerprint(FACTS) != calibrations.fingerprint({**FACTS, "scas": [0.25]})


def test_a_file_is_found_by_the_transformers_weights_and_by_its_digest() -> None:
    path = calibrations.save("heatkv", FACTS)
    assert calibrations.measured("heatkv", "abc/another decoder") == FACTS
    assert calibrations.measured("heatkv", "abd/def") == {}
    assert calibrations.named("heatkv", calibrations.fingerprint(FACTS)) == (calibrations.fingerprint(FACTS), FACTS)
    path.unlink()
    assert calibrations.named("heatkv", calibrations.fingerprint(FACTS))[1] == FACTS, "this process has met it"


def test_what_comes_with_the_package_is_found_by_name_and_by_digest() -> None:
    digest, facts = calibrations.named("heatkv", "infinity-8b")
    assert facts["layers"] == 40
    assert calibrations.named("heatkv", digest) == (digest, facts)
    assert calibrations.packaged("window") == {}


def test_the_users_own_stands_before_the_packaged_one() -> None:
    weights = next(key for key, facts in calibrations.packaged("heatkv").items() if facts["model"] == "tiny-var")
    calibrations.save("heatkv", {**FACTS, "weights": weights})
    assert calibrations.measured("heatkv", weights)["model"] == "dot"


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"Unknown calibration of heatkv 'infinity-8c'.* Did you mean 'infinity-8b'"):
        calibrations.named("heatkv", "infinity-8c")


def test_a_file_of_another_method_is_refused() -> None:
    path = calibrations.save("heatkv", FACTS)
    with pytest.raises(BadCalibration, match="is a calibration for heatkv, not for hack"):
        calibrations.read(path, "hack")
