//! `bench`: tokens per second, in the table of llama-bench.
//!
//! `ppN` computes a prompt of N tokens in batches, `tgN` generates N tokens one by one. As in llama-bench the tokens are
//! random, nothing is sampled, one run warms up, and the figure is the mean of the repetitions with its standard deviation.
//! With a depth, both begin after that many tokens, which are computed once before the clock runs.
//! `tgNxM` generates N tokens in each of M sequences side by side, through the engine and with sampling, as a server does;
//! with `--follow` these are the tokens of a text, with and without drafts.

mod follow;
mod forward;
mod side_by_side;

use std::{fmt::Write, path::PathBuf, time::Instant};

use clap::ValueEnum;
use serde_json::{Value, json};
use tokenmill::{
    KvCache, LoadOptions,
    load::{KvType, LoadedDevice, ModelFacts, ModelSource},
    speculation::Speculation,
};
use tokenmill_backend::DeviceTimes;
use tokenmill_model::{Model, ModelOptions, WindowPages};
use tokenmill_sched::{Engine, EngineConfig, EngineError, Throughput};

use self::{forward::Forward, side_by_side::SideBySide};
use crate::{
    failure::Failure,
    help::ADVANCED,
    interrupt,
    load::{LoadArgs, load_network},
    note::note,
    numbers::count,
    output, progress,
    speculation::{Drafter, spec_max},
    visible::visible,
};

/// Default length of a prompt.
const DEFAULT_PROMPT: usize = 512;

/// Measure tokens per second.
#[derive(clap::Args)]
#[command(mut_arg("ctx_size", |arg| arg.hide(true)))]
#[command(after_help = "Examples:\n  \
    tokenmill bench demo\n  \
    tokenmill bench model.gguf -p 512,2048 -n 128 -r 5 -t 8 -o json\n  \
    tokenmill bench model.gguf --batch 1,2,4,8,16 -n 64\n  \
    tokenmill bench model.gguf --follow notes.txt -p 512 -n 128 --batch 1,8 --spec off,ngram,auto\n\n\
    pp512 is a prompt of 512 tokens, tg128 a generation of 128, tg64x8 one of 64 tokens in each of 8 sequences side by\n\
    side, in tokens per second of all together.")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, a Hugging Face folder, OWNER/REPOSITORY[:TYPE] of the Hub, NAME:TAG of Ollama, or `demo`
    model: PathBuf,
    /// Lengths of prompts; 0 skips the test [default: 512]
    #[arg(short = 'p', long, value_name = "N", value_delimiter = ',', value_parser = count)]
    n_prompt: Vec<usize>,
    /// Lengths of generations; 0 skips the test
    #[arg(
        short,
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "128",
        value_parser = count
    )]
    n_gen: Vec<usize>,
    /// Tokens in the context before a test begins
    #[arg(
        short = 'd',
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = count,
        conflicts_with = "batch"
    )]
    n_depth: usize,
    /// Sequences to generate in one batch through the engine, instead of the other tests; if 1 is among them, the table shows the
    /// gain over one sequence
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = count)]
    batch: Vec<usize>,
    /// Measure how fast the text of FILE is generated with and without drafts, whatever the model would say: its first -p tokens are
    /// the prompt, the next ones the answer. With --batch each sequence begins one token later
    #[arg(long, value_name = "FILE", conflicts_with_all = ["n_depth", "gpu_trace"])]
    follow: Option<PathBuf>,
    /// Sources of drafts, a list; the model is loaded once for each; with --follow
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        value_delimiter = ',',
        default_value = "off,auto",
        requires = "follow"
    )]
    spec: Vec<Drafter>,
    /// Most tokens of one draft; with --follow [default: 16]
    #[arg(long, help_heading = ADVANCED, value_name = "N", value_parser = spec_max(), requires = "follow")]
    spec_max: Option<u32>,
    /// Draft model: a smaller model with the same vocabulary, given like MODEL; with --follow [short: -md]
    #[arg(long, alias = "model-draft", value_name = "MODEL", requires = "follow")]
    draft: Option<PathBuf>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, value_parser = count)]
    repetitions: usize,
    /// Measure the first run too, without a warm-up before it
    #[arg(long)]
    no_warmup: bool,
    /// Print on stderr how a GPU spends the time of its steps, those of the warm-up and the depth included
    #[arg(long, conflicts_with = "batch")]
    gpu_trace: bool,
    /// Form of the table
    #[arg(short, long, value_enum, default_value_t = Format::Md)]
    output: Format,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// Markdown.
    Md,
    /// JSON.
    Json,
    /// Comma-separated values.
    Csv,
}

