#!/usr/bin/env python3
"""Makes tests/data/vision/*/hf: the Hugging Face folders of the tiny models that see, and what llama.cpp's converter makes of their encoders.

    pip install transformers==5.23.0 torch==2.15.0 torchvision pillow==13.0.0 gguf numpy safetensors
    make_vision_folders.py LLAMA_CPP [FAMILY ...]

The models are those of make_vision.py and make_vision_qwen.py. `LLAMA_CPP` is a checkout (0c1e57098) with `convert_hf_to_gguf.py`. `mmproj.json`
lists, for each type, the keys of the file that `--mmproj` writes, and of each tensor the type, the dimensions and the CRC-32 of its bytes.
"""

import json
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

LLAMA_CPP, NAMES = Path(sys.argv[1]), sys.argv[2:]
# The other scripts take a folder in this place.
sys.argv[1:] = []

import make_vision
import make_vision_qwen

HERE = make_vision.HERE
TYPES = ["auto", "f32", "f16", "bf16", "q8_0"]


def save(folder, model, processor):
    model.half().save_pretrained(folder)
    path = folder / "model.safetensors"
    # As in published folders; this version of transformers leaves a part of these names out.
    tensors = {name.replace("vision_tower.", "vision_tower.vision_model."): value for name, value in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    if "image_size" not in config["vision_config"] and "num_position_embeddings" not in config["vision_config"]:
        # The converter's default has more patches to a side than readers take for this size.
        config["vision_config"]["image_size"] = 160
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(processor, indent=1) + "\n")


def listing(path):
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tensors = {}
    for tensor in reader.tensors:
        data = np.ascontiguousarray(tensor.data).tobytes()
        tensors[tensor.name] = [tensor.tensor_type.name, [int(n) for n in tensor.shape], zlib.crc32(data)]
    return dict(keys=keys, tensors=tensors)


def converted(folder):
    listings = {}
    with tempfile.TemporaryDirectory() as temporary:
        for ty in TYPES:
            path = Path(temporary) / f"{ty}.gguf"
            command = [sys.executable, LLAMA_CPP / "convert_hf_to_gguf.py", folder, "--mmproj", "--outtype", ty, "--outfile", path]
            subprocess.run(command, check=True, capture_output=True)
            listings[ty] = listing(path)
    return listings


if __name__ == "__main__":
    for name in NAMES or ["gemma3", "qwen2vl", "qwen2.5vl", "qwen3vl"]:
        folder = HERE / name / "hf"
        folder.mkdir(parents=True, exist_ok=True)
        if name == "gemma3":
            model = make_vision.gemma3_model()
            processor = dict(image_processor_type="Gemma3ImageProcessor", image_mean=[0.5] * 3, image_std=[0.5] * 3, image_seq_length=16)
        else:
            model = make_vision_qwen.make_model(make_vision_qwen.FAMILIES[name])
            mean, std = make_vision_qwen.MEAN, make_vision_qwen.STD
            processor = dict(image_processor_type="Qwen2VLImageProcessor", image_mean=mean, image_std=std, patch_size=4, merge_size=2, temporal_patch_size=2)
        save(folder, model, processor)
        lines = [f"{json.dumps(ty)}: {json.dumps(made)}" for ty, made in converted(folder).items()]
        (HERE / name / "mmproj.json").write_text("{" + ",\n".join(lines) + "}\n")
        print(folder, sum(path.stat().st_size for path in folder.iterdir()), "bytes")
