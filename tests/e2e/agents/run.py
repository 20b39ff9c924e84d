"""Agents for programmers against `tokenmill serve`, each in sessions of two turns: what they send is taken, what the model says comes
through, and the second turn finds the first one's prompt in the cache.

`run.py BIN... [-- NAME...]`: folders with the agents' programs, then the agents to run, all without names.

- With the demo model: an agent's own prompt is far longer than what this model follows, so its answer makes no sense. A second session
  of the same agent must reuse the prompt too.
- With a puppet (`puppet.py`) that has the demo model's tokenizer and template: it calls the agent's shell, the agent runs the command
  and sends what it read, and the answer that follows is known. For aider, which offers no tools, the answer changes a file.
"""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import puppet
from confined import confine
from programs import AGENTS, ALLOW, CONTEXT, NOTE
from server import ROOT, Server
from tap import Tap

DEMO = ROOT / "crates/tokenmill/assets/tokenmill-demo-Q8_0.gguf"
# Agents add, or change, a few hundred tokens of more than ten thousand in each turn.
LEAST_SHARE = 0.9
# In a new session: Claude Code describes its surroundings after the question, and the rest of the prompt is reused.
LEAST_SHARE_OF_ANOTHER = 0.5
TURN_S = 300
QUESTIONS = ["What does the note say?", "Please read it once more."]
# A text that aider sends before the history. It has no fences, or aider would want answers in others.
GUIDE = "".join(f"Rule {number}: kettle {number} hangs on hook {number + 7}.\n" for number in range(500))
# Parts of a request that are its prompt, in the order of templates.
PROMPT = ["system", "instructions", "tools", "messages", "input"]


@dataclasses.dataclass
class Turn:
    """What a turn said and asked for."""

    output: str
    # Bodies of its requests for an answer.
    asked: list
    prompt_tokens: int
    cached_tokens: int

    @property
    def share(self):
        return self.cached_tokens / self.prompt_tokens


class Session:
    """An agent in an empty folder, with a home of its own, and a server."""

    def __init__(self, agent, bins, server, tap, uses_shell):
        self.agent, self.server, self.tap, self.uses_shell = agent, server, tap, uses_shell
        # Outside of this repository, whose instructions and history an agent would read.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="agent-"))
        (self.folder / "note.txt").write_text(NOTE)
        (self.folder / "guide.md").write_text(GUIDE)
        # Codex wants no home in a folder for temporary files.
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="home-", dir=ROOT / "target"))
        for path, text in agent.files.items():
            file = self.home / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.filled(text))
        self.environment = {
            "PATH": os.pathsep.join([*bins, os.environ["PATH"]]),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "DO_NOT_TRACK": "1",
        } | {name: self.filled(value) for name, value in agent.environment.items()}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for folder in (self.folder, self.home):
            shutil.rmtree(folder, ignore_errors=True)

    def filled(self, text):
        return text.replace("{url}", self.tap.url).replace("{home}", str(self.home))

    def turn(self, arguments, question):
        """Asks a question; all that the agent asks the server for is answered."""
        n_asked, n_logged = len(self.tap.requests), len(self.logged())
        command = [self.agent.program]
        for argument in arguments:
            command += (self.agent.allow if self.uses_shell else []) if argument == ALLOW else [self.filled(argument)]
        done = subprocess.run(
            [*command, question],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TURN_S,
        )
        said = f"\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, (done.returncode, said)
        assert done.stdout.strip(), said
        requests = self.tap.requests[n_asked:]
        deadline = time.monotonic() + 10
        while True:
            lines = self.logged()[n_logged:]
            if sum(line["method"] == "POST" for line in lines) >= len(requests):
                break
            assert time.monotonic() < deadline, (lines, [path for path, _ in requests])
            time.sleep(0.02)
        # Some leave a title that nobody waits for.
        lines = [line for line in lines if "disconnected" not in line]
        refused = [line for line in lines if line["status"] >= 400]
        assert not refused, (refused, said)
        answered = [line for line in lines if "prompt_tokens" in line]
        assert answered and all(line["completion_tokens"] > 0 for line in answered), (lines, said)
        return Turn(
            done.stdout,
            [body for _, body in requests if any(body.get(part) for part in ("messages", "input"))],
            sum(line["prompt_tokens"] for line in answered),
            sum(line["cached_tokens"] for line in answered),
        )

    def logged(self):
        """What the server says of requests."""
        lines = [json.loads(line) for line in [*self.server.log]]
        return [line for line in lines if line.get("target") == "tokenmill::request"]


def difference(earlier, later):
    """Where two prompts part, with some of what follows in each."""
    prompts = [json.dumps({part: body.get(part) for part in PROMPT}, ensure_ascii=False) for body in (earlier, later)]
    # The server leaves that one out.
    one, other = (re.sub(r'x-anthropic-billing-header:[^"]*', "", prompt) for prompt in prompts)
    at = len(os.path.commonprefix([one, other]))
    return f"of {len(one)} and {len(other)} characters the first {at} are the same, then\n  {one[at - 80 : at + 160]}\n  {other[at - 80 : at + 160]}"


def check_share(what, earlier, later, least=LEAST_SHARE):
    """The later turn found most of its prompt in the cache."""
    print(f"   {what}: {later.cached_tokens} of {later.prompt_tokens} prompt tokens cached, {later.share:.3f}", flush=True)
    assert later.share > least, (what, later.share, difference(earlier.asked[-1], later.asked[-1]))


def with_demo(agent, bins):
    """Two turns, and the first turn of another session."""
    with Server("-c", str(CONTEXT)) as server, Tap(server.url) as tap:
        with Session(agent, bins, server, tap, uses_shell=False) as session:
            first = session.turn(agent.first, QUESTIONS[0])
            assert any(body.get("tools") for body in first.asked) == (agent.shell is not None), "no tools were offered"
            check_share("second turn", first, session.turn(agent.again, QUESTIONS[1]))
            check_share("another session", first, session.turn(agent.first, QUESTIONS[1]), LEAST_SHARE_OF_ANOTHER)


def with_puppet(agent, bins):
    """Two turns whose answers are known. In each the agent's shell is called, and the agent sends the result; or the answer is a change
    of a file, which the agent makes."""
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "puppet.gguf"
        puppet.write(model, DEMO, agent.shell, agent.answer, CONTEXT)
        flags = ["-c", str(CONTEXT), "--served-model-name", "demo"]
        with Server(*flags, model=model) as server, Tap(server.url) as tap, Session(agent, bins, server, tap, uses_shell=True) as session:
            turns = [session.turn(arguments, question) for arguments, question in zip((agent.first, agent.again), QUESTIONS)]
            note = (session.folder / "note.txt").read_text()
        assert note == agent.note, (note, turns[0].output)
        for n_before, turn in enumerate(turns):
            assert agent.answer in turn.output, turn.output
            if agent.shell:
                n_results = max(json.dumps(body).count(NOTE.strip()) for body in turn.asked)
                assert n_results > n_before, (n_results, turn.asked[-1])
        check_share("second turn, puppet", *turns)


def main():
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    bins, named = [str(pathlib.Path(folder).resolve()) for folder in arguments[:at]], arguments[at + 1 :]
    unknown = [name for name in named if name not in AGENTS]
    if unknown:
        raise SystemExit(f"there is no {', '.join(unknown)}; there are {', '.join(AGENTS)}")
    confine()
    for name in named or AGENTS:
        agent = AGENTS[name]
        began = time.monotonic()
        with_demo(agent, bins)
        with_puppet(agent, bins)
        print(f"ok: {name} in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
