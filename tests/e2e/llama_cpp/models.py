"""Which local files stand for the models of the Hub that llama.cpp's tests of its server name, and copies of them with other metadata."""
import hashlib
import os
import shutil
import sys

from gguf_copy import copy_with

DATA = os.environ["TOKENMILL_TEST_DATA"]
TREE = os.environ["TOKENMILL_TREE"]
COPIES = os.environ["TOKENMILL_SUITE_MODELS"]

STORIES = f"{DATA}/models/stories260K/stories260K-f32.gguf"
VISION = f"{TREE}/tests/data/vision/gemma3"
POOLING = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
# Any three tokens can serve as fill-in-the-middle tokens if the file names them.
FIM = {f"tokenizer.ggml.fim_{name}_token_id": token for name, token in (("pre", 3), ("suf", 4), ("mid", 5))}


def find(repository, file, has_adapters):
    """The model and its image encoder, if it has one; `None` where nothing stands for it."""
    name = f"{repository or ''}/{file or ''}"
    if "stories260K-infill" in name:
        return copy(STORIES, FIM, {3: 3, 4: 3, 5: 3}), None
    if "stories260K" in name:
        return STORIES, None
    if "bert-bge-small" in name:
        return f"{DATA}/parity2/bert/model-F32.gguf", None
    if "jina-reranker" in name:
        return f"{DATA}/parity2/bert_rerank/model-F32.gguf", None
    if "stories15M_MOE" in name:
        return (f"{DATA}/parity/llama/model-F32.gguf" if has_adapters else STORIES), None
    if "tinygemma3" in name:
        return f"{VISION}/model.gguf", f"{VISION}/mmproj-model.gguf"
    return None


def copy(path, changes, kinds=None):
    """A copy with other metadata, made once."""
    key = hashlib.sha256(repr((path, sorted(changes.items()), kinds)).encode()).hexdigest()[:12]
    target = f"{COPIES}/{key}-{os.path.basename(path)}"
    if not os.path.exists(target):
        os.makedirs(COPIES, exist_ok=True)
        unfinished = f"{target}.{os.getpid()}"
        copy_with(path, unfinished, changes, kinds)
        os.replace(unfinished, target)
    return target


def architecture(path):
    head = open(path, "rb").read(200_000)
    at = head.find(b"general.architecture") + len("general.architecture") + 4
    size = int.from_bytes(head[at:at + 8], "little")
    return head[at + 8:at + 8 + size].decode()


def has_template(path):
    return b"tokenizer.chat_template" in open(path, "rb").read(4_000_000)


if __name__ == "__main__":
    # Files that the tests would download.
    os.makedirs(sys.argv[1], exist_ok=True)
    for source, name in (
        (f"{DATA}/parity2/lora/llama-a/adapter-F32.gguf", "moe_shakespeare15M.gguf"),
        (f"{DATA}/models/stories260K/stories260K-Q4_0.gguf", "stories15M-q4_0.gguf"),
    ):
        if not os.path.exists(f"{sys.argv[1]}/{name}"):
            shutil.copy(source, f"{sys.argv[1]}/{name}")
