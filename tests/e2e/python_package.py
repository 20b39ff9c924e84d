"""The Python package: its own tests, its types, the plug-in of the command `llm`, and the example for LangChain.

Runs in an environment with the package installed; TOKENMILL names the program that its answers must equal.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

PACKAGE = pathlib.Path("bindings/python")
BIN = pathlib.Path(sys.executable).parent
SCRIPT = """
from tokenmill import Model
model = Model("demo", offline=True, mmproj=False, progress=print)
answer = model.chat([{"role": "user", "content": "Hello"}], max_tokens=4, schema={"type": "object"})
text: str = answer.text
rows: int = model.embed(["a"]).shape[0]
model.chat("Hello", max_tokens=4)
for call in answer.calls:
    x: object = call.arguments["x"]
    written: str = call.arguments_json
with Model("demo", gpu_layers="auto", lora={"poet": ("poet.gguf", 0.5)}) as other:
    other.complete("a", lora="poet")
async def wait() -> str:
    return (await model.chat_stream([{"role": "user", "content": "Hello"}])).text
async def read() -> list[str]:
    return [piece.text async for piece in model.stream("a", temperature=0.5)]
"""


def run(*command, **environment):
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        print(done.stdout)
        raise SystemExit(f"{command[0]} ended with {done.returncode}")
    return done.stdout


with tempfile.TemporaryDirectory() as folder:
    print(run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", PACKAGE / "tests").strip().splitlines()[-1])
    print(run(sys.executable, "tests/e2e/python_hub.py").strip())
    script = pathlib.Path(folder, "script.py")
    script.write_text(SCRIPT)
    print(run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", folder, script).strip())
    answer = run(BIN / "llm", "-m", "tokenmill/demo", "-o", "max_tokens", "24", "What is 3 + 4?", LLM_USER_PATH=folder)
    assert "7" in answer, answer
    print("ok: llm")
    told = run(sys.executable, PACKAGE / "examples/langchain_model.py").strip().splitlines()
    assert len(told) >= 2 and all(told), told
    print("ok: langchain_model")
