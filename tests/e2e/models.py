"""Models by name: the program against a hub on loopback, and Hugging Face's own package with the same hub and the same cache."""

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
import time

from hub import COMMIT, DEMO, REPOSITORY, SEES, VISION, WEIGHTS, Hub, etag
from server import BINARY, Server


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

    def snapshot(self, name, repository=REPOSITORY):
        return self.cache / f"models--{repository.replace('/', '--')}/snapshots" / COMMIT / name

    def on_terminal(self, *args, answer):
        """Runs the program on a terminal, and gives its one question an answer: how it ended, and what was shown."""
        parent, child = pty.openpty()
        process = subprocess.Popen([BINARY, *args], env=self.env, stdin=child, stdout=child, stderr=child, close_fds=True)
        os.close(child)
        shown, answered, until = b"", False, time.time() + 120
        while time.time() < until:
            if select.select([parent], [], [], 1)[0]:
                try:
                    shown += os.read(parent, 4096)
                except OSError:
                    break
            if not answered and b"[y/N]" in shown:
                os.write(parent, answer + b"\n")
                answered = True
        code = process.wait(60)
        assert answered, shown
        return code, shown.decode()


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
    assert "`--yes` downloads it" in refused and len(refused.splitlines()) == 1, refused
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
    code, shown = place.on_terminal("run", REPOSITORY, "Once", "-n", "2", answer=b"y")
    assert code == 0 and "Download org/demo-GGUF:Q8_0" in shown and place.snapshot("demo-Q8_0.gguf").exists(), shown
print("on a terminal the download is asked for")

with Place() as place:
    # `chat` and `run` download the image encoder with the model; other commands do not.
    image = str(VISION / "0.png")
    model, encoder = [place.snapshot(name, SEES) for name in ("sees-F16.gguf", "mmproj-sees-F16.gguf")]
    code, shown = place.on_terminal("chat", SEES, answer=b"n")
    assert code == 3 and "Download org/sees-GGUF:F16, 42.4 KiB (it is the only one) and 31.5 KiB for its image encoder?" in shown, shown
    refused = place.run("run", SEES, "Hi", code=3).stderr
    assert "`--yes` downloads it, 42.4 KiB and 31.5 KiB for its image encoder; `tokenmill pull" in refused, refused
    assert "`--yes` downloads it, 42.4 KiB; `tokenmill pull" in place.run("run", SEES, "Hi", "--no-mmproj", code=3).stderr
    place.run("tokenize", SEES, "Hi", "--yes")
    assert model.exists() and not encoder.exists()
    asked = ("run", SEES, "Hi", "--image", image, "-n", "2", "-c", "256")
    blind = place.run(*asked, code=3).stderr
    assert "`tokenmill pull org/sees-GGUF` downloads its image encoder" in blind, blind
    place.run("rm", SEES, "--yes")
    place.run(*asked, "--yes")
    assert model.exists() and encoder.exists()
    place.run("rm", SEES, "--yes")
    place.run("run", SEES, "Hi", "-n", "2", "-c", "256", "--no-mmproj", "--yes")
    assert model.exists() and not encoder.exists()
print("the image encoder comes with a model for run and chat")

with Place() as place:
    out = str(pathlib.Path(place.home.name, "out.gguf"))
    place.run("quantize", REPOSITORY, out, "q4_0", "--allow-requantize", code=3)
    place.run("quantize", REPOSITORY, out, "q4_0", "--allow-requantize", "--yes")
    assert pathlib.Path(out).stat().st_size < len(DEMO)
print("quantize downloads what it makes smaller")

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
    left = place.run("list").stdout.splitlines()
    assert len(left) == 2 and " incomplete " in left[1], left
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
    assert "cannot write " in failed and "makes room" in failed, failed
    assert not place.snapshot("demo-F16.gguf").exists()
    left = place.run("list").stdout.splitlines()[1:]
    assert all(" incomplete " in line for line in left), left
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
