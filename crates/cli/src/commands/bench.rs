//! `bench`: tokens per second, in the table of llama-bench.
//!
//! `ppN` computes a prompt of N tokens in batches, `tgN` generates N tokens one by one. As in llama-bench the tokens are
//! random, nothing is sampled, one run warms up, and the figure is the mean of the repetitions with its standard deviation.

use std::{collections::BTreeMap, fmt::Write, path::PathBuf, time::Instant};

use clap::ValueEnum;
use serde_json::{Value, json};
use tokenmill_model::{LoadedDevice, Model, WeightInfo};

use crate::{
    failure::Failure,
    generate::Generator,
    interrupt::Interrupt,
    load::{LoadArgs, load_where},
    model_source::ModelSource,
    output, progress,
};

/// Measure tokens per second.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill bench demo\n  \
    tokenmill bench model.gguf -p 512,2048 -n 128 -r 5 -t 8 -o json\n\n\
    pp512 is a prompt of 512 tokens, tg128 a generation of 128.")]
pub(crate) struct Args {
    /// A GGUF file, a folder with one, or `demo`
    model: PathBuf,
    /// Lengths of prompts; 0 leaves the test out
    #[arg(
        short = 'p',
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "512"
    )]
    n_prompt: Vec<usize>,
    /// Lengths of generations; 0 leaves the test out
    #[arg(short, long, value_name = "N", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<usize>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5)]
    repetitions: usize,
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

/// A test: a prompt or a generation of some length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    Prompt(usize),
    Generation(usize),
}

impl Test {
    fn n_tokens(self) -> usize {
        match self {
            Self::Prompt(n) | Self::Generation(n) => n,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Prompt(n) => format!("pp{n}"),
            Self::Generation(n) => format!("tg{n}"),
        }
    }
}

