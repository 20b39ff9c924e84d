//! `bench engine`: the engine on a model. Decoding of several sequences against the bare executor, the gain of a cached prefix,
//! the rhythm of running streams while a long prompt arrives, and the processor time of an idle engine. Prints Markdown.
//!
//! There is no HTTP in between, as there is in `serve`. Invariant: engine and bare executor decode the same sequences in turn, so
//! that other work on the machine slows both.

use std::{
    fmt::Write,
    path::PathBuf,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use tokenmill_backend::{Executor, ForwardBatch};
use tokenmill_chart::{Axis, BLUE, Chart, Curve, GRAY, Panel};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{LoadError, Model, ModelExecutor, ModelOptions};
use tokenmill_quant::CpuFeatures;
use tokenmill_sched::{Engine, EngineConfig, Event, GenerateParams};
use tokenmill_testkit::generate::run as run_step;

use super::run_in_release;
use crate::measure::{
    report::Table,
    rounds::{alternate, median, percentile},
    subject::{Sequences, greedy as greedy_row, sampled, tokens as prompt},
};

const N_PROMPT: usize = 32;
const N_DECODE: usize = 48;
const N_ROUNDS: usize = 3;

/// Time for which the idle engine is watched.
const IDLE: Duration = Duration::from_secs(10);

/// Time for which it is left alone before that.
const SETTLE: Duration = Duration::from_secs(3);

fn load(model: &Model, options: &ModelOptions) -> Result<ModelExecutor, LoadError> {
    let backend = CpuBackend::new(None, CpuFeatures::detect())?;
    model.load_on(backend, options, &mut |_| {})
}

/// Measure the engine on a model, on the CPU
#[derive(clap::Args)]
pub(super) struct Args {
    /// The model
    model: PathBuf,
    /// Measurements to make; all where none is named
    #[arg(value_enum)]
    what: Vec<Measurement>,
    /// Draw the decoding of several sequences into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A measurement.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Measurement {
    /// Several sequences, against the bare executor
    Decoding,
    /// The gain of a cached prefix
    Prefix,
    /// Streams while a long prompt arrives
    Rhythm,
    /// Processor time without requests
    Idle,
}

/// One number of sequences, as measured.
struct Point {
    n_seqs: usize,
    /// Tokens per second of all sequences together.
    bare: f64,
    engine: f64,
}

/// Measures.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        return run_in_release();
    }
    let is_asked = |what: Measurement| args.what.is_empty() || args.what.contains(&what);
    let model = Model::open(&args.model)?;
    let options = ModelOptions {
        n_ctx: Some(5120),
        n_pages: Some(1024),
        max_batch_tokens: 512,
        max_batch_seqs: 32,
        max_logit_rows: 32,
        ..ModelOptions::default()
    };
    let engine = Engine::start(load(&model, &options)?, EngineConfig::default());
    let mut report = String::new();
    if is_asked(Measurement::Decoding) {
        let mut bare = load(&model, &options)?;
        let points = decoding(&mut bare, &engine, &mut report)?;
        if let Some(svg) = &args.svg {
            let name = args.model.file_stem().unwrap_or_default();
            std::fs::write(svg, draw(&name.to_string_lossy(), &points))?;
        }
    }
    if is_asked(Measurement::Prefix) {
        cached_prefix(&engine, &mut report)?;
    }
    if is_asked(Measurement::Rhythm) {
        long_prompt_beside_streams(&engine, &mut report)?;
    }
    if is_asked(Measurement::Idle) {
        idle(&engine, &mut report)?;
    }
    println!("{report}");
    Ok(())
}

