#!/usr/bin/env python3
"""Makes the tiny random networks in `networks/`: a folder as published ones are, a GGUF file, and what the reference says.

    pip install torch==2.15.0 transformers==5.23.0 gguf==0.19.0 safetensors
    make_networks.py --full FOLDER [--converter FILE] [NAME ...]

FOLDER is the full set of reference data, from which tokenizers are taken. Weights are random, drawn from a fixed seed, and rounded
to 8 significant bits, so that BF16 and F32 hold the same numbers. References are transformers' own classes in float32, but for
jina-bert-v2, which transformers has as remote code only: its layers are written out below, from the published description.
GGUF files are written tensor by tensor with the names of llama.cpp's table, by gguf-py, so they are no work of this project's
converter.
"""

import argparse
import copy
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent
# A limit for arithmetic in f32, as the fixtures of the full set have it.
F32_LIMIT = 2e-4


def rounded(tensor, generator, scale, center=0.0):
    values = torch.randn(tensor.shape, generator=generator) * scale + center
    return values.to(torch.bfloat16).to(torch.float32)


def randomize(model, seed):
    """Draws all parameters: matrices so that rows keep their size, norms about 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        with torch.no_grad():
            if parameter.dim() > 1:
                is_table = "embed" in name
                parameter.copy_(rounded(parameter, generator, 1.0 if is_table else parameter.shape[-1] ** -0.5))
            elif "norm" in name.lower() and name.endswith("weight"):
                parameter.copy_(rounded(parameter, generator, 0.2, 1.0))
            else:
                parameter.copy_(rounded(parameter, generator, 0.1))
        if name.endswith("expert_bias"):
            with torch.no_grad():
                parameter.copy_(rounded(parameter, generator, 0.3))
    for name, buffer in sorted(model.named_buffers()):
        if "correction_bias" in name:
            buffer.copy_(rounded(buffer, generator, 0.05))
    return model.eval().to(torch.float32)


def prompts(seed, first, last, n_vocab=500):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randint(5, n_vocab, (n,), generator=generator).tolist()
    return [first + draw(n) + last for n in (3, 31, 70)]


class Writer:
    """A GGUF file: the metadata of `like` that tokenizers need, and the network's own."""

    def __init__(self, path, arch, like):
        self.writer = gguf.GGUFWriter(path, arch)
        self.arch = arch
        for field in gguf.GGUFReader(like).fields.values():
            if not field.name.startswith("tokenizer.") or field.name == "tokenizer.chat_template":
                continue
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            self.writer.add_key_value(field.name, field.contents(), kind, sub)
        self.writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)

    def set(self, **values):
        for key, value in values.items():
            key = f"{self.arch}.{key.replace('__', '.')}"
            if isinstance(value, bool):
                self.writer.add_bool(key, value)
            elif isinstance(value, int):
                self.writer.add_uint32(key, value)
            elif isinstance(value, float):
                self.writer.add_float32(key, value)
            elif isinstance(value, str):
                self.writer.add_string(key, value)
            else:
                self.writer.add_array(key, value)

    def tensor(self, name, tensor):
        values = tensor.detach().to(torch.float32).contiguous().numpy()
        if values.ndim == 1 or "ffn_gate_inp" in name:
            return self.writer.add_tensor(name, values)
        bf16 = gguf.GGMLQuantizationType.BF16
        self.writer.add_tensor(name, gguf.quants.quantize(values, bf16), raw_dtype=bf16)

    def close(self):
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def write_folder(folder, config, tensors, tokenizer_from, pooling=None):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tokenizer_from / name).exists():
            shutil.copyfile(tokenizer_from / name, folder / name)
    if pooling:
        (folder / "1_Pooling").mkdir()
        modes = {"pooling_mode_cls_token": "first", "pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
        modes = {key: kind == pooling for key, kind in modes.items()}
        (folder / "1_Pooling/config.json").write_text(json.dumps(modes, indent=1) + "\n")


def write_reference(folder, facts, tensors):
    facts = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "gguf": "0.19.0"},
        "types": {"BF16": {"file": "model-BF16.gguf"}},
        **facts,
    }
    (folder / "ref.json").write_text(json.dumps(facts, indent=1) + "\n")
    save_file({name: torch.as_tensor(tensor).contiguous() for name, tensor in tensors.items()}, folder / "ref.safetensors")


