"""Our reading of models' answers against others': SMG's parsers of calls, and OpenAI's own of gpt-oss's channels.

SMG is asked over HTTP (`/parse/function_call`), TOKENMILL_GATEWAYS names its folder. openai-harmony wants the vocabulary of gpt-oss as
a file: it is made of quicktok's, and openai-harmony checks its hash. Ours is `lab read-calls`, which reads
each answer whole and cut. What differs is listed with its reason, and the list is exact.
"""

import base64
import importlib.resources
import json
import os
import pathlib
import socket
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAB = ROOT / "target/debug/lab"

NUMBER = {"type": "number"}
TOOLS = [
    {"name": "weather", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}, "share": NUMBER,
        "tags": {"type": "array", "items": {"type": "string"}}, "more": {"type": "object"}, "open": {}}}},
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]
TOOLS = [{"type": "function", "function": tool} for tool in TOOLS]


def read_calls(answers):
    """What our parser says of each."""
    lines = "".join(json.dumps(answer) + "\n" for answer in answers)
    ended = subprocess.run([LAB, "read-calls"], input=lines, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


# How each format writes calls: a list of (name, arguments).


def dump(value):
    return json.dumps(value, ensure_ascii=False)


def bare(value):
    return value if isinstance(value, str) else dump(value)


def hermes(calls):
    return "\n".join(f"<tool_call>\n{dump({'name': name, 'arguments': args})}\n</tool_call>" for name, args in calls)


def llama(calls):
    return "; ".join(dump({"name": name, "parameters": args}) for name, args in calls)


def mistral_v3(calls):
    return "[TOOL_CALLS] " + dump([{"name": name, "arguments": args} for name, args in calls])


def deepseek_v3(calls):
    each = (f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dump(args)}\n```<｜tool▁call▁end｜>" for name, args in calls)
    return "<｜tool▁calls▁begin｜>" + "\n".join(each) + "<｜tool▁calls▁end｜>"


def deepseek_v31(calls):
    each = (f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dump(args)}<｜tool▁call▁end｜>" for name, args in calls)
    return "<｜tool▁calls▁begin｜>" + "".join(each) + "<｜tool▁calls▁end｜>"


def kimi_k2(calls):
    each = (
        f"<|tool_call_begin|>functions.{name}:{idx}<|tool_call_argument_begin|>{dump(args)}<|tool_call_end|>"
        for idx, (name, args) in enumerate(calls)
    )
    return "<|tool_calls_section_begin|>" + "".join(each) + "<|tool_calls_section_end|>"


def glm(calls):
    pair = "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"
    each = (f"<tool_call>{name}\n{''.join(pair.format(k, bare(v)) for k, v in args.items())}</tool_call>" for name, args in calls)
    return "\n".join(each)


def qwen_coder(calls):
    pair = "<parameter={}>\n{}\n</parameter>\n"
    each = (
        f"<tool_call>\n<function={name}>\n{''.join(pair.format(k, bare(v)) for k, v in args.items())}</function>\n</tool_call>"
        for name, args in calls
    )
    return "\n".join(each)


def minimax(calls):
    pair = '<parameter name="{}">{}</parameter>\n'
    each = (f'<invoke name="{name}">\n{"".join(pair.format(k, bare(v)) for k, v in args.items())}</invoke>\n' for name, args in calls)
    return "<minimax:tool_call>\n" + "".join(each) + "</minimax:tool_call>"


def cohere(calls):
    each = [{"tool_call_id": str(idx), "tool_name": name, "parameters": args} for idx, (name, args) in enumerate(calls)]
    return f"<|START_ACTION|>{dump(each)}<|END_ACTION|>"


def pythonic(calls):
    return "[" + ", ".join(f"{name}({', '.join(f'{k}={v!r}' for k, v in args.items())})" for name, args in calls) + "]"


# Ours by marks of its template, SMG's parser, and how it is written.
FORMATS = {
    "hermes": ("<tool_call>", "qwen", hermes),
    "llama": ("<|python_tag|>", "llama", llama),
    "mistral": ("[TOOL_CALLS]", "mistral", mistral_v3),
    "deepseek v3": ("<｜tool▁call▁begin｜> ```json", "deepseek", deepseek_v3),
    "deepseek v3.1": ("<｜tool▁call▁begin｜>", "deepseek31", deepseek_v31),
    "kimi k2": ("<|tool_call_begin|>", "kimik2", kimi_k2),
    "glm": ("<arg_key>", "glm45_moe", glm),
    "qwen3 coder": ("<function= <parameter=", "qwen_xml", qwen_coder),
    "minimax": ("minimax:tool_call", "minimax_m2", minimax),
    "cohere": ("<|START_ACTION|><|START_THINKING|>", "cohere", cohere),
    "pythonic": ("<|python_tag|>", "pythonic", pythonic),
}

