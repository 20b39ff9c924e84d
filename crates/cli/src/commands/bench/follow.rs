//! `bench --follow`: generates a given text, with and without drafts.
//!
//! Look-ups predict nothing in random tokens or in the output of random weights, so this test needs a text.
//! All weights are read and every token is sampled as usual; then the text's own token takes its place.
//! Invariant: each round begins with computed prompts, and with no trace of the answers of earlier rounds.

use std::{fmt::Write, path::Path, sync::Arc, thread, time::Duration};

use serde_json::{Value, json};
use tokenmill::{LoadOptions, load::ModelSource};
use tokenmill_sched::{Engine, GenerateParams, Output};

use super::{Args, DEFAULT_PROMPT, Format, Measured, Subject, Test};
use crate::{
    failure::Failure,
    input::read_text,
    load::load_opened,
    output, progress,
    speculation::{Drafter, SpeculationArgs},
    visible::visible,
};

/// A test with one kind of drafts, and the number of accepted draft tokens.
struct Followed {
    spec: Drafter,
    measured: Measured,
    n_drafted: usize,
    n_accepted: usize,
}

/// The measurements of one round.
struct Round {
    tokens_per_s: f64,
    n_drafted: usize,
    n_accepted: usize,
}

pub(super) fn run(args: &Args, path: &Path) -> Result<(), Failure> {
    let n_prompt = match args.n_prompt[..] {
        [] => DEFAULT_PROMPT,
        [n_prompt] if n_prompt > 0 => n_prompt,
        _ => {
            return Err(Failure::usage(
                "`--follow` takes one length of prompts, of a token or more",
            ));
        }
    };
    let tests = args.followed_tests()?;
    let text = read_text(path)?;
    let source = ModelSource::find(args.load.fetch.resolve(&args.model)?)?;
    let (n_gen, n_seqs) = widest(&tests);
    let base = LoadOptions {
        n_ctx: Some(n_prompt.saturating_add(n_gen)),
        n_seqs,
        kv_cache: tokenmill::KvCache::Contexts(n_seqs),
        ..args.load.options()?
    };
    let network = base.open_network(&source)?;
    let mut subject = None;
    let mut results = Vec::new();
    for &spec in &args.spec {
        let mut options = base.clone();
        SpeculationArgs::of_list(spec, args.spec_max, args.draft.as_deref())
            .add_to(&mut options, &args.load.fetch)?;
        let model = load_opened(&source, &network, &options)?;
        subject.get_or_insert_with(|| Subject::of(args, &source, &network, model.device()));
        let ids = model.words().encode_text(&text, true);
        let n_needed = n_prompt + n_gen + n_seqs - 1;
        if ids.len() < n_needed {
            return Err(Failure::input(format!(
                "{} has {} tokens, and a prompt of {n_prompt}, an answer of {n_gen} and {n_seqs} sequences need {n_needed}",
                visible(&path.display().to_string()),
                ids.len()
            ))
            .hint("give a longer text, or lower -p, -n or --batch"));
        }
        let n_warmups = usize::from(!args.no_warmup);
        let bar = progress::steps("measuring", (tests.len() * (args.repetitions + n_warmups)) as u64);
        let mut salt = 0;
        for &test in &tests {
            let mut followed = Followed {
                spec,
                measured: Measured {
                    test,
                    samples: Vec::with_capacity(args.repetitions),
                    throughput: None,
                },
                n_drafted: 0,
                n_accepted: 0,
            };
            for run_idx in 0..n_warmups + args.repetitions {
                bar.set_message(test.name());
                salt += 1;
                let round = follow(model.engine(), &ids, n_prompt, test, salt)?;
                if run_idx >= n_warmups {
                    followed.measured.samples.push(round.tokens_per_s);
                    followed.n_drafted += round.n_drafted;
                    followed.n_accepted += round.n_accepted;
                }
                bar.inc(1);
            }
            results.push(followed);
        }
        bar.finish_and_clear();
    }
    let subject = subject.expect("the list of kinds has one at least");
    match args.output {
        Format::Md => output::print(&markdown(&subject, n_prompt, &results)),
        Format::Csv => output::print(&csv(&subject, n_prompt, &results)),
        Format::Json => output::print_json(&json_rows(&subject, n_prompt, &results)),
    }
}

impl Args {
    fn followed_tests(&self) -> Result<Vec<Test>, Failure> {
        if self.batch.contains(&0) {
            return Err(Failure::usage("`--batch 0` generates nothing"));
        }
        if self.n_gen.iter().any(|&n_gen| n_gen < 2) {
            return Err(Failure::usage("`--follow` needs generations of 2 tokens or more")
                .hint("the first token of an answer belongs to its prompt; give -n a longer length"));
        }
        let batch = match &self.batch[..] {
            [] => &[1],
            batch => batch,
        };
        let tests = self.n_gen.iter().flat_map(|&n_gen| {
            batch
                .iter()
                .map(move |&n_seqs| Test::SideBySide { n_seqs, n_gen })
        });
        Ok(tests.collect())
    }
}

/// The longest answer and the most sequences of the tests.
fn widest(tests: &[Test]) -> (usize, usize) {
    let n_gen = tests.iter().map(|test| test.n_tokens()).max();
    let n_seqs = tests.iter().map(|test| test.n_seqs()).max();
    (n_gen.unwrap_or(2), n_seqs.unwrap_or(1))
}

