#!/usr/bin/env python3
"""Makes tests/data/vision/qwen*: tiny random models of the Qwen VL families, and what transformers computes with them.

    pip install transformers==5.23.0 torch==2.15.0 torchvision pillow==13.0.0 gguf numpy
    make_vision_qwen.py [FOLDER [FAMILY ...]]

Like make_vision.py, whose vocabulary and pictures it takes.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

from make_vision import CHARS, add_tokenizer, encode, numbers, picture, write

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent / "vision")

QWEN = ["<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|video_pad|>", "<|image_pad|>", "<|im_end|>"]

TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

PATCH, MERGE = 4, 2
FACTOR = PATCH * MERGE
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]

N_VOCAB = len(CHARS + QWEN)
ID = {name: (CHARS + QWEN).index(name) for name in QWEN}
TOKENS = dict(
    image_token_id=ID["<|image_pad|>"],
    video_token_id=ID["<|video_pad|>"],
    vision_start_token_id=ID["<|vision_start|>"],
    vision_end_token_id=ID["<|vision_end|>"],
    tie_word_embeddings=True,
)
TEXT = dict(
    vocab_size=N_VOCAB,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
)
# The third version.
TEXT3 = dict(TEXT, head_dim=16, num_hidden_layers=3, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2], "mrope_interleaved": True})
EYES = dict(depth=3, num_heads=2, patch_size=PATCH, spatial_merge_size=MERGE, temporal_patch_size=2)
EYES3 = dict(EYES, depth=4, hidden_size=32, out_hidden_size=32, intermediate_size=40, num_position_embeddings=25, deepstack_visual_indexes=[0, 2])

FAMILIES = {
    "qwen2vl": dict(
        seed=12,
        model=Qwen2VLForConditionalGeneration,
        config=lambda: Qwen2VLConfig(
            text_config=dict(TEXT, num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}),
            vision_config=dict(EYES, embed_dim=32, hidden_size=32, mlp_ratio=2),
            **TOKENS,
        ),
        arch="qwen2vl",
        projector="qwen2vl_merger",
        # The converter writes the width of the rows there.
        n_ff=32,
        min_tokens=4,
        max_tokens=1280,
    ),
    "qwen2.5vl": dict(
        seed=4,
        model=Qwen2_5_VLForConditionalGeneration,
        config=lambda: Qwen2_5_VLConfig(
            text_config=dict(TEXT, num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}),
            vision_config=dict(EYES, depth=4, hidden_size=32, out_hidden_size=32, intermediate_size=40, window_size=16, fullatt_block_indexes=[1, 3]),
            **TOKENS,
        ),
        arch="qwen2vl",
        projector="qwen2.5vl_merger",
        n_ff=40,
        min_tokens=4,
        max_tokens=40,
    ),
    "qwen3vl": dict(
        seed=12,
        model=Qwen3VLForConditionalGeneration,
        config=lambda: Qwen3VLConfig(
            text_config=TEXT3,
            vision_config=EYES3,
            **TOKENS,
        ),
        arch="qwen3vl",
        projector="qwen3vl_merger",
        n_ff=40,
        min_tokens=64,
        max_tokens=1280,
    ),
    "qwen3vlmoe": dict(
        seed=12,
        model=Qwen3VLMoeForConditionalGeneration,
        config=lambda: Qwen3VLMoeConfig(
            text_config=dict(TEXT3, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
            vision_config=EYES3,
            **TOKENS,
        ),
        arch="qwen3vlmoe",
        projector="qwen3vl_merger",
        n_ff=40,
        min_tokens=64,
        max_tokens=1280,
    ),
}

SIZES = [(57, 40, 0), (20, 90, 3)]


def make_model(family):
    config = family["config"]()
    config._attn_implementation = "eager"
    config.vision_config._attn_implementation = "eager"
    config.text_config._attn_implementation = "eager"
    torch.manual_seed(family["seed"])
    model = family["model"](config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name and name.endswith("weight") or "ln_q.weight" in name:
                parameter.copy_(1 + torch.randn_like(parameter) * 0.2)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.1)
            elif "embed_tokens" in name or "pos_embed" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.4)
            else:
                n_in = parameter.shape[-1] if "experts" in name else parameter[0].numel()
                scale = 1.2 if "visual" in name else 2.0
                parameter.copy_(torch.randn_like(parameter) / n_in**0.5 * scale)
            # Rounds to half precision.
            parameter.copy_(parameter.half().float())
    return model


def text_file(folder, family, config, state):
    text = gguf.GGUFWriter(folder / "model.gguf", family["arch"])
    arch, layers = family["arch"], config.text_config.num_hidden_layers
    text.add_context_length(512)
    text.add_embedding_length(32)
    text.add_block_count(layers)
    text.add_feed_forward_length(48)
    text.add_head_count(2)
    text.add_head_count_kv(1)
    text.add_layer_norm_rms_eps(1e-6)
    text.add_rope_freq_base(10000.0)
    sections = config.text_config.rope_parameters["mrope_section"]
    text.add_array(f"{arch}.rope.dimension_sections", sections + [0])
    is_third, has_experts = arch.startswith("qwen3vl"), arch.endswith("moe")
    if is_third:
        text.add_key_length(16)
        text.add_value_length(16)
        text.add_uint32(f"{arch}.n_deepstack_layers", len(config.vision_config.deepstack_visual_indexes))
    if has_experts:
        text.add_expert_count(config.text_config.num_experts)
        text.add_expert_used_count(config.text_config.num_experts_per_tok)
        text.add_expert_feed_forward_length(config.text_config.moe_intermediate_size)
    add_tokenizer(text, QWEN, TEMPLATE, "<|endoftext|>", "<|im_end|>")
    f16 = lambda name: state[name].numpy().astype(np.float16)
    f32 = lambda name: state[name].numpy().astype(np.float32)
    text.add_tensor("token_embd.weight", f16("language_model.embed_tokens.weight"))
    text.add_tensor("output_norm.weight", f32("language_model.norm.weight"))
    for idx in range(layers):
        here, there = f"blk.{idx}.", f"language_model.layers.{idx}."
        names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
        if is_third:
            names |= {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
        for usual, own in names.items():
            text.add_tensor(f"{here}{usual}.weight", f32(f"{there}{own}.weight"))
        for usual, own in {
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }.items():
            if has_experts and usual.startswith("ffn_"):
                continue
            text.add_tensor(f"{here}{usual}.weight", f16(f"{there}{own}.weight"))
            if f"{there}{own}.bias" in state:
                text.add_tensor(f"{here}{usual}.bias", f32(f"{there}{own}.bias"))
        if has_experts:
            text.add_tensor(f"{here}ffn_gate_inp.weight", f32(f"{there}mlp.gate.weight"))
            gate, up = np.split(f16(f"{there}mlp.experts.gate_up_proj"), 2, axis=1)
            text.add_tensor(f"{here}ffn_gate_exps.weight", np.ascontiguousarray(gate))
            text.add_tensor(f"{here}ffn_up_exps.weight", np.ascontiguousarray(up))
            text.add_tensor(f"{here}ffn_down_exps.weight", f16(f"{there}mlp.experts.down_proj"))
    write(text)


def eyes_file(folder, name, family, config, state):
    eyes = gguf.GGUFWriter(folder / "mmproj-model.gguf", "clip")
    vision = config.vision_config
    eyes.add_type("mmproj")
    eyes.add_bool("clip.has_vision_encoder", True)
    eyes.add_string("clip.projector_type", family["projector"])
    if name == "qwen2.5vl":
        eyes.add_bool("clip.use_silu", True)
        eyes.add_uint32("clip.vision.n_wa_pattern", vision.fullatt_block_indexes[0] + 1)
        eyes.add_uint32("clip.vision.window_size", vision.window_size)
        eyes.add_uint32("clip.vision.image_max_pixels", family["max_tokens"] * FACTOR * FACTOR)
    if name.startswith("qwen3vl"):
        eyes.add_bool("clip.use_gelu", True)
        eyes.add_uint32("clip.vision.spatial_merge_size", MERGE)
        eyes.add_array("clip.vision.is_deepstack_layers", [idx in vision.deepstack_visual_indexes for idx in range(vision.depth)])
    for key, value in {
        "image_size": 20 if name.startswith("qwen3vl") else 160,
        "patch_size": PATCH,
        "embedding_length": 32,
        "feed_forward_length": family["n_ff"],
        "block_count": vision.depth,
        "attention.head_count": 2,
        "projection_dim": 32,
    }.items():
        eyes.add_uint32(f"clip.vision.{key}", value)
    eyes.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    eyes.add_array("clip.vision.image_mean", MEAN)
    eyes.add_array("clip.vision.image_std", STD)
    value = lambda name: state[f"visual.{name}"].numpy()
    f16 = lambda name: value(name).astype(np.float16)
    f32 = lambda name: value(name).astype(np.float32)
    frames = f16("patch_embed.proj.weight")
    eyes.add_tensor("v.patch_embd.weight", np.ascontiguousarray(frames[:, :, 0]))
    eyes.add_tensor("v.patch_embd.weight.1", np.ascontiguousarray(frames[:, :, 1]))
    if name.startswith("qwen3vl"):
        eyes.add_tensor("v.patch_embd.bias", f32("patch_embed.proj.bias"))
        eyes.add_tensor("v.position_embd.weight", f32("pos_embed.weight"))

    def pair(usual, own, weight=f16):
        eyes.add_tensor(f"{usual}.weight", weight(f"{own}.weight"))
        if f"visual.{own}.bias" in state:
            eyes.add_tensor(f"{usual}.bias", f32(f"{own}.bias"))

    for idx in range(vision.depth):
        here, there = f"v.blk.{idx}.", f"blocks.{idx}."
        pair(f"{here}ln1", f"{there}norm1", f32)
        pair(f"{here}ln2", f"{there}norm2", f32)
        pair(f"{here}attn_out", f"{there}attn.proj")
        if name.startswith("qwen3vl"):
            pair(f"{here}attn_qkv", f"{there}attn.qkv")
        else:
            for part, rows in zip("qkv", np.split(f16(f"{there}attn.qkv.weight"), 3)):
                eyes.add_tensor(f"{here}attn_{part}.weight", np.ascontiguousarray(rows))
            for part, rows in zip("qkv", np.split(f32(f"{there}attn.qkv.bias"), 3)):
                eyes.add_tensor(f"{here}attn_{part}.bias", np.ascontiguousarray(rows))
        for usual, own in {
            "qwen2vl": {"ffn_up": "fc1", "ffn_down": "fc2"},
            "qwen2.5vl": {"ffn_gate": "gate_proj", "ffn_up": "up_proj", "ffn_down": "down_proj"},
            "qwen3vl": {"ffn_up": "linear_fc1", "ffn_down": "linear_fc2"},
        }[name.removesuffix("moe")].items():
            pair(f"{here}{usual}", f"{there}mlp.{own}")
    if name.startswith("qwen3vl"):
        pair("v.post_ln", "merger.norm", f32)
        pair("mm.0", "merger.linear_fc1")
        pair("mm.2", "merger.linear_fc2")
        for which, idx in enumerate(vision.deepstack_visual_indexes):
            pair(f"v.deepstack.{idx}.norm", f"deepstack_merger_list.{which}.norm", f32)
            pair(f"v.deepstack.{idx}.fc1", f"deepstack_merger_list.{which}.linear_fc1")
            pair(f"v.deepstack.{idx}.fc2", f"deepstack_merger_list.{which}.linear_fc2")
    else:
        pair("v.post_ln", "merger.ln_q", f32)
        pair("mm.0", "merger.mlp.0")
        pair("mm.2", "merger.mlp.2")
    write(eyes)


def references(folder, name, family, model):
    processor = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        image_mean=MEAN,
        image_std=STD,
        size={"shortest_edge": family["min_tokens"] * FACTOR**2, "longest_edge": family["max_tokens"] * FACTOR**2},
    )
    pictures = [picture(*size) for size in SIZES]
    for idx, image in enumerate(pictures):
        image.save(folder / f"{idx}.png", optimize=True)
    cases, margins = [], []
    for question, shown in [("What is it?", [0]), ("Two:", [1, 0])]:
        made = processor([pictures[idx] for idx in shown], return_tensors="pt")
        pixels, grids = made["pixel_values"], made["image_grid_thw"]
        counts = [int(grid.prod()) // MERGE**2 for grid in grids]
        image_text = "".join(f"<|vision_start|>{'<|image_pad|>' * n}<|vision_end|>" for n in counts)
        ids = encode(f"<|im_start|>user\n{image_text}{question}<|im_end|>\n<|im_start|>assistant\n", QWEN)
        n_prompt, generated = len(ids), []
        with torch.no_grad():
            features = model.model.get_image_features(pixels, grids)
            rows = torch.cat(list(features.pooler_output))
            if name.startswith("qwen3vl"):
                deep = [torch.cat(list(of_images)) for of_images in features.deepstack_features]
                rows = torch.cat([rows, *deep], -1)
            for _ in range(8):
                tokens = torch.tensor([ids + generated])
                kinds = (tokens == ID["<|image_pad|>"]).int()
                logits = model(input_ids=tokens, pixel_values=pixels, image_grid_thw=grids, mm_token_type_ids=kinds, use_cache=False).logits[0]
                if not generated:
                    positions = model.model.get_rope_index(tokens, mm_token_type_ids=kinds, image_grid_thw=grids)[0][:, 0]
                    first = logits
                top = logits[-1].topk(2)
                margins.append(float(top.values[0] - top.values[1]))
                generated.append(int(top.indices[0]))
        cases.append(
            dict(
                question=question,
                images=[f"{idx}.png" for idx in shown],
                prompt=ids,
                grids=[[int(side) for side in grid[1:]] for grid in grids],
                # The first frame of the first patches of the first image.
                pixels=[round(float(p), 5) for p in pixels[:6].reshape(6, 3, 2, PATCH, PATCH)[:, :, 0].flatten()],
                positions=positions.T.tolist(),
                features=numbers(rows),
                last_logits=numbers(first[-1]),
                middle_logits=numbers(first[n_prompt // 2]),
                greedy=generated,
            )
        )
    (folder / "ref.json").write_text(json.dumps(dict(cases=cases)) + "\n")
    print(name, [case["greedy"] for case in cases], "smallest margin", round(min(margins), 3))
    print(folder, sum(path.stat().st_size for path in folder.iterdir()), "bytes")


def make_sizes():
    """What smart_resize makes of sizes, at each end of the limits and where halves are rounded to even."""
    sizes = [(1, 1), (3, 200), (28, 28), (42, 70), (14, 98), (1000, 1000), (4000, 3000), (37, 5000), (560, 560), (99, 101)]
    limits = [(28, 56 * 56, 28 * 28 * 1280), (32, 256 * 256, 32 * 32 * 1280), (8, 64 * 64, 40 * 64)]
    cases = []
    for width, height in sizes:
        for factor, at_least, at_most in limits:
            h, w = smart_resize(height, width, factor, at_least, at_most)
            cases.append([width, height, factor, at_least, at_most, w, h])
    (HERE / "smart_resize.json").write_text(json.dumps(cases) + "\n")


if __name__ == "__main__":
    for name in sys.argv[2:] or FAMILIES:
        family = FAMILIES[name]
        folder = HERE / name
        folder.mkdir(parents=True, exist_ok=True)
        model = make_model(family)
        state = {key.removeprefix("model."): value for key, value in model.state_dict().items()}
        text_file(folder, family, model.config, state)
        eyes_file(folder, name, family, model.config, state)
        references(folder, name, family, model)
    make_sizes()