CALLS = {
    "one": [("weather", {"city": "Bern", "days": 3})],
    "nothing asked": [("now", {})],
    "two": [("weather", {"city": "Bern"}), ("now", {})],
    "same twice": [("weather", {"city": "Bern"}), ("weather", {"city": "Basel"})],
    "every kind": [("weather", {"city": "Bern", "days": -3, "exact": True, "share": 0.5, "tags": ["a", "b c"], "more": {"x": [1]}})],
    "quotes": [("weather", {"city": 'say "hi", it\'s \\ here'})],
    "lines": [("weather", {"city": "first\nsecond\n\nfourth"})],
    "other scripts": [("weather", {"city": "Zürich 東京 🏔"})],
    "looks like a number": [("weather", {"city": "007"})],
    "looks like JSON": [("weather", {"city": '{"a": [1]}'})],
    "looks like a mark": [("weather", {"city": "a < b > c / <d>"})],
    "empty text": [("weather", {"city": ""})],
    "open text": [("weather", {"open": "so it is"})],
    "open list": [("weather", {"open": [1, "a"]})],
    "open truth": [("weather", {"open": True})],
}

# Formats whose calls have no mark: in the midst of a text, what looks like one is text.
BARE = {"llama", "pythonic"}

# For a format and a case: the reason why our answer differs from SMG's.
DIFFERENCES = {(name, "unknown tool"): "a call of a tool that was not offered is text" for name in FORMATS}
DIFFERENCES["minimax", "open list"] = "the template writes a list as JSON, so JSON is read as such where the schema allows it"
DIFFERENCES["pythonic", "text before"] = "what merely looks like a call stays text, as SMG has it in Llama's JSON too"


