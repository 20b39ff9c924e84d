//! [`Side`]: a program to measure, this project's or a peer in one of its configurations, and its command line.
//!
//! A cell says which work is done, a side by which program. Invariant: all sides of a cell get the same model,
//! threads, lengths and KV type.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::{
    cell::{Kv, Work},
    output::{batched_row, bench_row},
    process::{Finished, measure},
};

/// Tokens of each sequence's prompt where several generate side by side.
const BATCH_PROMPT_TOKENS: usize = 1;

/// A program to measure.
#[derive(Clone, Debug)]
pub(super) enum Side {
    /// A program that takes the options of llama-bench after these words and prints its JSON.
    BenchProgram(Vec<OsString>),
    /// llama.cpp's own tools in this folder.
    LlamaCpp(PathBuf, LlamaConfig),
}

/// Options of llama.cpp that change its speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LlamaConfig {
    /// Weights repacked at load.
    pub(super) is_repacked: bool,
    pub(super) has_flash_attention: bool,
}

impl LlamaConfig {
    /// Lists the configurations worth trying for some work, the default first. Without flash attention llama.cpp
    /// cannot hold values in 8 bits. Attention hardly counts if the context is short, and repacking hardly if it is
    /// long.
    pub(super) fn candidates(work: Work, kv: Kv) -> Vec<Self> {
        let config = |is_repacked, has_flash_attention| Self {
            is_repacked,
            has_flash_attention,
        };
        match work {
            Work::Decode { n_depth: 1.., .. } if kv == Kv::Q8_0 => vec![config(true, true)],
            Work::Decode { n_depth: 1.., .. } => vec![config(true, true), config(true, false)],
            _ => vec![config(true, true), config(false, true)],
        }
    }
}

/// A measurement for a side to make.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task<'a> {
    pub(super) model: &'a Path,
    pub(super) work: Work,
    pub(super) kv: Kv,
    pub(super) n_threads: usize,
    /// Repetitions in one start of the program.
    pub(super) repetitions: usize,
}

/// The result of one start of a program.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Tokens per second; seconds for [`Work::Load`].
    pub(super) samples: Vec<f64>,
    pub(super) peak_memory_bytes: Option<u64>,
}

impl Side {
    /// Returns its name in records.
    pub(super) fn name(&self) -> String {
        match self {
            Self::BenchProgram(words) => {
                let program = words.first().map(PathBuf::from).unwrap_or_default();
                program
                    .file_name()
                    .map_or_else(String::new, |name| name.to_string_lossy().into_owned())
            }
            Self::LlamaCpp(_, config) => format!(
                "llama.cpp, {}, {}",
                if config.is_repacked {
                    "repacked"
                } else {
                    "not repacked"
                },
                if config.has_flash_attention {
                    "flash attention"
                } else {
                    "no flash attention"
                },
            ),
        }
    }

    /// Returns the words of its command line.
    pub(super) fn words(&self, task: Task<'_>) -> Vec<OsString> {
        let mut words = Vec::new();
        let mut add = |line: &str| words.extend(line.split_whitespace().map(OsString::from));
        let (kv, n_threads) = (task.kv.name(), task.n_threads);
        let repetitions = match task.work {
            Work::Load => "1 --no-warmup".to_owned(),
            _ => task.repetitions.to_string(),
        };
        let bench_options = |n_prompt: usize, n_gen: usize, n_depth: usize| {
            format!(
                "-p {n_prompt} -n {n_gen} -d {n_depth} -r {repetitions} -t {n_threads} -ctk {kv} -ctv {kv} -o json"
            )
        };
        let lengths = match task.work {
            Work::Prefill { n_tokens } => bench_options(n_tokens, 0, 0),
            Work::Decode { n_tokens, n_depth } => bench_options(0, n_tokens, n_depth),
            Work::Load => bench_options(0, 1, 0),
            Work::Batch { n_seqs, n_tokens } => match self {
                Self::BenchProgram(_) => format!(
                    "--batch {n_seqs} -n {n_tokens} -r {repetitions} -t {n_threads} -ctk {kv} -ctv {kv} -o json"
                ),
                Self::LlamaCpp(..) => format!(
                    "-npp {BATCH_PROMPT_TOKENS} -ntg {n_tokens} -npl {n_seqs} -c {} -t {n_threads} -ctk {kv} -ctv {kv} \
                     --output-format jsonl",
                    n_seqs * (BATCH_PROMPT_TOKENS + n_tokens)
                ),
            },
        };
        let model: [OsString; 2] = ["-m".into(), task.model.into()];
        match self {
            Self::BenchProgram(program) => {
                add(&lengths);
                [&program[..], &model[..], &words[..]].concat()
            }
            Self::LlamaCpp(folder, config) => {
                let tool = if matches!(task.work, Work::Batch { .. }) {
                    add(if config.is_repacked { "" } else { "--no-repack" });
                    add(if config.has_flash_attention {
                        "-fa on"
                    } else {
                        "-fa off"
                    });
                    "llama-batched-bench"
                } else {
                    add(&format!("--repack {}", u8::from(config.is_repacked)));
                    add(&format!("-fa {}", u8::from(config.has_flash_attention)));
                    "llama-bench"
                };
                add(&lengths);
                [&[OsString::from(folder.join(tool))][..], &model[..], &words[..]].concat()
            }
        }
    }

