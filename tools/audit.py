"""Known vulnerabilities of the pinned versions, by pip-audit.

    python -m tools.audit

Exit codes: 0 none are known, 1 some are, 5 not audited, in whole or in part: without network a silent pass would be worth nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PINS = Path(__file__).parents[1] / "constraints.txt"
INSTALL = "pip install pip-audit==2.10.1"
FOUND, NOT_AUDITED = 1, 5
SHOWN = 5  # packages that could not be audited


def verdict(report: str, errors: str) -> tuple[int, list[str]]:
    """Return the exit code and the lines for pip-audit's report in JSON; other text means that it failed."""
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (errors.strip().splitlines() or ["no output"])[-1]
        return NOT_AUDITED, [f"Not audited: pip-audit failed: {last[:300]}"]
    known = [f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version'}"
             for package in packages for found in package.get("vulns", ())]
    skipped = [f"{package['name']}: {package['skip_reason']}" for package in packages if "skip_reason" in package]
    lines = [*known, f"{len(packages) - len(skipped)} of {len(packages)} packages audited, {len(known)} known vulnerabilities."]
    if skipped or not packages:
        lines += [f"Not audited: {line}" for line in skipped[:SHOWN]]
    return FOUND if known else NOT_AUDITED if skipped or not packages else 0, lines


def main() -> int:
    """Audit, print the result, and return the exit code."""
    if find_spec("pip_audit") is None:
        print(f"Not audited: pip-audit is missing. Install it with: {INSTALL}")
        return NOT_AUDITED
    ended = subprocess.run([sys.executable, "-m", "pip_audit", "--requirement", str(PINS), "--no-deps", "--disable-pip", "--format", "json",
                            "--progress-spinner", "off"], capture_output=True, text=True)
    code, lines = verdict(ended.stdout, ended.stderr)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