def rms(a, b):
    return float(((a - b) ** 2).mean().sqrt())


def pooled_reference(folder, name, arch, run, model, ids, kind="embedding"):
    """`run(model, ids)` gives a row. The limit for half precision is three times what half precision of the reference gives."""
    rows = [run(model, row) for row in ids]
    half = [run(copy.deepcopy(model).to(torch.bfloat16), row).to(torch.float32) for row in ids]
    error = max(rms(a, b) for a, b in zip(rows, half))
    facts = {
        "arch": name,
        "kind": kind,
        "gguf_arch": arch,
        "prompts": ids,
        "tolerance": {
            "f32_compute": {"max_abs": F32_LIMIT},
            # bf16 has 3 bits less than f16.
            "f16_compute": {"rms": error / 4},
            "q8_activations": {},
        },
    }
    write_reference(folder, facts, {f"f32.p{i}.{kind}": row for i, row in enumerate(rows)})


def mean_of(hidden):
    return hidden[0].mean(0)


# --- jina-bert-v2. Source: modeling_bert.py of jinaai/jina-bert-implementation and of jinaai/jina-bert-v2-qk-post-norm.


def alibi_slopes(n_heads):
    """Press et al. 2021: a power of two has slopes 2^(-8 i / n); others take every second of the next power's."""
    n = 2 ** math.floor(math.log2(n_heads))
    of = lambda n: [2 ** (-8 * (i + 1) / n) for i in range(n)]
    return torch.tensor(of(n) + of(2 * n)[0::2][: n_heads - n])


class JinaV2(torch.nn.Module):
    def __init__(self, n_vocab, n_embd, n_ff, n_heads, n_layers, eps, is_code):
        super().__init__()
        self.n_heads, self.eps, self.is_code, self.n_ff = n_heads, eps, is_code, n_ff
        linear = lambda n_in, n_out, bias=True: torch.nn.Linear(n_in, n_out, bias=bias)
        norm = lambda: torch.nn.LayerNorm(n_embd, eps=eps)
        tree = lambda **parts: torch.nn.ModuleDict(parts)
        self.embeddings = tree(
            word_embeddings=torch.nn.Embedding(n_vocab, n_embd),
            token_type_embeddings=torch.nn.Embedding(2, n_embd),
            LayerNorm=norm(),
        )
        layers = []
        for _ in range(n_layers):
            own = {name: linear(n_embd, n_embd) for name in ("query", "key", "value")}
            if is_code:
                own |= {"layer_norm_q": norm(), "layer_norm_k": norm()}
                mlp = tree(up_gated_layer=linear(n_embd, 2 * n_ff, False), down_layer=linear(n_ff, n_embd))
                more = {"layer_norm_1": norm(), "layer_norm_2": norm()}
            else:
                mlp = tree(gated_layers=linear(n_embd, 2 * n_ff, False), wo=linear(n_ff, n_embd), layernorm=norm())
                more = {}
            output = tree(dense=linear(n_embd, n_embd), LayerNorm=norm())
            attention = torch.nn.ModuleDict()
            attention.add_module("self", tree(**own))
            attention.add_module("output", output)
            layers.append(tree(attention=attention, mlp=mlp, **more))
        self.encoder = tree(layer=torch.nn.ModuleList(layers))

    def forward(self, ids):
        n = len(ids)
        rows = self.embeddings["word_embeddings"](torch.tensor(ids))
        rows = rows + self.embeddings["token_type_embeddings"](torch.zeros(n, dtype=torch.long))
        x = self.embeddings["LayerNorm"](rows)
        steps = torch.arange(n)
        distance = (steps[None] - steps[:, None]).abs()
        bias = -alibi_slopes(self.n_heads).to(x.dtype)[:, None, None] * distance
        for layer in self.encoder["layer"]:
            own, out, mlp = layer["attention"]["self"], layer["attention"]["output"], layer["mlp"]
            q, k, v = own["query"](x), own["key"](x), own["value"](x)
            if self.is_code:
                q, k = own["layer_norm_q"](q), own["layer_norm_k"](k)
            q, k, v = (rows.view(n, self.n_heads, -1).transpose(0, 1) for rows in (q, k, v))
            scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]) + bias
            mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(n, -1)
            attended = out["LayerNorm"](out["dense"](mixed) + x)
            if self.is_code:
                x = layer["layer_norm_1"](x + attended)
                up, gate = mlp["up_gated_layer"](x).split(self.n_ff, dim=-1)
                x = layer["layer_norm_2"](x + mlp["down_layer"](up * F.gelu(gate)))
            else:
                gate, up = mlp["gated_layers"](attended).split(self.n_ff, dim=-1)
                x = mlp["layernorm"](attended + mlp["wo"](F.gelu(gate) * up))
        return x.mean(0)


