"""Starts `tokenmill serve demo` for a test and stops it."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = pathlib.Path(os.environ.get("TOKENMILL_BIN", ROOT / "target/debug/tokenmill"))


class Server:
    """A running server; `url` is its address, `log` the lines it wrote."""

    def __init__(self, *flags, model="demo"):
        command = [BINARY, "serve", *([model] if model else []), "--log-format", "json", *flags]
        if not {"--port", "--unix-socket"} & set(flags):
            command += ["--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.url = None
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(60) or self.url is None:
            self.process.kill()
            raise SystemExit(f"the server did not start: {self.log}")

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r'"address":"((?:http|unix:)[^"]+)"', line)
            if found:
                self.url = found[1]
                self._listening.set()
        self._listening.set()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=60):
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if kind is not None:
            # The server's last lines often name the reason.
            self._reader.join(5)
            sys.stderr.writelines(self.log[-40:])
