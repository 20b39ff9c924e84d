//! Flags of llama.cpp that this program has under another name, or not at all, with what to do instead.
//!
//! Separate from the commands because most stand for all of them. Invariant: the table only speaks where a command does
//! not know the flag itself, and a flag in it is refused, never ignored.
//! Source: `common/arg.cpp` of llama.cpp, for the names.

use crate::failure::Failure;

/// Names of a flag, and what to do instead.
type Row = (&'static [&'static str], &'static str);

const NOTHING_TO_SWITCH: &str = "it is always so here; there is nothing to switch";
const NOT_YET: &str = "there is no such thing here yet";

const FLAGS: &[Row] = &[
    (
        &["-fa", "--flash-attn"],
        "attention always works in tiles; there is nothing to switch",
    ),
    (
        &["-p", "--prompt"],
        "the prompt stands behind the model, as in `tokenmill run MODEL \"Once upon a time\"`",
    ),
    (
        &[
            "-cnv",
            "--conversation",
            "-i",
            "--interactive",
            "-if",
            "--interactive-first",
        ],
        "`tokenmill chat MODEL` holds a conversation",
    ),
    (
        &["-no-cnv", "--no-conversation"],
        "`tokenmill run` continues texts, `tokenmill chat` converses",
    ),
    (
        &["--system-prompt", "-sysf", "--system-prompt-file"],
        "`tokenmill chat MODEL --system TEXT`",
    ),
    (
        &["-r", "--reverse-prompt"],
        "`tokenmill run MODEL --stop TEXT` ends a text before a string",
    ),
    (
        &["-e", "--escape", "--no-escape"],
        "a prompt is taken as it is; `--file FILE` reads one with breaks of lines",
    ),
    (
        &["--mlock"],
        "there is no such thing here yet; weights are read into memory while the model loads",
    ),
    (
        &["--mmap", "--no-mmap"],
        "files are read while the model loads, never mapped; there is nothing to switch",
    ),
    (
        &["-pg"],
        "measure prompts with -p and generations with -n; `-d N` generates behind a context",
    ),
    (
        &[
            "-hf",
            "-hfr",
            "--hf-repo",
            "-hff",
            "--hf-file",
            "-mu",
            "--model-url",
        ],
        "nothing is downloaded; give a file or a folder",
    ),
    (
        &["--jinja", "-cb", "--cont-batching", "-kvu", "--kv-unified"],
        NOTHING_TO_SWITCH,
    ),
    (
        &["--no-jinja", "-nocb", "--no-cont-batching"],
        "it cannot be switched off here",
    ),
    (
        &["--chat-template", "--chat-template-file"],
        "`tokenmill chat MODEL --template FILE`",
    ),
    (
        &[
            "--grammar",
            "--grammar-file",
            "-j",
            "--json-schema",
            "-jf",
            "--json-schema-file",
        ],
        "answers cannot be held to a grammar or a schema here yet",
    ),
    (
        &["--lora", "--lora-scaled", "--control-vector"],
        "adapters cannot be applied here yet; merge them into the model",
    ),
    (
        &["-md", "--model-draft", "--draft", "--draft-max", "--draft-min"],
        "drafts by a second model are not there yet",
    ),
    (
        &[
            "-sm",
            "--split-mode",
            "-mg",
            "--main-gpu",
            "-ts",
            "--tensor-split",
            "-ot",
            "--override-tensor",
            "-cmoe",
            "--cpu-moe",
        ],
        "a model is on one device as a whole; `--device cpu` or `--device cuda:N` says which",
    ),
    (
        &["-nkvo", "--no-kv-offload"],
        "keys and values are stored where the model computes",
    ),
    (
        &["--numa"],
        "there is no such thing here yet; `numactl` places the whole program",
    ),
    (
        &[
            "--rope-scaling",
            "--rope-scale",
            "--rope-freq-base",
            "--rope-freq-scale",
            "--yarn-orig-ctx",
            "--yarn-ext-factor",
        ],
        "positions are scaled as the file says; it cannot be overridden here yet",
    ),
    (&["--override-kv"], "metadata cannot be overridden here yet"),
    (
        &[
            "--mirostat",
            "--mirostat-lr",
            "--mirostat-ent",
            "--xtc-probability",
            "--xtc-threshold",
            "--top-nsigma",
            "--top-n-sigma",
            "--dynatemp-range",
            "--dynatemp-exp",
            "--samplers",
            "--sampler-seq",
            "--sampling-seq",
        ],
        "`tokenmill run --help` lists the samplers that are there",
    ),
    (
        &["--ignore-eos"],
        "`-l ID-inf` forbids a token, also the one that ends a text",
    ),
    (
        &["--keep", "--context-shift", "--no-context-shift"],
        "a context is never shifted: a text ends where it is full",
    ),
    (&["--prompt-cache", "--prompt-cache-all"], NOT_YET),
    (&["--warmup", "--no-warmup"], "only `tokenmill bench` warms up"),
    (
        &["-a", "--alias"],
        "`tokenmill serve MODEL --served-model-name NAME`",
    ),
    (&["--ssl-cert-file"], "`tokenmill serve MODEL --tls-cert FILE`"),
    (&["--ssl-key-file"], "`tokenmill serve MODEL --tls-key FILE`"),
    (
        &["-to", "--timeout"],
        "`tokenmill serve MODEL --request-timeout SECONDS`",
    ),
    (
        &["--metrics", "--embedding", "--embeddings"],
        "`tokenmill serve` always answers /metrics and /v1/embeddings",
    ),
    (
        &["--slots"],
        "the running sequences are on the web page of `tokenmill serve`, and at /metrics",
    ),
    (
        &["-v", "--verbose", "-lv", "--log-verbosity", "--log-disable"],
        "RUST_LOG says what `tokenmill serve` logs",
    ),
];

/// What to answer to a flag that the program does not know; `None` for one that llama.cpp does not know either.
pub(crate) fn refusal(flag: &str) -> Option<Failure> {
    let (_, instead) = FLAGS.iter().find(|(names, _)| names.contains(&flag))?;
    Some(Failure::usage(format!("`{flag}` is an option of llama.cpp that is not one here")).hint(*instead))
}

/// As [`refusal`], for names of several letters behind one dash. The parser would read those as a row of short flags, or
/// as a short flag and its value, so they are looked for before it.
pub(crate) fn refusal_of_row(flag: &str) -> Option<Failure> {
    let is_row = flag.len() > 2 && flag.starts_with('-') && !flag.starts_with("--");
    is_row.then(|| refusal(flag)).flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_flag_stands_once_and_looks_like_one() {
        let mut seen = HashSet::new();
        for name in FLAGS.iter().flat_map(|(names, _)| *names) {
            assert!(seen.insert(name), "{name} stands twice");
            assert!(name.starts_with('-') && !name.contains('='), "{name}");
        }
    }

    #[test]
    fn short_and_long_names_are_left_to_the_parser() {
        assert!(refusal_of_row("-cnv").is_some());
        for name in ["-p", "--mlock", "-t", "-xyz", "-"] {
            assert!(refusal_of_row(name).is_none(), "{name}");
        }
    }
}
