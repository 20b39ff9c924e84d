#!/usr/bin/env python3
"""Trains a layer that guesses the token after the next (`nextn`) for the demo model, with JAX on a CPU.

    nice -n 10 python3 train_nextn.py --model tokenmill-demo-F16.gguf --tokenizer hf --data data --out nextn.npz --minutes 12

The model stays as it is. The layer reads the embedding of token p and the model's final hidden state at p - 1 (zeros at 0), and is trained
on the model's own probabilities behind p; a second pass reads the layer's states in place of the model's, as a draft's second token does.
Tensors have GGUF's names, shapes and order of rows.
"""
import argparse, json, math, os, time
import numpy as np
import jax, jax.numpy as jnp
from gguf import GGUFReader
from tokenizers import Tokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--model"); ap.add_argument("--tokenizer"); ap.add_argument("--data"); ap.add_argument("--out")
ap.add_argument("--start"); ap.add_argument("--minutes", type=float, default=12); ap.add_argument("--ffn", type=int, default=256)
a = ap.parse_args()
D, L, H, K, HD, EPS = 256, 4, 8, 2, 32, 1e-5
reader = GGUFReader(a.model)
eps_field = reader.fields["llama.attention.layer_norm_rms_epsilon"]; EPS = float(eps_field.parts[eps_field.data[0]][0])
base_of = reader.fields["llama.rope.freq_base"]; BASE = float(base_of.parts[base_of.data[0]][0])
base = {t.name: jnp.asarray(np.array(t.data).astype(np.float32)) for t in reader.tensors}
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
inv = BASE ** (-np.arange(0, HD, 2) / HD)
def rms(x, g): return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + EPS) * g
def rot(x, c, s):
    x1, x2 = x[..., 0::2], x[..., 1::2]
    return jnp.stack([x1 * c - x2 * s, x1 * s + x2 * c], -1).reshape(x.shape)
def layer(p, n, h):
    B, T, _ = h.shape
    ang = jnp.arange(T)[:, None] * inv[None]; c, s = jnp.cos(ang)[None, :, None], jnp.sin(ang)[None, :, None]
    y = rms(h, p[n + "attn_norm.weight"])
    q = rot((y @ p[n + "attn_q.weight"].T).reshape(B, T, H, HD), c, s)
    k = rot((y @ p[n + "attn_k.weight"].T).reshape(B, T, K, HD), c, s)
    v = (y @ p[n + "attn_v.weight"].T).reshape(B, T, K, HD)
    k, v = jnp.repeat(k, H // K, 2), jnp.repeat(v, H // K, 2)
    sc = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(HD)
    sc = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((T, T), bool)), sc, -1e30), -1)
    h = h + jnp.einsum("bhts,bshd->bthd", sc, v).reshape(B, T, H * HD) @ p[n + "attn_output.weight"].T
    y = rms(h, p[n + "ffn_norm.weight"])
    return h + (jax.nn.silu(y @ p[n + "ffn_gate.weight"].T) * (y @ p[n + "ffn_up.weight"].T)) @ p[n + "ffn_down.weight"].T
def trunk(t):
    h = base["token_embd.weight"][t]
    for i in range(L): h = layer(base, f"blk.{i}.", h)
    return rms(h, base["output_norm.weight"])
def logits_of(h): return h @ base["token_embd.weight"].T
def shift(h): return jnp.concatenate([jnp.zeros_like(h[:, :1]), h[:, :-1]], 1)
def nextn(p, t, h):
    e = rms(base["token_embd.weight"][t], p["nextn.enorm.weight"])
    x = jnp.concatenate([e, rms(shift(h), p["nextn.hnorm.weight"])], -1) @ p["nextn.eh_proj.weight"].T
    return rms(layer(p, "", x), p["nextn.shared_head_norm.weight"])
def loss_fn(p, t):
    h = trunk(t); want = jax.nn.softmax(logits_of(h), -1); best = want.argmax(-1)
    g1 = nextn(p, t, h); l1 = logits_of(g1)
    g2 = nextn(p, t, g1); l2 = logits_of(g2)
    ce = lambda l: -(want * jax.nn.log_softmax(l, -1)).sum(-1).mean()
    return ce(l1) + 0.5 * ce(l2), ((l1.argmax(-1) == best).mean(), (l2.argmax(-1) == best).mean())
rng = np.random.default_rng(2 if a.start else 1)
def w(*s, k=0.02): return (rng.standard_normal(s) * k).astype(np.float32)
last = f"blk.{L - 1}."
p = {k[len(last):]: np.array(x) for k, x in base.items() if k.startswith(last)}
F = a.ffn
for n in ("ffn_gate", "ffn_up"): p[n + ".weight"] = p[n + ".weight"][:F]
p["ffn_down.weight"] = p["ffn_down.weight"][:, :F]
p.update({"nextn.enorm.weight": np.ones(D, np.float32), "nextn.hnorm.weight": np.ones(D, np.float32), "nextn.shared_head_norm.weight": np.array(base["output_norm.weight"]),
  "nextn.eh_proj.weight": np.concatenate([0.3 * np.eye(D, dtype=np.float32), 0.3 * np.eye(D, dtype=np.float32)], 1) + w(D, 2 * D, k=0.005)})
if a.start: p = {k: x.astype(np.float32) for k, x in np.load(a.start).items()}
print(sum(x.size for x in p.values()), "parameters", flush=True)
@jax.jit
def step(p, m, v, x, t, lr):
    (l, acc), g = jax.value_and_grad(loss_fn, has_aux=True)(p, x)
    gn = jnp.sqrt(sum((z * z).sum() for z in g.values())); sc = jnp.minimum(1.0, 1.0 / (gn + 1e-6))
    m = {k: 0.9 * m[k] + 0.1 * g[k] * sc for k in p}; v = {k: 0.97 * v[k] + 0.03 * (g[k] * sc) ** 2 for k in p}
    p = {k: p[k] - lr * (m[k] / (1 - 0.9 ** t) / (jnp.sqrt(v[k] / (1 - 0.97 ** t)) + 1e-8) + (0.01 * p[k] if p[k].ndim > 1 else 0)) for k in p}
    return p, m, v, l, acc
p = {k: jnp.asarray(x) for k, x in p.items()}; m = {k: jnp.zeros_like(x) for k, x in p.items()}; v = dict(m)
T, B, start, i = 128, 16, time.time(), 0
while True:
    done = (time.time() - start) / (a.minutes * 60)
    if done >= 1: break
    lr = 2e-3 * min(1, (i + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
    o = rng.integers(0, len(ids) - T, B); x = np.stack([ids[j:j + T] for j in o]); i += 1
    p, m, v, l, acc = step(p, m, v, x, float(i), lr)
    if i % 50 == 1:
        print(f"{i} {time.time() - start:.0f}s loss {l:.3f} agrees {acc[0]:.3f} {acc[1]:.3f}", flush=True)
        np.savez(a.out, **{k: np.asarray(x) for k, x in p.items()})
np.savez(a.out, **{k: np.asarray(x) for k, x in p.items()})
print("done", i, "steps", float(l), [float(x) for x in acc])
