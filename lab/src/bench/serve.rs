//! `bench serve`: `tokenmill serve` and llama.cpp's `llama-server` under the same load, both measured by `tokenmill bench-serve`.
//!
//! The servers are measured from outside. Invariants: both servers have the same threads, slots and context; they take turns, and
//! each round starts them again; all measurements stay in the folder of the run.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tokenmill_chart::{BLUE, Bar, Chart, GRAY};

use crate::measure::{
    record,
    rounds::{alternate, median},
};

/// Compare the server with llama.cpp's under the same load
#[derive(clap::Args)]
pub(super) struct Args {
    /// Load that the clients put on the servers
    #[arg(value_enum)]
    load: Load,
    /// The model
    model: PathBuf,
    /// Folder of the run: figures of each round, a summary for each model and load, and a chart of all summaries
    out: PathBuf,
    /// llama.cpp's `llama-server`
    #[arg(long, value_name = "FILE")]
    peer: PathBuf,
    /// The program to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/tokenmill")]
    tokenmill: PathBuf,
    /// How often each server is started
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Threads of each server
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Requests a second of the load `open`
    #[arg(long, default_value_t = 1.0)]
    rate: f64,
}

/// The load that clients put on a server.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Load {
    /// 8 clients, each sends its next request when its last is answered
    Streams8,
    /// One client
    Stream1,
    /// Requests at random times
    Open,
}

impl Load {
    fn name(self) -> &'static str {
        match self {
            Self::Streams8 => "streams8",
            Self::Stream1 => "stream1",
            Self::Open => "open",
        }
    }

    /// Returns the options of `bench-serve`.
    fn options(self, rate: f64) -> Vec<String> {
        let words = match self {
            Self::Streams8 => "--concurrency 8 --requests 16 --prompt-words 20 --max-tokens 64",
            Self::Stream1 => "--concurrency 1 --requests 2 --prompt-words 20 --max-tokens 64",
            Self::Open => "--requests 12 --prompt-words 20 --max-tokens 32",
        };
        let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        if self == Self::Open {
            words.extend(["--rate".to_owned(), rate.to_string()]);
        }
        words
    }
}

const SLOTS: usize = 8;
const CONTEXT: usize = 512;
/// Limit of the time that a server takes to load its model.
const PATIENCE: Duration = Duration::from_mins(2);

/// The two sides, in the order of their turns.
const SIDES: [&str; 2] = ["tokenmill", "llama-server"];

/// Measures, and draws everything in the folder.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(args.rounds > 0, "0 rounds measure nothing");
    fs::create_dir_all(&args.out)?;
    let model = stem(&args.model);
    let rounds = alternate(SIDES, args.rounds as usize, |side, round| {
        let figures = measure(args, side, round)?;
        println!("{model} {} {side} {figures:?}", args.load.name());
        Ok(figures)
    })?;
    let rounds: BTreeMap<&str, _> = SIDES.into_iter().zip(rounds).collect();
    let medians: BTreeMap<&str, BTreeMap<&str, f64>> = rounds
        .iter()
        .map(|(side, rounds)| (*side, medians(rounds)))
        .collect();
    println!("{:#}", json!(medians));
    let summary = json!({
        "model": model,
        "load": args.load.name(),
        "rate": args.rate,
        "medians": medians,
        "rounds": rounds,
    });
    let file = args
        .out
        .join(format!("summary-{model}-{}.json", args.load.name()));
    record::write(&file, &summary)?;
    fs::write(args.out.join("serve.svg"), draw(&summaries(&args.out)?))?;
    Ok(())
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Returns the command line of a server, with equal threads, slots and context for each slot.
fn server_command(args: &Args, side: &str, port: u16) -> Vec<String> {
    let (model, threads, port) = (
        args.model.display().to_string(),
        args.threads.to_string(),
        port.to_string(),
    );
    let [slots, context, all_slots] = [SLOTS, CONTEXT, SLOTS * CONTEXT].map(|n| n.to_string());
    let words: Vec<&str> = if side == SIDES[0] {
        let sizes = [
            "-c",
            &context,
            "--max-num-seqs",
            &slots,
            "--kv-cache-tokens",
            &all_slots,
        ];
        [&["serve", &model, "--port", &port, "-t", &threads][..], &sizes].concat()
    } else {
        let place = ["-m", &model, "--host", "127.0.0.1", "--port", &port];
        let sizes = ["-t", &threads, "-tb", &threads, "-np", &slots, "-c", &all_slots];
        [&place[..], &sizes, &["--no-webui"]].concat()
    };
    let program = if side == SIDES[0] {
        &args.tokenmill
    } else {
        &args.peer
    };
    let program = program.display().to_string();
    std::iter::once(program)
        .chain(words.into_iter().map(str::to_owned))
        .collect()
}