/// Draws throughput and latency against the number of sequences, side by side.
fn draw(title: &str, points: &[Point]) -> String {
    const WIDTH: f64 = 320.0;
    const HEIGHT: f64 = 180.0;
    const GAP: f64 = 64.0;
    let rates = |of: fn(&Point) -> f64| -> Vec<(f64, f64)> {
        points
            .iter()
            .map(|point| (point.n_seqs as f64, of(point)))
            .collect()
    };
    let ms_per_token = |rates: &[(f64, f64)]| -> Vec<(f64, f64)> {
        rates
            .iter()
            .map(|&(n_seqs, rate)| (n_seqs, n_seqs * 1e3 / rate))
            .collect()
    };
    let (bare, engine) = (rates(|point| point.bare), rates(|point| point.engine));
    let panels = [
        (
            "ms between two tokens of a sequence",
            ms_per_token(&bare),
            ms_per_token(&engine),
        ),
        ("tokens/s of all sequences", bare, engine),
    ];
    let height = HEIGHT + 2.2 * GAP;
    let mut chart = Chart::new(2.0 * WIDTH + 3.0 * GAP, height);
    chart.title([GAP, 20.0], title);
    let largest =
        |points: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| points.iter().map(of).fold(0.0, f64::max);
    for (index, (title, bare, engine)) in panels.iter().rev().enumerate() {
        let most = largest(bare, |point| point.0);
        let highest = largest(bare, |point| point.1).max(largest(engine, |point| point.1));
        let panel = Panel {
            title,
            x: Axis::with_ticks(most, bare.iter().map(|(n_seqs, _)| (*n_seqs, n_seqs.to_string()))),
            y: Axis::in_parts(highest, 2, 0),
            curves: &[
                Curve {
                    color: GRAY,
                    points: bare,
                },
                Curve {
                    color: BLUE,
                    points: engine,
                },
            ],
        };
        let left = GAP + index as f64 * (WIDTH + GAP);
        chart.panel([left, 0.9 * GAP], [WIDTH, HEIGHT], &panel);
    }
    chart.legend([GAP, height - 12.0], BLUE, "through the engine");
    chart.legend([GAP + 140.0, height - 12.0], GRAY, "bare executor");
    chart.finish()
}

fn greedy(max_tokens: usize) -> GenerateParams {
    GenerateParams {
        max_tokens: Some(max_tokens),
        uses_prefix_cache: false,
        traces_tokens: true,
        ..GenerateParams::default()
    }
}

/// Decodes the same sequences with the bare executor and with the engine, in turn, and compares the medians.
fn decoding(bare: &mut dyn Executor, engine: &Engine, report: &mut String) -> anyhow::Result<Vec<Point>> {
    let mut table = Table::new(&[
        "sequences:",
        "bare executor, tokens/s:",
        "engine, tokens/s:",
        "ratio:",
        "engine, ms per token:",
    ]);
    let n_vocab = engine.limits().n_vocab;
    let mut points = Vec::new();
    for n_seqs in [1, 2, 4, 8, 16] {
        let prompts: Vec<Vec<u32>> = (0..n_seqs).map(|own| prompt(own, N_PROMPT, n_vocab)).collect();
        let rates = alternate([false, true], N_ROUNDS, |uses_engine, _| {
            if uses_engine {
                decode_with_engine(engine, &prompts)
            } else {
                decode_bare(bare, &prompts)
            }
        })?;
        // Each round compares runs that are adjacent in time, so that other work on the machine affects both alike.
        let ratios: Vec<f64> = rates[0]
            .iter()
            .zip(&rates[1])
            .map(|(bare, engine)| engine / bare)
            .collect();
        let [Some(ratio), Some(bare), Some(engine)] =
            [&ratios, &rates[0], &rates[1]].map(|rates| median(rates))
        else {
            bail!("nothing was measured");
        };
        table.row(&[
            &n_seqs,
            &format!("{bare:.1}"),
            &format!("{engine:.1}"),
            &format!("{ratio:.3}"),
            &format!("{:.2}", n_seqs as f64 * 1e3 / engine),
        ]);
        points.push(Point { n_seqs, bare, engine });
    }
    write!(report, "{table}")?;
    Ok(points)
}

fn decode_bare(executor: &mut dyn Executor, prompts: &[Vec<u32>]) -> anyhow::Result<f64> {
    let sequences = Sequences {
        n_seqs: prompts.len(),
        n_ctx: N_PROMPT + N_DECODE,
    };
    let mut batch = ForwardBatch::default();
    for (seq_idx, prompt) in prompts.iter().enumerate() {
        sequences.push(executor, &mut batch, seq_idx, 0, prompt, greedy_row());
    }
    let mut tokens = sampled(&run_step(executor, &batch)?)?;
    let start = Instant::now();
    for position in N_PROMPT..N_PROMPT + N_DECODE - 1 {
        sequences.decode(executor, &mut tokens, position, |_| greedy_row())?;
    }
    Ok((prompts.len() * (N_DECODE - 1)) as f64 / start.elapsed().as_secs_f64())
}

fn decode_with_engine(engine: &Engine, prompts: &[Vec<u32>]) -> anyhow::Result<f64> {
    let outputs = engine.batch_generate(prompts, &greedy(N_DECODE))?;
    let times: Vec<Vec<Duration>> = (outputs.into_iter())
        .map(|output| output.map(|output| output.timings.tokens))
        .collect::<Result<_, _>>()?;
    // Requests begin one after the other; only the time in which all of them decode counts.
    let begin = times
        .iter()
        .filter_map(|times| times.first())
        .max()
        .context("a token")?;
    let end = times
        .iter()
        .filter_map(|times| times.last())
        .min()
        .context("a token")?;
    let n_tokens = (times.iter().flatten())
        .filter(|&at| at > begin && at <= end)
        .count();
    Ok(n_tokens as f64 / end.saturating_sub(*begin).as_secs_f64())
}

