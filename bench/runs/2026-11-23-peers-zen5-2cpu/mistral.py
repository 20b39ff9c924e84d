"""Prints mistral.rs' rates: mistral.py FOLDER_OF_1b.gguf TOKENS ANSWER ROUNDS."""
import sys, time
from mistralrs import Runner, Which, CompletionRequest
folder, words, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
t=time.time()
r=Runner(which=Which.GGUF(tok_model_id=None,quantized_model_id=folder,quantized_filename="1b.gguf"),max_seqs=1,no_kv_cache=False)
print("load",time.time()-t,flush=True)
text=" a"*words
for rep in range(int(sys.argv[4])):
    t=time.time(); ts=[]
    u=None
    it=r.send_completion_request(CompletionRequest(model="default",prompt=text,max_tokens=n,temperature=0.0))
    u=it.usage
    print(time.time()-t,u.prompt_tokens,u.completion_tokens,"prompt tok/s",u.avg_prompt_tok_per_sec,"decode tok/s",u.avg_compl_tok_per_sec,flush=True)
