"""A plugin of pytest for llama.cpp's tests of its server: nothing is downloaded, and images of the Hub are painted."""
import io
import struct
import zlib

import requests
import utils


def png(seed):
    """An image of 64 by 64 pixels."""
    def row(y):
        return b"\0" + bytes((x * seed + y * 3 + channel * 40) % 256 for x in range(64) for channel in range(3))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(map(row, range(64))))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


really_get = requests.get


def get(url, *arguments, **options):
    if url.startswith("https://huggingface.co/") and url.endswith(".png"):
        response = requests.Response()
        response.status_code, response.raw = 200, io.BytesIO(png(3 if "truck" in url else 7))
        return response
    return really_get(url, *arguments, **options)


requests.get = get
utils.ServerPreset.load_all = staticmethod(lambda: None)