def make_jina_v2(full, name, is_code):
    folder, source = HERE / "networks" / name, full / "parity2/nomic_bert"
    # Six heads: the slopes are not those of a power of two.
    size = {"n_vocab": 512, "n_embd": 48, "n_ff": 64, "n_heads": 6, "n_layers": 2, "eps": 1e-12}
    model = randomize(JinaV2(**size, is_code=is_code), 11 + is_code)
    code = "jinaai/jina-bert-v2-qk-post-norm" if is_code else "jinaai/jina-bert-implementation"
    config = {
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {"AutoModel": f"{code}--modeling_bert.JinaBertModel"},
        "emb_pooler": "mean",
        "feed_forward_type": "geglu",
        "hidden_act": "gelu",
        "hidden_size": 48,
        "intermediate_size": 64,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "bert",
        "num_attention_heads": 6,
        "num_hidden_layers": 2,
        "pad_token_id": 0,
        "position_embedding_type": "alibi",
        "type_vocab_size": 2,
        "vocab_size": 512,
    }
    tensors = dict(model.named_parameters())
    write_folder(folder / "hf", config, tensors, source / "hf", "mean")
    out = Writer(folder / "model-BF16.gguf", "jina-bert-v2", source / "model-F32.gguf")
    out.set(context_length=512, embedding_length=48, feed_forward_length=64, block_count=2, attention__head_count=6)
    out.set(attention__layer_norm_epsilon=1e-12, attention__causal=False, pooling_type=1)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.JINA_BERT_V2, 2)
    for hf, tensor in tensors.items():
        gguf_name = table.get_name(hf, try_suffixes=(".weight", ".bias"))
        if not is_code and hf.endswith("gated_layers.weight") and ".1." in hf:
            # As older converters wrote it, in two tensors.
            gate, up = tensor.split(64)
            out.tensor("blk.1.ffn_gate.weight", gate)
            out.tensor("blk.1.ffn_up.weight", up)
        else:
            out.tensor(gguf_name, tensor)
    out.close()
    pooled_reference(folder, name, "jina-bert-v2", lambda m, ids: m(ids), model, prompts(21, [2], [3]))


# --- Networks that transformers has.


