"""Prints tokens per second with and without the model's own layer: measure.py ROUNDS MODEL TOKENMILL."""
import json, subprocess, sys, statistics as st
_, R, M, B = sys.argv
prompts = ["Once upon a time", "Long ago, a busy girl named Ana lived at the market.", "One day, Tom the little bear found a red kite in the forest."]
kinds = {"off": ["--spec", "off"], "mtp 1": ["--spec", "mtp", "--spec-max", "1"], "mtp 3": ["--spec", "mtp", "--spec-max", "3"], "mtp": ["--spec", "mtp"], "auto": ["--spec", "auto"]}
out, ids = {}, {}
for r in range(int(R)):
    for p in prompts:
        for t in ["0", "0.8"]:
            for k, a in kinds.items():
                o = subprocess.run([B, "run", M, p, "-n", "400", "--temp", t, "--seed", str(r), "-t", "2", "-c", "512", "--json"] + a, capture_output=True, text=True)
                j = json.loads(o.stdout); x = j["timings"]
                assert ids.setdefault((r, p, t), j["ids"]) == j["ids"], "the answer is the same"
                if x["predicted_per_second"]: out.setdefault((t, k), []).append((x["predicted_per_second"], x["predicted_n"], x["draft_n"], x["draft_n_accepted"]))
for (t, k), v in sorted(out.items()):
    print(t, "%-6s" % k, "tokens/s median %.0f" % st.median(x[0] for x in v), "tokens", sum(x[1] for x in v), "drafted", sum(x[2] for x in v), "accepted", sum(x[3] for x in v), flush=True)