/// A test: a prompt or a generation of some length, or several generations side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Prompt(usize),
    Generation(usize),
    SideBySide { n_seqs: usize, n_gen: usize },
}

impl Test {
    /// Tokens of one sequence.
    fn n_tokens(self) -> usize {
        match self {
            Self::Prompt(n) | Self::Generation(n) | Self::SideBySide { n_gen: n, .. } => n,
        }
    }

    fn n_seqs(self) -> usize {
        match self {
            Self::Prompt(_) | Self::Generation(_) => 1,
            Self::SideBySide { n_seqs, .. } => n_seqs,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Prompt(n) => format!("pp{n}"),
            Self::Generation(n) => format!("tg{n}"),
            Self::SideBySide { n_seqs, n_gen } => format!("tg{n_gen}x{n_seqs}"),
        }
    }
}

/// Tokens per second of a test's repetitions.
struct Measured {
    test: Test,
    samples: Vec<f64>,
    /// Results of the calibrated engine, if the test used one.
    throughput: Option<Throughput>,
}

impl Measured {
    fn mean(&self) -> f64 {
        self.samples.iter().sum::<f64>() / self.samples.len() as f64
    }

    /// Standard deviation of the sample.
    fn deviation(&self) -> f64 {
        let n = self.samples.len();
        if n < 2 {
            return 0.0;
        }
        let mean = self.mean();
        let squares: f64 = self.samples.iter().map(|sample| (sample - mean).powi(2)).sum();
        (squares / (n - 1) as f64).sqrt()
    }
}

/// Holds the table's description of the model and the machine.
struct Subject {
    model: String,
    size_bytes: usize,
    n_params: usize,
    n_threads: usize,
    /// `CPU` or `CUDA`.
    backend: &'static str,
    /// Tokens in the context before each test.
    n_depth: usize,
    /// Types of the stored keys and values.
    cache_types: (KvType, KvType),
}

impl Subject {
    /// Returns a row of the JSON form: the subject, then `figures`.
    fn json_with(&self, mut figures: Value) -> Value {
        let mut row = json!({
            "model": self.model,
            "model_size": self.size_bytes,
            "model_n_params": self.n_params,
            "backend": self.backend,
            "n_threads": self.n_threads,
            "type_k": self.cache_types.0.to_string(),
            "type_v": self.cache_types.1.to_string(),
        });
        if let (Some(row), Some(figures)) = (row.as_object_mut(), figures.as_object_mut()) {
            row.append(figures);
        }
        row
    }

    fn of(args: &Args, source: &ModelSource, model: &Model, device: &LoadedDevice) -> Self {
        let weights = model.weights().infos();
        Self {
            model: describe(source, model),
            size_bytes: weights.iter().map(|info| info.n_bytes).sum(),
            n_params: weights
                .iter()
                .map(|info| info.dims.iter().product::<usize>())
                .sum(),
            n_threads: args.load.n_threads(),
            backend: match device {
                LoadedDevice::Cuda { .. } => "CUDA",
                LoadedDevice::Group { .. } => "CUDA group",
                LoadedDevice::Split { .. } => "CUDA+CPU",
                _ => "CPU",
            },
            n_depth: args.n_depth,
            cache_types: args.load.cache_types(),
        }
    }

