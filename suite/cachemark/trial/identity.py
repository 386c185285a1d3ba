"""Identity of an arm: the environment and the code that its own interpreter reports, and the trial protocol that a copy of the code speaks."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from ..core.errors import Infrastructure, Unsupported
from ..core.result import Environment
from .supervisor import Options

PROTOCOL = 1  # of the messages between a trial and its parent: raised by a change that older copies of the code do not understand
ASK = """
import json, sys
from cachemark.machine.environment import code_identity, environment
print(json.dumps({"environment": environment(sys.argv[1], int(sys.argv[2])).to_json(), "code": code_identity()}))
"""


def identify(options: Options, device: str) -> tuple[Environment, dict[str, Any]]:
    """The environment and the code identity of an arm, from its own interpreter and its own code. Raises Infrastructure where that
    does not start."""
    command = [*options.command, "-c", ASK, device, str(options.threads)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=options.environment).stdout
    except (OSError, subprocess.SubprocessError) as error:
        tail = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        code = options.code or "this installation"
        raise Infrastructure(f"The code in {code} does not start under {options.command[0]}: {' '.join(tail)}.",
                             remedy="Name an interpreter in which cachemark and its dependencies are installed.") from error
    answer = json.loads(said.splitlines()[-1])
    return Environment.from_json(answer["environment"]), dict(answer["code"])


def check_protocol(code: Path, name: str) -> None:
    """Raise Unsupported where the copy of the package in the folder ``code``, called ``name``, does not speak this trial protocol."""
    file = code / "cachemark" / "trial" / "identity.py"
    found = re.search(r"^PROTOCOL = (\d+)", file.read_text(encoding="utf-8"), re.M) if file.exists() else None
    spoken = int(found[1]) if found else 0
    if spoken != PROTOCOL:
        raise Unsupported(f"{name} speaks trial protocol {spoken}, this version {PROTOCOL}: its trials cannot be run from here.",
                          remedy="Name commits that speak the same protocol, or run cachemark from a checkout that speaks that one.")
