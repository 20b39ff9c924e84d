"""Prints tokens per second with a draft model, here and in llama.cpp: speculation.py TOKENMILL LLAMA_SPECULATIVE_SIMPLE MODEL DRAFT."""
import sys,json,subprocess,re,statistics as st
T,S,M,D=sys.argv[1:]
P=["Once upon a time","Long ago, a busy girl named Ana lived at the market.","One day, Tom the little bear found a red kite in the forest."]
out={}
for r in range(4):
  for p in P:
    for k,a in {"tokenmill off":["--spec","off"],"tokenmill auto":["--draft",D,"--spec","auto"],"tokenmill 8":["--draft",D,"--spec","draft","--spec-max","8"]}.items():
      j=json.loads(subprocess.run([T,"run",M,p,"-n","300","--temp","0","-t","2","-c","512","--json"]+a,capture_output=True,text=True).stdout)["timings"]
      out.setdefault(k,[]).append((j["predicted_per_second"],j["predicted_n"],j["draft_n"],j["draft_n_accepted"]))
    for n in (3,8,16):
      o=subprocess.run([S,"-m",M,"-md",D,"-p",p,"-n","300","--temp","0","-t","2","-td","2","-c","512","--spec-type","draft-simple","--spec-draft-n-max",str(n)],capture_output=True,text=True,timeout=60,stdin=subprocess.DEVNULL)
      o=o.stdout+o.stderr
      g=lambda x:float(re.search(x,o).group(1))
      out.setdefault("llama.cpp %d"%n,[]).append((g(r"decoded.*speed:\s+([\d.]+)"),g(r"n_predict = (\d+)"),g(r"n_drafted = (\d+)"),g(r"n_accept  = (\d+)")))
for k,v in out.items(): print("%-16s %.0f tokens/s, %d tokens, %d of %d drafted"%(k,st.median(x[0] for x in v),sum(x[1] for x in v),sum(x[3] for x in v),sum(x[2] for x in v)))
