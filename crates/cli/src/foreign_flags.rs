//! Flags of llama.cpp, Ollama and vLLM that this program lacks or names differently, each with its
//! replacement.
//!
//! The rows hold for all commands; those of one command are in [`foreign_tools`](crate::foreign_tools). Invariant: the table is consulted only if a command does not know the
//! flag itself; a flag in it is refused, never ignored.
//!
//! Source: `common/arg.cpp` of llama.cpp, `ollama run --help` and `vllm serve --help`, for the names.

use tokenmill::load::engine_options;

use crate::{
    failure::Failure,
    foreign_tools::{Row, TOOLS},
};

const NAMED_AS_MODEL: &str =
    "a name of the Hugging Face Hub is given as the model: `tokenmill chat OWNER/REPOSITORY:TYPE`";

const NO_AUDIO: &str = "text and images go in here, and text comes out";

const LLAMA_CPP: &[Row] = &[
    (
        &["-hft", "--hf-token"],
        "the variable HF_TOKEN holds an access token for the Hub",
    ),
    (
        &["-sp"],
        "`--special` of `run` reads control tokens in the prompt",
    ),
    (
        &["--pooling"],
        "`/v1/embeddings` pools as the model's file says; other kinds cannot be chosen",
    ),
    (
        &["--api-prefix"],
        "paths begin at the root; a proxy can put a prefix before them",
    ),
    (
        &["--models-max"],
        "`tokenmill serve --memory-budget SIZE` bounds the memory of all models together",
    ),
    (
        &["--models-preset"],
        "`tokenmill serve --models FILE` reads models and their options from a TOML file",
    ),
    (
        &["-i", "--interactive", "-if", "--interactive-first"],
        "`tokenmill chat MODEL` holds a conversation",
    ),
    (
        &["-sys", "--system-prompt", "-sysf", "--system-prompt-file"],
        "`run` and `chat` take `--system TEXT`; a client of `tokenmill serve` sends a system message",
    ),
    (
        &["--path"],
        "the web page is part of the program; `--no-ui` leaves it out",
    ),
    (
        &["--reasoning-budget"],
        "`run`, `chat` and `serve` have it; requests to `serve` have `thinking_budget`",
    ),
    (
        &["--reasoning-format"],
        "a conversation's reasoning is always separate from the answer",
    ),
    (
        &["-cnv", "--conversation"],
        "`tokenmill chat MODEL` holds a conversation, and `tokenmill run MODEL PROMPT` answers a message",
    ),
    (
        &["-no-cnv", "--no-conversation"],
        "`tokenmill run --raw` continues a text",
    ),
    (
        &[
            "--template",
            "--chat-template",
            "--chat-template-file",
            "--chat-template-kwargs",
            "--reasoning",
        ],
        "`run`, `chat`, `serve` and `batch` take it",
    ),
    (
        &["-st", "--single-turn"],
        "`tokenmill run MODEL PROMPT` answers one message",
    ),
    (
        &["-mli", "--multiline-input"],
        "\"\"\" begins and ends a message of several lines in `chat`",
    ),
    (
        &["--in-prefix", "--in-suffix", "--in-prefix-bos"],
        "the chat template writes the text around messages; `--template FILE` takes another one",
    ),
    (
        &["-fit", "--fit", "-fitt", "--fit-target", "-fitc", "--fit-ctx"],
        "options that are not given are always fitted to the memory; `-ngl N` and `-c N` set them",
    ),
    (&["--audio"], NO_AUDIO),
    (
        &["-r", "--reverse-prompt"],
        "`tokenmill run MODEL --stop TEXT` ends a text before a string",
    ),
    (
        &["-e", "--escape"],
        "escapes such as \\n are not read; put the prompt in a file (`--file FILE`)",
    ),
    (
        &["-pg"],
        "measure prompts with -p and generations with -n; `-d N` generates after a context",
    ),
    (&["-hff", "--hf-file", "-mu", "--model-url"], NAMED_AS_MODEL),
    (
        &[
            "--grammar",
            "--grammar-file",
            "-j",
            "--json-schema",
            "-jf",
            "--json-schema-file",
        ],
        "`run` and `chat` take `--json-schema`, `--regex` and `--grammar`; requests to a server carry their own schema",
    ),
    (
        &["--control-vector-scaled"],
        "`--control-vector FILE:SCALE` of `run`, `chat`, `serve`, `batch` and `perplexity` adds a control vector",
    ),
    (
        &["--lora-scaled"],
        "`--lora FILE:SCALE` of `run`, `chat`, `serve`, `batch` and `perplexity` loads an adapter",
    ),
    (
        &["--lora-init-without-apply"],
        "an adapter applies to the requests that name it as their model, and to no other",
    ),
    (
        &["--lora", "--control-vector"],
        "it cannot be applied here; `run`, `chat`, `serve`, `batch` and `perplexity` take it",
    ),
    (
        &["--draft", "--model-draft"],
        "nothing is drafted here; `run`, `chat`, `serve`, `batch` and `bench` take it",
    ),
    (
        &["--spec-draft-model", "-hfd", "-hfrd", "--hf-repo-draft"],
        "`--draft MODEL` names the draft model; `run`, `chat`, `serve`, `batch` and `bench` take it",
    ),
    (
        &[
            "--draft-max",
            "--draft-n",
            "--spec-draft-n-max",
            "--draft-min",
            "--draft-n-min",
            "--draft-p-min",
            "--spec-draft-n-min",
            "--spec-draft-p-min",
            "--spec-type",
            "--spec-ngram-size-n",
            "--spec-ngram-size-m",
            "-lcs",
            "-lcd",
            "--lookup-cache-static",
            "--lookup-cache-dynamic",
        ],
        "`--spec auto|off|ngram|draft|mtp` chooses the source of drafts, `--spec-max N` sets their greatest length, `--mtp FILE` takes a file mtp-*.gguf",
    ),
    (
        &[
            "-ctkd",
            "--cache-type-k-draft",
            "-ctvd",
            "--cache-type-v-draft",
            "-cd",
            "--ctx-size-draft",
            "-td",
            "--threads-draft",
            "-tbd",
            "--threads-batch-draft",
            "-devd",
            "--device-draft",
            "-ngld",
            "--gpu-layers-draft",
            "--n-gpu-layers-draft",
            "-cmoed",
            "--cpu-moe-draft",
            "-ncmoed",
            "--n-cpu-moe-draft",
            "-otd",
            "--override-tensor-draft",
        ],
        "a draft model is loaded with the options of the model",
    ),
    (
        &[
            "-hfv",
            "-hfrv",
            "--hf-repo-v",
            "-hffv",
            "--hf-file-v",
            "-mv",
            "--model-vocoder",
        ],
        NO_AUDIO,
    ),
    (
        &["-ot", "--override-tensor"],
        "`--cpu-moe`, `--n-cpu-moe N` and `--place ffn=gpu,attn=cpu` place parts of the model",
    ),
    (
        &["-nkvo", "--no-kv-offload"],
        "keys and values are stored where the model computes",
    ),
    (
        &[
            "-Cb",
            "--cpu-mask-batch",
            "-Crb",
            "--cpu-range-batch",
            "--cpu-strict-batch",
        ],
        "the threads for prompts are those for generating: `--cpu-range` and `--cpu-strict` are for both",
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
        "positions are scaled as the file says, which cannot be overridden",
    ),
    (&["--override-kv"], "the file's metadata cannot be overridden"),
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
        "`run`, `chat` and `serve` have this",
    ),
    (
        &["--ignore-eos"],
        "`-l ID-inf` forbids a token, also the one that ends a text",
    ),
    (
        &["--keep", "--context-shift"],
        "`run`, `chat` and `serve` can shift a context; elsewhere a text ends where it is full",
    ),
    (
        &["--prompt-cache", "--prompt-cache-all"],
        "`--session FILE` of `run` and `chat` keeps a conversation with its KV cache",
    ),
    (&["--ssl-cert-file"], "`tokenmill serve MODEL --tls-cert FILE`"),
    (&["--ssl-key-file"], "`tokenmill serve MODEL --tls-key FILE`"),
    (
        &["-to", "--timeout"],
        "`tokenmill serve MODEL --request-timeout TIME`",
    ),
    (&["-v", "--verbose"], "RUST_LOG says what `tokenmill serve` logs"),
];