def make_jina_v3(full):
    name, source = "jina_v3", full / "parity2/xlmr_rerank"
    folder = HERE / "networks" / name
    config = transformers.JinaEmbeddingsV3Config(
        vocab_size=512, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, max_position_embeddings=514,
    )
    model = randomize(transformers.JinaEmbeddingsV3Model(config), 31)
    # As the published folder has it: names and layout of the model's first code.
    own, published = dict(model.named_parameters()), {}
    for hf, tensor in own.items():
        hf = hf.replace("embeddings.LayerNorm", "emb_ln").replace("layers.", "encoder.layers.")
        hf = hf.replace("self_attn.o_proj", "mixer.out_proj")
        hf = hf.replace("post_attention_layernorm", "norm1").replace("post_mlp_layernorm", "norm2")
        if "q_proj" in hf:
            parts = [own[next(n for n in own if n.endswith(hf.split("encoder.")[1].replace("q_proj", p)))] for p in ("q_proj", "k_proj", "v_proj")]
            published[hf.replace("self_attn.q_proj", "mixer.Wqkv")] = torch.cat(parts)
        elif "k_proj" not in hf and "v_proj" not in hf:
            published[hf] = tensor
    settings = config.to_dict() | {"architectures": ["JinaEmbeddingsV3Model"]}
    write_folder(folder / "hf", settings, published, source / "hf", "mean")
    out = Writer(folder / "model-BF16.gguf", "jina-bert-v3", source / "model-F32.gguf")
    out.set(context_length=512, embedding_length=48, feed_forward_length=96, block_count=2, attention__head_count=4)
    out.set(attention__layer_norm_epsilon=1e-5, attention__causal=False, pooling_type=1, rope__freq_base=20000.0)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.JINA_BERT_V3, 2)
    for hf, tensor in published.items():
        if not hf.startswith("pooler"):
            out.tensor(table.get_name(hf, try_suffixes=(".weight", ".bias")), tensor.squeeze(0) if "token_type" in hf else tensor)
    out.close()
    run = lambda m, ids: mean_of(m(torch.tensor([ids])).last_hidden_state)
    pooled_reference(folder, name, "jina-bert-v3", run, model, prompts(32, [0], [2]))


def make_eurobert(full):
    name, source = "eurobert", full / "parity2/modernbert"
    folder = HERE / "networks" / name
    config = transformers.EuroBertConfig(
        vocab_size=512, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
        max_position_embeddings=512, bos_token_id=504, eos_token_id=505, pad_token_id=505, mask_token_id=505,
    )
    model = randomize(transformers.EuroBertModel(config), 41)
    settings = config.to_dict() | {"architectures": ["EuroBertModel"]}
    tensors = dict(model.named_parameters())
    write_folder(folder / "hf", settings, {f"model.{n}": t for n, t in tensors.items()}, source / "hf", "mean")
    out = Writer(folder / "model-BF16.gguf", "eurobert", source / "model-F32.gguf")
    out.set(context_length=512, embedding_length=48, feed_forward_length=96, block_count=2, attention__head_count=4)
    out.set(attention__head_count_kv=2, attention__layer_norm_rms_epsilon=config.rms_norm_eps, attention__causal=False, pooling_type=1)
    out.set(rope__freq_base=float(config.rope_parameters["rope_theta"]), vocab_size=512, rope__dimension_count=12)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.EUROBERT, 2)
    for hf, tensor in tensors.items():
        out.tensor(table.get_name(f"model.{hf}", try_suffixes=(".weight", ".bias")), tensor)
    out.close()
    run = lambda m, ids: mean_of(m(torch.tensor([ids])).last_hidden_state)
    pooled_reference(folder, name, "eurobert", run, model, prompts(42, [504], [505]))


# Ids that stand for `yes` and `no` in the tiny vocabulary.
YES, NO = 97, 203


def make_qwen3_reranker(full):
    """A decoder that ranks: its file has two rows of the output head, those of `yes` and `no`, and answers with their logits."""
    name, source = "qwen3_reranker", full / "parity2/qwen3_embed"
    folder = HERE / "networks" / name
    config = transformers.Qwen3Config(
        vocab_size=512, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16, intermediate_size=96,
        max_position_embeddings=512, bos_token_id=504, eos_token_id=505, tie_word_embeddings=True,
    )
    model = randomize(transformers.Qwen3ForCausalLM(config), 51)
    model.tie_weights()
    tensors = {n: t for n, t in model.named_parameters() if n != "lm_head.weight"}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    out = Writer(folder / "model-BF16.gguf", "qwen3", source / "model-F32.gguf")
    out.set(context_length=512, embedding_length=48, feed_forward_length=96, block_count=2, attention__head_count=4)
    out.set(attention__head_count_kv=2, attention__key_length=16, attention__value_length=16, vocab_size=512, pooling_type=4)
    out.set(attention__layer_norm_rms_epsilon=config.rms_norm_eps, rope__freq_base=float(config.rope_parameters["rope_theta"]))
    out.set(classifier__output_labels=["yes", "no"])
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 2)
    for hf, tensor in tensors.items():
        out.tensor(table.get_name(hf, try_suffixes=(".weight", ".bias")), tensor)
    out.tensor("cls.output.weight", model.model.embed_tokens.weight[[YES, NO]])
    out.close()

    def run(m, ids):
        return m(torch.tensor([ids])).logits[0, -1, [YES, NO]]

    pooled_reference(folder, name, "qwen3", run, model, prompts(52, [], []), "rank")


