"""A relay between an agent and the server that keeps the requests. It passes bytes on as they come, so that the agent meets the
server itself: its connections, its pieces of a stream, its closings."""

import json
import socket
import threading
from urllib.parse import urlsplit


class Tap:
    """`url` stands for that of the server; `requests` has (path, body) of each request with a JSON body, in the order of their ends."""

    def __init__(self, url):
        address = urlsplit(url)
        self.server = (address.hostname, address.port)
        self.requests = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.server)
            asked = bytearray()
            for source, sink, kept in [(client, server, asked), (server, client, None)]:
                threading.Thread(target=self._pass_on, args=(source, sink, kept), daemon=True).start()

    def _pass_on(self, source, sink, kept):
        try:
            while piece := source.recv(1 << 16):
                # Before the server can answer, so that the order of requests is theirs.
                if kept is not None:
                    kept += piece
                    self._take_requests(kept)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # One side has left; the other one learns it.
            for end in (source, sink):
                end.close()

    def _take_requests(self, kept):
        """Cuts whole requests off what a connection has sent."""
        while (end := kept.find(b"\r\n\r\n")) >= 0:
            first, *lines = kept[:end].decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            # Agents know a body's length before they send it.
            assert "transfer-encoding" not in headers, first
            size = int(headers.get("content-length", 0))
            if len(kept) < end + 4 + size:
                return
            body = bytes(kept[end + 4 : end + 4 + size])
            del kept[: end + 4 + size]
            if size and "json" in headers.get("content-type", ""):
                self.requests.append((first.split()[1], json.loads(body)))
