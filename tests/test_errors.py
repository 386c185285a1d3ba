"""Every error is documented, and the one about unknown names helps."""

import re
from pathlib import Path

from cachemark.core import errors
from cachemark.core.errors import CachemarkError, UnknownName, unknown

PAGE = (Path(__file__).parents[1] / "docs" / "errors.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, CachemarkError)]


def test_every_class_has_an_entry_that_names_its_class_exit_code_causes_and_remedy_and_prints_its_own() -> None:
    assert sorted(c.slug for c in CLASSES) == sorted(ENTRIES)
    parts = {c: (f"*Class `{c.__name__}`, exit code {c.exit_code}.*", "- **Causes.** ", "- **Remedy.** ") for c in CLASSES}
    assert not [(c.slug, part) for c, expected in parts.items() for part in expected if part not in ENTRIES[c.slug]]
    assert {str(c("It is so.", remedy="Do that.")) for c in CLASSES} == {"It is so. Do that."}
    assert {str(c("It is so.")) for c in CLASSES} == {"It is so."}


def test_unknown_suggests_the_nearest_name_and_lists_all() -> None:
    error = unknown("method", "linaer", ["window", "linear", "h2o"])
    assert isinstance(error, UnknownName)
    assert error.message == "Unknown method 'linaer'."
    assert error.remedy == "Did you mean 'linear'? Known: h2o, linear, window."
    assert unknown("case", "rkv", ["full", "rkv 1/2, batch 4"]).remedy == "Known: full; rkv 1/2, batch 4."
    remedy = unknown("model", "var-d37", [f"model-{number:02}" for number in range(25)] + ["var-d36", "var-d30"]).remedy
    assert remedy.startswith("Did you mean 'var-d36'? Known: model-")
    assert remedy.endswith("var-d30, var-d36 and 17 more.")
    assert unknown("method", "zzz", []).remedy == "Known: none."