fn cached_prefix(engine: &Engine, report: &mut String) -> anyhow::Result<()> {
    let n_vocab = engine.limits().n_vocab;
    let params = GenerateParams {
        uses_prefix_cache: true,
        ..greedy(1)
    };
    let first_ms = alternate([0, 1], N_ROUNDS, |turn, round| {
        let shared = prompt(100 + round, 1024, n_vocab);
        let own = prompt(200 + turn, 16, n_vocab);
        let output = engine.generate(&[&shared[..], &own].concat(), &params)?;
        Ok(output.timings.first_token.as_secs_f64() * 1e3)
    })?;
    let [Some(cold), Some(warm)] = first_ms.map(|times| median(&times)) else {
        bail!("nothing was measured");
    };
    writeln!(
        report,
        "\n1,024 shared and 16 own tokens: first token after {cold:.1} ms cold, {warm:.1} ms with the prefix cached \
         ({:.1}x).",
        cold / warm
    )?;
    Ok(())
}

fn long_prompt_beside_streams(engine: &Engine, report: &mut String) -> anyhow::Result<()> {
    let n_vocab = engine.limits().n_vocab;
    let mut streams: Vec<_> = (0..4)
        .map(|own| {
            let params = GenerateParams {
                max_tokens: Some(4000),
                ..greedy(1)
            };
            engine.submit(prompt(own, N_PROMPT, n_vocab), params)
        })
        .collect::<Result<_, _>>()?;
    let watched = streams.remove(0);
    let (enough, is_enough) = mpsc::channel::<()>();
    let others = std::thread::spawn(move || {
        while is_enough.recv_timeout(Duration::from_millis(5)) == Err(RecvTimeoutError::Timeout) {
            for stream in &mut streams {
                while stream.try_next().is_some() {}
            }
        }
    });
    let (mut gaps, mut last) = (Vec::new(), None);
    let mut long = None;
    let mut arrived = 0;
    let mut quiet = Vec::new();
    for event in watched {
        let Event::Token(_) = event else { break };
        let now = Instant::now();
        if let Some(last) = last.replace(now) {
            gaps.push((now - last).as_secs_f64() * 1e3);
        }
        if gaps.len() == 100 && long.is_none() {
            quiet = std::mem::take(&mut gaps);
            long = Some((engine.submit(prompt(999, 4096, n_vocab), greedy(1))?, now));
        }
        if let Some((generation, since)) = &mut long
            && let Some(event) = generation.try_next()
        {
            let Event::Token(_) = event else {
                bail!("the long prompt ended with {event:?}");
            };
            arrived = since.elapsed().as_millis();
            break;
        }
    }
    drop(enough);
    others.join().map_err(|_| anyhow!("a reader panicked"))?;
    let n_gaps = gaps.len();
    let both = [0.5, 0.99].map(|share| percentile(&mut gaps, share));
    let ([Some(usual), Some(longest)], Some(quiet)) = (both, median(&quiet)) else {
        bail!("the long prompt came between no tokens");
    };
    writeln!(
        report,
        "\nFour streams while a prompt of 4,096 tokens arrives: {quiet:.1} ms between tokens before it (median), then median \
         {usual:.1} ms, p99 {longest:.1} ms ({:.2}x the median) over {n_gaps} tokens; the prompt's first token after {arrived} ms.",
        longest / usual,
    )?;
    Ok(())
}

/// Measures the processor time of this process while the engine has nothing to do.
fn idle(engine: &Engine, report: &mut String) -> anyhow::Result<()> {
    let used = || -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        // After the program's name in parentheses, fields 14 and 15 of the whole are user and system time in 1/100 s.
        let fields = stat.rsplit(')').next().context("a line of fields")?;
        let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
        Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
    };
    // A step that ran when its last request was cancelled comes to its end first.
    std::thread::sleep(SETTLE);
    let before = used()?;
    std::thread::sleep(IDLE);
    writeln!(
        report,
        "\nIdle for {} s: {:.2} s of processor time, a sign of life {} ms old.",
        IDLE.as_secs(),
        used()? - before,
        engine.heartbeat_age().as_millis()
    )?;
    Ok(())
}
