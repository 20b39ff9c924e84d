//! Flags of llama.cpp, Ollama and vLLM that ask for this program's default behaviour or change no answer;
//! they are ignored with a note.
//!
//! A command line copied from another program's documentation should run if possible. Invariant: a flag that
//! would change an answer is never in this list.
//!
//! Source: `common/arg.cpp` of llama.cpp, `ollama run --help` and `vllm serve --help`, for the names.

/// Describes the value of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// No value.
    None,
    /// Any value.
    Any,
    /// One of these; others are refused.
    OneOf(&'static [&'static str]),
    /// One of these, or no value.
    Maybe(&'static [&'static str]),
}

/// Holds the names of a flag, its value, and the reason to ignore it.
type Row = (&'static [&'static str], Value, &'static str);

const ALWAYS_ON: &str = "always on";
const NOTHING_TO_SET: &str = "nothing to set";

const ROWS: &[Row] = &[
    (
        &["--flash-attn"],
        Value::Maybe(&["on", "off", "auto", "1", "0", "true", "false"]),
        "flash attention is always on",
    ),
    (&["--jinja", "--cont-batching"], Value::None, ALWAYS_ON),
    (&["-kvu", "--kv-unified"], Value::None, ALWAYS_ON),
    (
        &["--no-jinja", "-nocb", "--no-cont-batching"],
        Value::None,
        "it cannot be switched off",
    ),
    (
        &["--swa-full"],
        Value::None,
        "sliding-window caches keep all that is needed again",
    ),
    (
        &[
            "--metrics",
            "--slots",
            "--props",
            "--embedding",
            "--embeddings",
            "--rerank",
            "--reranking",
        ],
        Value::None,
        "`serve` always answers there",
    ),
    (
        &["--mlock"],
        Value::None,
        "memory is never locked; `--no-mmap` loads all weights into memory",
    ),
    (&["--mmap"], Value::None, "files are read as needed"),
    (&["--warmup", "--no-warmup"], Value::None, "no warm-up is needed"),
    (
        &["--no-context-shift"],
        Value::None,
        "a context is shifted only with `--context-shift`",
    ),
    (
        &["--reasoning-format"],
        Value::OneOf(&["auto", "deepseek"]),
        "reasoning is always separate",
    ),
    (
        &["-co", "--color"],
        Value::Maybe(&["on", "off", "auto"]),
        "NO_COLOR=1 in the environment switches colours off",
    ),
    (
        &["-fit", "--fit"],
        Value::OneOf(&["on"]),
        "options that are not given are always fitted to the memory",
    ),
    (
        &["--check-tensors"],
        Value::None,
        "types and sizes of tensors are always checked",
    ),
    (
        &["--verbose-prompt"],
        Value::None,
        "`tokenmill apply-template` shows the prompt of a conversation",
    ),
    (
        &[
            "--perf",
            "--no-perf",
            "--log-disable",
            "--no-escape",
            "--simple-io",
            "--nowordwrap",
        ],
        Value::None,
        NOTHING_TO_SET,
    ),
    (
        &["--log-colors"],
        Value::Maybe(&["on", "off", "auto"]),
        "NO_COLOR=1 in the environment switches colours off",
    ),
    (
        &["--log-prefix", "--log-timestamps"],
        Value::None,
        "RUST_LOG selects the log messages",
    ),
    (
        &["-lv", "--log-verbosity", "--verbosity"],
        Value::Any,
        "RUST_LOG selects the log messages",
    ),
    (
        &[
            "--poll",
            "--poll-batch",
            "--prio",
            "--prio-batch",
            "--threads-http",
            "-dt",
            "--defrag-thold",
        ],
        Value::Any,
        NOTHING_TO_SET,
    ),
    (
        &[
            "-cram",
            "--cache-ram",
            "--cache-reuse",
            "-ctxcp",
            "--ctx-checkpoints",
        ],
        Value::Any,
        "prefixes are always cached; `--kv-cache-tokens` sets how many tokens",
    ),
    (
        &["--no-cache-idle-slots", "--cache-idle-slots"],
        Value::None,
        "prefixes are always cached",
    ),
    (
        &["-sps", "--slot-prompt-similarity"],
        Value::Any,
        "all slots share cached prefixes",
    ),
    (
        &[
            "--no-op-offload",
            "--op-offload",
            "--no-mmproj-offload",
            "-nr",
            "--no-repack",
            "--repack",
            "-dio",
            "--direct-io",
            "-ndio",
            "--no-direct-io",
        ],
        Value::None,
        NOTHING_TO_SET,
    ),
    (
        &[
            "--enable-prefix-caching",
            "--enable-chunked-prefill",
            "--enable-auto-tool-choice",
            "--enable-reasoning",
        ],
        Value::None,
        ALWAYS_ON,
    ),
    (
        &["--trust-remote-code"],
        Value::None,
        "code of a model is never executed",
    ),
    (
        &["--enforce-eager"],
        Value::None,
        "CUDA graphs change no answer; a model needs no compilation",
    ),
    (
        &["--tool-call-parser", "--reasoning-parser"],
        Value::Any,
        "the chat template determines the format",
    ),
    (
        &[
            "--disable-log-requests",
            "--enable-log-requests",
            "--disable-log-stats",
        ],
        Value::None,
        "RUST_LOG selects the log messages",
    ),
    (
        &["--uvicorn-log-level"],
        Value::Any,
        "RUST_LOG selects the log messages",
    ),
];

