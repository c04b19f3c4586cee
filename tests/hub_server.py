"""A hub of our own: the few requests of huggingface_hub that fetching and uploading take, answered from a folder on 127.0.0.1.

with Hub() as hub:
    hub.put("owner/name", {"config.json": b"{}"})
    hub.put("datasets/owner/rows", {"train.jsonl": b"{}"})
    ... HF_ENDPOINT=hub.address
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlparse


class Hub:
    """Repositories as commits: name → list of (commit, files), the newest last."""

    def __init__(self) -> None:
        self.repositories: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.gated: set[str] = set()
        self.requests: list[str] = []
        handler = type("Handler", (_Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def put(self, name: str, files: Mapping[str, bytes]) -> str:
        """A new commit with these files over the last one's; returns its id."""
        commits = self.repositories.setdefault(name, [])
        whole = {**(commits[-1][1] if commits else {}), **files}
        content = "".join(f"{path} {hashlib.sha1(data).hexdigest()}\n" for path, data in sorted(whole.items()))
        commit = hashlib.sha1(f"{len(commits)} {content}".encode()).hexdigest()
        commits.append((commit, whole))
        return commit

    def find(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.repositories.get(name, [])
        return next((found for found in reversed(commits) if revision in ("main", found[0])), None)


def _entry(path: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": len(data), "path": path}


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""

    def do_GET(self) -> None:
        self.hub.requests.append(f"{self.command} {self.path}")
        parts = unquote(urlparse(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._model("/".join(parts[2:4]), parts[4:])
        elif parts[:2] == ["api", "datasets"]:
            self._model("/".join(parts[1:4]), parts[4:])
        elif parts[0] == "datasets" and len(parts) > 5 and parts[3] == "resolve":
            self._file("/".join(parts[:3]), parts[4], "/".join(parts[5:]))
        elif len(parts) > 4 and parts[2] == "resolve":
            self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._error(404, "EntryNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.hub.requests.append(f"POST {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = unquote(urlparse(self.path).path).strip("/").split("/")
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            self.hub.repositories.setdefault(name, []) or self.hub.put(name, {".gitattributes": b""})
            self._json({"url": f"{self.hub.address}/{name}", "id": name})
        elif parts == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": []})
        elif "preupload" in parts:
            files = json.loads(body)["files"]
            self._json({"files": [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]})
        elif "paths-info" in parts:
            self._paths("/".join(parts[1:4]), parts[5], parse_qs(body.decode()).get("paths", []))
        elif "commit" in parts:
            self._commit("/".join(parts[2:4]), body)
        else:
            self._error(404, "EntryNotFound")

    def _commit(self, name: str, body: bytes) -> None:
        rows = [json.loads(line) for line in body.splitlines() if line.strip()]
        files = {r["value"]["path"]: base64.b64decode(r["value"]["content"]) for r in rows if r["key"] == "file"}
        commit = self.hub.put(name, files)
        self._json({"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit})

    def _model(self, name: str, rest: list[str]) -> None:
        found = self._commit_of(name, rest[1] if len(rest) > 1 else "main")
        if found is None:
            return
        commit, files = found
        if rest[:1] == ["tree"]:
            below = "".join(f"{part}/" for part in rest[2:])
            self._json([_entry(path, data) for path, data in files.items() if path.startswith(below)])
        else:
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            self._json({"id": name, "modelId": name, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def _paths(self, name: str, revision: str, paths: list[str]) -> None:
        if found := self._commit_of(name, revision):
            self._json([_entry(path, found[1][path]) for path in paths if path in found[1]])

    def _file(self, name: str, revision: str, path: str) -> None:
        found = self._commit_of(name, revision)
        if found is None:
            return
        commit, files = found
        if path not in files:
            self._error(404, "EntryNotFound", commit=commit)
            return
        self._send(200, files[path], {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(files[path]).hexdigest()}"'})

    def _commit_of(self, name: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if name in self.hub.gated:
            self._error(403, "GatedRepo")
        elif name not in self.hub.repositories:
            self._error(404, "RepoNotFound")
        elif (found := self.hub.find(name, revision)) is None:
            self._error(404, "RevisionNotFound")
        else:
            return found
        return None

    def _error(self, status: int, code: str, **headers: str) -> None:
        more = {f"X-Repo-{key.title()}": value for key, value in headers.items()}
        self._send(
            status, json.dumps({"error": code}).encode(), {"X-Error-Code": code, "X-Error-Message": code, **more}
        )

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
