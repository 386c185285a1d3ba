"""The gate end to end, with real processes: its self-test, and nights whose exit codes are their verdicts; and what the harness costs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from studies import overhead
from support import examples
from support.repositories import SLOWER, Repository
from support.stages import Stage, call, stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def test_the_gate_proves_itself() -> None:
    result = call("test", "gate")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("passed: ") == 3


WRONG_EVICTION = """

def _newest(self, step, slots):
    for number, run in enumerate(slots.runs):
        if slots.live[number] - run.condition > self.B:
            slots.evict_place(number, run.condition + self.sinks)


Streaming.evict = _newest
"""


class Nights:
    """A runner whose store, incidents and baselines outlive a night."""

    def __init__(self, folder: Path, at: Stage, repository: Repository) -> None:
        self.folder, self.at, self.count = folder, at, 0
        command = folder / "bin" / "cachemark"
        command.parent.mkdir(parents=True)
        command.write_text(f"#!{sys.executable}\nfrom cachemark.cli import main\nmain()\n")
        command.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(repository.folder / "suite"),
                            "CACHEMARK_STORE": str(folder / "nights.sqlite"), "CACHEMARK_DEVICE": "cpu", "CACHEMARK_MACHINE": "--threads 1",
                            "CACHEMARK_PAIRS": f"--plugin {at.plugin} --generations 3", "GIT_CEILING_DIRECTORIES": str(folder.parent)}

    def call(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(list(map(str, command)), env=self.environment, cwd=self.folder, capture_output=True, text=True)

    def night(self) -> tuple[int, str, Path]:
        """The exit code of one more night, what its judgement said, and the folder that it wrote."""
        self.count += 1
        out = self.folder / f"night {self.count}"
        self.environment["CACHEMARK_OUT"] = str(out)
        done = self.call(Path(__file__).parents[2] / "ci" / "nightly.sh", self.at.plan, "--plugin", self.at.plugin)
        print(f"night {self.count}: {done.returncode}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}")
        return done.returncode, (out / "check.txt").read_text(), out


def test_the_exit_code_of_each_night_is_its_verdict(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository")
    nights = Nights(tmp_path / "runner", stage(tmp_path / "stage", '"streaming", "calm"'), repository)
    code, messages, out = nights.night()
    assert (code, "Proposed: " in messages) == (0, True)
    assert list((out / "proposed").glob("*/dots.json"))
    assert nights.call("cachemark", "baseline", "save", "--reason", "the first night").returncode == 0  # a person accepts it

    repository.commit("nothing that runs")
    code, messages, out = nights.night()
    assert (code, messages.count("  again: ")) == (0, 0), messages
    assert "0 regressed" in messages

    repository.commit("slower", "models/llamagen.py", SLOWER.format(share=0.6))
    code, messages, out = nights.night()
    assert (code, messages.count("  again: ")) == (1, 1), messages
    assert "<failure" in (out / "junit.xml").read_text()
    assert "regressed" in (out / "comment.md").read_text()

    repository.commit("as fast as before", "models/llamagen.py", "\n\nLlamaGen.generate = _generate\n")
    repository.commit("wrong eviction", "methods/streaming.py", WRONG_EVICTION)
    code, messages, out = nights.night()
    assert (code, "streaming" in messages) == (1, True), messages
    assert "regressed" in (out / "comment.md").read_text()


def test_a_twentieth_of_a_run_at_most_is_not_spent_on_its_cases(tmp_path: Path) -> None:
    """Decoding is waited for, because what the harness costs does not depend on what the device does meanwhile."""
    seconds, decoding = 20, 2.0  # that every case takes at least, and of a batch
    slow = f"import time\n_picture = picture\n\n\ndef picture(tokens):\n    time.sleep({decoding})\n    return _picture(tokens)\n"
    variants = ", ".join(f'{{ name = "streaming", variant = "n{number}" }}' for number in range(4))
    at = stage(tmp_path / "stage", variants, examples.MODEL.replace("def identity", f"{slow}\n\ndef identity"),
               samples=seconds // 2 * examples.BATCH)  # the case of fewest batches makes half as many as it takes seconds
    result = overhead.cost(at.plan, "--plugin", str(at.plugin), "--threads", "1")
    assert len(result.outcomes) == 3 + 4 + 1, "the full cache with its rows, the candidates, and the plug-in's own method"
    assert result.shortest >= seconds
    assert result.share <= 0.05
