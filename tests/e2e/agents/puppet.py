"""Makes the model whose answers are known: it calls the tool that an agent offers, and gives an answer when the result is there.

The demo model is too small for that: it follows 512 tokens, and agents send thousands before the question. This one has its
tokenizer and its template, so that prompts are as long. Its layer is zero and each token's output row names the token that follows,
so the text after a prompt's last token is a given chain of tokens. The template ends differently after a result, hence the two chains.
"""

import json
import struct

TEXT, LIST, U32, F32, BOOL = 8, 9, 4, 6, 7
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
F32_TENSOR, F16_TENSOR = 0, 1
ONE = {F32_TENSOR: struct.pack("<f", 1), F16_TENSOR: struct.pack("<e", 1)}
ALIGNMENT = 32
HEAD = 64
NORMAL = 1

# The start of an answer in the demo model's template, and its replacement here: after a result the line ends.
OPENING = "{{- '<|assistant|>\\n' }}\n{%- endif %}"
OPENINGS = "{{- '<|assistant|>' + ('\\n' if messages[-1].role == 'tool' or not tools else '') }}\n{%- endif %}"


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


def tokenizer_of(path):
    """The tokenizer's metadata of a GGUF file, as (kind, bytes of the value) by key."""
    buffer = path.read_bytes()
    n_pairs = struct.unpack_from("<Q", buffer, 16)[0]
    at, pairs = 24, {}
    for _ in range(n_pairs):
        size = struct.unpack_from("<Q", buffer, at)[0]
        key = buffer[at + 8 : at + 8 + size].decode()
        kind = struct.unpack_from("<I", buffer, at + 8 + size)[0]
        start = at + 12 + size
        at = end_of(buffer, start, kind)
        if key.startswith("tokenizer."):
            pairs[key] = (kind, buffer[start:at])
    return pairs


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def word(piece):
    """A piece of ASCII text as byte-level vocabularies write it."""
    return piece.replace(" ", "\u0120").replace("\n", "\u010a")


def pieces_of(said, used):
    """Cuts a text into pieces that nobody has used: in a chain each token has one that follows it."""
    at = 0
    while at < len(said):
        size = 4
        while said[at : at + size] in used:
            assert at + size < len(said), said
            size += 1
        used.add(said[at : at + size])
        yield said[at : at + size]
        at += size


def write(path, demo, call, answer, n_ctx):
    """Writes a model that makes `call`, a (name, arguments) or none, and says `answer` when the result is there or no tools are."""
    pairs = tokenizer_of(demo)
    tokens = {token: number for number, token in enumerate(texts_of(pairs["tokenizer.ggml.tokens"][1]))}
    n_demo, end = len(tokens), tokens["<|end|>"]
    used, follows, ends = set(), {}, []
    named = json.dumps({"name": call[0], "arguments": call[1]}) if call else ""
    for last, said in [("<|assistant|>", named), (word("\n"), answer)]:
        last = tokens[last]
        for piece in pieces_of(said, used):
            token = tokens.setdefault(word(piece), len(tokens))
            follows[token] = last
            last = token
        ends.append(last)
    follows[end] = ends
    n_vocab = -(-len(tokens) // HEAD) * HEAD
    added = [*tokens][n_demo:] + [f"[unused{number}]" for number in range(len(tokens), n_vocab)]
    extend(pairs, "tokenizer.ggml.tokens", b"".join(map(text, added)), len(added))
    extend(pairs, "tokenizer.ggml.token_type", struct.pack("<i", NORMAL) * len(added), len(added))
    template = pairs["tokenizer.chat_template"][1][8:].decode()
    assert OPENING in template
    pairs["tokenizer.chat_template"] = (TEXT, text(template.replace(OPENING, OPENINGS)))
    for name, number in [
        ("block_count", 1), ("context_length", n_ctx), ("embedding_length", n_vocab), ("feed_forward_length", HEAD),
        ("attention.head_count", 1), ("attention.head_count_kv", 1), ("attention.key_length", HEAD),
        ("attention.value_length", HEAD), ("rope.dimension_count", HEAD), ("vocab_size", n_vocab),
    ]:
        pairs[f"llama.{name}"] = (U32, struct.pack("<I", number))
    pairs["llama.attention.layer_norm_rms_epsilon"] = (F32, struct.pack("<f", 1e-5))
    pairs["general.architecture"] = (TEXT, text("llama"))
    pairs["general.name"] = (TEXT, text("tokenmill-puppet"))
    ones = {position: position for position in range(n_vocab)}
    norm = {0: range(n_vocab)}
    write_gguf(path, pairs, [
        ("token_embd.weight", F16_TENSOR, (n_vocab, n_vocab), ones),
        ("output.weight", F16_TENSOR, (n_vocab, n_vocab), follows),
        *((f"{name}.weight", F32_TENSOR, (n_vocab,), norm) for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")),
        *((f"blk.0.{name}.weight", F16_TENSOR, (n_vocab, HEAD), {})
          for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")),
        *((f"blk.0.{name}.weight", F16_TENSOR, (HEAD, n_vocab), {}) for name in ("attn_output", "ffn_down")),
    ])


def texts_of(items):
    """The texts of a list."""
    at = 12
    while at < len(items):
        end = end_of(items, at, TEXT)
        yield items[at + 8 : end].decode()
        at = end


def extend(pairs, key, items, count):
    """Adds items to a list."""
    kind, value = pairs[key]
    item, before = struct.unpack_from("<IQ", value)
    pairs[key] = (kind, struct.pack("<IQ", item, before + count) + value[12:] + items)


def write_gguf(path, pairs, tensors):
    """Writes a file. A tensor is (name, type, shape with the length of rows first, the columns that are 1 by row)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    for key, (kind, value) in pairs.items():
        head += text(key) + struct.pack("<I", kind) + value
    data = bytearray()
    for name, kind, shape, ones in tensors:
        size = len(ONE[kind])
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        rows = bytearray(size * shape[0] * (shape[1] if len(shape) > 1 else 1))
        for row, columns in ones.items():
            for column in [columns] if isinstance(columns, int) else columns:
                at = size * (row * shape[0] + column)
                rows[at : at + size] = ONE[kind]
        data += rows + b"\0" * (-len(rows) % ALIGNMENT)
    path.write_bytes(head + b"\0" * (-len(head) % ALIGNMENT) + data)
