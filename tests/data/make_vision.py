#!/usr/bin/env python3
"""Makes tests/data/vision: tiny random models that see, and what transformers computes with them.

    pip install transformers==5.23.0 torch==2.15.0 torchvision pillow==13.0.0 gguf numpy
    make_vision.py [FOLDER]

The weights are drawn with a fixed seed, so files and figures come out the same each time. Tensors have the names of llama.cpp's
converter. Pictures are drawn here.
"""

import json
import sys
import zlib
from pathlib import Path

import gguf
import numpy as np
import torch
from PIL import Image
from transformers import Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma3 import modeling_gemma3

HERE = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent / "vision")

# Among the first seeds, this one gives many different greedy tokens, none by a small margin.
SEED = 11

# --- The vocabulary: a token for each character, and the control tokens.

CHARS = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["Ġ", "Ċ", "~~"]
GEMMA = ["<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"]

GEMMA_TEMPLATE = """{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""


def encode(text, controls):
    """The ids of a text in which control tokens are written out."""
    ids, at = [], 0
    names = CHARS + controls
    while at < len(text):
        control = next((name for name in controls if text.startswith(name, at)), None)
        if control:
            ids.append(names.index(control))
            at += len(control)
        else:
            ids.append(names.index({" ": "Ġ", "\n": "Ċ"}.get(text[at], text[at])))
            at += 1
    return ids


def add_tokenizer(writer, controls, template, bos, eos):
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(CHARS + controls)
    writer.add_token_types([1] * len(CHARS) + [3] * len(controls))
    # At least one, or the key is left out; it joins nothing that is in a text.
    writer.add_token_merges(["~ ~"])
    names = CHARS + controls
    writer.add_bos_token_id(names.index(bos))
    writer.add_eos_token_id(names.index(eos))
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)


def picture(width, height, turn):
    """A picture with edges and slopes."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 127 + 120 * np.sin((x + turn) / 5.0)
    green = 255.0 * y / max(height - 1, 1)
    blue = 255.0 * (((x // 7) + (y // 5) + turn) % 2)
    return Image.fromarray(np.stack([red, green, blue], -1).clip(0, 255).astype(np.uint8))


def numbers(tensor):
    return [round(float(value), 6) for value in tensor.detach().flatten()]


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# --- Resizing.


def make_resized():
    """Checksums of what Pillow makes of a picture."""
    image = picture(57, 40, 0)
    cases = []
    for filter_name in ["bilinear", "bicubic"]:
        for width, height in [(32, 32), (7, 90), (130, 20), (57, 3), (200, 40), (1, 1)]:
            resized = image.resize((width, height), Image.Resampling[filter_name.upper()])
            data = resized.tobytes()
            cases.append(dict(filter=filter_name, width=width, height=height, first=list(data[:6]), crc32=zlib.crc32(data)))
    HERE.mkdir(parents=True, exist_ok=True)
    (HERE / "resized.json").write_text(json.dumps(cases) + "\n")


# --- Gemma 3.


def gemma3_model():
    """The model, with numbers that half precision holds."""
    n_vocab = len(CHARS + GEMMA)
    soft = (CHARS + GEMMA).index("<image_soft_token>")
    config = Gemma3Config(
        text_config=dict(
            vocab_size=n_vocab,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            query_pre_attn_scalar=16,
            sliding_window=24,
            layer_types=["sliding_attention", "full_attention"],
            max_position_embeddings=512,
            rms_norm_eps=1e-6,
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            },
        ),
        vision_config=dict(
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=32,
            patch_size=4,
            layer_norm_eps=1e-6,
        ),
        mm_tokens_per_image=16,
        image_token_index=soft,
    )
    config._attn_implementation = "eager"
    torch.manual_seed(SEED)
    model = Gemma3ForConditionalGeneration(config).eval().float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name and "post_" in name and "vision" not in name:
                # Layers that outweigh the embedding, or each token would be followed by itself.
                parameter.copy_(3 + torch.randn_like(parameter))
            elif "norm" in name and name.endswith("weight") and "vision" not in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            elif "norm" in name and name.endswith("weight"):
                parameter.copy_(1 + torch.randn_like(parameter) * 0.2)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.1)
            elif "embed" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5 * 1.5)
            # Rounds to half precision.
            parameter.copy_(parameter.half().float())
    return model


