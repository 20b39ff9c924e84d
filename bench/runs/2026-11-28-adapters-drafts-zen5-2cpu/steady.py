"""One process answers one request after the other: steady.py MODEL ROUNDS TEMP NSEQS KINDS TOKENMILL [args]"""
import json,subprocess,sys,re,os,statistics as st
model,rounds,temp,nseq,kinds,b=sys.argv[1:7]; extra=sys.argv[7:]
P=["Once upon a time","Long ago, a busy girl named Ana lived at the market.","One day, Tom the little bear found a red kite in the forest.","The old mill stood by the river.","A small cat named Mia wanted to learn to swim.","In the morning, Ben went to school with his dog.","There was a king who loved apples.","Lily and Sam built a boat."]
n=len(P) if nseq=="1" else 24
with open(f"steady-{nseq}.jsonl","w") as f:
    for i in range(n):
        f.write(json.dumps({"custom_id":str(i),"method":"POST","url":"/v1/completions","body":{"model":sys.argv[1].replace(".gguf",""),"prompt":P[i%len(P)],"max_tokens":300,"temperature":float(temp),"seed":i}})+"\n")
A={"off":["--spec","off"],"mtp1":["--spec","mtp","--spec-max","1"],"mtp2":["--spec","mtp","--spec-max","2"],"mtp3":["--spec","mtp","--spec-max","3"],"mtp":["--spec","mtp"],"auto":["--spec","auto"],"auto3":["--spec","auto","--spec-max","3"],
"draft2":["--spec","draft","--spec-max","2"],"draft3":["--spec","draft","--spec-max","3"],"draft":["--spec","draft","--spec-max","8"]}
res={}; txt={}
for r in range(int(rounds)):
    for k in kinds.split(","):
        out="steady-out.jsonl"
        if os.path.exists(out): os.remove(out)
        a=A[k] + ([] if k=="off" else extra)
        o=subprocess.run(["chrt","-f","10",b,"batch",model,f"steady-{nseq}.jsonl",out,"--max-num-seqs",nseq,"-c","512","-t","2","--device","cpu"]+a,capture_output=True,text=True)
        t=o.stderr+o.stdout
        m=re.findall(r"(\d+) tokens, ([\d.]+) tokens/s",t)
        if not m: print(t[-400:]); sys.exit(1)
        x={json.loads(l)["custom_id"]:json.loads(l)["response"]["body"] for l in open(out)}
        tt={c:v["choices"][0]["text"] for c,v in x.items()}
        assert txt.setdefault(0,tt)==tt
        tm=[v.get("timings",{}) for v in x.values()]
        res.setdefault(k,[]).append((float(m[-1][1]),int(m[-1][0]),sum(q.get("draft_n",0) for q in tm),sum(q.get("draft_n_accepted",0) for q in tm)))
base=st.median(x[0] for x in res["off"]) if "off" in res else 1
for k,v in res.items(): print("%-6s"%k,[x[0] for x in v],"median %.0f ratio %.3f"%(st.median(x[0] for x in v),st.median(x[0] for x in v)/base),"tokens",v[0][1],"drafted/accepted",v[0][2:],flush=True)
