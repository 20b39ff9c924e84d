#!/usr/bin/env python3
"""Writes a GGUF file of the demo model with the trained layer behind its last, and with layers added that change nothing, in Q8_0.

    python3 make_file.py tokenmill-demo-F16.gguf nextn.npz OUT.gguf N_MORE_LAYERS

The added layers are copies whose attn_output and ffn_down are zero.
"""
import sys
import numpy as np
from gguf import GGMLQuantizationType as T, GGUFReader, GGUFValueType, GGUFWriter, quants
src, trained, out, more = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
r = GGUFReader(src)
nextn = dict(np.load(trained)) if trained != "-" else {}
n_layers = 4 + more + bool(nextn)
w = GGUFWriter(out, "llama")
for f in r.fields.values():
    if f.name.startswith("GGUF.") or f.name == "general.architecture": continue
    v = f.contents()
    if f.name == "llama.block_count": v = n_layers
    if f.name == "llama.feed_forward_length" and nextn:
        w.add_array(f.name, [v] * (n_layers - 1) + [int(nextn["ffn_gate.weight"].shape[0])]); continue
    if f.types[0] == GGUFValueType.ARRAY: w.add_array(f.name, v)
    else: w.add_key_value(f.name, v, f.types[0])
if nextn: w.add_uint32("llama.nextn_predict_layers", 1)
def add(name, x):
    x = np.ascontiguousarray(x, dtype=np.float32)
    if x.ndim == 1: w.add_tensor(name, x)
    else: w.add_tensor(name, quants.quantize(x, T.Q8_0), raw_dtype=T.Q8_0)
t = {x.name: np.array(x.data).astype(np.float32) for x in r.tensors}
for name in ("token_embd.weight", "output_norm.weight"): add(name, t[name])
for i in range(4 + more):
    pre = f"blk.{i % 4}."
    for name, x in t.items():
        if name.startswith(pre):
            part = name[len(pre):]
            add(f"blk.{i}.{part}", np.zeros_like(x) if i >= 4 and part in ("attn_output.weight", "ffn_down.weight") else x)
for name, x in nextn.items(): add(f"blk.{4 + more}.{name}", x)
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