/// Flags that ask only some commands for the default behaviour: the commands, then the flag.
const OF_COMMANDS: &[(&[&str], Row)] = &[
    (
        &["run"],
        (
            &["-st", "--single-turn"],
            Value::None,
            "`run` answers one message",
        ),
    ),
    (
        &["chat"],
        (
            &["-i", "--interactive", "--conversation"],
            Value::None,
            "`chat` always holds a conversation",
        ),
    ),
    (
        &["run", "chat"],
        (
            &["--keepalive"],
            Value::Any,
            "a model is loaded as long as the command runs",
        ),
    ),
    (
        &["run", "chat"],
        (
            &["--verbose"],
            Value::None,
            "speeds are always shown on standard error",
        ),
    ),
    (
        &["convert"],
        (
            &["--verbose", "--no-lazy", "--use-temp-file"],
            Value::None,
            NOTHING_TO_SET,
        ),
    ),
    (
        &["imatrix"],
        (&["--no-ppl"], Value::None, "no perplexity is computed"),
    ),
    (
        &["bench-serve"],
        (&["--disable-tqdm"], Value::None, NOTHING_TO_SET),
    ),
];

/// Returns the value of a command's flag and the reason to ignore it; `None` for any other flag.
pub(crate) fn find(command: &str, flag: &str) -> Option<(Value, &'static str)> {
    let of_command = OF_COMMANDS
        .iter()
        .filter(|(commands, _)| commands.contains(&command));
    let mut rows = ROWS.iter().chain(of_command.map(|(_, row)| row));
    let (_, value, why) = rows.find(|(names, ..)| names.contains(&flag))?;
    Some((*value, why))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_flag_stands_once_and_is_refused_nowhere() {
        let mut seen = HashSet::new();
        for name in ROWS.iter().flat_map(|(names, ..)| *names) {
            assert!(seen.insert(name), "{name} stands twice");
            assert!(name.starts_with('-') && !name.contains('='), "{name}");
        }
        for (names, value, _) in ROWS {
            // One value is ignored and others are refused.
            let is_refused = |name: &&&str| crate::foreign_flags::refusal("", name).is_some();
            let refused: Vec<_> = names.iter().filter(is_refused).collect();
            assert!(
                refused.is_empty() || matches!(value, Value::OneOf(_)),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_flag_is_ignored_where_it_asks_for_what_the_command_does() {
        let why = |command, flag| find(command, flag).map(|(_, why)| why);
        assert_eq!(why("run", "-st"), Some("`run` answers one message"));
        assert_eq!(why("chat", "-st"), None);
        assert_eq!(why("serve", "--jinja"), Some("always on"));
        assert_eq!(
            why("serve", "--trust-remote-code"),
            Some("code of a model is never executed")
        );
    }
}