/// A server process that ends when this value is dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to end.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    fn start(words: &[String], port: u16) -> anyhow::Result<Self> {
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", words[0]))?;
        let mut server = Self(child);
        let started = Instant::now();
        while !is_healthy(port) {
            if let Some(status) = server.0.try_wait()? {
                bail!("{} ended with {status}", words[0]);
            }
            ensure!(started.elapsed() < PATIENCE, "{} did not become ready", words[0]);
            thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }
}

/// Returns whether a server answers `/health` with success.
fn is_healthy(port: u16) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(status.starts_with(b"HTTP/1.") && status.ends_with(b" 200"))
    };
    ask().unwrap_or(false)
}

/// Returns a port without a listener.
fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Runs the load against one server and stores the measurements.
fn measure(args: &Args, side: &str, round: usize) -> anyhow::Result<BTreeMap<&'static str, f64>> {
    let port = free_port()?;
    let server_words = server_command(args, side, port);
    let name = format!("{}-{}-{side}-{round}.json", stem(&args.model), args.load.name());
    let file = args.out.join(name);
    let mut client_words = vec![
        args.tokenmill.display().to_string(),
        "bench-serve".to_owned(),
        format!("http://127.0.0.1:{port}"),
    ];
    client_words.extend(args.load.options(args.rate));
    let seed = (round + 1).to_string();
    client_words.extend(["--ignore-eos", "--seed", &seed, "--json"].map(str::to_owned));
    client_words.push(file.display().to_string());
    let server = Server::start(&server_words, port)?;
    let status = Command::new(&client_words[0])
        .args(&client_words[1..])
        .stdout(Stdio::null())
        .status()?;
    drop(server);
    ensure!(status.success(), "bench-serve ended with {status}");
    let measured: Value = record::read(&file)?;
    let figures = summary(&measured)?;
    let mut kept = json!({
        "server_command": without_folders(&server_words),
        "client_command": without_folders(&client_words),
    });
    if let (Value::Object(kept), Value::Object(measured)) = (&mut kept, measured) {
        kept.extend(measured);
    }
    // One number a line would be a million lines.
    fs::write(&file, format!("{kept}\n"))?;
    Ok(figures)
}

/// Returns a command line without the folders of this machine.
fn without_folders(words: &[String]) -> Vec<&str> {
    let shown = |word: &'_ String| match word.rfind('/') {
        Some(at) if !word.starts_with("http") => at + 1,
        _ => 0,
    };
    words.iter().map(|word| &word[shown(word)..]).collect()
}

/// Returns the figures of one run that are compared.
fn summary(measured: &Value) -> anyhow::Result<BTreeMap<&'static str, f64>> {
    let (report, requests) = (&measured["report"], measured["requests"].as_array());
    let requests = requests.context("the client reports no requests")?;
    ensure!(
        report["answered"] == requests.len(),
        "not every request was answered: {}",
        report["first_failure"]
    );
    let number = |value: &Value| value.as_f64().with_context(|| format!("`{value}` is no figure"));
    // From a stream's first piece to its last, over the tokens after the first: the time per token for the reader.
    let (mut span_ms, mut n_tokens) = (0.0, 0.0);
    let (mut engine_ms, mut n_engine_tokens) = (0.0, 0.0);
    for request in requests {
        let last = request["pieces_ms"].as_array().and_then(|pieces| pieces.last());
        span_ms += number(last.context("a request without text")?)? - number(&request["first_ms"])?;
        n_tokens += number(&request["completion_tokens"])? - 1.0;
        let timings = &request["server_timings"];
        if timings.is_object() {
            engine_ms += number(&timings["predicted_ms"])?;
            n_engine_tokens += number(&timings["predicted_n"])? - 1.0;
        }
    }
    Ok(BTreeMap::from([
        ("tokens_per_s", number(&report["completion_tokens_per_s"])?),
        ("ms_per_token", span_ms / n_tokens),
        ("engine_ms_per_token", engine_ms / f64::max(n_engine_tokens, 1.0)),
        ("ttft_p50_ms", number(&report["first_token_ms"]["p50"])?),
        ("ttft_p99_ms", number(&report["first_token_ms"]["p99"])?),
    ]))
}

fn medians<'a>(rounds: &[BTreeMap<&'a str, f64>]) -> BTreeMap<&'a str, f64> {
    let median = |figure: &str| {
        let values: Vec<f64> = rounds.iter().map(|round| round[figure]).collect();
        (median(&values).unwrap_or_default() * 1e3).round() / 1e3
    };
    rounds[0].keys().map(|&figure| (figure, median(figure))).collect()
}

