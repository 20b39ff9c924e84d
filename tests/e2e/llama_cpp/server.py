#!/usr/bin/env python3
"""Starts `tokenmill serve` with the options that llama.cpp's tests give its server.

Most are taken as they are. Here are the names of models, for which local files stand, and what has another form.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import models  # noqa: E402

# Options that are ignored, although they have a value.
WITH_VALUE = {"--tags", "--spec-draft-n-min", "--n-gpu-layers"}
ALONE = {"--backend_sampling", "--ui-mcp-proxy"}


def refuse(what):
    sys.stderr.write(f"there is nothing like it: {what}\n")
    sys.exit(64)


arguments, line = sys.argv[1:], []
model = repository = file = n_ctx = n_slots = None
adapters, is_unified, wants_encoder, has_template = [], "--kv-unified" in sys.argv, True, False
metadata = {}
while arguments:
    name = arguments.pop(0)
    if name in ALONE:
        continue
    if name in WITH_VALUE:
        arguments.pop(0)
    elif name == "--model":
        model = arguments.pop(0)
    elif name == "--hf-repo":
        repository = arguments.pop(0)
    elif name == "--hf-file":
        file = arguments.pop(0)
    elif name == "--ctx-size":
        n_ctx = int(arguments.pop(0))
    elif name == "--parallel":
        n_slots = int(arguments.pop(0))
    elif name == "--lora":
        adapters.append(arguments.pop(0))
    elif name == "--pooling":
        metadata["pooling_type"] = models.POOLING[arguments.pop(0)]
    elif name == "--alias":
        # llama.cpp keeps aliases in a sorted set, whose first entry is the model's name.
        line += ["--alias", ",".join(sorted(arguments.pop(0).split(",")))]
    elif name == "--spec-type":
        kind = arguments.pop(0)
        line += ["--spec", "draft" if kind.startswith("draft") else "ngram"]
    elif name == "--spec-draft-n-max":
        line += ["--spec-max", arguments.pop(0)]
    elif name == "--no-mmproj":
        wants_encoder = False
        line.append(name)
    elif name.startswith(("--spec-synth", "--models-preset", "--models-max", "--tools", "--mcp")):
        refuse(name)
    else:
        has_template |= name in ("--chat-template", "--chat-template-file")
        line.append(name)
if repository:
    found = models.find(repository, file, bool(adapters))
    if not found:
        refuse(f"{repository} {file}")
    model = found[0]
    if found[1] and wants_encoder:
        line += ["--mmproj", found[1]]
if model is None and "--models-dir" not in line:
    # The original server would load models of the Hub; these tests do not depend on the model.
    model = "demo"
if n_slots:
    line += ["--max-num-seqs", str(n_slots)]
if n_ctx:
    # llama.cpp divides a context between the slots, unless they share it.
    own = n_ctx if is_unified or not n_slots else n_ctx // n_slots
    line += ["-c", str(own), "--kv-cache-tokens", str(n_ctx)]
if model and model != "demo":
    if metadata:
        model = models.copy(model, {f"{models.architecture(model)}.{key}": value for key, value in metadata.items()})
    if not has_template and not models.has_template(model):
        line += ["--chat-template", "chatml"]
for index, path in enumerate(adapters):
    line += ["--lora", f"adapter{index}={path}"]
program = os.environ["TOKENMILL"]
command = [program, "serve", *([model] if model else []), *line]
sys.stderr.write(" ".join(command) + "\n")
sys.stderr.flush()
os.execv(program, command)
