"""Prints OpenVINO GenAI's rates: openvino_rates.py MODEL PROMPT ANSWER ROUNDS."""
import openvino_genai as g,time,sys
p=g.LLMPipeline(sys.argv[1],"CPU",INFERENCE_NUM_THREADS=2)
c=g.GenerationConfig(); c.max_new_tokens=int(sys.argv[3]); c.ignore_eos=True
import numpy as np, openvino as ov
n=int(sys.argv[2])
for r in range(int(sys.argv[4])):
    ids=np.random.RandomState(r).randint(1000,100000,(1,n))
    inp=g.TokenizedInputs(ov.Tensor(ids.astype(np.int64)),ov.Tensor(np.ones((1,n),np.int64)))
    o=p.generate(inp,c); m=o.perf_metrics
    print("prefill tok/s %.0f"%(n/(m.get_ttft().mean/1000)), "decode", m.get_throughput().mean,flush=True)