    fn test_name(&self, test: Test) -> String {
        match self.n_depth {
            0 => test.name(),
            n_depth => format!("{} @ d{n_depth}", test.name()),
        }
    }
}

/// Runs the tests: one sequence on the executor, or several through the engine.
enum Rig {
    Forward(Box<Forward>),
    SideBySide(SideBySide),
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    interrupt::ends_at_once()?;
    if args.load.n_ctx_given().is_some() {
        return Err(
            Failure::usage("`-c` does nothing here: each test has the context that it needs")
                .hint("`-d N` puts N tokens into the context before a test begins"),
        );
    }
    if args.repetitions == 0 {
        return Err(Failure::usage("`--repetitions 0` measures nothing"));
    }
    if let Some(path) = &args.follow {
        return follow::run(args, path);
    }
    let tests = args.tests()?;
    let source = ModelSource::find(args.load.fetch.resolve(&args.model)?)?;
    let mut choices = args.options(&tests)?;
    let model = choices.open_network(&source)?;
    if model.descriptor().is_encoder() {
        return Err(EngineError::PredictsNoTokens.into());
    }
    choices.compute.is_traced = args.gpu_trace;
    let options = ModelOptions {
        // The tests number pages by hand.
        window_pages: WindowPages::Shared,
        ..choices.network_options(model.descriptor())?
    };
    let loaded = load_network(&model, &options, &choices.compute)?;
    // A GPU with room for it has larger steps.
    let max_step_tokens = loaded.executor.limits().max_batch_tokens;
    let subject = Subject::of(args, &source, &model, &loaded.device);
    let n_vocab = model.descriptor().n_vocab;
    let mut rig = if args.batch.is_empty() {
        Rig::Forward(Box::new(Forward::new(loaded.executor)))
    } else {
        let config = EngineConfig {
            max_running: options.max_batch_seqs,
            max_step_tokens,
            ..EngineConfig::default()
        };
        Rig::SideBySide(SideBySide {
            engine: Engine::try_start(loaded.executor, config)?,
        })
    };
    let n_warmups = usize::from(!args.no_warmup);
    let bar = progress::steps("measuring", (tests.len() * (args.repetitions + n_warmups)) as u64);
    let mut results = Vec::with_capacity(tests.len());
    for test in tests {
        let mut samples = Vec::with_capacity(args.repetitions);
        for run_idx in 0..n_warmups + args.repetitions {
            bar.set_message(test.name());
            let tokens_per_s = match &mut rig {
                Rig::Forward(forward) => {
                    let n_missing = forward.begin(args.n_depth);
                    for chunk in random_tokens(n_missing, n_vocab, u64::MAX).chunks(max_step_tokens) {
                        forward.run(chunk)?;
                    }
                    let tokens = random_tokens(test.n_tokens(), n_vocab, run_idx as u64);
                    test.n_tokens() as f64 / measure(forward, test, max_step_tokens, &tokens)?
                }
                Rig::SideBySide(rig) => rig.measure(test.n_seqs(), test.n_tokens())?,
            };
            if run_idx >= n_warmups {
                samples.push(tokens_per_s);
            }
            bar.inc(1);
        }
        results.push(Measured {
            test,
            samples,
            throughput: None,
        });
    }
    // Only now does the engine know the speed of a single sequence.
    if let Rig::SideBySide(rig) = &rig {
        for measured in &mut results {
            measured.throughput = Some(rig.throughput(measured.test.n_seqs())?);
        }
    }
    bar.finish_and_clear();
    if args.gpu_trace {
        let trace = match &rig {
            Rig::Forward(forward) => forward.trace(),
            Rig::SideBySide(_) => None,
        };
        let trace = trace.ok_or_else(|| {
            Failure::usage("`--gpu-trace` measures a GPU, and the model computes on the CPU")
                .hint("`--device cuda` computes on the first GPU")
        })?;
        for (steps, times) in [("prompt", trace.prefill), ("generation", trace.decode)] {
            note!("{}", trace_line(steps, &times));
        }
    }
    match args.output {
        Format::Md => output::print(&markdown(&subject, &results)),
        Format::Csv => output::print(&csv(&subject, &results)),
        Format::Json => output::print_json(&json_rows(&subject, &results)),
    }
}

