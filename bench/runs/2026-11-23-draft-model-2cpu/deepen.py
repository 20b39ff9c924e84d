"""Makes a folder of the demo model with layers added that change nothing: their attn_output and ffn_down are zero."""
import json, os, shutil, sys
import numpy as np
from gguf import GGUFReader
from safetensors.numpy import save_file
src, hf, out, more = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
t = {x.name: np.array(x.data) for x in GGUFReader(src).tensors}
def unpermute(w, heads): return np.ascontiguousarray(w.reshape(heads, w.shape[0]//heads//2, 2, -1).swapaxes(1, 2).reshape(w.shape))
names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
w = {"model.embed_tokens.weight": t["token_embd.weight"].astype(np.float16), "model.norm.weight": t["output_norm.weight"].astype(np.float16)}
for i in range(4 + more):
    for g, h in names.items():
        x = t[f"blk.{i % 4}.{g}.weight"].astype(np.float16)
        if g == "attn_q": x = unpermute(x, 8)
        if g == "attn_k": x = unpermute(x, 2)
        if i >= 4 and g in ("attn_output", "ffn_down"): x = np.zeros_like(x)
        w[f"model.layers.{i}.{h}.weight"] = x
os.makedirs(out, exist_ok=True)
save_file(w, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
c = json.load(open(os.path.join(hf, "config.json"))); c["num_hidden_layers"] = 4 + more
json.dump(c, open(os.path.join(out, "config.json"), "w"))
for f in os.listdir(hf):
    if f != "config.json": shutil.copy(os.path.join(hf, f), out)