def make_gemma3():
    folder = HERE / "gemma3"
    folder.mkdir(parents=True, exist_ok=True)
    soft = (CHARS + GEMMA).index("<image_soft_token>")
    model = gemma3_model()
    state = {name.removeprefix("model."): value for name, value in model.state_dict().items()}

    def f16(name, shape=None):
        value = state[name].numpy().astype(np.float16)
        return value if shape is None else value.reshape(shape)

    def f32(name, add=0.0):
        return state[name].numpy().astype(np.float32) + np.float32(add)

    text = gguf.GGUFWriter(folder / "model.gguf", "gemma3")
    text.add_context_length(512)
    text.add_embedding_length(32)
    text.add_block_count(2)
    text.add_feed_forward_length(48)
    text.add_head_count(2)
    text.add_head_count_kv(1)
    text.add_key_length(16)
    text.add_value_length(16)
    text.add_layer_norm_rms_eps(1e-6)
    text.add_rope_freq_base(1000000.0)
    text.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    text.add_rope_scaling_factor(8.0)
    text.add_sliding_window(24)
    text.add_array("gemma3.attention.sliding_window_pattern", [True, False])
    add_tokenizer(text, GEMMA, GEMMA_TEMPLATE, "<bos>", "<end_of_turn>")
    text.add_tensor("token_embd.weight", f16("language_model.embed_tokens.weight"))
    text.add_tensor("output_norm.weight", f32("language_model.norm.weight", 1))
    for idx in range(2):
        here, there = f"blk.{idx}.", f"language_model.layers.{idx}."
        for usual, own in {
            "attn_norm": "input_layernorm",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
            "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
        }.items():
            text.add_tensor(f"{here}{usual}.weight", f32(f"{there}{own}.weight", 1))
        for usual, own in {
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }.items():
            text.add_tensor(f"{here}{usual}.weight", f16(f"{there}{own}.weight"))
    write(text)

    eyes = gguf.GGUFWriter(folder / "mmproj-model.gguf", "clip")
    eyes.add_type("mmproj")
    eyes.add_bool("clip.has_vision_encoder", True)
    eyes.add_string("clip.projector_type", "gemma3")
    eyes.add_bool("clip.use_gelu", True)
    for key, value in {
        "image_size": 32,
        "patch_size": 4,
        "embedding_length": 24,
        "feed_forward_length": 40,
        "block_count": 2,
        "attention.head_count": 2,
        "projection_dim": 32,
        "projector.scale_factor": 2,
    }.items():
        eyes.add_uint32(f"clip.vision.{key}", value)
    eyes.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    eyes.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    eyes.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    tower = next(name for name in state if name.endswith("patch_embedding.weight"))
    tower = tower.removesuffix("embeddings.patch_embedding.weight")
    eyes.add_tensor("v.patch_embd.weight", f16(f"{tower}embeddings.patch_embedding.weight"))
    eyes.add_tensor("v.patch_embd.bias", f32(f"{tower}embeddings.patch_embedding.bias"))
    eyes.add_tensor("v.position_embd.weight", f32(f"{tower}embeddings.position_embedding.weight"))
    for idx in range(2):
        here, there = f"v.blk.{idx}.", f"{tower}encoder.layers.{idx}."
        for usual, own in {
            "ln1": "layer_norm1",
            "ln2": "layer_norm2",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_out": "self_attn.out_proj",
            "ffn_up": "mlp.fc1",
            "ffn_down": "mlp.fc2",
        }.items():
            weight = f32 if usual.startswith("ln") else f16
            eyes.add_tensor(f"{here}{usual}.weight", weight(f"{there}{own}.weight"))
            eyes.add_tensor(f"{here}{usual}.bias", f32(f"{there}{own}.bias"))
    eyes.add_tensor("v.post_ln.weight", f32(f"{tower}post_layernorm.weight"))
    eyes.add_tensor("v.post_ln.bias", f32(f"{tower}post_layernorm.bias"))
    eyes.add_tensor("mm.input_projection.weight", f16("multi_modal_projector.mm_input_projection_weight"))
    eyes.add_tensor("mm.soft_emb_norm.weight", f32("multi_modal_projector.mm_soft_emb_norm.weight", 1))
    write(eyes)

    cases, margins = [], []
    pictures = [picture(57, 40, 0), picture(20, 90, 3)]
    for idx, image in enumerate(pictures):
        image.save(folder / f"{idx}.png", optimize=True)
    for question, shown in [("What is it?", [0]), ("Two: ", [1, 0])]:
        pixels = []
        for idx in shown:
            image = pictures[idx].resize((32, 32), Image.Resampling.BILINEAR)
            array = np.asarray(image, np.float32) / np.float32(255)
            pixels.append(torch.tensor((array - 0.5) / 0.5).permute(2, 0, 1))
        pixels = torch.stack(pixels)
        image_text = "\n\n<start_of_image>" + "<image_soft_token>" * 16 + "<end_of_image>\n\n"
        prompt = f"<bos><start_of_turn>user\n{image_text * len(shown)}{question}<end_of_turn>\n<start_of_turn>model\n"
        ids = encode(prompt, GEMMA)
        n_prompt = len(ids)
        with torch.no_grad():
            features = model.model.get_image_features(pixels)
            features = getattr(features, "pooler_output", features)
            generated = []
            for _ in range(8):
                tokens = torch.tensor([ids + generated])
                kinds = (tokens == soft).long()
                logits = model(input_ids=tokens, pixel_values=pixels, token_type_ids=kinds, use_cache=False).logits[0]
                if not generated:
                    last = logits[n_prompt - 1]
                    first = logits[: n_prompt]
                top = logits[-1].topk(2)
                margin = float(top.values[0] - top.values[1])
                generated.append(int(top.indices[0]))
                margins.append(margin)
        cases.append(
            dict(
                question=question,
                images=[f"{idx}.png" for idx in shown],
                prompt=ids,
                pixels=[round(float(p), 5) for p in pixels[0].permute(1, 2, 0).flatten()[:96]],
                features=numbers(torch.cat([f.reshape(-1, 32) for f in features])),
                last_logits=numbers(last),
                middle_logits=numbers(first[n_prompt // 2]),
                greedy=generated,
            )
        )
    (folder / "ref.json").write_text(json.dumps(dict(cases=cases)) + "\n")
    print([case["greedy"] for case in cases], "smallest margin", round(min(margins), 3))
    print(folder, sum(path.stat().st_size for path in folder.iterdir()), "bytes")


if __name__ == "__main__":
    make_resized()
    make_gemma3()
