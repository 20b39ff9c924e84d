#!/usr/bin/env python3
"""Makes tests/data/decisions: tiny random models that were trained for nothing but have the form of decision models, and their answers.

    pip install numpy gguf jinja2==3.1.6
    make_decisions.py [FOLDER]

The answers are computed here in float64, as llama.cpp's `src/models/modern-bert.cpp` and `tools/server/server-decision.cpp` have the
formulas; transformers has no class for these heads. Every byte of a text is a token, so that no tokenizer is needed. The templates are
this project's own, with the variables of llama.cpp's.
"""

import json
import math
import sys
from pathlib import Path

import gguf
import jinja2
import numpy as np

HERE = Path(__file__).resolve().parent
SPECIAL = ["[CLS]", "[SEP]", "[MASK]", "<|im_start|>", "<|im_end|>", "<|box_end|>"]
CLS, SEP, MASK, START, END, BOX_END = range(256, 262)
N_VOCAB = 256 + len(SPECIAL)
TYPES = ["choice", "score", "noul"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

TEXT = "{{ %s if %s is string else %s | tojson }}"


def text(name):
    return TEXT % (name, name, name)


LAYA = (
    "[CLS]{{ type }}: " + text("instructions") + "[SEP]{% for o in options %}[MASK] {{ o.key }}"
    "{% if o.description %} = " + text("o.description") + "{% endif %}{% endfor %}[SEP]" + text("state") + "[SEP]"
)
OPENJEV = (
    "<|im_start|>" + text("state") + "<|im_end|>{{ type }} " + text("instructions") + "{{ '\\n' }}"
    "{% for o in options %}{{ '" + LETTERS + "'[loop.index0] }} {{ o.key }}"
    "{% if o.description %}, " + text("o.description") + "{% endif %}{{ '\\n' }}{% endfor %}<|im_start|>"
)
LEV = (
    "<|im_start|>" + text("state") + "<|im_end|>{% if instructions %}" + text("instructions") + "{% else %}{{ id }}{% endif %}"
    "{% if type != 'noul' %}{% for o in options %}{{ '\\n' }}{{ o.label }} {{ o.key }}"
    "{% if o.description %}, " + text("o.description") + "{% endif %}{% endfor %}{% else %} 0 to 8{% endif %}<|im_start|>"
)
NIMBLE = (
    "<|im_start|>" + text("state") + "<|im_end|>{% for q in questions %}{{ q.id | tojson }} " + text("q.instructions") + ":"
    "{% for o in q.options %} {{ o.label }}={{ o.key | tojson }}"
    "{% if o.description is not none %} {{ o.description | tojson }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}"
    "{{ id | tojson }}<|im_start|>"
)

KEV = (
    "<|im_start|>{{ state }}<|im_end|>{{ instructions }}{% for o in options %} {{ o.key }}"
    "{% if o.description %}: {{ o.description }}{% endif %}<|box_end|>{% endfor %}<|im_start|>"
)

QUESTIONS = {
    "team": {"type": "choice", "instructions": "Who takes it?", "criteria": {"cards": "card desk", "loans": None, "x": {"b": 2, "a": 1}}},
    "fraud": {"type": "noul", "instructions": "Is it fraud?", "criteria": {"true": "a thief", "false": None}},
    "risk": {"type": "score", "instructions": {"ask": "How urgent?"}, "criteria": ["can wait", "today", "now"]},
    "plain": {"type": "noul", "instructions": "Did [MASK] call?"},
    "many": {"type": "choice", "instructions": "Which number?", "criteria": {f"n{i}": None for i in range(12)}},
}
STATES = [
    "The card was stolen, and there are three charges in an hour.",
    {"z": 1, "account": {"name": "Ann", "age": 41}, "open": [True, None]},
]
LONG = {
    "long": {
        "type": "choice",
        "instructions": "Who of these many people takes care of a request like the one that is written below? " * 3,
        "criteria": {"a": "the desk that blocks cards at any hour of the day, and calls the police", "b": "loans"},
    }
}


def byte_tokens():
    """The text of each byte in byte-level vocabularies."""
    own = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255]
    others = iter(range(256, 512))
    return [chr(b) if b in own else chr(next(others)) for b in range(256)]


