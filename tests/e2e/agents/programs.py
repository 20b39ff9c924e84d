"""`AGENTS`: how each agent is told of a server, asked a question, and asked another one in the same session.

In texts `{url}` is the server's address and `{home}` the agent's own home folder. Nothing here is for the tests alone but what keeps
an agent from calling its maker: a person sets the same lines.
"""

import dataclasses
import json

CONTEXT = 65536
NOTE = "The kettle is on the roof.\n"
EDITED_NOTE = "The kettle is in the shed.\n"
ANSWER = "The note has been read."


@dataclasses.dataclass(frozen=True)
class Agent:
    """An agent. A command is its program, the arguments of a turn and the question; `allow` stands at `ALLOW` where the shell may be used."""

    program: str
    first: list
    again: list
    environment: dict = dataclasses.field(default_factory=dict)
    # Files of its home folder by path.
    files: dict = dataclasses.field(default_factory=dict)
    allow: list = dataclasses.field(default_factory=list)
    # The name of its shell's tool, and the arguments that read the note; none where an agent offers no tools.
    shell: tuple = None
    # The answer that it is given, and what the note says after that.
    answer: str = ANSWER
    note: str = NOTE


ALLOW = "{allow}"
READ_NOTE = "cat note.txt"
DESCRIPTION = "Reads the note"

CODEX = """
model = "demo"
model_provider = "tokenmill"
model_context_window = 65536
[model_providers.tokenmill]
name = "tokenmill"
base_url = "{url}/v1"
wire_api = "responses"
"""
CODEX_QUIET = """
check_for_update_on_startup = false
[analytics]
enabled = false
"""
# The shell runs without a sandbox of its own: these tests run where one may not be made.
CODEX_ALLOW = ["--sandbox", "danger-full-access"]
CODEX_SHELL = ("exec_command", {"cmd": READ_NOTE})

OPENCODE = {
    "model": "tokenmill/demo",
    "provider": {
        "tokenmill": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1"},
            "models": {"demo": {"limit": {"context": CONTEXT, "output": 4096}}},
        }
    },
}

CONTINUE = """
name: tokenmill
version: 1.0.0
schema: v1
models:
  - name: demo
    provider: openai
    model: demo
    apiBase: {url}/v1
    apiKey: none
    capabilities: [tool_use]
    roles: [chat]
"""

# Read-only files, such as a guide, come before the history, and so does the map of a repository.
AIDER = ["--model", "openai/demo", "--no-show-model-warnings", "--no-git", "--file", "note.txt", "--read", "guide.md"]
AIDER_QUIET = ["--analytics-disable", "--no-check-update", "--no-show-release-notes", "--no-pretty", "--yes-always"]

AGENTS = {
    "claude": Agent(
        program="claude",
        first=[ALLOW, "--model", "demo", "-p"],
        again=[ALLOW, "--model", "demo", "--continue", "-p"],
        environment={
            "ANTHROPIC_BASE_URL": "{url}",
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(CONTEXT),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            # In a window of this size it begins a summary early, and whether that comes in time for a turn is chance.
            "DISABLE_AUTO_COMPACT": "1",
        },
        allow=["--allowedTools", "Bash"],
        shell=("Bash", {"command": READ_NOTE, "description": DESCRIPTION}),
    ),
    "codex": Agent(
        program="codex",
        first=["exec", "--skip-git-repo-check", ALLOW],
        again=["exec", "--skip-git-repo-check", ALLOW, "resume", "--last"],
        files={".codex/config.toml": CODEX.replace("[model", CODEX_QUIET + "[model", 1)},
        allow=CODEX_ALLOW,
        shell=CODEX_SHELL,
    ),
    "codex-oss": Agent(
        program="codex",
        first=["exec", "--oss", "--local-provider", "ollama", "--model", "demo", "--skip-git-repo-check", ALLOW],
        again=["exec", "--oss", "--local-provider", "ollama", "--model", "demo", "--skip-git-repo-check", ALLOW, "resume", "--last"],
        environment={"CODEX_OSS_BASE_URL": "{url}/v1"},
        files={".codex/config.toml": CODEX_QUIET},
        allow=CODEX_ALLOW,
        shell=CODEX_SHELL,
    ),
    "opencode": Agent(
        program="opencode",
        first=["run", ALLOW],
        again=["run", "--continue", ALLOW],
        environment={
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_SHARE": "1",
        },
        files={".config/opencode/opencode.json": json.dumps(OPENCODE)},
        allow=["--auto"],
        shell=("bash", {"command": READ_NOTE, "description": DESCRIPTION}),
    ),
    "qwen": Agent(
        program="qwen",
        first=["--auth-type", "openai", ALLOW, "-p"],
        again=["--auth-type", "openai", ALLOW, "--continue", "-p"],
        environment={
            "OPENAI_BASE_URL": "{url}/v1",
            "OPENAI_API_KEY": "none",
            "OPENAI_MODEL": "demo",
            "QWEN_TELEMETRY_ENABLED": "false",
        },
        files={".qwen/settings.json": json.dumps({"general": {"enableAutoUpdate": False}, "privacy": {"usageStatisticsEnabled": False}})},
        allow=["--approval-mode", "yolo"],
        shell=("run_shell_command", {"command": READ_NOTE, "description": DESCRIPTION, "is_background": False}),
    ),
    "cn": Agent(
        program="cn",
        first=["--config", "{home}/config.yaml", ALLOW, "-p"],
        again=["--config", "{home}/config.yaml", ALLOW, "--resume", "-p"],
        environment={"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"},
        files={"config.yaml": CONTINUE},
        allow=["--allow", "Bash"],
        shell=("Bash", {"command": READ_NOTE}),
    ),
    "aider": Agent(
        program="aider",
        first=[*AIDER, *AIDER_QUIET, "--message"],
        again=[*AIDER, *AIDER_QUIET, "--restore-chat-history", "--message"],
        environment={
            "OPENAI_API_BASE": "{url}/v1",
            "OPENAI_API_KEY": "none",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
        # It reads changes out of answers: a file's name, and all of the file.
        answer=f"note.txt\n```\n{EDITED_NOTE}```",
        note=EDITED_NOTE,
    ),
}