const OLLAMA: &[Row] = &[
    (
        &["--format"],
        "`--json-schema '{\"type\": \"object\"}'` of `run` and `chat` makes the answer JSON, and takes other schemas; `run --json` prints the answer with its figures",
    ),
    (
        &["--think"],
        "`--reasoning on` and `--reasoning off` of `run`, `chat`, `serve` and `batch` switch reasoning",
    ),
    (&["--hidethinking"], "`run` and `chat` take `--hide-reasoning`"),
    (
        &["--keepalive"],
        "`tokenmill serve --models-dir DIR --idle-unload 10m` unloads models that nobody uses",
    ),
    (
        &["--insecure"],
        "registries are always asked by HTTPS, with their certificates checked",
    ),
];

const VLLM: &[Row] = &[
    (
        &["--max-tokens", "--max-new-tokens", "--max-completion-tokens"],
        "`-n N` of `run` and `chat` is the longest answer; a client of `serve` sends `max_tokens`",
    ),
    (
        &[
            "--gpu-memory-utilization",
            "--kv-cache-memory-bytes",
            "--swap-space",
        ],
        "the memory follows from `-c`, and for `serve` from `--kv-cache-tokens`; `tokenmill doctor MODEL` shows it",
    ),
    (
        &["--dtype", "-q", "--quantization", "--load-format"],
        "weights stay in the types of the file; `-ctk` and `-ctv` say how keys and values are stored",
    ),
    (
        &["--kv-cache-dtype"],
        "`-ctk TYPE` and `-ctv TYPE` say how keys and values are stored; its fp8 is `-ctk e4m3 -ctv e4m3`",
    ),
    (
        &["--tokenizer", "--tokenizer-mode"],
        "the tokenizer is the one of the model's file or folder",
    ),
    (
        &["--revision"],
        "the revision is a part of the name: OWNER/REPOSITORY@REVISION",
    ),
    (&["--download-dir"], "HF_HUB_CACHE names the folder of downloads"),
    (
        &[
            "--speculative-config",
            "-sc",
            "--speculative-model",
            "--num-speculative-tokens",
        ],
        "`--spec ngram --spec-max N` is the method `ngram` with N tokens, `--spec mtp` is `mtp`, `--draft MODEL` names a draft model",
    ),
    (
        &[
            "--enable-lora",
            "--max-loras",
            "--max-lora-rank",
            "--max-cpu-loras",
        ],
        "adapters need no switch and have no such limit; `--lora FILE` loads one",
    ),
    (&["--lora-modules"], "`--lora NAME=PATH`, once for each"),
    (
        &["--allowed-origins"],
        "`tokenmill serve MODEL --cors-origin ORIGIN`",
    ),
    (
        &["--cpu-offload-gb"],
        "`-ngl auto` leaves the layers that do not fit to the CPU, and `-ngl N` chooses how many are on the GPU",
    ),
    (
        &["--root-path"],
        "paths begin at the root; a proxy can put a prefix before them",
    ),
    (&["--response-role"], "answers are always those of the assistant"),
    (
        &["--guided-decoding-backend", "--structured-outputs-config"],
        "shapes of answers are always enforced, and by one implementation",
    ),
    (
        &["--limit-mm-per-prompt"],
        "the number of images is not limited; they take tokens of the context",
    ),
    (&["--log-level"], "RUST_LOG says what `tokenmill serve` logs"),
    (
        &["--task", "--runner", "--convert"],
        "the model's file says what it is for; `--embedding-model` of `serve` adds a model of embeddings",
    ),
    (&["--ssl-certfile"], "`tokenmill serve MODEL --tls-cert FILE`"),
    (&["--ssl-keyfile"], "`tokenmill serve MODEL --tls-key FILE`"),
];

