//! Flags of the programs that the commands for files and measurements stand for: llama-perplexity, llama-imatrix, llama-quantize,
//! `convert_hf_to_gguf.py` and `vllm bench serve`.
//!
//! They mean something in one command only, and the same name may mean another thing in another program. Invariant: a flag in the table
//! is refused, never ignored.
//!
//! Source: `common/arg.cpp`, `tools/quantize/quantize.cpp` and `convert_hf_to_gguf.py` of llama.cpp, and `vllm bench serve --help`, for
//! the names.

/// Names of a flag, and the replacement.
pub(crate) type Row = (&'static [&'static str], &'static str);

/// A program whose work a command does: the command, the program, and the flags that the command lacks.
type Tool = (&'static str, &'static str, &'static [Row]);

/// The tools, each with its flags.
pub(crate) const TOOLS: &[Tool] = &[
    ("perplexity", LLAMA_CPP, PERPLEXITY),
    ("imatrix", LLAMA_CPP, IMATRIX),
    ("quantize", LLAMA_CPP, QUANTIZE),
    ("convert", LLAMA_CPP, CONVERT),
    ("bench-serve", "vLLM", BENCH_SERVE),
];

const LLAMA_CPP: &str = "llama.cpp";
const NOTHING_SAMPLED: &str = "nothing is sampled: each token of the text is scored";
const ONE_FILE: &str =
    "one file is written; `tokenmill quantize --keep-split` keeps the parts of a split file";

const PERPLEXITY: &[Row] = &[
    (
        &["-f", "--file"],
        "the text comes after the model: `tokenmill perplexity MODEL FILE`",
    ),
    (
        &["-bf", "--binary-file"],
        "the text is a file of UTF-8; `--kl-base FILE` reads tokens and logits",
    ),
    (
        &["--kl-divergence", "--kl-divergence-base"],
        "`--kl-base FILE` compares with the logits of another file of the model",
    ),
    (
        &["--save-all-logits", "--all-logits"],
        "`--save-logits FILE` writes the logits",
    ),
    (
        &[
            "--hellaswag",
            "--hellaswag-tasks",
            "--winogrande",
            "--winogrande-tasks",
            "--multiple-choice",
            "--multiple-choice-tasks",
        ],
        "only texts are scored here; a test suite can ask `tokenmill serve`, whose /v1/completions has `logprobs`",
    ),
    (
        &["--ppl-stride"],
        "chunks do not overlap; the second half of each is scored",
    ),
    (&["--ppl-output-type"], "`--json` prints the result as JSON"),
    (
        &["-np", "--parallel"],
        "`-b N` sets how many tokens are computed in one batch",
    ),
    (
        &["-s", "--seed", "--temp", "--top-k", "--top-p", "--min-p"],
        NOTHING_SAMPLED,
    ),
];

const IMATRIX: &[Row] = &[
    (
        &["-f", "--file"],
        "the text comes after the model: `tokenmill imatrix MODEL FILE OUTPUT`",
    ),
    (
        &["-o", "--output", "--output-file"],
        "the output comes last: `tokenmill imatrix MODEL FILE OUTPUT`",
    ),
    (
        &["-ofreq", "--output-frequency", "--save-frequency"],
        "the file is written once, at the end; `--chunks N` measures less",
    ),
    (
        &["--output-format"],
        "the format is GGUF; `quantize` and `convert` read the older one too",
    ),
    (
        &["--chunk", "--from-chunk"],
        "the first chunk is the beginning of the text; `--chunks N` measures fewer",
    ),
    (
        &["--in-file"],
        "files are not combined; measure on one text that has all of them",
    ),
    (
        &["--show-statistics"],
        "`tokenmill inspect FILE` lists what a matrix has",
    ),
    (&["--ppl"], "`tokenmill perplexity MODEL FILE` computes it"),
    (
        &["--parse-special"],
        "marks such as <|im_end|> in the text are read as text",
    ),
    (
        &["--process-output"],
        "only the matrices of layers are measured, as llama-imatrix does by default",
    ),
    (
        &["-s", "--seed", "--temp", "--top-k", "--top-p", "--min-p"],
        NOTHING_SAMPLED,
    ),
];

const QUANTIZE: &[Row] = &[
    (
        &["--include-weights", "--exclude-weights"],
        "the matrix applies to all tensors that it has; `--tensor-type NAME=TYPE` gives a tensor a type of its own",
    ),
    (
        &["--prune-layers"],
        "all layers are kept; `--tensor-type NAME=TYPE` makes some smaller",
    ),
    (
        &["--target-bpw", "--no-importance", "--keep-bpw-state"],
        "TYPE sets the size: `tokenmill quantize --help` lists the types with their bits per weight",
    ),
    (
        &["--override-kv"],
        "the metadata of the input is kept; it cannot be changed here",
    ),
];

const CONVERT: &[Row] = &[
    (
        &["--outfile"],
        "the output comes after the folder: `tokenmill convert FOLDER OUTPUT`",
    ),
    (
        &["--remote"],
        "a model of the Hub is named in the folder's place: `tokenmill convert OWNER/REPOSITORY OUTPUT`",
    ),
    (
        &["--vocab-only"],
        "a file has the vocabulary and the weights; `tokenmill tokenize` also takes a tokenizer.json",
    ),
    (&["--bigendian"], "files are little-endian, as nearly all are"),
    (
        &[
            "--split-max-tensors",
            "--split-max-size",
            "--no-tensor-first-split",
        ],
        ONE_FILE,
    ),
    (
        &["--model-name", "--metadata"],
        "names and other metadata come from the folder's own files",
    ),
    (
        &["--print-supported-models"],
        "docs/architectures.md lists the architectures",
    ),
    (
        &["--mistral-format", "--disable-mistral-community-chat-template"],
        "FOLDER has config.json and safetensors files, as Hugging Face's library writes them",
    ),
    (
        &["--sentence-transformers-dense-modules"],
        "dense modules after the network are not converted",
    ),
    (
        &["--fuse-gate-up-exps", "--fp8-as-q8"],
        "the layout of the tensors is fixed; `--type` chooses their types",
    ),
];

const BENCH_SERVE: &[Row] = &[
    (
        &["--base-url", "--host", "--port"],
        "the address is the argument: `tokenmill bench-serve http://127.0.0.1:8080`",
    ),
    (
        &["--backend", "--endpoint-type", "--endpoint"],
        "requests go to /v1/completions, and those of `--mix` to /v1/chat/completions",
    ),
    (&["--num-prompts"], "`--requests N` is the number of requests"),
    (
        &["--request-rate", "--burstiness"],
        "`--rate R` sends R requests a second on average, at random times",
    ),
    (
        &["--ramp-up-strategy", "--ramp-up-start-rps", "--ramp-up-end-rps"],
        "the rate stays the same: `--rate R`",
    ),
    (
        &["--max-concurrency"],
        "`--concurrency N` is the number of clients side by side",
    ),
    (
        &[
            "--dataset-name",
            "--dataset-path",
            "--sharegpt-output-len",
            "--disable-shuffle",
        ],
        "prompts are made of random words: `--prompt-words N` and `--max-tokens N` set the lengths",
    ),
    (
        &[
            "--random-input-len",
            "--random-range-ratio",
            "--random-prefix-len",
            "--input-len",
        ],
        "`--prompt-words N` is the length of a prompt, and no two begin alike",
    ),
    (
        &["--random-output-len", "--output-len"],
        "`--max-tokens N` is the length of an answer, with `--ignore-eos` exactly",
    ),
    (
        &["--goodput"],
        "`--ttft-bound MS` and `--inter-token-bound MS` say when a request is good",
    ),
    (
        &["--percentile-metrics", "--metric-percentiles"],
        "the 50th, 90th and 99th are always printed; `--json FILE` has every measurement",
    ),
    (
        &[
            "--save-result",
            "--save-detailed",
            "--append-result",
            "--result-dir",
            "--result-filename",
            "--metadata",
            "--label",
        ],
        "`--json FILE` writes every measurement",
    ),
    (
        &["--num-warmups"],
        "`--warmup N` is the number of requests before",
    ),
    (
        &["--served-model-name"],
        "`--model NAME` is the name in the requests",
    ),
    (
        &["--tokenizer", "--skip-tokenizer-init"],
        "tokens are counted by the server",
    ),
    (
        &["--header"],
        "no header can be added; `--api-key KEY` sends a key",
    ),
    (
        &["--ready-check-timeout-sec"],
        "the server is asked once; start the measurement when it answers /readyz",
    ),
    (
        &["--temperature", "--top-p", "--top-k", "--min-p", "--logprobs"],
        "the sampling of the requests cannot be chosen here; `tokenmill serve` has options for its defaults",
    ),
];
