#!/usr/bin/env python3
"""Makes `headers.jsonl`: of one tiny file for each architecture, the architecture's keys and the dimensions of the tensors.

    pip install gguf==0.19.0
    make_headers.py --full FOLDER --tokenmill PROGRAM

FOLDER is the full set of reference data. PROGRAM makes the file of an architecture that is there as a folder alone. Tests open files of zeros with these headers: which keys change a network does not depend
on its weights.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import gguf

HERE = Path(__file__).resolve().parent
ARCHITECTURE = "general.architecture"
# Number of headers for architectures whose files have different keys.
VARIANTS = {"deepseek2": 3, "llama": 2, "gemma4": 3, "exaone4": 2, "olmo2": 2, "llama4": 2, "granitehybrid": 2, "glm4moe": 2}
# Architectures that no file of the reference data has.
FOLDERS = ["glm"]


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


def converted(program, folder):
    """The header of the file that PROGRAM makes of a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.gguf"
        subprocess.run([program, "convert", folder, path, "--type", "f32"], check=True, capture_output=True)
        return header(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", type=Path, required=True)
    parser.add_argument("--tokenmill", required=True)
    args = parser.parse_args()
    full = args.full
    found = {}
    # In this order wherever the sets lie.
    folders = [(full, "parity*/*"), (HERE, "encoders/*"), (HERE, "networks/*")]
    for folder in (folder for root, below in folders for folder in sorted(root.glob(below))):
        files = sorted(folder.glob("model-*.gguf"), key=lambda path: (path.stat().st_size, path.name))
        if not files:
            continue
        arch, network = header(files[0])
        of_arch = found.setdefault(arch, {})
        if len(of_arch) < VARIANTS.get(arch, 1) and folder.name not in of_arch:
            of_arch[folder.name] = network
    for name in FOLDERS:
        arch, network = converted(args.tokenmill, HERE / "networks" / name / "hf")
        found[arch] = {name: network}
    lines = []
    for arch, networks in sorted(found.items()):
        for name, network in sorted(networks.items()):
            text = json.dumps({"arch": arch, "name": name, **network}, separators=(",", ":"))
            lines.append(text)
    (HERE / "headers.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