/// Lists flags of other programs: the program, names, and the replacement. The row of an engine option has the names that it replaces.
fn flags() -> impl Iterator<Item = (&'static str, Row)> {
    let of_engine = engine_options().flat_map(|(_, look)| look.elsewhere);
    let listed = |program, rows: &'static [Row]| rows.iter().map(move |&row| (program, row));
    listed("llama.cpp", LLAMA_CPP)
        .chain(listed("Ollama", OLLAMA))
        .chain(listed("vLLM", VLLM))
        .chain(of_engine.map(|&(program, flags, instead)| (program, (flags, instead))))
}

/// Returns the answer to a flag that a command does not know; `None` if no other program is known to have it.
pub(crate) fn refusal(command: &str, flag: &str) -> Option<Failure> {
    let of_tool = (TOOLS.iter()).filter(|(of, ..)| *of == command);
    let of_tool = of_tool.flat_map(|&(_, program, rows)| rows.iter().map(move |&row| (program, row)));
    let (program, (_, instead)) = of_tool
        .chain(flags())
        .find(|(_, (names, _))| names.contains(&flag))?;
    let message = format!("`{flag}` is an option of {program} that does not exist here");
    Some(Failure::usage(message).hint(instead))
}

/// Does the same as [`refusal`] for names of several letters after one dash.
pub(crate) fn refusal_of_row(command: &str, flag: &str) -> Option<Failure> {
    is_row(flag).then(|| refusal(command, flag)).flatten()
}

/// Whether a flag has several letters after one dash. The parser would read those as a row of short flags, or
/// as a short flag and its value, so they are looked for before it.
pub(crate) fn is_row(flag: &str) -> bool {
    flag.len() > 2 && flag.starts_with('-') && !flag.starts_with("--")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_flag_stands_once_and_looks_like_one() {
        let of_tools = (TOOLS.iter()).flat_map(|(of, _, rows)| rows.iter().map(move |&row| (*of, row)));
        let mut seen = HashSet::new();
        for (of, (names, _)) in flags().map(|(_, row)| ("all", row)).chain(of_tools) {
            for name in names {
                assert!(seen.insert((of, name)), "{name} stands twice");
                assert!(name.starts_with('-') && !name.contains('='), "{name}");
            }
        }
    }

    #[test]
    fn short_and_long_names_are_left_to_the_parser() {
        assert!(refusal_of_row("run", "-sm").is_some());
        assert!(refusal_of_row("imatrix", "-ofreq").is_some() && refusal_of_row("run", "-ofreq").is_none());
        for name in ["-p", "-t", "-xyz", "-"] {
            assert!(refusal_of_row("run", name).is_none(), "{name}");
        }
    }
}
