"""A hub on loopback: the parts of Hugging Face's that downloads need, with a second host for large files.

Scripts share it that download models by their names. Each answer is in its log, and connections can be cut or slowed.
"""

import hashlib
import http.server
import json
import threading
import time

from server import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "org/demo-GGUF"
DEMO = (ROOT / "crates/tokenmill/assets/tokenmill-demo-Q8_0.gguf").read_bytes()
# Large enough for several parts of a download.
WEIGHTS = DEMO + bytes(48 << 20)
FILES = {
    "demo-Q8_0.gguf": DEMO,
    "demo-F16.gguf": WEIGHTS,
    "README.md": b"# A model for tests\n",
    "config.json": b"{}",
}
SEES = "org/sees-GGUF"
VISION = ROOT / "tests/data/vision/gemma3"
REPOSITORIES = {
    REPOSITORY: FILES,
    SEES: {
        "sees-F16.gguf": (VISION / "model.gguf").read_bytes(),
        "mmproj-sees-F16.gguf": (VISION / "mmproj-model.gguf").read_bytes(),
    },
}


def etag(content):
    if len(content) > 1000:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.ThreadingHTTPServer):
    """The parts of the Hub that downloads need, with a second host for large files."""

    daemon_threads = True

    def __init__(self, far=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.far = far
        self.log = []
        # Bytes per answer after which the connection is cut; and how long each MiB takes.
        self.cut = None
        self.pause = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """A client that went away is no event."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def send(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        cut = self.server.cut
        for at in range(0, len(body), 1 << 20):
            piece = body[at:at + (1 << 20)]
            if cut is not None and at + len(piece) > cut:
                self.wfile.write(piece[:max(0, cut - at)])
                self.close_connection = True
                return
            self.wfile.write(piece)
            time.sleep(self.server.pause)

    def answer(self):
        hub = self.server
        hub.log.append((self.command, self.path, self.headers))
        path = self.path.split("?")[0]
        repository = next((name for name in REPOSITORIES if f"/{name}" in path), None)
        files = REPOSITORIES.get(repository, {})
        if path.startswith("/api/models/") and files:
            siblings = []
            for name, content in files.items():
                entry = {"rfilename": name, "size": len(content), "blobId": etag(content)}
                if len(content) > 1000:
                    entry["lfs"] = {"sha256": etag(content), "size": len(content), "pointerSize": 134}
                siblings.append(entry)
            body = json.dumps({"id": repository, "sha": COMMIT, "siblings": siblings}).encode()
            return self.send(200, {"Content-Type": "application/json"}, body)
        if path.startswith("/api/models"):
            if path == "/api/models":
                return self.send(200, {"Content-Type": "application/json"}, json.dumps([{"id": REPOSITORY}]).encode())
            return self.send(404, {"X-Error-Code": "RepoNotFound"})
        name = path.rsplit("/", 1)[1]
        if name not in files or (hub.far is not None and f"{repository}/resolve/" not in path):
            return self.send(404, {"X-Error-Code": "EntryNotFound"})
        content = files[name]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
        if hub.far is not None and len(content) > 1000:
            headers |= {"X-Linked-Etag": f'"{etag(content)}"', "X-Linked-Size": str(len(content))}
            return self.send(302, headers | {"Location": f"{hub.far.url}/cdn/{repository}/{name}?signature=x"})
        wanted = self.headers.get("Range")
        if wanted is None:
            return self.send(200, headers, content)
        first, last = wanted.removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(content)), len(content) - 1)
        self.send(206, headers | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}, content[first:last + 1])
