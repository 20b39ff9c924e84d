"""Tokens per second of eight requests without and with four adapters: lora.py RANK ROUNDS TOKENMILL..."""
import json,subprocess,sys,re,time,statistics as st
rank,rounds,bins=sys.argv[1],int(sys.argv[2]),sys.argv[3:]
res={}
for r in range(rounds):
    for b in bins:
        for k in ("none","four"):
            out="out-%s-%s.jsonl"%(b.strip("./"),k)
            import os
            if os.path.exists(out): os.remove(out)
            lora=sum((["--lora",f"a{i}=a{rank}_{i}"] for i in range(4)),[])
            o=subprocess.run(["chrt","-f","10",b,"batch","1b.gguf",k+".jsonl",out,"--max-num-seqs","8","-c","512","-t","2","--device","cpu","--spec","off"]+lora,capture_output=True,text=True)
            t=o.stderr+o.stdout
            m=re.findall(r"([\d.]+) tokens/s|([\d.]+) tokens per second",t)
            if not m: print(t[-600:]); sys.exit(1)
            res.setdefault((b,k),[]).append(float([x for x in m[-1] if x][0]))
for b in bins:
    n,f=st.median(res[b,"none"]),st.median(res[b,"four"])
    print(rank,b,"none",res[b,"none"],"four",res[b,"four"],"ratio of medians %.3f"%(f/n),flush=True)
