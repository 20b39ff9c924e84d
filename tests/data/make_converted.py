#!/usr/bin/env python3
"""Makes more of `networks/`: those whose folders transformers does not write (`exaone`, `minicpm`), and encoders of RoBERTa's family with
the pooler that published folders have (`roberta`, `xlm_roberta`). Their GGUF files are llama.cpp's converter's.

    pip install torch==2.15.0 transformers==5.23.0 gguf==0.19.0 safetensors sentencepiece
    make_converted.py --full FOLDER --converter FILE [NAME ...]

EXAONE 3 is Llama under other names, and MiniCPM is Granite with multipliers of other names: these classes compute the references. Weights
are drawn as in make_networks.py. The vocabulary of MiniCPM is trained on this repository's README by SentencePiece.
"""

import argparse
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import sentencepiece
import torch
import transformers

from make_networks import CONVERT, HERE, logits_reference, pooled_reference, prompts, randomize, write_folder, write_reference

SMALL = dict(
    vocab_size=512, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
    max_position_embeddings=512, bos_token_id=504, eos_token_id=505, pad_token_id=505, rms_norm_eps=1e-5,
)

# The names of EXAONE's tensors, by those of Llama.
EXAONE = {
    "model.embed_tokens.": "transformer.wte.",
    "model.norm.": "transformer.ln_f.",
    "model.layers.": "transformer.h.",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn.": "attn.attention.",
    "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
}


def convert(converter, folder, pre):
    # Reading the tokenizer reads the configuration too, and of a class that is not known asks for a field before it is there.
    script = "import transformers\ntransformers.PreTrainedConfig.max_position_embeddings = 512\n" + CONVERT.replace('"llama-bpe"', repr(pre))
    command = [sys.executable, "-c", script, converter, folder / "hf", "--outfile", folder / "model-BF16.gguf", "--outtype", "bf16"]
    subprocess.run(command, check=True)


def make_exaone(full, converter):
    folder = HERE / "networks/exaone"
    rope = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
    config = transformers.LlamaConfig(**SMALL, tie_word_embeddings=False, rope_parameters=rope | {"rope_theta": 10000.0})
    config._attn_implementation = "eager"
    model = randomize(transformers.LlamaForCausalLM(config), 101)
    tensors = {}
    for name, tensor in model.named_parameters():
        for usual, own in EXAONE.items():
            name = name.replace(usual, own)
        tensors[name] = tensor
    settings = dict(
        architectures=["ExaoneForCausalLM"], model_type="exaone", activation_function="silu", vocab_size=512, hidden_size=32, num_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=64, max_position_embeddings=512, layer_norm_epsilon=1e-5,
        rope_theta=10000.0, rope_scaling=rope, tie_word_embeddings=False, bos_token_id=504, eos_token_id=505, pad_token_id=505, torch_dtype="bfloat16",
    )
    write_folder(folder / "hf", settings, tensors, full / "parity/llama/hf")
    facts, rows = logits_reference("exaone", "exaone", model, prompts(201, [504], []))
    convert(converter, folder, "llama-bpe")
    write_reference(folder, facts, rows)


def train_vocabulary(path):
    """512 tokens: `<unk>`, `<s>`, `</s>`, the bytes, and what is in a text."""
    text, made = (HERE.parents[1] / "README.md").read_text(), io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_writer=made, vocab_size=512, model_type="bpe", byte_fallback=True,
        hard_vocab_limit=True, character_coverage=0.98, num_threads=1, minloglevel=2,
    )
    path.write_bytes(made.getvalue())


def make_minicpm(full, converter):
    folder = HERE / "networks/minicpm"
    scales = dict(scale_emb=12, scale_depth=1.4, dim_model_base=16)
    small = SMALL | dict(bos_token_id=1, eos_token_id=2, pad_token_id=2)
    config = transformers.GraniteConfig(
        **small, tie_word_embeddings=True, embedding_multiplier=12.0, residual_multiplier=1.4 / 2**0.5, logits_scaling=32 / 16,
        attention_multiplier=8**-0.5, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    config._attn_implementation = "eager"
    model = randomize(transformers.GraniteForCausalLM(config), 102)
    settings = dict(
        architectures=["MiniCPMForCausalLM"], model_type="minicpm", hidden_act="silu", attention_bias=False, tie_word_embeddings=True,
        rope_theta=10000.0, rope_scaling=None, torch_dtype="bfloat16", **small, **scales,
    )
    tensors = {name: tensor for name, tensor in model.named_parameters() if name != "lm_head.weight"}
    write_folder(folder / "hf", settings, tensors, folder)
    train_vocabulary(folder / "hf/tokenizer.model")
    facts, rows = logits_reference("minicpm", "minicpm", model, prompts(202, [1], []))
    convert(converter, folder, "default")
    write_reference(folder, facts, rows)


def make_roberta(full, converter, name, seed, network, tokenizer, files, ends, pooling, pre):
    folder, source = HERE / "networks" / name, full / tokenizer / "hf"
    config = network.config_class(
        vocab_size=512, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=130,
        type_vocab_size=1, bos_token_id=ends[0], eos_token_id=ends[1], pad_token_id=1, layer_norm_eps=1e-5,
    )
    config._attn_implementation = "eager"
    model = randomize(network(config), seed)
    settings = config.to_dict() | {"architectures": [network.__name__]}
    write_folder(folder / "hf", settings, dict(model.named_parameters()), source, pooling)
    for file in files:
        shutil.copyfile(source / file, folder / "hf" / file)
    # The converter asks it where the configuration of the pooling is.
    modules = [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
    (folder / "hf/modules.json").write_text(json.dumps(modules) + "\n")
    convert(converter, folder, pre)

    def run(model, ids):
        hidden = model(torch.tensor([ids])).last_hidden_state[0]
        return hidden.mean(0) if pooling == "mean" else hidden[0]

    pooled_reference(folder, name, "bert", run, model, prompts(seed + 100, [ends[0]], [ends[1]]))


NETWORKS = {
    "exaone": make_exaone,
    "minicpm": make_minicpm,
    "roberta": lambda full, converter: make_roberta(
        full, converter, "roberta", 103, transformers.RobertaModel, "parity2/modernbert", [], (504, 505), "mean", "roberta-bpe"
    ),
    "xlm_roberta": lambda full, converter: make_roberta(
        full, converter, "xlm_roberta", 104, transformers.XLMRobertaModel, "parity2/xlmr_rerank", ["sentencepiece.bpe.model"], (0, 2), "first", "default"
    ),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", type=Path, required=True)
    parser.add_argument("--converter", type=Path, required=True, help="llama.cpp's convert_hf_to_gguf.py")
    parser.add_argument("names", nargs="*", choices=[*NETWORKS, []])
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    for name in args.names or NETWORKS:
        NETWORKS[name](args.full, args.converter)


if __name__ == "__main__":
    main()
