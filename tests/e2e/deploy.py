"""The files under deploy/: linters of each kind accept them, they agree with each other, and they name only options that
`tokenmill serve` has."""

import configparser
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import jsonschema
import yaml

from server import BINARY, ROOT

DEPLOY = ROOT / "deploy"
HELP = subprocess.run([BINARY, "serve", "--help"], check=True, capture_output=True, text=True).stdout


def check_flags(words):
    for word in words:
        option, _, _ = word.partition("=")
        if option.startswith("--"):
            assert re.search(rf"(^|\s){re.escape(option)}\b", HELP), f"`serve` has no {option}"


def lint(name, program, *arguments):
    """Runs a linter that accepts files by exit code 0 and without a word about them."""
    beside = pathlib.Path(sys.executable).with_name(program)
    found = beside if beside.exists() else shutil.which(program)
    if not found:
        print(f"skipped: {name}: {program} is not installed")
        return
    run = subprocess.run([found, *arguments], capture_output=True, text=True)
    files = [argument.name for argument in arguments if isinstance(argument, pathlib.Path)]
    said = [line for line in (run.stdout + run.stderr).splitlines() if any(file in line for file in files)]
    assert run.returncode == 0 and not said, f"{name}: {program} ends with {run.returncode}: {run.stdout}{run.stderr}"
    print(f"{name}: {program} accepts it")


lint("Containerfile", "hadolint", DEPLOY / "Containerfile")
schemas = ["deployment", "service", "pod-disruption-budget", "persistent-volume-claim", "download-model"]
lint("Kubernetes manifests", "kubernetes-validate", "--strict", "--quiet", *(DEPLOY / f"kubernetes/{name}.yaml" for name in schemas))
with tempfile.TemporaryDirectory() as folder:
    # It asks whether the program exists, so the unit is checked with the one that is tested.
    unit = pathlib.Path(folder, "tokenmill.service")
    unit.write_text((DEPLOY / "tokenmill.service").read_text().replace("/usr/local/bin/tokenmill", str(BINARY)))
    lint("systemd unit", "systemd-analyze", "verify", "--recursive-errors=no", unit)

documents = {}
for path in sorted((DEPLOY / "kubernetes").glob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        assert {"apiVersion", "kind", "metadata"} <= document.keys(), path
        documents[document["kind"]] = document
pod = documents["Deployment"]["spec"]["template"]
container = pod["spec"]["containers"][0]
labels = pod["metadata"]["labels"].items()
assert ("llm-d.ai/engine-type", "vllm") in labels
assert documents["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels
assert documents["Service"]["spec"]["selector"].items() <= labels
for kind in ["InferencePool", "PodDisruptionBudget"]:
    assert documents[kind]["spec"]["selector"]["matchLabels"].items() <= labels, kind
# No package brings this resource's schema. Source: the API reference of the Gateway API inference extension, v1.
strict = {"type": "object", "additionalProperties": False}
number = {"type": "integer", "minimum": 1, "maximum": 65535}
pool = {
    **strict,
    "required": ["selector", "targetPorts", "endpointPickerRef"],
    "properties": {
        "selector": {**strict, "required": ["matchLabels"], "properties": {"matchLabels": {"type": "object", "minProperties": 1}}},
        "targetPorts": {"type": "array", "minItems": 1, "maxItems": 8, "items": {**strict, "required": ["number"], "properties": {"number": number}}},
        "appProtocol": {"enum": ["http", "kubernetes.io/h2c"]},
        "endpointPickerRef": {
            **strict,
            "required": ["name"],
            "properties": {
                "group": {"type": "string"},
                "kind": {"type": "string"},
                "name": {"type": "string", "minLength": 1},
                "port": {**strict, "required": ["number"], "properties": {"number": number}},
                "failureMode": {"enum": ["FailOpen", "FailClose"]},
            },
        },
    },
}
assert documents["InferencePool"]["apiVersion"] == "inference.networking.k8s.io/v1"
jsonschema.validate(documents["InferencePool"]["spec"], pool)
port = container["ports"][0]["containerPort"]
assert documents["InferencePool"]["spec"]["targetPorts"] == [{"number": port}]
assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port)
paths = {container[f"{probe}Probe"]["httpGet"]["path"] for probe in ["startup", "liveness", "readiness"]}
assert paths == {"/readyz", "/livez"}
arguments = container["args"]
check_flags(arguments)
options = [argument.partition("=") for argument in arguments if argument.startswith("--")]
drain = next(int(value) for option, _, value in options if option == "--drain-timeout")
assert pod["spec"]["terminationGracePeriodSeconds"] > drain
# The service's own names are answered for.
hosts = [value for option, _, value in options if option == "--allow-host"]
service = documents["Service"]["metadata"]["name"]
assert hosts[:2] == [service, f"{service}.$(NAMESPACE)"], hosts
assert [variable["name"] for variable in container["env"]] == ["NAMESPACE"]
# The claim is made here, the download fills it, and no service sends requests to the download.
claim = documents["PersistentVolumeClaim"]["metadata"]["name"]
download = documents["Job"]["spec"]["template"]
for user in [pod, download]:
    assert [volume["persistentVolumeClaim"]["claimName"] for volume in user["spec"]["volumes"]] == [claim]
loader = download["spec"]["containers"][0]
assert (loader["image"], loader["securityContext"]) == (container["image"], container["securityContext"])
assert not documents["Service"]["spec"]["selector"].items() <= download["metadata"]["labels"].items()
assert loader["args"][0].endswith(arguments[0]), loader["args"]
kustomization = documents["Kustomization"]
assert set(kustomization["resources"]) <= {path.name for path in (DEPLOY / "kubernetes").iterdir()}
name, tag = container["image"].split(":")
assert [(image["name"], image["newTag"]) for image in kustomization["images"]] == [(name, tag)]

unit = configparser.ConfigParser(strict=False, interpolation=None)
unit.optionxform = str
unit.read(DEPLOY / "tokenmill.service")
assert set(unit.sections()) == {"Unit", "Service", "Install"}
check_flags(unit["Service"]["ExecStart"].split())
credential, _, _ = unit["Service"]["LoadCredential"].partition(":")
assert f"%d/{credential}" in unit["Service"]["ExecStart"].split(), "the keys are read from where systemd puts them"

known = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
lines = [line for line in (DEPLOY / "Containerfile").read_text().splitlines() if line and not line.startswith("#")]
assert {line.split()[0] for line in lines} <= known
entry = next(line for line in lines if line.startswith("ENTRYPOINT"))
check_flags(re.findall(r'"([^"]+)"', entry))
assert f'"{port}"' in entry
print("deploy/: all files agree")
