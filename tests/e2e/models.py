"""Models by name: the program against a hub on loopback, and Hugging Face's own package with the same hub and the same cache."""

import hashlib
import http.server
import json
import os
import pathlib
import pty
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time

from server import BINARY, ROOT, Server

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
        if path.startswith("/api/models/" + REPOSITORY):
            siblings = []
            for name, content in FILES.items():
                entry = {"rfilename": name, "size": len(content), "blobId": etag(content)}
                if len(content) > 1000:
                    entry["lfs"] = {"sha256": etag(content), "size": len(content), "pointerSize": 134}
                siblings.append(entry)
            body = json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode()
            return self.send(200, {"Content-Type": "application/json"}, body)
        if path.startswith("/api/models"):
            if path == "/api/models":
                return self.send(200, {"Content-Type": "application/json"}, json.dumps([{"id": REPOSITORY}]).encode())
            return self.send(404, {"X-Error-Code": "RepoNotFound"})
        name = path.rsplit("/", 1)[1]
        if name not in FILES or (hub.far is not None and f"{REPOSITORY}/resolve/" not in path):
            return self.send(404, {"X-Error-Code": "EntryNotFound"})
        content = FILES[name]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{etag(content)}"', "Accept-Ranges": "bytes"}
        if hub.far is not None and len(content) > 1000:
            headers |= {"X-Linked-Etag": f'"{etag(content)}"', "X-Linked-Size": str(len(content))}
            return self.send(302, headers | {"Location": f"{hub.far.url}/cdn/{name}?signature=x"})
        wanted = self.headers.get("Range")
        if wanted is None:
            return self.send(200, headers, content)
        first, last = wanted.removeprefix("bytes=").split("-")
        first, last = int(first), min(int(last or len(content)), len(content) - 1)
        self.send(206, headers | {"Content-Range": f"bytes {first}-{last}/{len(content)}"}, content[first:last + 1])


class Place:
    """A hub, and a cache of its own."""

    def __enter__(self):
        self.far = Hub()
        self.hub = Hub(self.far)
        self.home = tempfile.TemporaryDirectory()
        self.cache = pathlib.Path(self.home.name) / "hub"
        self.env = os.environ | {
            "HF_HOME": self.home.name, "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1", "NO_COLOR": "1",
        }
        for name in ["HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN_PATH"]:
            self.env.pop(name, None)
        return self

    def __exit__(self, *_):
        self.hub.shutdown()
        self.far.shutdown()
        self.home.cleanup()

    def run(self, *args, code=0, **more):
        done = subprocess.run(
            [BINARY, *args], env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, **more
        )
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return done

    def python(self, code):
        done = subprocess.run([sys.executable, "-c", code], env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def blobs(self):
        return sorted(path.name for path in self.cache.glob("models--org--demo-GGUF/blobs/*"))

    def snapshot(self, name):
        return self.cache / "models--org--demo-GGUF/snapshots" / COMMIT / name


with Place() as place:
    planned = json.loads(place.run("pull", REPOSITORY + ":f16", "--dry-run", "--json").stdout)
    assert planned == {"name": REPOSITORY + ":f16", "bytes": len(WEIGHTS), "missing_bytes": len(WEIGHTS)}, planned
    done = place.run("pull", REPOSITORY + ":f16")
    path = pathlib.Path(done.stdout.strip())
    assert path == place.snapshot("demo-F16.gguf") and path.read_bytes() == WEIGHTS, done.stdout
    ranges = [request for request in place.far.log if "Range" in request[2]]
    assert len(ranges) >= 4, "one connection for a file of several parts"
    assert all("Authorization" not in headers for _, _, headers in place.far.log), "the token went to another host"
    assert any(headers.get("Authorization") == "Bearer hf_test" for _, _, headers in place.hub.log)
    n_before = len(place.far.log)
    found = place.python(
        f"import huggingface_hub as h; print(h.hf_hub_download({REPOSITORY!r}, 'demo-F16.gguf'));"
        f"print(h.try_to_load_from_cache({REPOSITORY!r}, 'demo-F16.gguf'));"
        f"print([(repo.repo_id, repo.size_on_disk, repo.nb_files) for repo in h.scan_cache_dir().repos],"
        f" h.scan_cache_dir().warnings)"
    ).splitlines()
    assert found[:2] == [str(path)] * 2, found
    assert found[2] == f"[('{REPOSITORY}', {len(WEIGHTS)}, 1)] []", found
    assert not [request for request in place.far.log[n_before:] if request[0] == "GET"], "it was downloaded again"
print("huggingface_hub finds what was pulled, and downloads nothing")

with Place() as place:
    found = place.python(f"import huggingface_hub as h; print(h.hf_hub_download({REPOSITORY!r}, 'demo-Q8_0.gguf'))")
    n_before = len(place.hub.log)
    done = place.run("run", REPOSITORY, "Once upon a time", "-n", "8", "--temp", "0")
    assert done.stdout == place.run("run", "demo", "Once upon a time", "-n", "8", "--temp", "0").stdout
    assert len(place.hub.log) == n_before, "a model that is there needs no server"
    assert place.run("pull", REPOSITORY + ":Q8_0").stdout.strip() == found
    # Its own files are used as they are, and `list` and `rm` know them.
    assert REPOSITORY + ":Q8_0" in place.run("list").stdout
    place.run("rm", REPOSITORY, "--yes")
    assert place.python("import huggingface_hub as h; print(len(h.scan_cache_dir().repos))") == "0"
print("what huggingface_hub downloaded runs by its name, and is listed and removed")

with Place() as place:
    refused = place.run("run", REPOSITORY, "Hi", code=3).stderr
    assert "`--yes` does so here" in refused and len(refused.splitlines()) == 1, refused
    assert not place.blobs()
    assert "downloads are switched off" in place.run("run", REPOSITORY, "Hi", "--offline", code=3).stderr
    assert "there is org/demo-GGUF" in place.run("pull", "org/demmo-GGUF", code=3).stderr
    assert "it has Q8_0, F16" in place.run("pull", REPOSITORY + ":Q4_K_M", code=3).stderr
    place.run("run", REPOSITORY, "Once", "-n", "2", "--yes")
    with Server("--offline", model=f"{place.snapshot('demo-Q8_0.gguf')}") as server:
        assert server.url
print("a download needs a yes; without one the line says how")

with Place() as place:
    # On a terminal there is a question.
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [BINARY, "run", REPOSITORY, "Once", "-n", "2"], env=place.env, stdin=child, stdout=child, stderr=child, close_fds=True
    )
    os.close(child)
    shown, answered, until = b"", False, time.time() + 120
    while time.time() < until:
        if select.select([parent], [], [], 1)[0]:
            try:
                shown += os.read(parent, 4096)
            except OSError:
                break
        if not answered and b"[y/N]" in shown:
            os.write(parent, b"y\n")
            answered = True
    assert process.wait(60) == 0 and answered, shown
    assert b"Download org/demo-GGUF:Q8_0" in shown and place.snapshot("demo-Q8_0.gguf").exists(), shown
