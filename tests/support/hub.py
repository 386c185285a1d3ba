"""A local server that answers file requests like Hugging Face: files, sizes, SHA-256, and gated repositories."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

REVISION = "5" * 40


@dataclass
class Hub:
    """Files by repository and name; ``gated`` ones need ``token``. ``asked`` are the lines of all requests."""

    files: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    token: str = "hf_let_me_in_please"
    asked: list[str] = field(default_factory=list)
    url: str = ""


def cached(cache: Path, repository: str, files: Mapping[str, bytes]) -> Path:
    """Write files as huggingface_hub keeps them in its cache; the folder of the revision."""
    home = cache / f"models--{repository.replace('/', '--')}"
    (home / "refs").mkdir(parents=True, exist_ok=True)
    (home / "refs" / "main").write_text(REVISION)
    for name, content in files.items():
        blob, file = home / "blobs" / hashlib.sha256(content).hexdigest(), home / "snapshots" / REVISION / name
        for path in (blob, file):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        file.symlink_to(blob)
    return home / "snapshots" / REVISION


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HubAnswers", (_Answers,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Answers(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        self.hub.asked.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/(.+?/.+?)(?:/revision/(.+))?", path):
            if match[1] in self.hub.files and match[2] not in (None, "main", REVISION):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return self._told(match[1])
        match = re.fullmatch(r"/(.+?/.+?)/resolve/[^/]+/(.+)", path)
        if not match or match[2] not in self.hub.files.get(match[1], {}):
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound" if match and match[1] in self.hub.files else "RepoNotFound"})
        if match[1] in self.hub.gated and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._send(401, b"", {"X-Error-Code": "GatedRepo"})
        return self._file(self.hub.files[match[1]][match[2]])

    do_HEAD = do_GET

    def _told(self, repository: str) -> None:
        if repository not in self.hub.files:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        siblings = [{"rfilename": name, "size": len(data), "blobId": "0" * 40,
                     "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}}
                    for name, data in self.hub.files[repository].items()]
        facts = {"id": repository, "sha": REVISION, "private": False, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings}
        return self._send(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})

    def _file(self, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": REVISION, "X-Linked-Size": str(len(data)), "X-Linked-ETag": f'"{digest}"'}
        return self._send(200, data if self.command == "GET" else b"", {**headers, "Content-Length": str(len(data))})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