impl Args {
    fn tests(&self) -> Result<Vec<Test>, Failure> {
        if self.batch.contains(&0) {
            return Err(Failure::usage("`--batch 0` generates nothing"));
        }
        if !self.batch.is_empty() && !self.n_prompt.is_empty() {
            return Err(Failure::usage("`-p` does nothing with `--batch`")
                .hint("`--follow FILE` measures generations after a prompt"));
        }
        if !self.batch.is_empty() && self.n_gen.iter().any(|&n_gen| n_gen < 2) {
            return Err(Failure::usage("`--batch` needs generations of 2 tokens or more")
                .hint("the first token of a sequence belongs to its prompt; give -n a longer length"));
        }
        let n_gen = self.n_gen.iter();
        let tests: Vec<Test> = if self.batch.is_empty() {
            let lengths = match &self.n_prompt[..] {
                [] => &[DEFAULT_PROMPT],
                lengths => lengths,
            };
            let prompts = lengths.iter().map(|&n| Test::Prompt(n));
            prompts
                .chain(n_gen.map(|&n| Test::Generation(n)))
                .filter(|test| test.n_tokens() > 0)
                .collect()
        } else {
            n_gen
                .flat_map(|&n_gen| {
                    self.batch
                        .iter()
                        .map(move |&n_seqs| Test::SideBySide { n_seqs, n_gen })
                })
                .collect()
        };
        if tests.is_empty() {
            let failure = Failure::usage("there is nothing to measure");
            return Err(failure.hint("give -p or -n a length above 0"));
        }
        Ok(tests)
    }

    /// Room for the longest and the widest test.
    fn options(&self, tests: &[Test]) -> Result<LoadOptions, Failure> {
        let n_tokens = tests.iter().map(|test| test.n_tokens()).max().unwrap_or(1);
        let n_seqs = tests.iter().map(|test| test.n_seqs()).max().unwrap_or(1);
        let n_ctx = if self.batch.is_empty() {
            self.n_depth.saturating_add(n_tokens)
        } else {
            SideBySide::n_ctx(n_tokens)
        };
        Ok(LoadOptions {
            n_ctx: Some(n_ctx),
            n_seqs,
            kv_cache: KvCache::Contexts(n_seqs),
            // No drafts are made here, so no memory is taken for them.
            speculation: Speculation::Off,
            ..self.load.options()?
        })
    }
}

/// Formats the average time of a step of one phase.
fn trace_line(steps: &str, times: &DeviceTimes) -> String {
    let mean = |sum_ms: f64| sum_ms / times.n_steps.max(1) as f64;
    format!(
        "GPU time of a {steps} step: {:.3} ms for its values, {:.3} ms for the forward pass, {:.3} ms for the results; {} steps with \
         {} tokens",
        mean(times.upload_ms),
        mean(times.compute_ms),
        mean(times.download_ms),
        times.n_steps,
        times.n_tokens
    )
}

/// Runs a test once and returns the seconds that it took.
fn measure(
    forward: &mut Forward,
    test: Test,
    max_batch_tokens: usize,
    tokens: &[u32],
) -> Result<f64, Failure> {
    let chunk_len = match test {
        Test::Prompt(_) => max_batch_tokens,
        Test::Generation(_) | Test::SideBySide { .. } => 1,
    };
    let started = Instant::now();
    for chunk in tokens.chunks(chunk_len) {
        forward.run(chunk)?;
    }
    Ok(started.elapsed().as_secs_f64())
}

fn random_tokens(n: usize, n_vocab: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            // Knuth's linear generator; its high bits are random enough for token ids.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % n_vocab as u64) as u32
        })
        .collect()
}

