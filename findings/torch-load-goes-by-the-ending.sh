#!/usr/bin/env bash
# torch.load decides by a file's ending, not by its content, once the name ends in .safetensors.
#
# Guess: torch.load reads whatever torch.save wrote, under any name, as it did in all earlier releases: it looks at the first
# bytes (a zip archive), and a name is only a name.
# Seen with torch 2.15.0 and safetensors 0.8.0 on Python 3.11: the same bytes load as model.pt and raise SafetensorError as
# model.safetensors. Labs that save every checkpoint under one naming rule have such files.
#
# Needs about 6 GB of disk for a moment. Exit code 0: as described; 1: the behavior has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
"$folder/env/bin/python" - "$folder" <<'PYTHON'
import shutil
import sys
from pathlib import Path

import torch

folder = Path(sys.argv[1])
torch.save({"weight": torch.arange(3.0)}, folder / "model.pt")
shutil.copy(folder / "model.pt", folder / "model.safetensors")
as_pt = torch.load(folder / "model.pt", weights_only=True)["weight"].tolist()
try:
    as_safetensors = str(torch.load(folder / "model.safetensors", weights_only=True)["weight"].tolist())
except Exception as error:
    as_safetensors = type(error).__name__
print("torch", torch.__version__, "| model.pt:", as_pt, "| the same bytes as model.safetensors:", as_safetensors)
sys.exit(as_pt != [0.0, 1.0, 2.0] or as_safetensors != "SafetensorError")
PYTHON
