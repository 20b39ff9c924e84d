"""The files under deploy/: they parse, agree with each other, and name only options that `tokenmill serve` has."""

import configparser
import re
import subprocess

import yaml

from server import BINARY, ROOT

DEPLOY = ROOT / "deploy"
HELP = subprocess.run([BINARY, "serve", "--help"], check=True, capture_output=True, text=True).stdout


def check_flags(words):
    for word in words:
        if word.startswith("--"):
            assert re.search(rf"(^|\s){re.escape(word)}\b", HELP), f"`serve` has no {word}"


documents = {}
for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        assert {"apiVersion", "kind", "metadata"} <= document.keys(), path
        documents[document["kind"]] = document
pod = documents["Deployment"]["spec"]["template"]
container = pod["spec"]["containers"][0]
labels = pod["metadata"]["labels"].items()
assert documents["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels
assert documents["Service"]["spec"]["selector"].items() <= labels
for kind in ["InferencePool", "PodDisruptionBudget"]:
    assert documents[kind]["spec"]["selector"]["matchLabels"].items() <= labels, kind
port = container["ports"][0]["containerPort"]
assert documents["InferencePool"]["spec"]["targetPorts"] == [{"number": port}]
assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port)
paths = {container[f"{probe}Probe"]["httpGet"]["path"] for probe in ["startup", "liveness", "readiness"]}
assert paths == {"/readyz", "/livez"}
arguments = container["args"]
check_flags(arguments)
drain = int(arguments[arguments.index("--drain-timeout") + 1])
assert pod["spec"]["terminationGracePeriodSeconds"] > drain

unit = configparser.ConfigParser(strict=False, interpolation=None)
unit.optionxform = str
unit.read(DEPLOY / "tokenmill.service")
assert set(unit.sections()) == {"Unit", "Service", "Install"}
check_flags(unit["Service"]["ExecStart"].split())

known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
lines = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
assert {line.split()[0] for line in lines} <= known
entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
check_flags(re.findall(r'"([^"]+)"', entry))
assert f'"{port}"' in entry
print("deploy/: all files parse and agree")