    /// Does the task once.
    ///
    /// # Errors
    /// The program fails, or prints something unexpected.
    pub(super) fn run(&self, task: Task<'_>) -> anyhow::Result<Outcome> {
        let words = self.words(task);
        let line = words
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        let (program, options) = words.split_first().context("a command of no words")?;
        let finished = measure(Command::new(program).args(options), "samples_ts")
            .and_then(|finished| self.read(task, &finished))
            .with_context(|| format!("`{line}`"))?;
        Ok(finished)
    }

    fn read(&self, task: Task<'_>, finished: &Finished) -> anyhow::Result<Outcome> {
        let samples = match (self, task.work) {
            (Self::LlamaCpp(..), Work::Batch { n_seqs, .. }) => {
                let row = batched_row(&finished.stdout)?;
                ensure!(row.pl == n_seqs, "it measured {} sequences", row.pl);
                vec![row.speed_tg]
            }
            (_, work) => {
                let row = bench_row(&finished.stdout)?;
                let measured = (row.n_prompt, row.n_gen, row.n_depth);
                let wanted = match work {
                    Work::Prefill { n_tokens } => (n_tokens, 0, 0),
                    Work::Decode { n_tokens, n_depth } => (0, n_tokens, n_depth),
                    Work::Batch { n_tokens, .. } => (measured.0, n_tokens, 0),
                    Work::Load => (0, 1, 0),
                };
                ensure!(
                    measured == wanted,
                    "it measured {measured:?} instead of {wanted:?}"
                );
                match work {
                    Work::Load => vec![finished.marked_s.context("no result was printed")?],
                    _ => row.samples_ts,
                }
            }
        };
        Ok(Outcome {
            samples,
            peak_memory_bytes: finished.peak_memory_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(side: &Side, work: Work) -> String {
        let task = Task {
            model: Path::new("m.gguf"),
            work,
            kv: Kv::F16,
            n_threads: 2,
            repetitions: 3,
        };
        let words: Vec<String> = side
            .words(task)
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        words.join(" ")
    }

    #[test]
    fn both_sides_get_the_same_lengths() {
        let decode = Work::decode(32, 2048);
        let lengths = "-p 0 -n 32 -d 2048 -r 3 -t 2 -ctk f16 -ctv f16 -o json";
        let ours = Side::BenchProgram(vec!["target/tokenmill".into(), "bench".into()]);
        assert_eq!(
            line(&ours, decode),
            format!("target/tokenmill bench -m m.gguf {lengths}")
        );
        let config = LlamaConfig {
            is_repacked: false,
            has_flash_attention: true,
        };
        let peer = Side::LlamaCpp("bin".into(), config);
        assert_eq!(
            line(&peer, decode),
            format!("bin/llama-bench -m m.gguf --repack 0 -fa 1 {lengths}")
        );
        let batch = Work::batch(4, 64);
        assert_eq!(
            line(&peer, batch),
            "bin/llama-batched-bench -m m.gguf --no-repack -fa on -npp 1 -ntg 64 -npl 4 -c 260 -t 2 -ctk f16 -ctv f16 \
             --output-format jsonl"
        );
        assert_eq!(
            line(&ours, Work::Load),
            "target/tokenmill bench -m m.gguf -p 0 -n 1 -d 0 -r 1 --no-warmup -t 2 -ctk f16 -ctv f16 -o json"
        );
    }

    #[test]
    fn values_in_8_bits_are_tried_with_flash_attention_only() {
        for candidate in LlamaConfig::candidates(Work::prefill(8), Kv::Q8_0) {
            assert!(candidate.has_flash_attention);
        }
    }
}
