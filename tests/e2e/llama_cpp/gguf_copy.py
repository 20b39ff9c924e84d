"""Copies a small GGUF file with metadata keys added or replaced, and with tokens of other kinds."""
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TEXT, LIST, U32 = 8, 9, 4
ALIGNMENT = 32


def end_of(buffer, at, kind):
    """Where a value ends."""
    if kind == TEXT:
        return at + 8 + struct.unpack_from("<Q", buffer, at)[0]
    if kind == LIST:
        item, count = struct.unpack_from("<IQ", buffer, at)
        at += 12
        if item in SIZES:
            return at + SIZES[item] * count
        for _ in range(count):
            at = end_of(buffer, at, item)
        return at
    return at + SIZES[kind]


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def copy_with(source, target, changes, kinds=None):
    """Writes `target`. `changes` are texts and numbers by key, `kinds` numbers of a token's kind by token."""
    buffer = bytearray(open(source, "rb").read())
    assert buffer[:4] == b"GGUF"
    version, n_tensors, n_pairs = struct.unpack_from("<IQQ", buffer, 4)
    at, kept = 24, []
    for _ in range(n_pairs):
        start = at
        size = struct.unpack_from("<Q", buffer, at)[0]
        key = buffer[at + 8:at + 8 + size].decode()
        at += 8 + size
        kind = struct.unpack_from("<I", buffer, at)[0]
        at += 4
        if key == "tokenizer.ggml.token_type":
            for token, value in (kinds or {}).items():
                struct.pack_into("<I", buffer, at + 12 + 4 * token, value)
        at = end_of(buffer, at, kind)
        if key not in changes:
            kept.append(bytes(buffer[start:at]))
    tensors = at
    for _ in range(n_tensors):
        size = struct.unpack_from("<Q", buffer, at)[0]
        at += 8 + size
        n_dims = struct.unpack_from("<I", buffer, at)[0]
        at += 4 + 8 * n_dims + 4 + 8
    data = -(-at // ALIGNMENT) * ALIGNMENT
    for key, value in changes.items():
        if isinstance(value, str):
            kept.append(text(key) + struct.pack("<I", TEXT) + text(value))
        else:
            kept.append(text(key) + struct.pack("<II", U32, value))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, len(kept)) + b"".join(kept) + bytes(buffer[tensors:at])
    with open(target, "wb") as file:
        file.write(head + b"\0" * (-len(head) % ALIGNMENT) + bytes(buffer[data:]))