/// Tokens per second of a test's repetitions.
struct Measured {
    test: Test,
    samples: Vec<f64>,
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

/// What the table says of the model and the machine.
struct Subject {
    model: String,
    size_bytes: usize,
    n_params: usize,
    n_threads: usize,
    /// `CPU` or `CUDA`.
    backend: &'static str,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let prompts = args.n_prompt.iter().map(|&n| Test::Prompt(n));
    let generations = args.n_gen.iter().map(|&n| Test::Generation(n));
    let tests: Vec<Test> = prompts
        .chain(generations)
        .filter(|test| test.n_tokens() > 0)
        .collect();
    let Some(longest) = tests.iter().map(|test| test.n_tokens()).max() else {
        return Err(Failure::usage("there is nothing to measure").hint("give -p or -n a length above 0"));
    };
    if args.repetitions == 0 {
        return Err(Failure::usage("`--repetitions 0` measures nothing"));
    }
    let source = ModelSource::find(&args.model)?;
    let model = source.open_model()?;
    let mut options = args.load.options(model.descriptor().n_ctx_train)?;
    options.n_ctx = Some(
        args.load
            .n_ctx_given()
            .map_or(longest, |n_ctx| n_ctx.max(longest)),
    );
    let weights = model.weights().infos();
    let (executor, device) = load_where(&model, &options)?;
    let subject = Subject {
        model: describe(&source, &model, &weights),
        size_bytes: weights.iter().map(|info| info.n_bytes).sum(),
        n_params: weights
            .iter()
            .map(|info| info.dims.iter().product::<usize>())
            .sum(),
        n_threads: args.load.n_threads(),
        backend: match device {
            LoadedDevice::Cpu { .. } => "CPU",
            LoadedDevice::Cuda { .. } => "CUDA",
        },
    };
    let n_vocab = model.descriptor().n_vocab;
    let mut generator = Generator::new(executor);
    let interrupt = Interrupt::install()?;
    let bar = progress::steps("measuring", (tests.len() * (args.repetitions + 1)) as u64);
    let mut results = Vec::with_capacity(tests.len());
    for test in tests {
        let mut samples = Vec::with_capacity(args.repetitions);
        for repetition in 0..=args.repetitions {
            bar.set_message(test.name());
            let seconds = measure(
                &mut generator,
                test,
                options.max_batch_tokens,
                n_vocab,
                repetition as u64,
            )?;
            // The first run warms up.
            if repetition > 0 {
                samples.push(test.n_tokens() as f64 / seconds);
            }
            bar.inc(1);
            if interrupt.is_set() {
                return Err(Failure::interrupted());
            }
        }
        results.push(Measured { test, samples });
    }
    bar.finish_and_clear();
    match args.output {
        Format::Md => output::print(&markdown(&subject, &results)),
        Format::Csv => output::print(&csv(&subject, &results)),
        Format::Json => output::print_json(&json_rows(&subject, &results)),
    }
}

/// Runs a test once; gives the seconds it took.
fn measure(
    generator: &mut Generator,
    test: Test,
    max_batch_tokens: usize,
    n_vocab: usize,
    seed: u64,
) -> Result<f64, Failure> {
    let mut state = seed;
    let tokens: Vec<u32> = (0..test.n_tokens())
        .map(|_| {
            // Knuth's linear generator; its high bits are random enough for token ids.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % n_vocab as u64) as u32
        })
        .collect();
    generator.clear();
    let started = Instant::now();
    let chunk_len = match test {
        Test::Prompt(_) => max_batch_tokens,
        Test::Generation(_) => 1,
    };
    for chunk in tokens.chunks(chunk_len) {
        generator.logits(chunk, [chunk.len() - 1])?;
    }
    Ok(started.elapsed().as_secs_f64())
}

/// The model as llama-bench names it: architecture, and the type that most of its bytes have.
fn describe(source: &ModelSource, model: &Model, weights: &[WeightInfo]) -> String {
    let mut bytes_by_type = BTreeMap::new();
    for info in weights {
        *bytes_by_type.entry(info.ty).or_insert(0) += info.n_bytes;
    }
    let main_type = bytes_by_type
        .into_iter()
        .max_by_key(|&(_, n_bytes)| n_bytes)
        .map_or("", |(ty, _)| ty.name());
    format!("{} {} {main_type}", source.name(), model.descriptor().arch)
}

fn markdown(subject: &Subject, results: &[Measured]) -> String {
    let mut table = String::from(
        "| model | size | params | backend | threads | test | t/s |\n| --- | ---: | ---: | --- | ---: | ---: | ---: |\n",
    );
    for measured in results {
        writeln!(
            table,
            "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {:.2} ± {:.2} |",
            subject.model,
            subject.size_bytes as f64 / f64::from(1 << 20),
            subject.n_params as f64 / 1e6,
            subject.backend,
            subject.n_threads,
            measured.test.name(),
            measured.mean(),
            measured.deviation(),
        )
        .expect("writing to a string does not fail");
    }
    table
}

fn csv(subject: &Subject, results: &[Measured]) -> String {
    let mut table =
        String::from("model,model_size,model_n_params,backend,n_threads,test,n_tokens,avg_ts,stddev_ts\n");
    for measured in results {
        writeln!(
            table,
            "\"{}\",{},{},{},{},{},{},{},{}",
            subject.model.replace('"', "\"\""),
            subject.size_bytes,
            subject.n_params,
            subject.backend,
            subject.n_threads,
            measured.test.name(),
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
            json!({
                "model": subject.model,
                "model_size": subject.size_bytes,
                "model_n_params": subject.n_params,
                "backend": subject.backend,
                "n_threads": subject.n_threads,
                "test": measured.test.name(),
                "n_tokens": measured.test.n_tokens(),
                "avg_ts": measured.mean(),
                "stddev_ts": measured.deviation(),
                "samples_ts": measured.samples,
            })
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
        };
        assert_eq!((measured.mean(), measured.deviation()), (2.0, 1.0));
    }
}
