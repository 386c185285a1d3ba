"""Texts of a public report."""

from __future__ import annotations

import pytest

from cachemark.analysis.public import scrubbed


@pytest.mark.parametrize(("text", "public"), [
    ("weights file:///home/ada/x.pth", "weights …/x.pth"), ("see ~ada/y/z.txt", "see …/z.txt"), (r"\\corp\share\ada\w.bin", "…/w.bin"),
    ("/data/ada/model.pth", "…/model.pth"), (r"C:\Users\ada\x", "…/x"), ("../ada/x", "…/x"),
    ("in postgresql://bench:hunter2@db/results", "in a URL"), ("s3://bucket/ada/x", "a URL"), ("http://wiki.lab.internal/ada", "a URL"),
    ("https://ada:hunter2@github.com/x", "a URL"), ("http://10.0.0.7:8080/ada", "a URL"), ("https://x.org/a?key=hunter2", "https://x.org/a"),
    ("hf_abcdefghijklmnopqrstuv", "a secret"), ("with ghp_abcdefghijklmnopqrstuv.", "with a secret."), ("password=hunter2;", "a secret;"),
    ("API_KEY: hunter2", "a secret"), ("Bearer abcdefghijkl", "a secret"),
    ("ada@example.org", "an address"), ("by ada@node17", "by an address"), ("git@github.com:lab/x.git", "an address"),
    ("on node17.gpu.example.org", "on a host"), ("on GPU-0123abcd-99", "on a device"),
    *((text, text) for text in (
        "https://arxiv.org/abs/2401.1", "hf:org/repo@main:file.pth", "repo@v1.0", "12.8.93.0", "a/b, 1/2 and K/V", "model.tar.gz",
        "cachemark.core.spec", "tokens: 256", "not separable from window")),
])  # fmt: skip
def test_a_text_loses_paths_secrets_people_and_hosts(text: str, public: str) -> None:
    assert scrubbed({"note": [text]}) == {"note": [public]}
