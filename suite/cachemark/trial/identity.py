"""Identity of another copy of the code, and whether it understands this copy's trial requests."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from ..core.errors import Infrastructure
from ..core.result import Environment
from ..machine.environment import environment
from ..plans.reuse import code_identity
from .request import PROTOCOL, TrialRequest, other_protocol

PATIENCE = 300.0  # seconds for an interpreter to import torch and answer
ASK = """
import json, sys
from cachemark.trial.identity import introduction
print(json.dumps(introduction(sys.argv[1], int(sys.argv[2]))))
"""
"""Run by the other interpreter, so ``introduction`` keeps its place."""


def introduction(device: str, threads: int) -> dict[str, Any]:
    """Return protocol, environment and code identity of this copy, as JSON."""
    return {"protocol": PROTOCOL, "environment": environment(device, threads).to_json(), "code": code_identity()}


def identify(request: TrialRequest, device: str) -> tuple[Environment, dict[str, Any]]:
    """Return environment and code identity of the interpreter and code of a request.

    Raises Infrastructure if they do not start, and Unsupported if they use another protocol.
    """
    command = [*request.command, "-c", ASK, device, str(request.threads)]
    code = request.code or "this installation"
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True, env=request.environment).stdout
    except (OSError, subprocess.SubprocessError) as error:
        tail = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise Infrastructure(f"The code in {code} does not start under {request.command[0]}: {' '.join(tail)}.",
                             remedy="Name an interpreter that has cachemark and its dependencies.") from error
    answer = json.loads(output.splitlines()[-1])
    if answer["protocol"] != PROTOCOL:
        raise other_protocol(f"The code in {code}", answer["protocol"])
    return Environment.from_json(answer["environment"]), dict(answer["code"])


def check_protocol(code: Path, name: str) -> None:
    """Raise Unsupported if the package in folder ``code`` uses another protocol, without running it."""
    file = code / "cachemark" / "trial" / "request.py"
    match = re.search(r"^PROTOCOL = (\d+)", file.read_text(encoding="utf-8"), re.M) if file.exists() else None
    spoken = int(match[1]) if match else 0
    if spoken != PROTOCOL:
        raise other_protocol(name, spoken)