def encode(prompt):
    """Special tokens, then bytes. No text here has a special token's spelling but `[MASK]`, which the text of a question has."""
    ids = []
    while prompt:
        for idx, token in enumerate(SPECIAL):
            if prompt.startswith(token):
                ids.append(256 + idx)
                prompt = prompt[len(token):]
                break
        else:
            ids.extend(prompt[0].encode())
            prompt = prompt[1:]
    return ids


class Weights:
    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.all = {}

    def matrix(self, name, n_out, n_in, scale=None):
        values = self.random.standard_normal((n_out, n_in)) * (scale or 1.5 * n_in**-0.5)
        self.all[name] = values.astype(np.float32)

    def vector(self, name, n, scale, center=0.0):
        self.all[name] = (self.random.standard_normal(n) * scale + center).astype(np.float32)

    def __getitem__(self, name):
        return self.all[name].astype(np.float64)

    def get(self, name):
        return self[name] if name in self.all else 0.0


def norm(w, name, x, eps=1e-5):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w.get(f"{name}.bias")


def rms_norm(w, name, x, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias")


gelu = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))))


def rotate(x, base):
    """`[n_tokens, n_heads, head_dim]`, halves apart."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[0])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def attend(q, k, v, sees):
    scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    mixed = np.einsum("hqk,khd->qhd", softmax(np.where(sees, scores, -np.inf)), v)
    return mixed.reshape(len(q), -1)


N_EMBD, N_HEADS, N_TRUNK, N_HEAD_LAYERS, N_FF, WINDOW = 32, 2, 4, 2, 48, 16


def laya_weights():
    w = Weights(1)
    w.matrix("token_embd.weight", N_VOCAB, N_EMBD, 1.0)
    for name in ("token_embd_norm", "output_norm"):
        w.vector(f"{name}.weight", N_EMBD, 0.2, 1.0)
    for layer in range(N_TRUNK + N_HEAD_LAYERS):
        is_head = layer >= N_TRUNK
        n_ff = 4 * N_EMBD if is_head else N_FF
        name = lambda part: f"blk.{layer}.{part}"
        if layer:
            w.vector(name("attn_norm.weight"), N_EMBD, 0.2, 1.0)
        w.vector(name("ffn_norm.weight"), N_EMBD, 0.2, 1.0)
        w.matrix(name("attn_qkv.weight"), 3 * N_EMBD, N_EMBD)
        w.matrix(name("attn_output.weight"), N_EMBD, N_EMBD)
        w.matrix(name("ffn_up.weight"), n_ff if is_head else 2 * n_ff, N_EMBD)
        w.matrix(name("ffn_down.weight"), N_EMBD, n_ff)
        if is_head:
            sizes = {"attn_norm": N_EMBD, "ffn_norm": N_EMBD, "attn_qkv": 3 * N_EMBD, "attn_output": N_EMBD}
            for part, n in {**sizes, "ffn_up": n_ff, "ffn_down": N_EMBD}.items():
                w.vector(name(f"{part}.bias"), n, 0.2)
    w.matrix("token_types.weight", 3, N_EMBD, 1.0)
    w.vector("cls.norm.weight", N_EMBD, 0.2, 1.0)
    w.vector("cls.norm.bias", N_EMBD, 0.2)
    w.matrix("cls.weight", N_EMBD, N_EMBD)
    w.vector("cls.bias", N_EMBD, 0.2)
    w.matrix("cls.output.weight", 1, N_EMBD, 3 * N_EMBD**-0.5)
    w.vector("cls.output.bias", 1, 0.2)
    return w


def laya_scores(w, ids, column):
    n = len(ids)
    distance = np.abs(np.arange(n)[:, None] - np.arange(n))
    split = lambda x: np.split(x.reshape(n, 3 * N_HEADS, -1), 3, axis=1)
    x = norm(w, "token_embd_norm", w["token_embd.weight"][ids])
    for layer in range(N_TRUNK):
        name = lambda part: f"blk.{layer}.{part}"
        is_full = layer % 3 == 0
        q, k, v = split(linear(w, name("attn_qkv"), norm(w, name("attn_norm"), x) if layer else x))
        base = 160000.0 if is_full else 10000.0
        mixed = attend(rotate(q, base), rotate(k, base), v, is_full or distance <= WINDOW // 2)
        x = x + linear(w, name("attn_output"), mixed)
        gate, up = np.split(linear(w, name("ffn_up"), norm(w, name("ffn_norm"), x)), 2, axis=-1)
        x = x + linear(w, name("ffn_down"), gelu(gate) * up)
    x = norm(w, "output_norm", x) + w["token_types.weight"][column]
    for layer in range(N_TRUNK, N_TRUNK + N_HEAD_LAYERS):
        name = lambda part: f"blk.{layer}.{part}"
        q, k, v = split(linear(w, name("attn_qkv"), norm(w, name("attn_norm"), x)))
        x = x + linear(w, name("attn_output"), attend(q, k, v, True))
        x = x + linear(w, name("ffn_down"), np.maximum(linear(w, name("ffn_up"), norm(w, name("ffn_norm"), x)), 0))
    return linear(w, "cls.output", gelu(linear(w, "cls", norm(w, "cls.norm", x))))[:, 0]


def qwen_weights():
    w = Weights(2)
    w.matrix("token_embd.weight", N_VOCAB, N_EMBD, 1.0)
    w.vector("output_norm.weight", N_EMBD, 0.2, 1.0)
    for layer in range(2):
        name = lambda part: f"blk.{layer}.{part}"
        for part, n in {"attn_norm": N_EMBD, "ffn_norm": N_EMBD, "attn_q_norm": 16, "attn_k_norm": 16}.items():
            w.vector(name(f"{part}.weight"), n, 0.2, 1.0)
        for part, n in {"attn_q": N_EMBD, "attn_k": 16, "attn_v": 16, "attn_output": N_EMBD, "ffn_gate": N_FF, "ffn_up": N_FF}.items():
            w.matrix(name(f"{part}.weight"), n, N_EMBD)
        w.matrix(name("ffn_down.weight"), N_EMBD, N_FF)
    return w


def qwen_rows(w, ids):
    n = len(ids)
    sees = np.tril(np.ones((n, n), bool))
    x = w["token_embd.weight"][ids]
    for layer in range(2):
        name = lambda part: f"blk.{layer}.{part}"
        heads = lambda part, count: linear(w, name(part), rms_norm(w, name("attn_norm"), x)).reshape(n, count, 16)
        q = rotate(rms_norm(w, name("attn_q_norm"), heads("attn_q", 2)), 1e6)
        k = rotate(rms_norm(w, name("attn_k_norm"), heads("attn_k", 1)), 1e6)
        mixed = attend(q, np.repeat(k, 2, 1), np.repeat(heads("attn_v", 1), 2, 1), sees)
        x = x + linear(w, name("attn_output"), mixed)
        y = rms_norm(w, name("ffn_norm"), x)
        gate = linear(w, name("ffn_gate"), y)
        x = x + linear(w, name("ffn_down"), gate / (1 + np.exp(-gate)) * linear(w, name("ffn_up"), y))
    return rms_norm(w, "output_norm", x)


def qwen_logits(w, ids):
    return qwen_rows(w, ids)[-1] @ w["token_embd.weight"].T


def kev_scores(w, ids):
    """The products of the last token's query and the key of each option's end."""
    query, key = np.split(linear(w, "cls.output", qwen_rows(w, ids)), 2, axis=-1)
    return key[np.array(ids) == BOX_END] @ query[-1] / math.sqrt(query.shape[-1])


def flattened(value, depth=0):
    """A value as labelled lines."""
    pad = "  " * depth
    if value is None:
        return ""
    if isinstance(value, dict):
        inner = lambda item: isinstance(item, (dict, list))
        lines = (f"{pad}{key}:" + ("\n" + flattened(item, depth + 1) if inner(item) else " " + flattened(item)) for key, item in value.items())
        return "\n".join(lines)
    if isinstance(value, list):
        return "\n".join(f"{pad}- {flattened(item, depth + 1).lstrip()}" for item in value)
    return str(value)


def write(path, arch, family, template, weights, keys, temperatures):
    writer = gguf.GGUFWriter(path, arch)
    writer.add_string("general.name", f"tiny {family}")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for key, value in keys.items():
        key = key if key.startswith("tokenizer.") else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.add_string(f"{arch}.decision.type", family)
    for name, value in temperatures.items():
        writer.add_float32(f"{arch}.decision.temperature.{name}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(byte_tokens() + SPECIAL)
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(SPECIAL))
    # llama.cpp refuses a vocabulary without merges. No text has both parts of this one side by side.
    writer.add_token_merges(["[CLS] [SEP]"])
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template([{"name": "systemone", "template": template}])
    for name, values in weights.all.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def sort_keys(value):
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value)}
    return [sort_keys(item) for item in value] if isinstance(value, list) else value


def options_of(question, true_first):
    criteria = question.get("criteria")
    if question["type"] == "choice":
        return [{"key": key, "description": text} for key, text in criteria.items()]
    if question["type"] == "score":
        return [{"key": str(level), "description": text} for level, text in enumerate(criteria)]
    options = [{"key": key, "description": (criteria or {}).get(key)} for key in ("false", "true")]
    return options[::-1] if true_first else options


def environment():
    found = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    found.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return found


def render(family, template, state, questions, name, is_reversed):
    question = questions[name]
    has_labels = family in ("lev", "nimble")

    def view(name, is_reversed=False):
        question = questions[name]
        options = options_of(question, family == "openjev")[:: -1 if is_reversed else 1]
        if has_labels:
            options = [{**option, "label": LETTERS[place]} for place, option in enumerate(options)]
        return {"id": name, "type": question["type"], "instructions": question["instructions"], "options": options}

    variables = {**view(name, is_reversed), "state": state, "images": []}
    if family == "nimble":
        variables["questions"] = [view(name) for name in questions]
    if family == "lev":
        variables = sort_keys(variables)
    if family == "kev":
        for name in ("state", "instructions"):
            variables[name] = flattened(variables[name])
        for option in variables["options"]:
            if option["description"] is not None:
                option["description"] = flattened(option["description"])
    return environment().from_string(template).render(**variables)


def cut(ids, n_options, most):
    """Cuts question and options to the length that the model was trained with."""
    marks = [place for place, token in enumerate(ids) if token == MASK]
    assert len(marks) == n_options and ids[marks[0] - 1] == SEP
    end = ids.index(SEP, marks[-1])
    options = [ids[a:b][:49] for a, b in zip(marks, [*marks[1:], end])]
    if sum(map(len, options)) + 16 > most:
        each = max(4, (most - 16) // n_options)
        options = [option[:each] for option in options]
    n_question = max(8, most - sum(map(len, options)))
    head = ids[:1] + ids[1 : marks[0] - 1][:n_question] + [SEP]
    places = []
    for option in options:
        places.append(len(head))
        head += option
    return head + ids[end:], places


def temperature_of(family, temperatures, question, n):
    if family == "lev":
        bucket = "small" if n <= 8 else "mid" if n <= 26 else "large"
    else:
        bucket = "2" if n <= 2 else "3_5" if n <= 5 else "6_10" if n <= 10 else "11"
    kind = question["type"]
    return float(np.float32(temperatures.get(f"{kind}.{bucket}", temperatures.get(kind, 1.0))))


def answer(family, template, weights, temperatures, state, questions, name, most):
    """The probability of each option in the order of the request, a noul's yes first; and the tokens of all prompts."""
    question = questions[name]
    options = options_of(question, family == "openjev")
    temperature = temperature_of(family, temperatures, question, len(options))
    is_scale = family == "lev" and question["type"] == "noul"
    orders = [False, True] if family == "lev" and question["type"] == "choice" else [False]
    means, n_tokens = 0.0, 0
    for is_reversed in orders:
        prompt = render(family, template, state, questions, name, is_reversed)
        if family == "laya":
            # The text of a question may have the spelling of the mark, which is no mark there.
            head, mark, rest = prompt.partition("Did [MASK] call?")
            ids = encode(head) + (list(mark.encode()) + encode(rest) if mark else [])
            ids, places = cut(ids, len(options), most)
            scores = laya_scores(weights, ids, TYPES.index(question["type"]))[places]
        else:
            ids = encode(prompt) if "[MASK]" not in prompt else sum(
                ([*part] if idx % 2 else encode(part) for idx, part in enumerate(split_mask(prompt))), []
            )
            labels = LETTERS[: 9 if is_scale else len(options)]
            scores = kev_scores(weights, ids) if family == "kev" else qwen_logits(weights, ids)[list(labels.encode())]
        probabilities = softmax(scores / temperature)
        means = means + probabilities[:: -1 if is_reversed else 1] / len(orders)
        n_tokens += len(ids)
    if is_scale:
        yes = float(means @ np.arange(9) / 8)
        means = np.array([yes, 1 - yes])
    elif question["type"] == "noul" and family != "openjev":
        means = means[::-1]
    return [round(float(p), 9) for p in means], n_tokens


