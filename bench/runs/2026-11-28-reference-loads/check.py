"""Has llama.cpp read what `convert` and `quantize` wrote: `check.py TOKENMILL LLAMA_BIN TEXT FOLDER...`.

Each FOLDER has `hf` (a Hugging Face folder) and `model-F32.gguf` (llama.cpp's conversion of it). llama-perplexity writes its log-probabilities of TEXT
for that file and for ours, and for Q4_K_M files that llama-quantize and `tokenmill quantize` make of it; files of log-probabilities are compared
byte by byte.
"""

import pathlib
import subprocess
import sys
import tempfile

tokenmill, llama, text = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, errors="replace", timeout=300)
    said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    return done.returncode == 0, next((line for line in reversed(said) if "rror" in line), said[-1] if said else "")


def logits(model, out):
    out.unlink(missing_ok=True)
    fine, said = run(llama / "llama-perplexity", "-m", model, "-f", text, "-c", "32", "-b", "32", "-t", "1", "--chunks", "2", "-fa", "off",
                     "--save-all-logits", out)
    return out.read_bytes() if fine and out.exists() and out.stat().st_size > 1000 else said


def verdict(theirs, ours):
    if isinstance(theirs, str):
        return f"their own file: {theirs[:100]}"
    if isinstance(ours, str):
        return f"REFUSED: {ours[:100]}"
    return "equal" if theirs == ours else "DIFFERENT"


print("| network | F32 folder | Q4_K_M |\n|---|---|---|")
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    for folder in map(pathlib.Path, sys.argv[4:]):
        theirs = logits(folder / "model-F32.gguf", scratch / "theirs.dat")
        fine, said = run(tokenmill, "convert", folder / "hf", scratch / "ours.gguf", "--type", "F32")
        converted = verdict(theirs, logits(scratch / "ours.gguf", scratch / "ours.dat")) if fine else f"not converted: {said[:100]}"
        (scratch / "ours.gguf").unlink(missing_ok=True)
        quantized = []
        for name, command in (
            ("theirs", (llama / "llama-quantize", folder / "model-F32.gguf", scratch / "theirs.gguf", "Q4_K_M", "1")),
            ("ours", (tokenmill, "quantize", folder / "model-F32.gguf", scratch / "ours.gguf", "Q4_K_M")),
        ):
            fine, said = run(*command)
            quantized.append(logits(scratch / f"{name}.gguf", scratch / f"{name}.dat") if fine else said)
            (scratch / f"{name}.gguf").unlink(missing_ok=True)
        print(f"| {folder.name} | {converted} | {verdict(*quantized)} |", flush=True)
