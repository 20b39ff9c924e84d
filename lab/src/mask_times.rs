//! `mask-times`: measures how long masks take, on JSON schemas with instances (JSONSchemaBench) or on a grammar with a text.
//!
//! Worth running in the release profile only: `cargo lab --release mask-times vocabulary.gguf FOLDER`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;
use tokenmill_gguf::GgufFile;
use tokenmill_text::{
    EncodeOptions, Tokenizer,
    constraint::{Constraint, ConstraintCompiler, ConstraintLimits},
};

use crate::measure::rounds::percentile;

/// Measure how long the masks of constraints take
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file with the vocabulary.
    vocabulary: PathBuf,
    /// A folder of JSON schemas with instances, or the file of a grammar.
    constraints: PathBuf,
    /// The text on which a grammar is measured, or a file with it.
    text: Option<String>,
}

/// The parts that are timed, in the order in which they are printed.
const PARTS: [&str; 4] = ["compile", "begin", "mask", "commit"];

#[derive(Default)]
struct Times {
    /// A list for each of [`PARTS`].
    parts: [Vec<Duration>; PARTS.len()],
    n_refused: usize,
}

/// Measures and prints how long each part took.
///
/// # Errors
/// A vocabulary, a schema or a grammar that cannot be read.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let tokenizer = Tokenizer::from_gguf(GgufFile::open(&args.vocabulary)?.metadata())?;
    let started = Instant::now();
    let limits = ConstraintLimits {
        compile_time: Duration::from_mins(1),
        longest_wait: Duration::from_mins(2),
        ..ConstraintLimits::default()
    };
    let compiler = ConstraintCompiler::with_limits(&tokenizer, limits)?;
    println!(
        "trie of {} tokens: {:.1?}",
        tokenizer.n_vocab(),
        started.elapsed()
    );
    let mut times = Times::default();
    match &args.text {
        None => {
            for entry in fs::read_dir(&args.constraints)? {
                let file: Value = serde_json::from_str(&fs::read_to_string(entry?.path())?)?;
                let constraint = Constraint::json_schema(&file["schema"]);
                let tests = file["tests"].as_array().into_iter().flatten();
                let texts: Vec<String> = (tests.filter(|test| test["valid"] == true))
                    .map(|test| test["data"].to_string())
                    .collect();
                measure(&tokenizer, &compiler, &constraint, &texts, &mut times);
            }
        }
        Some(text) => {
            let constraint = Constraint::grammar(fs::read_to_string(&args.constraints)?);
            let text = if Path::new(text).exists() {
                fs::read_to_string(text)?
            } else {
                text.clone()
            };
            measure(&tokenizer, &compiler, &constraint, &[text], &mut times);
        }
    }
    println!("{} constraints refused", times.n_refused);
    for (part, times) in PARTS.iter().zip(&mut times.parts) {
        report(part, times);
    }
    Ok(())
}

fn measure(
    tokenizer: &Tokenizer,
    compiler: &ConstraintCompiler,
    constraint: &Constraint,
    texts: &[String],
    times: &mut Times,
) {
    let [compile, begin, mask, commit] = &mut times.parts;
    let started = Instant::now();
    let compiled = match compiler.compile(constraint) {
        Ok(compiled) => compiled,
        Err(error) => {
            times.n_refused += 1;
            println!("{error}");
            return;
        }
    };
    compile.push(started.elapsed());
    let options = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
    let mut words = vec![0; tokenizer.n_vocab().div_ceil(32)];
    for text in texts {
        let started = Instant::now();
        let mut matcher = compiled.matcher(tokenizer.end_of_generation());
        begin.push(started.elapsed());
        for id in tokenizer.encode(text, options) {
            let started = Instant::now();
            if let Err(error) = matcher.mask(&mut words) {
                println!("mask: {error}");
                break;
            }
            mask.push(started.elapsed());
            let started = Instant::now();
            if matcher.commit(id).is_err() {
                break;
            }
            commit.push(started.elapsed());
        }
    }
}

fn report(what: &str, times: &mut [Duration]) {
    let shares = [0.5, 0.9, 0.99, 0.999, 1.0].map(|share| percentile(times, share));
    if let [Some(p50), Some(p90), Some(p99), Some(p999), Some(longest)] = shares {
        println!(
            "{what}: {} times, p50 {p50:.1?}, p90 {p90:.1?}, p99 {p99:.1?}, p99.9 {p999:.1?}, longest {longest:.1?}",
            times.len()
        );
    }
}