def split_mask(prompt):
    """Texts, and between them the bytes of a mark's spelling."""
    parts = prompt.split("[MASK]")
    found = [parts[0]]
    for part in parts[1:]:
        found += ["[MASK]".encode(), part]
    return found


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "decisions"
    folder.mkdir(parents=True, exist_ok=True)
    laya_keys = {
        "context_length": 1024, "embedding_length": N_EMBD, "block_count": N_TRUNK + N_HEAD_LAYERS,
        "feed_forward_length": [N_FF] * N_TRUNK + [4 * N_EMBD] * N_HEAD_LAYERS, "attention.head_count": N_HEADS,
        "attention.layer_norm_epsilon": 1e-5, "attention.causal": False, "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": 3, "rope.freq_base": 160000.0, "rope.freq_base_swa": 10000.0,
        "rope.scaling.type": "none", "vocab_size": N_VOCAB, "hidden_activation": "gelu",
        "decision.block_count": N_HEAD_LAYERS, "decision.max_head_tokens": 120, "tokenizer.ggml.token_type_count": 3,
        "tokenizer.ggml.bos_token_id": CLS, "tokenizer.ggml.seperator_token_id": SEP, "tokenizer.ggml.mask_token_id": MASK,
    }
    qwen_keys = {
        "context_length": 2048, "embedding_length": N_EMBD, "block_count": 2, "feed_forward_length": N_FF,
        "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 16, "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "tokenizer.ggml.eos_token_id": END,
    }
    laya, qwen = laya_weights(), qwen_weights()
    kev = qwen_weights()
    kev.matrix("cls.output.weight", 64, N_EMBD, 2 * N_EMBD**-0.5)
    kev.vector("cls.output.bias", 64, 0.2)
    qwen_scale = {"choice": 2.0, "score": 3.0, "noul": 1.5}
    families = {
        "laya": ("modern-bert", LAYA, laya, laya_keys, {"choice": 1.2, "choice.11": 2.5, "score": 0.8, "noul.2": 1.5}),
        "openjev": ("qwen3", OPENJEV, qwen, qwen_keys, qwen_scale),
        "lev": ("qwen3", LEV, qwen, qwen_keys, {**qwen_scale, "choice.small": 4.0, "choice.mid": 2.5}),
        "nimble": ("qwen3", NIMBLE, qwen, qwen_keys, {}),
        "kev": ("qwen3", KEV, kev, {**qwen_keys, "embedding_length_out": 64}, {"choice": 1.5, "score": 1.5, "noul": 1.5}),
    }
    cases = []
    for family, (arch, template, weights, keys, temperatures) in families.items():
        write(folder / f"{family}.gguf", arch, family, template, weights, keys, temperatures)
        for state, questions in [*((state, QUESTIONS) for state in STATES), (STATES[0], LONG)]:
            if questions is LONG and family != "laya":
                continue
            found = {
                name: answer(family, template, weights, temperatures, state, questions, name, keys.get("decision.max_head_tokens"))
                for name in questions
            }
            cases.append({
                "family": family, "state": state, "questions": questions,
                "probabilities": {name: probabilities for name, (probabilities, _) in found.items()},
                "n_prompt_tokens": sum(n for _, n in found.values()),
            })
    lines = ",\n".join(json.dumps(case) for case in cases)
    (folder / "ref.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