def logits_reference(name, arch, model, ids):
    """What a network that writes gives. The limit for a half-precision store is a fourth of what half precision of all of it gives."""
    rows, greedy, safe, errors = {}, [], {"0.001": [], "0.02": []}, []
    with torch.no_grad():
        for i, row in enumerate(ids):
            logits = model(torch.tensor([row])).logits[0]
            # A copy: the way back would leave rope's frequencies rounded.
            half = copy.deepcopy(model).to(torch.bfloat16)(torch.tensor([row])).logits[0].float()
            errors.append(rms(logits, half))
            rows[f"f32.p{i}.logits_last"] = logits[-1]
            at = torch.tensor([0, len(row) // 2], dtype=torch.int32)
            rows[f"f32.p{i}.rows"], rows[f"f32.p{i}.rows_idx"] = logits[at.long()], at
            rows[f"f32.p{i}.lse"] = logits.logsumexp(-1)
            rows[f"f32.p{i}.argmax"] = logits.argmax(-1).to(torch.int32)
            if i < 2:
                rows[f"f32.p{i}.logits_f16"] = logits.to(torch.float16)
            tokens, margins = [], []
            for _ in range(12):
                last = model(torch.tensor([row + tokens])).logits[0, -1]
                best = last.topk(2).values
                tokens.append(int(last.argmax()))
                margins.append(float(best[0] - best[1]))
            greedy.append(tokens)
            for key, counts in safe.items():
                counts.append(next((n for n, margin in enumerate(margins) if margin < float(key)), len(margins)))
    facts = {
        "arch": name,
        "gguf_arch": arch,
        "prompts": ids,
        "greedy": greedy,
        "greedy_safe_steps": safe,
        "tolerance": {
            "f32_compute": {"max_abs": F32_LIMIT},
            "f16_kv_cache": {"rms": max(errors) / 4},
            "q8_activations": {},
        },
    }
    return facts, rows


def write_saved(folder, model, tokenizer_from):
    """The folder as transformers writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder / "saved")
    tensors = {}
    for part in sorted((folder / "saved").glob("*.safetensors")):
        tensors |= load_file(part)
    settings = json.loads((folder / "saved/config.json").read_text())
    shutil.rmtree(folder / "saved")
    write_folder(folder / "hf", settings, tensors, tokenizer_from)
    return tensors


# Variants of networks of the full set, of which that has no example: a folder each, without a GGUF file.
VARIANTS = {
    # Norms of queries and keys with weights for each head.
    "command_r_norms": ("command_r", 71, {"use_qk_norm": True, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}),
    "stablelm_norms": (
        "stablelm",
        72,
        {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": False, "hidden_size": 48, "num_attention_heads": 3,
         "num_key_value_heads": 1},
    ),
    # A base of rope that grows beyond the context of the training, which nothing here reaches.
    "dynamic_rope": (
        "llama",
        73,
        {"hidden_size": 48, "head_dim": 20, "num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 72,
         "tie_word_embeddings": False, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    # Scores scaled by the number of the layer.
    "gpt2_scores": ("gpt2", 74, {"n_embd": 48, "n_head": 3, "n_inner": 96, "scale_attn_by_inverse_layer_idx": True, "n_positions": 128}),
    # The layout of Falcon 40B: KV heads for groups, a norm for each half; and biases, which no published model has.
    "falcon_groups": (
        "falcon",
        76,
        {"new_decoder_architecture": True, "bias": True, "hidden_size": 48, "ffn_hidden_size": 96, "num_attention_heads": 4, "num_kv_heads": 2},
    ),
    "gpt_neox_plain": ("gpt_neox", 77, {"attention_bias": False, "hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 96}),
    # Experts in every second layer but the last; biases, of the network next to the experts and of the head, too.
    "ernie_moe_steps": (
        "../parity2/ernie4_5_moe",
        78,
        {"num_hidden_layers": 5, "moe_layer_interval": 2, "moe_layer_end_index": 2, "use_bias": True, "tie_word_embeddings": False,
         "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1},
    ),
    # Experts in every second layer, but for one of these.
    "qwen2_moe_steps": (
        "qwen2_moe",
        79,
        {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3], "hidden_size": 32, "intermediate_size": 48,
         "moe_intermediate_size": 16, "shared_expert_intermediate_size": 32, "layer_types": ["full_attention"] * 4},
    ),
    "qwen3_moe_steps": (
        "qwen3_moe",
        80,
        {"num_hidden_layers": 3, "decoder_sparse_step": 1, "mlp_only_layers": [1], "hidden_size": 32, "head_dim": 16,
         "intermediate_size": 48, "moe_intermediate_size": 16},
    ),
    # More heads of delta nets than of attention.
    "kimi_heads": ("../parity2/kimi_linear", 81, {"linear_num_heads": 3, "linear_head_dim": 16, "num_attention_heads": 2}),
    # Experts with narrower rows of their own.
    "nemotron_latent": ("../parity2/nemotron_h_moe", 75, {"hidden_size": 48, "moe_latent_size": 24, "mlp_bias": True}),
}


def make_variant(full, name):
    base, seed, changes = VARIANTS[name]
    source, folder = full / "parity" / base, HERE / "networks" / name
    settings = json.loads((source / "hf/config.v5.json").read_text()) | changes
    if "time_step_limit" in settings:
        settings["time_step_limit"] = [0.0, math.inf]
    network = getattr(transformers, settings.pop("architectures")[0])
    config = network.config_class.from_dict(settings | {"dtype": "float32"})
    model = randomize(network(config), seed)
    write_saved(folder, model, source / "hf")
    arch = json.loads((source / "ref.json").read_text())["gguf_arch"]
    facts, rows = logits_reference(name, arch, model, prompts(seed + 100, [504], []))
    write_reference(folder, facts | {"types": {}}, rows)


# Networks that the full set has no example of: class, seed, and the fields of the configuration. A name of an architecture says that llama.cpp's
# converter makes a GGUF file of the folder.
SIZES = {"vocab_size": 512, "max_position_embeddings": 512, "bos_token_id": 504, "eos_token_id": 505, "pad_token_id": 505}
SMALL = SIZES | {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
EYES = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "patch_size": 4, "out_hidden_size": 48, "num_position_embeddings": 16}
PIXELS = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
TRINITY = SIZES | {
    "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 12, "intermediate_size": 40, "moe_intermediate_size": 8,
    "num_experts": 5, "num_experts_per_tok": 2, "num_shared_experts": 2, "num_dense_layers": 1, "route_scale": 2.826, "sliding_window": 6,
    "score_func": "sigmoid", "route_norm": True, "rms_norm_eps": 1e-5,
}
CLASSES = {
    "arcee": ("ArceeForCausalLM", 91, "arcee", SMALL | {"head_dim": 16, "tie_word_embeddings": False}),
    "glm": ("GlmForCausalLM", 92, "chatglm", SMALL | {"head_dim": 12, "attention_bias": True, "partial_rotary_factor": 0.5}),
    "dots1": (
        "Dots1ForCausalLM",
        93,
        "dots1",
        SMALL | EXPERTS | {"num_hidden_layers": 3, "num_key_value_heads": 4, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1,
            "norm_topk_prob": True, "routed_scaling_factor": 1.5},
    ),
    "hy_v3": (
        "HYV3ForCausalLM",
        94,
        "hy_v3",
        SMALL | EXPERTS | {"num_hidden_layers": 3, "head_dim": 16, "num_experts": 6, "router_scaling_factor": 1.7},
    ),
    "qwen3_vl_moe": (
        "Qwen3VLMoeForConditionalGeneration",
        95,
        "qwen3vlmoe",
        {"text_config": SMALL | EXPERTS | {"moe_intermediate_size": 32, "head_dim": 16, "num_experts": 6, "rope_parameters": MROPE, "tie_word_embeddings": False},
         "vision_config": EYES | {"deepstack_visual_indexes": [0]}, "tie_word_embeddings": False},
    ),
    # The text part of a model of images is a network of its own.
    "smolvlm": (
        "SmolVLMForConditionalGeneration",
        96,
        "llama",
        {"text_config": SMALL | {"model_type": "llama", "head_dim": 12, "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
         "vision_config": PIXELS, "scale_factor": 2, "image_token_id": 509},
    ),
    # Defaults of its class are left out: the base of rope, the shares of heads, the windows.
    "olmo3_bare": ("Olmo3ForCausalLM", 97, "olmo2", SMALL | {"num_hidden_layers": 4, "sliding_window": 8}),
    # A dense layer, layers with windows before and after one that sees all and has no positions, and three heads with one of keys. The class
    # takes the score and the sum of weights for granted; published folders name them.
    "afmoe": ("AfmoeForCausalLM", 98, "afmoe", TRINITY | {"mup_enabled": True, "num_hidden_layers": 5}),
    # Without scaled embeddings, and with windows in other layers than files have without a list: a file cannot say the first.
    "afmoe_plain": (
        "AfmoeForCausalLM",
        99,
        "afmoe",
        TRINITY | {"mup_enabled": False, "num_hidden_layers": 3, "global_attn_every_n_layers": 2, "tie_word_embeddings": True},
    ),
}
# Networks whose converter needs a token that the vocabulary lacks, or that a file cannot describe.
WITHOUT_FILE = {"glm", "smolvlm", "afmoe_plain"}
# Fields that a folder leaves out.
LEFT_OUT = {"olmo3_bare": ["rope_parameters", "layer_types", "hidden_act", "rms_norm_eps", "tie_word_embeddings", "attention_bias"]}


# The converter, for a vocabulary that it does not know.
CONVERT = """
import runpy, sys
from pathlib import Path
converter = sys.argv[1]
sys.path.insert(0, str(Path(converter).parent))
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda *_: "llama-bpe"
sys.argv = sys.argv[1:]
runpy.run_path(converter, run_name="__main__")
"""


def make_class(full, name, converter):
    kind, seed, arch, fields = CLASSES[name]
    folder, source = HERE / "networks" / name, full / "parity/llama"
    if name in WITHOUT_FILE:
        converter = None
    network = getattr(transformers, kind)
    config = network.config_class(**copy.deepcopy(fields))
    config._attn_implementation = "eager"
    model = randomize(network(config), seed)
    tensors = write_saved(folder, model, source / "hf")
    path = folder / "hf/config.json"
    settings = json.loads(path.read_text())
    if kind.startswith("Qwen3VLMoe"):
        # As published, and as the converter takes it: the inputs of experts are rows.
        tensors = {key: tensor.transpose(1, 2) if ".mlp.experts." in key else tensor for key, tensor in tensors.items()}
        write_folder(folder / "hf", settings, tensors, source / "hf")
    for field in LEFT_OUT.get(name, []):
        settings.pop(field, None)
    path.write_text(json.dumps(settings, indent=1) + "\n")
    facts, rows = logits_reference(name, arch, model, prompts(seed + 100, [504], []))
    if converter:
        file = folder / "model-BF16.gguf"
        subprocess.run([sys.executable, "-c", CONVERT, converter, folder / "hf", "--outfile", file, "--outtype", "bf16"], check=True)
    write_reference(folder, facts | ({} if converter else {"types": {}}), rows)


def make_glm4_7_flash(full):
    """The epsilon is 1e-6: transformers norms latent rows with that whatever the configuration says, llama.cpp with the
    configuration's, and the two agree here."""
    name, source = "glm4_7_flash", full / "parity/deepseek_v3"
    folder = HERE / "networks" / name
    config = transformers.Glm4MoeLiteConfig(
        vocab_size=512, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, intermediate_size=64, moe_intermediate_size=16, n_routed_experts=8,
        num_experts_per_tok=2, n_shared_experts=1, routed_scaling_factor=1.8, n_group=1, topk_group=1, norm_topk_prob=True,
        max_position_embeddings=512, bos_token_id=504, eos_token_id=[505], pad_token_id=505, mlp_layer_types=["dense", "sparse", "sparse"], rms_norm_eps=1e-6,
    )
    model = randomize(transformers.Glm4MoeLiteForCausalLM(config), 61)
    tensors = write_saved(folder, model, source / "hf")
    ids = prompts(62, [504], [])
    facts, rows = logits_reference(name, "deepseek2", model, ids)
    # The file, by this table: latent attention's joined matrix is split, and the keys' half is transposed.
    out = Writer(folder / "model-BF16.gguf", "deepseek2", source / "model-F32.gguf")
    out.set(context_length=512, embedding_length=32, feed_forward_length=64, block_count=3, vocab_size=512, attention__head_count=4)
    out.set(attention__head_count_kv=1, attention__q_lora_rank=32, attention__kv_lora_rank=32, attention__key_length=40)
    out.set(attention__value_length=32, attention__key_length_mla=24, attention__value_length_mla=16, rope__dimension_count=8)
    out.set(attention__layer_norm_rms_epsilon=config.rms_norm_eps, rope__freq_base=float(config.rope_parameters["rope_theta"]))
    out.set(leading_dense_block_count=1, expert_count=8, expert_used_count=2, expert_shared_count=1, expert_feed_forward_length=16)
    out.set(expert_weights_scale=1.8, expert_weights_norm=True, expert_gating_func=2, expert_group_count=1, expert_group_used_count=1)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, 3)
    experts = {}
    for hf, tensor in tensors.items():
        if ".mlp.experts." in hf:
            layer, expert, part = hf.split(".")[2], int(hf.split(".")[5]), hf.split(".")[6]
            experts.setdefault((layer, part), {})[expert] = tensor
        elif hf.endswith("kv_b_proj.weight"):
            keys, values = tensor.view(4, 32, 32).split([16, 16], dim=1)
            layer = hf.split(".")[2]
            out.tensor(f"blk.{layer}.attn_k_b.weight", keys.transpose(1, 2))
            out.tensor(f"blk.{layer}.attn_v_b.weight", values)
        else:
            hf = hf.replace("e_score_correction_bias", "e_score_correction.bias")
            out.tensor(table.get_name(hf, try_suffixes=(".weight", ".bias")), tensor)
    for (layer, part), matrices in experts.items():
        name_of = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}[part]
        out.tensor(f"blk.{layer}.{name_of}.weight", torch.stack([matrices[e] for e in range(8)]))
    out.close()
    write_reference(folder, facts, rows)


CONVERTER = None
NETWORKS = {
    "jina_v2": lambda full: make_jina_v2(full, "jina_v2", False),
    "jina_v2_code": lambda full: make_jina_v2(full, "jina_v2_code", True),
    "jina_v3": make_jina_v3,
    "eurobert": make_eurobert,
    "qwen3_reranker": make_qwen3_reranker,
    "glm4_7_flash": make_glm4_7_flash,
    **{name: lambda full, name=name: make_variant(full, name) for name in VARIANTS},
    **{name: lambda full, name=name: make_class(full, name, CONVERTER) for name in CLASSES},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=Path, required=True)
    parser.add_argument("--converter", type=Path, help="llama.cpp's convert_hf_to_gguf.py, for the files of some")
    parser.add_argument("names", nargs="*", choices=[*NETWORKS, []])
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    global CONVERTER
    CONVERTER = args.converter
    for name in args.names or NETWORKS:
        NETWORKS[name](args.full)
        size = sum(path.stat().st_size for path in (HERE / "networks" / name).rglob("*") if path.is_file())
        print(f"{name}: {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