class Smg:
    """SMG without a worker: it parses all the same."""

    def __init__(self, program):
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, metrics = probe.getsockname()[1], other.getsockname()[1]
        command = [program, "launch", "--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(metrics)]
        command += ["--worker-urls", "http://127.0.0.1:1"]
        self.log = open(ROOT / "target/e2e-smg-parsers.log", "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        self.url = f"http://127.0.0.1:{port}/parse/function_call"
        deadline = time.monotonic() + 60
        while True:
            try:
                self.parse("json", "")
                return
            except (OSError, urllib.error.URLError) as error:
                assert time.monotonic() < deadline and self.process.poll() is None, error
                time.sleep(0.5)

    def parse(self, parser, text):
        body = json.dumps({"text": text, "tool_call_parser": parser, "tools": TOOLS}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
        calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in answer["tool_calls"]]
        return calls, answer["remaining_text"].strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.log.close()


def against_smg(program):
    cases = []
    for name, (template, parser, write) in FORMATS.items():
        for case, calls in CALLS.items():
            cases.append((name, case, template, parser, write(calls), calls))
        one = write(CALLS["one"])
        cases.append((name, "text before", template, parser, f"Let me look.\n{one}", [] if name in BARE else CALLS["one"]))
        cases.append((name, "no call", template, parser, "It is 3 < 4, [so] {it} is.", []))
        cases.append((name, "unknown tool", template, parser, write([("nothing", {"city": "Bern"})]), []))
        cases.append((name, "cut", template, parser, one[: len(one) * 2 // 3], []))
    ours = read_calls([{"template": template, "tools": TOOLS, "text": text} for _, _, template, _, text, _ in cases])
    found, n_equal = {}, 0
    with Smg(program) as smg:
        for (name, case, _, parser, text, calls), mine in zip(cases, ours):
            my_calls = [(call["name"], json.loads(call["arguments"])) for call in mine["calls"]]
            assert my_calls == calls, (name, case, text, mine)
            theirs = smg.parse(parser, text)
            if theirs == (my_calls, mine["text"].strip()):
                n_equal += 1
            else:
                found[name, case] = (theirs, (my_calls, mine["text"]), text)
    for key, (theirs, mine, text) in found.items():
        assert key in DIFFERENCES, f"{key}: SMG {theirs}, ours {mine}, of {text!r}"
    assert set(DIFFERENCES) <= set(found), f"they agree now: {set(DIFFERENCES) - set(found)}"
    print(f"SMG's parsers: {n_equal} of {len(cases)} answers read alike, {len(found)} differ for the reasons listed")


def harmony_encoding():
    """The encoding of gpt-oss, from quicktok's table: a count, then for each token its length, its bytes and its number."""
    import openai_harmony

    table = (importlib.resources.files("quicktok") / "data/o200k.vocab").read_bytes()
    (count,) = struct.unpack_from("<I", table)
    at, tokens = 4, []
    for _ in range(count):
        (length,) = struct.unpack_from("<H", table, at)
        (rank,) = struct.unpack_from("<I", table, at + 2 + length)
        tokens.append((rank, table[at + 2 : at + 2 + length]))
        at += 6 + length
    folder = tempfile.mkdtemp()
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in sorted(tokens))
    (pathlib.Path(folder) / "o200k_base.tiktoken").write_bytes(lines)
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder
    return openai_harmony.load_harmony_encoding(openai_harmony.HarmonyEncodingName.HARMONY_GPT_OSS)


def harmony_says(encoding, text):
    """Calls, reasoning and text, by OpenAI's own parser token by token."""
    from openai_harmony import Role, StreamableParser

    parser = StreamableParser(encoding, Role.ASSISTANT)
    for token in encoding.encode(text, allowed_special="all"):
        parser.process(token)
    parser.process_eos()
    calls, reasoning, said = [], "", ""
    for message in parser.messages:
        content = "".join(part.text for part in message.content)
        if message.recipient and message.recipient.startswith("functions."):
            calls.append((message.recipient.removeprefix("functions."), json.loads(content)))
        elif message.channel == "analysis":
            reasoning += content
        else:
            said += content
    return calls, reasoning, said


def against_harmony():
    encoding = harmony_encoding()
    final = "<|start|>assistant<|channel|>final<|message|>"
    think = "<|channel|>analysis<|message|>The user asks for \"it\".\n<|end|>"

    def call(name, args, head="<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"):
        return f"<|start|>assistant{head.format(name)}{dump(args)}<|call|>"

    answers = [
        "<|channel|>final<|message|>Hello.<|return|>",
        f"{think}{final}It is so:\n\n- a\n- b<|return|>",
        f"{think}{final}cut in the mid",
        f"{think}<|start|>assistant<|channel|>commentary<|message|>I look it up.<|end|>{call('now', {})}",
        *(think + "".join(call(name, args) for name, args in calls) for calls in CALLS.values()),
        think + call("now", {}, " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>"),
        think + call("now", {}, "<|channel|>commentary to=functions.{}<|message|>"),
        think + call("weather", {"city": "Bern"}, "<|channel|>analysis to=functions.{} <|constrain|>json<|message|>"),
        "<|channel|>final<|message|>a <b> & [c] {\"d\"} to=functions.now<|return|>",
        "<|channel|>final<|message|>Zürich 東京 🏔<|return|>",
    ]
    template = "<|channel|><|message|><|start|>"
    ours = read_calls([{"template": template, "tools": TOOLS, "text": text, "is_head": True} for text in answers])
    for text, mine in zip(answers, ours):
        calls = [(call["name"], json.loads(call["arguments"])) for call in mine["calls"]]
        theirs = harmony_says(encoding, text)
        assert (calls, mine["reasoning"], mine["text"]) == theirs, f"harmony {theirs}, ours {mine}, of {text!r}"
    print(f"openai-harmony: {len(answers)} of {len(answers)} answers read alike")


against_harmony()
gateways = os.environ.get("TOKENMILL_GATEWAYS")
smg = gateways and pathlib.Path(gateways) / "smg"
if smg and smg.exists():
    against_smg(str(smg))
else:
    print("skipped: TOKENMILL_GATEWAYS names no folder with smg")
