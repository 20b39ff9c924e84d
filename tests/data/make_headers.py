#!/usr/bin/env python3
"""Makes `headers.jsonl`: of one tiny file for each architecture, the architecture's keys and the dimensions of the tensors.

    pip install gguf==0.19.0
    make_headers.py --full FOLDER

FOLDER is the full set of reference data. Tests open files of zeros with these headers: which keys change a network does not depend
on its weights.
"""

import argparse
import json
from pathlib import Path

import gguf

HERE = Path(__file__).resolve().parent
ARCHITECTURE = "general.architecture"
# Number of headers for architectures whose files have different keys.
VARIANTS = {"deepseek2": 3, "llama": 2, "gemma4": 3, "exaone4": 2, "olmo2": 2, "llama4": 2, "granitehybrid": 2, "glm4moe": 2}


def value(field):
    """`[type, value]`, as the test writes it."""
    kind = field.types[0]
    if kind == gguf.GGUFValueType.ARRAY:
        return [f"[{field.types[-1].name}]", field.contents()]
    return [kind.name, field.contents()]


def header(path):
    reader = gguf.GGUFReader(path)
    arch = reader.fields[ARCHITECTURE].contents()
    # Keys of the network, without the tokenizer's.
    names = [name for name in reader.fields if name.startswith((f"{arch}.", "xielu."))]
    keys = {name: value(reader.fields[name]) for name in names}
    tensors = {tensor.name: [int(dim) for dim in tensor.shape] for tensor in reader.tensors}
    return arch, {"keys": keys, "tensors": tensors}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", type=Path, required=True)
    full = parser.parse_args().full
    found = {}
    for folder in sorted([*full.glob("parity*/*"), *HERE.glob("networks/*"), *HERE.glob("encoders/*")]):
        files = sorted(folder.glob("model-*.gguf"), key=lambda path: (path.stat().st_size, path.name))
        if not files:
            continue
        arch, network = header(files[0])
        of_arch = found.setdefault(arch, {})
        if len(of_arch) < VARIANTS.get(arch, 1) and folder.name not in of_arch:
            of_arch[folder.name] = network
    lines = []
    for arch, networks in sorted(found.items()):
        for name, network in sorted(networks.items()):
            text = json.dumps({"arch": arch, "name": name, **network}, separators=(",", ":"))
            lines.append(text)
    (HERE / "headers.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
