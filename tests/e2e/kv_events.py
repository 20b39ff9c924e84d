"""The KV cache's events as a router reads them: pyzmq's sockets, and vLLM's structs in msgspec."""

import json
import os
import socket
import time
import urllib.request
from typing import Any

import msgspec
import zmq

from server import Server

PAGE = 16
TOPIC = b"kv@127.0.0.1@demo"


class KVCacheEvent(msgspec.Struct, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class EventBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


DECODER = msgspec.msgpack.Decoder(EventBatch)


class Index:
    """What a router knows: of each page its tokens and all tokens before them. One that `is_whole` has heard all from the start."""

    def __init__(self, is_whole=False):
        self.pages = {}
        self.is_whole = is_whole

    def take(self, batch):
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.pages.clear()
            elif isinstance(event, BlockRemoved):
                for block in event.block_hashes:
                    assert block in self.pages or not self.is_whole, event
                    self.pages.pop(block, None)
            else:
                assert event.block_size == PAGE and event.medium == "GPU", event
                assert event.group_idx == 0 and event.kv_cache_spec_kind == "full_attention", event
                assert len(event.token_ids) == PAGE * len(event.block_hashes), event
                assert len(event.extra_keys) == len(event.block_hashes), event
                before, salt = ((), None) if event.parent_block_hash is None else self.pages[event.parent_block_hash]
                for idx, block in enumerate(event.block_hashes):
                    before = (*before, *event.token_ids[idx * PAGE : (idx + 1) * PAGE])
                    salt = event.extra_keys[idx] or salt
                    assert block not in self.pages, event
                    self.pages[block] = (before, salt)

    def prefixes(self, salted=False):
        return {tokens for tokens, salt in self.pages.values() if (salt is not None) == salted}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def post(url, path, body):
    data = json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def receive(subscriber, index, numbers):
    """Takes in what comes until nothing has come for a while."""
    while subscriber.poll(500):
        topic, number, payload = subscriber.recv_multipart()
        assert topic == TOPIC
        numbers.append(int.from_bytes(number, "big"))
        batch = DECODER.decode(payload)
        assert abs(batch.ts - time.time()) < 60 and batch.data_parallel_rank == 0
        index.take(batch)


def whole_pages(tokens):
    return {tuple(tokens[:end]) for end in range(PAGE, len(tokens) + 1, PAGE)}


def try_endpoints(endpoint, replay_endpoint, at):
    config = {"enable_kv_cache_events": True, "publisher": "zmq", "topic": TOPIC.decode()}
    config |= {"endpoint": endpoint, "replay_endpoint": replay_endpoint}
    context = zmq.Context()
    # 40 pages, so that pages go.
    with Server("--kv-events-config", json.dumps(config), "-c", "512", "--kv-cache-tokens", "640") as server:
        subscriber = context.socket(zmq.SUB)
        subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
        subscriber.setsockopt(zmq.HEARTBEAT_IVL, 100)
        if at is None:
            subscriber.bind(endpoint)
        else:
            subscriber.connect(at)
        index, numbers = Index(), []
        messages = [{"role": "user", "content": "Tell me of the river, the stone and the lantern in the garden. " * 3}]
        body = {"model": "demo", "messages": messages, "max_tokens": 2, "temperature": 0}
        # A subscription takes a moment to arrive.
        deadline = time.monotonic() + 30
        while not numbers:
            assert time.monotonic() < deadline, "nothing is published"
            text = f"{os.urandom(16).hex()} is warm, and there is more of it, so that it takes a page. "
            post(server.url, "/v1/completions", {"model": "demo", "prompt": text, "max_tokens": 1})
            receive(subscriber, index, numbers)
        post(server.url, "/v1/chat/completions", body)
        receive(subscriber, index, numbers)
        prompt = post(server.url, "/v1/chat/completions/render", body)["token_ids"]
        assert len(prompt) > 2 * PAGE and whole_pages(prompt) <= index.prefixes(), prompt
        # The same again tells nothing new, with a salt it does.
        n_batches = len(numbers)
        post(server.url, "/v1/chat/completions", body)
        receive(subscriber, index, numbers)
        assert len(numbers) == n_batches, numbers
        post(server.url, "/v1/chat/completions", body | {"cache_salt": "tenant"})
        receive(subscriber, index, numbers)
        assert whole_pages(prompt) <= index.prefixes(salted=True)
        for turn in range(12):
            ids = [(turn * 7 + idx) % 200 + 20 for idx in range(20 * PAGE)]
            post(server.url, "/v1/completions", {"model": "demo", "prompt": ids, "max_tokens": 1})
        receive(subscriber, index, numbers)
        assert len(index.pages) <= 40, len(index.pages)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), numbers
        # Events from before the subscription can be requested; all of them give the same index.
        asker = context.socket(zmq.DEALER)
        asker.connect(replay_endpoint.replace("*", "127.0.0.1"))
        asker.send_multipart([b"", (0).to_bytes(8, "big")])
        whole, replayed = Index(is_whole=True), []
        while True:
            assert asker.poll(10_000), "no answer"
            empty, number, payload = asker.recv_multipart()
            if not payload:
                assert (empty, number) == (b"", b"\xff" * 8)
                break
            replayed.append(int.from_bytes(number, "big"))
            whole.take(DECODER.decode(payload))
        assert replayed == list(range(numbers[-1] + 1)), (replayed, numbers)
        assert set(index.pages) <= set(whole.pages)
        assert whole_pages(ids) <= whole.prefixes()
        context.destroy(linger=0)
        server.signal()
        assert server.wait() == 0


def refused():
    from subprocess import run

    from server import BINARY

    for config in ['{"enable_kv_cache_events": true, "endpoint": "udp://x"}', "{}", "[]", '{"enable_kv_cache_events": true, "x": 1}']:
        ended = run([BINARY, "serve", "demo", "--kv-events-config", config], capture_output=True, text=True, timeout=60)
        assert ended.returncode == 2 and "--kv-events-config" in ended.stderr, ended


port, replay_port = free_port(), free_port()
try_endpoints(f"tcp://*:{port}", f"tcp://*:{replay_port}", f"tcp://127.0.0.1:{port}")
print("kv events to subscribers that connect: passed")
port, replay_port = free_port(), free_port()
try_endpoints(f"tcp://127.0.0.1:{port}", f"tcp://*:{replay_port}", None)
print("kv events to a subscriber that waits: passed")
refused()
print("configurations that cannot be obeyed: refused")