print("on a terminal the download is asked for")

with Place() as place:
    # Cut connections and kill -9: what arrived stays, nothing looks whole.
    place.far.pause = 0.2
    process = subprocess.Popen([BINARY, "pull", REPOSITORY + ":F16"], env=place.env, stderr=subprocess.PIPE)
    while not any(path.endswith("demo-F16.gguf?signature=x") for _, path, _ in place.far.log):
        time.sleep(0.02)
    time.sleep(1.0)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert place.blobs() == [etag(WEIGHTS) + ".tokenmill.incomplete"], place.blobs()
    assert not place.snapshot("demo-F16.gguf").exists()
    assert place.run("list").stdout == ""
    place.far.pause = 0
    place.far.cut = 9 << 20
    place.run("pull", REPOSITORY + ":F16")
    assert place.snapshot("demo-F16.gguf").read_bytes() == WEIGHTS
    assert place.blobs() == [etag(WEIGHTS)]
print("kill -9 and cut connections: the next pull continues, and the file is whole")

with Place() as place:
    # No room for the file: the limit of a process's files stands for a full disk.
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20, 20 << 20))

    failed = place.run("pull", REPOSITORY + ":F16", code=4, preexec_fn=limit).stderr
    assert "cannot write to" in failed and "makes room" in failed, failed
    assert not place.snapshot("demo-F16.gguf").exists() and place.run("list").stdout == ""
    place.run("pull", REPOSITORY + ":F16")
    assert place.snapshot("demo-F16.gguf").read_bytes() == WEIGHTS
print("a full disk is told, and nothing looks whole")

with Place() as place:
    # A disk of its own that is too small, where one can be mounted.
    place.cache.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", place.cache], capture_output=True, text=True)
    if mounted.returncode:
        print("a disk that is too small: skipped,", mounted.stderr.strip())
    else:
        try:
            failed = place.run("pull", REPOSITORY + ":F16", code=4).stderr.splitlines()[-1]
            assert "has room for 20.0 MiB, and 51.7 MiB are needed, 31.7 MiB more" in failed and "makes room" in failed, failed
            assert place.run("list").stdout == "" and not place.blobs()
            place.run("pull", REPOSITORY + ":Q8_0")
            assert place.snapshot("demo-Q8_0.gguf").read_bytes() == DEMO
        finally:
            subprocess.run(["umount", place.cache], check=True)
        print("a disk that is too small is told with what is missing")

with Place() as place:
    # This program twice and Hugging Face's once, all for the same file.
    place.far.pause = 0.02
    code = f"import huggingface_hub as h; print(h.hf_hub_download({REPOSITORY!r}, 'demo-F16.gguf'))"
    commands = [[BINARY, "pull", REPOSITORY + ":F16"]] * 2 + [[sys.executable, "-c", code]]
    running = [subprocess.Popen(command, env=place.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for command in commands]
    for process in running:
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0 and out.decode().strip() == str(place.snapshot("demo-F16.gguf")), err
    assert place.snapshot("demo-F16.gguf").read_bytes() == WEIGHTS and place.blobs() == [etag(WEIGHTS)]
    n_bytes = sum(1 for method, path, _ in place.far.log if method == "GET")
print(f"three pulls of one file at once: one whole file, {n_bytes} requests for its bytes")