/// Names the model as llama-bench does: architecture, and the kind of file that it declares, or else the type of most weights.
fn describe(source: &ModelSource, model: &Model) -> String {
    let facts = ModelFacts::of(model);
    format!("{} {} {}", source.name(), facts.arch, facts.main_type)
}

fn markdown(subject: &Subject, results: &[Measured]) -> String {
    let is_calibration = results.iter().any(|measured| measured.throughput.is_some());
    let (gain, line) = if is_calibration {
        (" over one |", " ---: |")
    } else {
        ("", "")
    };
    let mut table = format!(
        "| model | size | params | backend | threads | test | t/s |{gain}\n\
         | --- | ---: | ---: | --- | ---: | ---: | ---: |{line}\n",
    );
    for measured in results {
        write!(
            table,
            "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {:.2} ± {:.2} |",
            visible(&subject.model),
            subject.size_bytes as f64 / f64::from(1 << 20),
            subject.n_params as f64 / 1e6,
            subject.backend,
            subject.n_threads,
            subject.test_name(measured.test),
            measured.mean(),
            measured.deviation(),
        )
        .expect("writing to a string does not fail");
        if measured.throughput.is_some() {
            let gain = over_one(measured, results);
            let gain = gain.map_or_else(|| "-".to_owned(), |gain| format!("{gain:.2}x"));
            write!(table, " {gain} |").expect("writing to a string does not fail");
        }
        table.push('\n');
    }
    table
}

/// Returns the speed of sequences side by side over that of one; `None` if one was not measured.
fn over_one(measured: &Measured, results: &[Measured]) -> Option<f64> {
    let is_one =
        |other: &&Measured| other.test.n_seqs() == 1 && other.test.n_tokens() == measured.test.n_tokens();
    let one = results.iter().find(is_one)?;
    Some(measured.mean() / one.mean())
}

fn csv(subject: &Subject, results: &[Measured]) -> String {
    let mut table = String::from(
        "model,model_size,model_n_params,backend,n_threads,type_k,type_v,n_depth,test,n_seqs,n_tokens,avg_ts,stddev_ts\n",
    );
    for measured in results {
        writeln!(
            table,
            "\"{}\",{},{},{},{},{},{},{},{},{},{},{},{}",
            visible(&subject.model).replace('"', "\"\""),
            subject.size_bytes,
            subject.n_params,
            subject.backend,
            subject.n_threads,
            subject.cache_types.0,
            subject.cache_types.1,
            subject.n_depth,
            subject.test_name(measured.test),
            measured.test.n_seqs(),
            measured.test.n_tokens(),
            measured.mean(),
            measured.deviation(),
        )
        .expect("writing to a string does not fail");
    }
    table
}

fn json_rows(subject: &Subject, results: &[Measured]) -> Value {
    results
        .iter()
        .map(|measured| {
            let (n_prompt, n_gen) = match measured.test {
                Test::Prompt(n_prompt) => (n_prompt, 0),
                Test::Generation(n_gen) => (0, n_gen),
                Test::SideBySide { n_gen, .. } => (SideBySide::N_PROMPT, n_gen),
            };
            subject.json_with(json!({
                "n_prompt": n_prompt,
                "n_gen": n_gen,
                "n_depth": subject.n_depth,
                "test": subject.test_name(measured.test),
                "n_seqs": measured.test.n_seqs(),
                "n_tokens": measured.test.n_tokens(),
                "avg_ts": measured.mean(),
                "stddev_ts": measured.deviation(),
                "samples_ts": measured.samples,
                "engine_ts": measured.throughput.map(|throughput| throughput.tokens_per_s),
                "engine_over_single": measured.throughput.and_then(|throughput| throughput.over_single),
            }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        let measured = Measured {
            test: Test::Prompt(8),
            samples: vec![1.0, 2.0, 3.0],
            throughput: None,
        };
        assert_eq!((measured.mean(), measured.deviation()), (2.0, 1.0));
    }
}
