"""Prints tokens per second with drafts of all kinds: measure.py ROUNDS MODEL DRAFT TOKENMILL."""
import json, subprocess, sys, statistics as st
_, _, M, D, B = sys.argv
prompts=["Once upon a time","Long ago, a busy girl named Ana lived at the market.","One day, Tom the little bear found a red kite in the forest."]
kinds={"off":["--spec","off"],"auto without a draft":["--spec","auto"],"draft 3":["--draft",D,"--spec","draft","--spec-max","3"],"draft 8":["--draft",D,"--spec","draft","--spec-max","8"],"auto":["--draft",D,"--spec","auto"],"demo as draft, auto":["--draft","demo","--spec","auto"]}
out={}
for r in range(int(sys.argv[1])):
  for p in prompts:
    for t in ["0","0.8"]:
      for k,a in kinds.items():
        o=subprocess.run([B,"run",M,p,"-n","400","--temp",t,"--seed",str(r),"-t","2","-c","512","--json"]+a,capture_output=True,text=True)
        j=json.loads(o.stdout); x=j["timings"]
        if x["predicted_per_second"]: out.setdefault((t,k),[]).append((x["predicted_per_second"],x["predicted_n"],x["draft_n"],x["draft_n_accepted"]))
for (t,k),v in sorted(out.items()): print(t,"%-22s"%k,"tok/s median %.0f"%st.median(x[0] for x in v),"tokens",sum(x[1] for x in v),"drafted",sum(x[2] for x in v),"accepted",sum(x[3] for x in v))