/// Follows the text once in each sequence; the clock runs from the first token of an answer to the last of all. `salt` keeps rounds
/// apart in the prefix cache.
fn follow(engine: &Engine, ids: &[u32], n_prompt: usize, test: Test, salt: u64) -> Result<Round, Failure> {
    let n_gen = test.n_tokens();
    let parts: Vec<(&[u32], GenerateParams)> = (0..test.n_seqs())
        .map(|first| {
            let (prompt, rest) = ids[first..].split_at(n_prompt);
            let params = GenerateParams {
                max_tokens: Some(n_gen),
                cache_salt: salt,
                follows: Some(Arc::from(&rest[..n_gen])),
                ..GenerateParams::default()
            };
            (prompt, params)
        })
        .collect();
    // Prompts first, so that no answer is slowed down by another one's.
    for (prompt, params) in &parts {
        let prompt_alone = GenerateParams {
            max_tokens: Some(1),
            ..params.clone()
        };
        engine.generate(prompt, &prompt_alone)?;
    }
    // A reader for each, so that none is paused while another is read.
    let outputs = thread::scope(|scope| {
        let readers: Vec<_> = parts
            .iter()
            .map(|(prompt, params)| {
                let reader = thread::Builder::new().spawn_scoped(scope, || engine.generate(prompt, params));
                reader.map_err(|error| Failure::work(format!("cannot start a thread: {error}")))
            })
            .collect();
        // All are waited for before the first error is returned.
        let outputs: Vec<Result<Output, Failure>> = readers
            .into_iter()
            .map(|reader| Ok(reader?.join().expect("a reader does not panic")?))
            .collect();
        outputs.into_iter().collect::<Result<Vec<Output>, Failure>>()
    })?;
    let first = outputs.iter().map(|output| output.timings.first_token).min();
    let last = outputs.iter().map(|output| output.timings.total).max();
    let span = last.unwrap_or_default().saturating_sub(first.unwrap_or_default());
    let n_tokens: usize = outputs
        .iter()
        .map(|output| output.usage.completion_tokens - 1)
        .sum();
    Ok(Round {
        tokens_per_s: n_tokens as f64 / span.max(Duration::from_nanos(1)).as_secs_f64(),
        n_drafted: outputs.iter().map(|output| output.usage.drafted_tokens).sum(),
        n_accepted: outputs.iter().map(|output| output.usage.accepted_tokens).sum(),
    })
}

/// The speed of a test over that without drafts, if both were measured.
fn over_off(followed: &Followed, results: &[Followed]) -> Option<f64> {
    // Where it was named more than once, all of it.
    let off: Vec<f64> = results
        .iter()
        .filter(|other| other.spec == Drafter::Off && other.measured.test == followed.measured.test)
        .map(|off| off.measured.mean())
        .collect();
    let mean = off.iter().sum::<f64>() / off.len() as f64;
    (!off.is_empty()).then(|| followed.measured.mean() / mean)
}

fn name(test: Test, n_prompt: usize) -> String {
    format!("{} @ p{n_prompt}", test.name())
}

fn markdown(subject: &Subject, n_prompt: usize, results: &[Followed]) -> String {
    let mut table = String::from(
        "| model | size | params | backend | threads | test | drafts | t/s | over off | accepted of drafted |\n\
         | --- | ---: | ---: | --- | ---: | ---: | --- | ---: | ---: | ---: |\n",
    );
    for followed in results {
        let gain = over_off(followed, results).map_or_else(|| "-".to_owned(), |gain| format!("{gain:.2}x"));
        writeln!(
            table,
            "| {} | {:.2} MiB | {:.2} M | {} | {} | {} | {} | {:.2} ± {:.2} | {gain} | {} of {} |",
            visible(&subject.model),
            subject.size_bytes as f64 / f64::from(1 << 20),
            subject.n_params as f64 / 1e6,
            subject.backend,
            subject.n_threads,
            name(followed.measured.test, n_prompt),
            followed.spec.name(),
            followed.measured.mean(),
            followed.measured.deviation(),
            followed.n_accepted,
            followed.n_drafted,
        )
        .expect("writing to a string does not fail");
    }
    table
}

fn csv(subject: &Subject, n_prompt: usize, results: &[Followed]) -> String {
    let mut table = String::from(
        "model,model_size,model_n_params,backend,n_threads,type_k,type_v,n_prompt,test,n_seqs,n_tokens,spec,avg_ts,stddev_ts,over_off,\
         n_drafted,n_accepted\n",
    );
    for followed in results {
        let test = followed.measured.test;
        let gain = over_off(followed, results).map_or_else(String::new, |gain| gain.to_string());
        writeln!(
            table,
            "\"{}\",{},{},{},{},{},{},{n_prompt},{},{},{},{},{},{},{gain},{},{}",
            visible(&subject.model).replace('"', "\"\""),
            subject.size_bytes,
            subject.n_params,
            subject.backend,
            subject.n_threads,
            subject.cache_types.0,
            subject.cache_types.1,
            name(test, n_prompt),
            test.n_seqs(),
            test.n_tokens(),
            followed.spec.name(),
            followed.measured.mean(),
            followed.measured.deviation(),
            followed.n_drafted,
            followed.n_accepted,
        )
        .expect("writing to a string does not fail");
    }
    table
}

fn json_rows(subject: &Subject, n_prompt: usize, results: &[Followed]) -> Value {
    results
        .iter()
        .map(|followed| {
            let test = followed.measured.test;
            subject.json_with(json!({
                "n_prompt": n_prompt,
                "n_gen": test.n_tokens(),
                "test": name(test, n_prompt),
                "n_seqs": test.n_seqs(),
                "spec": followed.spec.name(),
                "avg_ts": followed.measured.mean(),
                "stddev_ts": followed.measured.deviation(),
                "samples_ts": followed.measured.samples,
                "over_off": over_off(followed, results),
                "n_drafted": followed.n_drafted,
                "n_accepted": followed.n_accepted,
            }))
        })
        .collect()
}
