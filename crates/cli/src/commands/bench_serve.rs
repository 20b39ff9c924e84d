//! `bench-serve`: puts load on a server and measures the delays of its clients.
//!
//! Here are the options and the load; one request is in [`client`], figures in [`report`], the drawing in
//! [`chart`], chats of several kinds in [`mix`].
//!
//! Any server with OpenAI's `/v1/completions` can be measured, so that peers are compared with the same tool.
//! Invariants: every reported number was measured on this side of the socket; an interrupted load reports the
//! measurements so far, and says so.

mod chart;
mod client;
mod mix;
mod report;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::JoinSet};

use self::{
    client::{Measured, Target, measure},
    mix::{Bound, Comparison, Mix, Plan},
    report::{Bounds, Report},
};
use crate::{
    failure::Failure,
    note::note,
    numbers::duration,
    output,
    signals::{Kind, Signals},
};

/// The path for completions.
const COMPLETIONS: &str = "/v1/completions";

/// Measure a server under load.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    tokenmill bench-serve http://127.0.0.1:8080 --concurrency 8 --requests 64\n  \
    tokenmill bench-serve http://127.0.0.1:8080 --rate 4 --ttft-bound 500\n  \
    tokenmill bench-serve http://127.0.0.1:8080 --mix plain=7,json=1 --against-plain\n  \
    tokenmill bench-serve http://127.0.0.1:8080 --mix plain=8,tools=3 --live\n\n\
    With --concurrency each client sends its next request when its last is answered (closed loop); with --rate requests\n\
    come at random times whatever the server does (open loop). Ctrl-C ends the load and reports what was measured until then.")]
