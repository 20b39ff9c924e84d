import json,subprocess,sys,time,statistics as st,http.client,random
_, N, M, B, X = sys.argv  # questions, model, program before and after
N = int(N)
cfg={"base auto layer":(B,"auto",M),"base off":(B,"off",M),"base auto none":(B,"auto","demo"),"new auto layer":(X,"auto",M),"new off":(X,"off",M),"new auto none":(X,"auto","demo")}
ports={};procs=[]
for i,(k,(b,s,m)) in enumerate(cfg.items()):
    ports[k]=18761+i
    procs.append(subprocess.Popen(["chrt","-f","10","timeout","560",b,"serve",m,"--port",str(ports[k]),"-t","2","-c","512","--spec",s,"-np","1"],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL))
time.sleep(4)
prompts=["Once upon a time","Long ago, a busy girl named Ana lived at the market.","One day, Tom the little bear found a red kite in the forest."]
res={k:[] for k in cfg}; ids={}
def ask(k,i):
    c=http.client.HTTPConnection("127.0.0.1",ports[k],timeout=30)
    c.request("POST","/completion",json.dumps({"prompt":prompts[i%3]+" "*(1+i%2)+str(i)+" ","n_predict":300,"temperature":0.8 if i%2 else 0,"seed":i}),{"Content-Type":"application/json"})
    j=json.loads(c.getresponse().read()); c.close()
    assert ids.setdefault(i,j["content"])==j["content"]
    t=j["timings"]; return t["predicted_ms"]/t["predicted_n"], t.get("draft_n",0), t.get("draft_n_accepted",0), t["prompt_ms"]
try:
    dr={k:[0,0] for k in cfg}
    for i in range(N):
        ks=list(cfg); random.shuffle(ks)
        for k in ks:
            x=ask(k,i); res[k].append(x); dr[k][0]+=x[1] or 0; dr[k][1]+=x[2] or 0
    for a,b in (("new auto layer","new off"),("new auto layer","new auto none"),("base auto layer","base off"),("base auto layer","base auto none"),("base off","new off")):
        for part,(lo,hi) in (("first half",(0,N//2)),("second half",(N//2,N))):
            r=[res[b][i][0]/res[a][i][0] for i in range(lo,hi)]
            print(a,"/",b,part,"speed: median of ratios %.4f"%st.median(r),"ratio of medians %.4f"%(st.median(x[0] for x in res[b][lo:hi])/st.median(x[0] for x in res[a][lo:hi])),"prompts %.3f"%(st.median(x[3] for x in res[b][lo:hi])/st.median(x[3] for x in res[a][lo:hi])),flush=True)
    print({k:"%.4f ms"%st.median(x[0] for x in v) for k,v in res.items()},dr)
finally:
    for p in procs: p.terminate()
