"""Writes four PEFT adapters with random numbers for Llama 3.2 1B: make_adapters.py RANK."""
import numpy as np, json, os, sys
from safetensors.numpy import save_file
r=int(sys.argv[1]); rng=np.random.default_rng(0)
S={"self_attn.q_proj":(2048,2048),"self_attn.k_proj":(512,2048),"self_attn.v_proj":(512,2048),"self_attn.o_proj":(2048,2048),"mlp.gate_proj":(8192,2048),"mlp.up_proj":(8192,2048),"mlp.down_proj":(2048,8192)}
for a in range(4):
    d=f"a{r}_{a}"; os.makedirs(d,exist_ok=True); t={}
    for l in range(16):
        for n,(o,i) in S.items():
            p=f"base_model.model.model.layers.{l}.{n}"
            t[p+".lora_A.weight"]=(rng.standard_normal((r,i))*.01).astype(np.float16); t[p+".lora_B.weight"]=(rng.standard_normal((o,r))*.01).astype(np.float16)
    save_file(t,d+"/adapter_model.safetensors",metadata={"format":"pt"})
    json.dump({"peft_type":"LORA","r":r,"lora_alpha":r,"target_modules":[n.split(".")[1] for n in S],"bias":"none","task_type":"CAUSAL_LM"},open(d+"/adapter_config.json","w"))