pub(crate) struct Args {
    /// Address of the server, http only
    url: String,
    /// Model to request [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Key to send
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Clients side by side
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Average requests per second, in place of --concurrency
    #[arg(long, value_name = "R", conflicts_with = "concurrency", value_parser = positive)]
    rate: Option<f64>,
    /// Requests to measure
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Requests before the measured ones
    #[arg(long, value_name = "N", default_value_t = 2)]
    warmup: u32,
    /// Words of a prompt; each prompt begins differently, so that none comes from a cache
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    prompt_words: u32,
    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Request answers of full length (`ignore_eos`, which OpenAI's own API does not have)
    #[arg(long)]
    ignore_eos: bool,
    /// Seed of prompts and arrivals
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// A request is good only if its first token comes within this many milliseconds
    #[arg(long, value_name = "MS", value_parser = positive)]
    ttft_bound: Option<f64>,
    /// A request is good only if its tokens come within this many milliseconds of each other on average
    #[arg(long, value_name = "MS", value_parser = positive)]
    inter_token_bound: Option<f64>,
    /// Run chat streams side by side instead, by kind: plain, json (with a schema), tools (required calls), reasoning (with a
    /// budget); reports the gaps between the pieces of each kind's answers
    #[arg(long, value_name = "KIND=N,…", conflicts_with_all = ["concurrency", "rate", "ttft_bound", "inter_token_bound", "svg"])]
    mix: Option<Mix>,
    /// Run the streams of --mix for this long, in place of --requests
    #[arg(long, value_name = "TIME", requires = "mix", value_parser = duration)]
    seconds: Option<Duration>,
    /// Alternate with the same number of plain streams, and report the ratio of tokens/s
    #[arg(long, requires = "mix")]
    against_plain: bool,
    /// Rounds of --against-plain
    #[arg(long, value_name = "N", default_value_t = 3, requires = "against_plain", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Print a line each second with the longest gap of each kind
    #[arg(long, requires = "mix")]
    live: bool,
    /// Write every measurement to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the distributions into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if number > 0.0 && f64::is_finite(number) => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("cannot start the network threads: {error}")))?;
    for path in [&args.json, &args.svg].into_iter().flatten() {
        output::check_writable(path)?;
    }
    if let Some(mix) = &args.mix {
        return runtime.block_on(run_mix(args, mix));
    }
    let Load {
        measured,
        wall,
        is_whole,
    } = runtime.block_on(load(args))?;
    let bounds = Bounds {
        ttft_ms: args.ttft_bound,
        inter_token_ms: args.inter_token_bound,
    };
    let report = Report::new(&measured, wall, bounds);
    output::print(&report.table())?;
    if let Some(path) = &args.json {
        let json = serde_json::json!({
            "url": args.url,
            "concurrency": args.rate.is_none().then_some(args.concurrency),
            "rate": args.rate,
            "prompt_words": args.prompt_words,
            "max_tokens": args.max_tokens,
            "ignore_eos": args.ignore_eos,
            "seed": args.seed,
            "interrupted": !is_whole,
            "report": report.to_json(),
            "requests": measured.iter().map(Measured::to_json).collect::<Vec<_>>(),
        });
        output::write_file(path, &format!("{json:#}\n"))?;
    }
    if let Some(path) = &args.svg {
        output::write_file(path, &chart::draw(&report))?;
    }
    if !is_whole {
        note!(
            "interrupted: {} of {} requests were measured",
            measured.len(),
            args.requests
        );
        return Err(Failure::interrupted());
    }
    if report.n_good_answers() == 0 {
        return Err(Failure::work("no request was answered"));
    }
    Ok(())
}

/// Runs streams of several kinds, and reports their delays.
async fn run_mix(args: &Args, mix: &Mix) -> Result<(), Failure> {
    let mut presses = Signals::catch(Kind::Interrupt)
        .map_err(|error| Failure::work(format!("cannot handle Ctrl-C: {error}")))?;
    let target = Target::new(&args.url, args.api_key.clone(), args.model.clone()).await?;
    let target = Arc::new(target);
    let (seed, n_words) = (args.seed, args.prompt_words);
    let words = move |number| words(seed, number, n_words);
    let n_streams = mix.n_streams();
    let plan = Plan {
        mix: mix.clone(),
        until: match args.seconds {
            Some(time) => Bound::Time(time),
            None => Bound::Requests(args.requests.div_ceil(n_streams)),
        },
        max_tokens: args.max_tokens,
        is_live: args.live,
    };
    // Grammars are compiled once, and kept.
    let warmup = Plan {
        mix: mix.one_of_each(),
        until: Bound::Requests(1),
        is_live: false,
        ..plan.clone()
    };
    let warm = mix::run(&target, &warmup, &mut presses, 1 << 60, words).await;
    if !warm.is_whole {
        return Err(Failure::interrupted());
    }
    if let Some(error) = warm.first_error() {
        return Err(Failure::work(format!("the server does not answer: {error}")));
    }
    let mut comparison = Comparison::default();
    let mut runs = Vec::new();
    let n_rounds = if args.against_plain { args.rounds } else { 1 };
    let mut is_whole = true;
    for round in 0..n_rounds {
        let first = u64::from(round) << 40;
        let mut plain = None;
        if args.against_plain {
            let of = Comparison::plain(&plan);
            let run = mix::run(&target, &of, &mut presses, first | 1 << 39, words).await;
            if let Some(error) = run.first_error() {
                return Err(Failure::work(format!("a plain stream failed: {error}")));
            }
            is_whole &= run.is_whole;
            plain = Some(run);
        }
        if is_whole {
            let run = mix::run(&target, &plan, &mut presses, first, words).await;
            output::print(&run.table(mix))?;
            is_whole &= run.is_whole;
            if let Some(plain) = plain.filter(|_| is_whole) {
                comparison.add(&plain, &run);
            }
            runs.push(run);
        }
        if !is_whole {
            note!("interrupted: reporting the measurements so far");
            break;
        }
    }
    let has_ratio = args.against_plain && !comparison.is_empty();
    if has_ratio {
        output::print(&format!("\n{}", comparison.line()))?;
    }
    if let Some(path) = &args.json {
        let json = serde_json::json!({
            "url": args.url,
            "prompt_words": args.prompt_words,
            "max_tokens": args.max_tokens,
            "seed": args.seed,
            "runs": runs.iter().map(|run| run.to_json(mix)).collect::<Vec<_>>(),
            "interrupted": !is_whole,
            "against_plain": has_ratio.then(|| comparison.to_json()),
        });
        output::write_file(path, &format!("{json:#}\n"))?;
    }
    if !is_whole {
        return Err(Failure::interrupted());
    }
    match runs.iter().find_map(|run| run.first_error()) {
        Some(error) => Err(Failure::work(format!("a stream failed: {error}"))),
        None => Ok(()),
    }
}

/// The measurements of a load.
struct Load {
    /// The requests that ended.
    measured: Vec<Measured>,
    /// The time from the first request to the last end.
    wall: Duration,
    /// Whether all requests ended.
    is_whole: bool,
}

/// Sends all requests and waits for their answers, or for Ctrl-C.
async fn load(args: &Args) -> Result<Load, Failure> {
    let mut presses = Signals::catch(Kind::Interrupt)
        .map_err(|error| Failure::work(format!("cannot handle Ctrl-C: {error}")))?;
    let (target, bodies) = tokio::select! {
        prepared = prepare(args) => prepared?,
        () = presses.next() => return Err(Failure::interrupted()),
    };
    let began = Instant::now();
    let (send, mut ended) = mpsc::unbounded_channel();
    let _clients = start_clients(args, &target, &bodies, began, &send);
    drop(send);
    let mut measured = Vec::with_capacity(bodies.len());
    let is_whole = loop {
        tokio::select! {
            one = ended.recv() => match one {
                Some(one) => measured.push(one),
                None => break true,
            },
            () = presses.next() => break false,
        }
    };
    let wall = began.elapsed();
    measured.sort_by_key(|one| one.sent);
    Ok(Load {
        measured,
        wall,
        is_whole,
    })
}

/// Finds the server's model and warms it up; gives the bodies of the requests that are to be measured.
async fn prepare(args: &Args) -> Result<(Arc<Target>, Arc<Vec<String>>), Failure> {
    let target = Target::new(&args.url, args.api_key.clone(), args.model.clone()).await?;
    let target = Arc::new(target);
    for index in 0..args.warmup {
        let body = args.body(&target, u64::from(index) << 32);
        let warmup = measure(&target, COMPLETIONS, &body, Duration::ZERO, &mut |_| {}).await;
        if let Some(error) = warmup.error {
            return Err(Failure::work(format!("the server does not answer: {error}")));
        }
    }
    let bodies = (0..args.requests).map(|index| args.body(&target, u64::from(index) + 1));
    let bodies = Arc::new(bodies.collect());
    Ok((target, bodies))
}

/// Starts the clients; each finished request is sent to `ended`. Dropping the clients ends
/// them.
fn start_clients(
    args: &Args,
    target: &Arc<Target>,
    bodies: &Arc<Vec<String>>,
    began: Instant,
    ended: &mpsc::UnboundedSender<Measured>,
) -> JoinSet<()> {
    let mut clients = JoinSet::new();
    if let Some(rate) = args.rate {
        let mut random = Random(args.seed);
        let mut due = Duration::ZERO;
        for index in 0..bodies.len() {
            let (target, bodies, ended) = (Arc::clone(target), Arc::clone(bodies), ended.clone());
            clients.spawn(async move {
                tokio::time::sleep_until((began + due).into()).await;
                let one = measure(&target, COMPLETIONS, &bodies[index], due, &mut |_| {}).await;
                // After an interrupted load there is no receiver any more.
                let _interrupted = ended.send(one);
            });
            due += Duration::from_secs_f64(-(1.0 - random.unit()).ln() / rate);
        }
    } else {
        let next = Arc::new(AtomicUsize::new(0));
        for _ in 0..args.concurrency {
            let (target, bodies, ended) = (Arc::clone(target), Arc::clone(bodies), ended.clone());
            let next = Arc::clone(&next);
            clients.spawn(async move {
                while let Some(body) = bodies.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let one = measure(&target, COMPLETIONS, body, began.elapsed(), &mut |_| {}).await;
                    let _interrupted = ended.send(one);
                }
            });
        }
    }
    clients
}

impl Args {
    /// A request whose prompt is a function of the seed and `index`.
    fn body(&self, target: &Target, index: u64) -> String {
        let mut body = serde_json::json!({
            "model": target.model(),
            "prompt": words(self.seed, index, self.prompt_words),
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if self.ignore_eos {
            body["ignore_eos"] = true.into();
        }
        body.to_string()
    }
}

/// A prompt that is a function of the seed and `index`, and begins like no other.
fn words(seed: u64, index: u64, n_words: u32) -> String {
    const WORDS: [&str; 16] = [
        "river", "stone", "garden", "winter", "lantern", "music", "engine", "cloud", "paper", "forest",
        "market", "silver", "window", "bridge", "letter", "harbour",
    ];
    let mut random = Random(seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let words: Vec<&str> = (0..n_words)
        .map(|_| WORDS[(random.next() >> 60) as usize])
        .collect();
    format!("{index} {}", words.join(" "))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to just below 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
