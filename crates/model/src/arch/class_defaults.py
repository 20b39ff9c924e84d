#!/usr/bin/env python3
"""Makes `class_defaults.json`: what transformers' configuration classes take for fields that a `config.json` leaves out.

    pip install transformers==5.24.0
    class_defaults.py

Only classes of the registry and fields that the readers in this folder ask for are listed. Fields that a class works out of others are
not. A line for each class; `default_rope_theta` is the class's own base, and `aliases` are other names of fields.
"""

import dataclasses
import json
import re
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

HERE = Path(__file__).resolve().parent
# Fields that every configuration has, and fields that say nothing about the network.
UNTOLD = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)} | {"pad_token_id", "bos_token_id", "eos_token_id"}
# Names of older configurations, which the classes' constructors know.
OLDER = {
    "GPTNeoXForCausalLM": {"rotary_pct": "partial_rotary_factor"},
    "Gemma3TextModel": {"sliding_window_pattern": "_sliding_window_pattern"},
    "Lfm2ForCausalLM": {"tie_embedding": "tie_word_embeddings"},
    "Lfm2MoeForCausalLM": {"tie_embedding": "tie_word_embeddings"},
    "MiniMaxM2ForCausalLM": {"rotary_dim": "partial_rotary_factor"},
}
# Ropes that constructors make where a file has neither `rope_parameters` nor `rope_scaling`.
YARN = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}
GEMMA_4 = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
}
ROPES = {
    "ApertusForCausalLM": {
        "rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "Gemma4ForCausalLM": GEMMA_4,
    "Gemma4ForConditionalGeneration": GEMMA_4,
    "GptOssForCausalLM": YARN | {"factor": 32.0, "truncate": False, "original_max_position_embeddings": 4096},
    "Ministral3ForCausalLM": YARN
    | {"rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1},
}
# Parts of a head that are rotated, which the classes' constructors set.
PARTS = re.compile(r'setdefault\("partial_rotary_factor", (?:kwargs\.pop\("rotary_pct", )?([0-9.]+)')


def config_classes():
    """The configuration class of each class of networks; of those with images, that of the text part."""
    # Its tables as text: they cannot be imported without torch.
    tables = (Path(transformers.__file__).parent / "models/auto/modeling_auto.py").read_text()
    found = {}
    for kind, name in re.findall(r'\("([\w-]+)", "(\w+)"\)', tables):
        if kind in CONFIG_MAPPING:
            config = CONFIG_MAPPING[kind]
            # Several kinds may share a class, one of which it is named for.
            if name not in found or re.fullmatch(config.__name__.removesuffix("Config") + r"(For\w+|Model|LMHeadModel)", name):
                found[name] = config
    for name, config in found.items():
        parts = getattr(config, "sub_configs", None) or {}
        if "text_config" in parts:
            found[name] = parts["text_config"]
    return found


def main():
    sources = "".join(path.read_text() for path in [*sorted(HERE.rglob("*.rs")), HERE.parent / "hf_rope.rs"])
    asked = set(re.findall(r'"([a-z][a-z0-9_]*)"', sources))
    classes = sorted({name for table in re.findall(r"hf_classes: &\[(.*?)\]", sources, re.S) for name in re.findall(r'"(\w+)"', table)})
    configs = config_classes()
    rows = {}
    for name in classes:
        config = configs.get(name)
        if config is None or not dataclasses.is_dataclass(config):
            print(f"{name}: transformers has no configuration of its own")
            continue
        row = {}
        for field in dataclasses.fields(config):
            value = field.default
            if field.name in UNTOLD and field.name not in {"hidden_act"} or field.name not in asked:
                continue
            if isinstance(value, (bool, int, float, str)) and value == value and abs(value if isinstance(value, (int, float)) else 0) < 1e30:
                row[field.name] = value
        theta = getattr(config, "default_theta", 10000.0)
        row["default_rope_theta"] = theta["global"] if isinstance(theta, dict) else theta
        if isinstance(theta, dict):
            row["local_rope_theta" if "ModernBert" in name else "rope_local_base_freq"] = theta["local"]
        source = Path(__import__(config.__module__, fromlist=["_"]).__file__).read_text()
        part = PARTS.search(source)
        if part:
            row["partial_rotary_factor"] = float(part[1])
        if name in ROPES:
            row["rope_parameters"] = ROPES[name]
        aliases = dict(config.attribute_map) | OLDER.get(name, {})
        aliases = {alias: real for alias, real in aliases.items() if real in row}
        if aliases:
            row["aliases"] = aliases
        rows[name] = row
    lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    (HERE / "class_defaults.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