/// Returns the summaries in a folder, by file name.
fn summaries(folder: &Path) -> anyhow::Result<Vec<Value>> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("summary-") && name.ends_with(".json")
    });
    files.sort();
    files.iter().map(|file| record::read(file)).collect()
}

/// Loads and figures that are drawn.
const DRAWN: [(Load, &str, &str); 3] = [
    (
        Load::Streams8,
        "tokens_per_s",
        "tokens/s, 8 streams (more is better)",
    ),
    (
        Load::Streams8,
        "ttft_p99_ms",
        "first token p99, ms, 8 streams (less is better)",
    ),
    (
        Load::Open,
        "ttft_p99_ms",
        "first token p99, ms, open load (less is better)",
    ),
];

fn draw(summaries: &[Value]) -> String {
    const LEFT: f64 = 210.0;
    const BAR_WIDTH: f64 = 300.0;
    const ROW_HEIGHT: f64 = 44.0;
    let drawn: Vec<(&str, &str, Vec<&Value>)> = DRAWN
        .iter()
        .map(|&(load, figure, title)| {
            let chosen = summaries.iter().filter(|summary| summary["load"] == load.name());
            (figure, title, chosen.collect())
        })
        .collect();
    let height: f64 = drawn
        .iter()
        .filter(|(_, _, chosen)| !chosen.is_empty())
        .map(|(_, _, chosen)| 36.0 + chosen.len() as f64 * ROW_HEIGHT)
        .sum();
    let mut chart = Chart::new(LEFT + BAR_WIDTH + 80.0, 30.0 + height);
    chart.legend([LEFT, 20.0], BLUE, SIDES[0]);
    chart.legend([LEFT + 100.0, 20.0], GRAY, SIDES[1]);
    let mut top = 30.0;
    for (figure, title, chosen) in drawn.iter().filter(|(_, _, chosen)| !chosen.is_empty()) {
        let of_side = |summary: &Value, side: &str| summary["medians"][side][*figure].as_f64().unwrap_or(0.0);
        let most = (chosen.iter())
            .flat_map(|summary| SIDES.map(|side| of_side(summary, side)))
            .fold(f64::MIN_POSITIVE, f64::max);
        top += 24.0;
        chart.title([12.0, top - 4.0], title);
        for summary in chosen {
            let bars = [(SIDES[0], BLUE), (SIDES[1], GRAY)].map(|(side, color)| {
                let value = of_side(summary, side);
                Bar {
                    color,
                    length: value / most * BAR_WIDTH,
                    value: format!("{value:.1}"),
                }
            });
            let model = summary["model"].as_str().unwrap_or("a model");
            chart.bars([LEFT, top + 4.0], 16.0, model, &bars);
            top += ROW_HEIGHT;
        }
        top += 12.0;
    }
    chart.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(answered: usize) -> Value {
        let request = |last: f64| {
            json!({
                "first_ms": 10.0,
                "pieces_ms": [10.0, last],
                "completion_tokens": 5,
                "server_timings": { "predicted_ms": 30.0, "predicted_n": 4 },
            })
        };
        json!({
            "report": {
                "answered": answered,
                "first_failure": "refused",
                "completion_tokens_per_s": 20.0,
                "first_token_ms": { "p50": 9.0, "p99": 11.0 },
            },
            "requests": [request(50.0), request(90.0)],
        })
    }

    #[test]
    fn a_token_costs_the_time_from_the_first_piece_to_the_last() {
        let figures = summary(&measured(2)).unwrap();
        assert_eq!(figures["ms_per_token"], 15.0);
        assert_eq!(figures["engine_ms_per_token"], 10.0);
        let error = summary(&measured(1)).unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
    }

    #[test]
    fn medians_are_of_each_figure() {
        let rounds = [3.0, 1.0, 2.0, 10.0].map(|value| BTreeMap::from([("tokens_per_s", value)]));
        assert_eq!(medians(&rounds)["tokens_per_s"], 2.5);
    }

    #[test]
    fn the_longest_bar_is_the_larger_figure() {
        let side = |value: f64| json!({ "tokens_per_s": value, "ttft_p99_ms": value });
        let summary = json!({
            "model": "tiny",
            "load": "streams8",
            "medians": { "tokenmill": side(40.0), "llama-server": side(20.0) },
        });
        let svg = draw(&[summary]);
        assert!(
            svg.contains("width=\"300.0\"") && svg.contains("width=\"150.0\""),
            "{svg}"
        );
        assert!(!svg.contains("open load"), "{svg}");
    }
}
