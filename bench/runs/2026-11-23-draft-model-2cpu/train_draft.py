#!/usr/bin/env python3
"""Trains a draft model for the demo model with JAX on a CPU: a llama of about half a million parameters over the same corpus and tokenizer.

    nice -n 10 python3 train_draft.py --data data --tokenizer ../demo-model/hf --out draft --minutes 10
"""
import argparse, json, math, os, random, shutil, time
import numpy as np
import jax, jax.numpy as jnp
from safetensors.numpy import save_file
from tokenizers import Tokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--data"); ap.add_argument("--tokenizer"); ap.add_argument("--out")
ap.add_argument("--start"); ap.add_argument("--minutes", type=float, default=10)
ap.add_argument("--dim", type=int, default=128); ap.add_argument("--layers", type=int, default=2); ap.add_argument("--ffn", type=int, default=256)
a = ap.parse_args()
V, D, L, F, H, K, HD, EPS, CTX = 2048, a.dim, a.layers, a.ffn, 4, 2, 32, 1e-5, 512
tok = Tokenizer.from_file(os.path.join(a.tokenizer, "tokenizer.json"))
cache = os.path.join(a.data, "tokens.npy")
if not os.path.exists(cache):
    texts = [json.loads(line)["text"] for line in open(os.path.join(a.data, "corpus.jsonl"), encoding="utf-8")]
    ids = []
    for e in tok.encode_batch(texts):
        ids.extend(e.ids)
        if e.ids[-1] != 1: ids.append(1)
    np.save(cache, np.array(ids, np.int32))
ids = np.load(cache); print(len(ids), "tokens", flush=True)
rng = np.random.default_rng(2 if a.start else 1)
def w(*s): return (rng.standard_normal(s) * 0.02).astype(np.float32)
p = {"model.embed_tokens.weight": w(V, D), "model.norm.weight": np.ones(D, np.float32)}
for i in range(L):
    n = f"model.layers.{i}."
    p.update({n+"self_attn.q_proj.weight": w(H*HD, D), n+"self_attn.k_proj.weight": w(K*HD, D), n+"self_attn.v_proj.weight": w(K*HD, D), n+"self_attn.o_proj.weight": w(D, H*HD),
      n+"mlp.gate_proj.weight": w(F, D), n+"mlp.up_proj.weight": w(F, D), n+"mlp.down_proj.weight": w(D, F), n+"input_layernorm.weight": np.ones(D, np.float32), n+"post_attention_layernorm.weight": np.ones(D, np.float32)})
if a.start:
    from safetensors.numpy import load_file
    p = {k: x.astype(np.float32) for k, x in load_file(os.path.join(a.start, "model.safetensors")).items()}
print(sum(x.size for x in p.values()), "parameters", flush=True)
inv = 10000.0 ** (-np.arange(0, HD, 2) / HD)
def rms(x, g): return x * jax.lax.rsqrt((x*x).mean(-1, keepdims=True) + EPS) * g
def rot(x, c, s):
    h = x.shape[-1] // 2; x1, x2 = x[..., :h], x[..., h:]
    return x * c + jnp.concatenate([-x2, x1], -1) * s
def loss_fn(p, x):
    t = x[:, :-1]; B, T = t.shape
    ang = jnp.arange(T)[:, None] * inv[None]; ang = jnp.concatenate([ang, ang], -1)
    c, s = jnp.cos(ang)[None, :, None], jnp.sin(ang)[None, :, None]
    h = p["model.embed_tokens.weight"][t]; m = jnp.tril(jnp.ones((T, T), bool))
    for i in range(L):
        n = f"model.layers.{i}."
        y = rms(h, p[n+"input_layernorm.weight"])
        q = rot((y @ p[n+"self_attn.q_proj.weight"].T).reshape(B, T, H, HD), c, s)
        k = rot((y @ p[n+"self_attn.k_proj.weight"].T).reshape(B, T, K, HD), c, s)
        v = (y @ p[n+"self_attn.v_proj.weight"].T).reshape(B, T, K, HD)
        k = jnp.repeat(k, H // K, 2); v = jnp.repeat(v, H // K, 2)
        sc = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(HD)
        sc = jax.nn.softmax(jnp.where(m, sc, -1e30), -1)
        o = jnp.einsum("bhts,bshd->bthd", sc, v).reshape(B, T, H*HD)
        h = h + o @ p[n+"self_attn.o_proj.weight"].T
        y = rms(h, p[n+"post_attention_layernorm.weight"])
        h = h + (jax.nn.silu(y @ p[n+"mlp.gate_proj.weight"].T) * (y @ p[n+"mlp.up_proj.weight"].T)) @ p[n+"mlp.down_proj.weight"].T
    logits = rms(h, p["model.norm.weight"]) @ p["model.embed_tokens.weight"].T
    lp = jax.nn.log_softmax(logits, -1)
    y = x[:, 1:]
    acc = (logits.argmax(-1) == y).mean()
    return -jnp.take_along_axis(lp, y[..., None], -1).mean(), acc
@jax.jit
def step(p, m, v, x, t, lr):
    (l, acc), g = jax.value_and_grad(loss_fn, has_aux=True)(p, x)
    gn = jnp.sqrt(sum((z*z).sum() for z in g.values())); sc = jnp.minimum(1.0, 1.0 / (gn + 1e-6))
    m = {k: 0.9*m[k] + 0.1*g[k]*sc for k in p}; v = {k: 0.97*v[k] + 0.03*(g[k]*sc)**2 for k in p}
    p = {k: p[k] - lr * (m[k]/(1-0.9**t) / (jnp.sqrt(v[k]/(1-0.97**t)) + 1e-8) + (0.01*p[k] if p[k].ndim > 1 else 0)) for k in p}
    return p, m, v, l, acc
p = {k: jnp.asarray(x) for k, x in p.items()}; m = {k: jnp.zeros_like(x) for k, x in p.items()}; v = dict(m)
T, B, start, i = 128, 24, time.time(), 0
while True:
    done = (time.time() - start) / (a.minutes * 60)
    if done >= 1: break
    lr = 3e-3 * min(1, (i+1)/100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
    o = rng.integers(0, len(ids) - T - 1, B); x = np.stack([ids[j:j+T+1] for j in o]); i += 1
    p, m, v, l, acc = step(p, m, v, x, float(i), lr)
    if i % 100 == 1: print(f"{i} {time.time()-start:.0f}s loss {l:.3f} right {acc:.3f}", flush=True)
os.makedirs(a.out, exist_ok=True)
save_file({k: np.asarray(x).astype(np.float16) for k, x in p.items()}, os.path.join(a.out, "model.safetensors"), metadata={"format": "pt"})
cfg = json.load(open(os.path.join(a.tokenizer, "config.json")))
cfg.update(hidden_size=D, intermediate_size=F, num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=K, head_dim=HD)
json.dump(cfg, open(os.path.join(a.out, "config.json"), "w"), indent=2)
for f in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json", "chat_template.jinja"]:
    shutil.copy(os.path.join(a.tokenizer, f), a.out)
print("done", i, "steps")
