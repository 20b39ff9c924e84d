//! Lists flags of llama.cpp and vLLM that ask for this program's default behaviour or change no answer; they are dropped with a note.
//!
//! Separate from the refused flags: a line copied from another program's documentation must run where it can. Invariant: a flag that would
//! change an answer is never here.
//!
//! Source: `common/arg.cpp` of llama.cpp and `vllm serve --help`, for the names.

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

/// Holds the names of a flag, its value, and the reason to drop it.
type Row = (&'static [&'static str], Value, &'static str);

const ALWAYS_SO: &str = "always so";
const NOTHING_TO_SET: &str = "nothing to set";

const ROWS: &[Row] = &[
    (
        &["--flash-attn"],
        Value::Maybe(&["on", "off", "auto", "1", "0", "true", "false"]),
        "attention is always tiled",
    ),
    (&["--jinja", "--cont-batching"], Value::None, ALWAYS_SO),
    (&["-kvu", "--kv-unified"], Value::None, ALWAYS_SO),
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
        Value::None,
        "NO_COLOR=1 in the environment switches colours off",
    ),
    (
        &["--perf", "--no-perf", "--log-disable", "--no-escape"],
        Value::None,
        NOTHING_TO_SET,
    ),
    (
        &["--log-colors", "--log-prefix", "--log-timestamps"],
        Value::None,
        "RUST_LOG selects what is logged",
    ),
    (
        &["-lv", "--log-verbosity", "--verbosity"],
        Value::Any,
        "RUST_LOG selects what is logged",
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
            "--no-repack",
            "--repack",
        ],
        Value::None,
        NOTHING_TO_SET,
    ),
    (
        &[
            "--enable-prefix-caching",
            "--enable-chunked-prefill",
            "--enforce-eager",
            "--trust-remote-code",
            "--enable-auto-tool-choice",
            "--enable-reasoning",
        ],
        Value::None,
        ALWAYS_SO,
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
        "RUST_LOG selects what is logged",
    ),
    (
        &["--uvicorn-log-level"],
        Value::Any,
        "RUST_LOG selects what is logged",
    ),
];

/// Returns a flag's value and the reason to drop it; `None` for any other flag.
pub(crate) fn find(flag: &str) -> Option<(Value, &'static str)> {
    let (_, value, why) = ROWS.iter().find(|(names, ..)| names.contains(&flag))?;
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
            // One value is dropped and others are refused.
            if *name != "--reasoning-format" {
                assert!(
                    crate::foreign_flags::refusal(name).is_none(),
                    "{name} is refused too"
                );
            }
        }
    }
}
