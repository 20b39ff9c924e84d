//! `bench cells`: how fast the program is, compared with a peer and with the machine's limits.
//!
//! It runs whole programs. Invariant: the sides of a cell run in alternation, so that a machine that slows down slows both.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use tokenmill_gguf::GgufFile;

use super::{
    cell::{self, Cell, Work},
    chart,
    record::{Figure, Record, SideFigure},
    report,
    roofline::ModelCost,
    run_in_release,
    side::{LlamaConfig, Outcome, Side, Task},
    steps,
};
use crate::{
    measure::{
        record::{self, Machine, output_of},
        rounds::Spread,
    },
    synth, workspace_root,
};

/// Measure the program's speed, compared with a peer and with the machine's limits
#[derive(clap::Args)]
pub(super) struct Args {
    /// Only cells whose name contains this; may be given more than once
    #[arg(long)]
    filter: Vec<String>,
    /// List the cells and do nothing
    #[arg(long)]
    list: bool,
    /// Write the table and the chart of what was measured before, and measure nothing
    #[arg(long)]
    report: bool,
    /// A peer that takes llama-bench's options and prints its JSON, such as another build: `old/tokenmill bench`
    #[arg(long, value_name = "CMD", conflicts_with = "vs_llama")]
    vs: Option<String>,
    /// The folder of llama-bench and llama-batched-bench, as a peer
    #[arg(long, value_name = "DIR")]
    vs_llama: Option<PathBuf>,
    /// The program to measure, instead of a release build made for it; single steps, whose shares of the limits are
    /// shown, are this build's all the same
    #[arg(long, value_name = "FILE")]
    tokenmill: Option<PathBuf>,
    /// Folder of the models, `PRESET-TYPE.gguf`; missing ones are made [default: target/bench-models]
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// Folder of the record, which keeps what it has of other cells [default: bench/runs/DATE-CPU]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Threads of every side [default: one for each processor]
    #[arg(short, long)]
    threads: Option<usize>,
    /// How often every side is started
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Repetitions in one start
    #[arg(long, default_value_t = 2)]
    repetitions: usize,
    /// Begin no cell after this many seconds; `--resume` measures the others
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Leave out what the record has of the present commit
    #[arg(long)]
    resume: bool,
}

/// Measures the requested cells, and writes the record after each.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    if cfg!(debug_assertions) && !args.list && !args.report {
        return run_in_release();
    }
    let all = cell::all();
    let is_wanted = |cell: &Cell| {
        let name = cell.to_string();
        args.filter.is_empty() || args.filter.iter().any(|part| name.contains(part))
    };
    let mut cells: Vec<Cell> = all.iter().copied().filter(is_wanted).collect();
    ensure!(!cells.is_empty(), "no cell has such a name; see --list");
    if args.list {
        for cell in &cells {
            println!("{cell}");
        }
        return Ok(());
    }
    let out = match &args.out {
        Some(out) => out.clone(),
        None => default_folder()?,
    };
    let mut record = Record::load(&out)?;
    if !args.report {
        ensure!(
            args.rounds > 0 && args.repetitions > 0,
            "0 rounds or repetitions measure nothing"
        );
        let bench = Bench::new(args)?;
        if args.resume {
            cells.retain(|cell| {
                let figure = record.figures.get(&cell.to_string());
                figure.is_none_or(|figure| figure.commit != bench.commit)
            });
        }
        record.machine = Machine::this()?;
        bench.run(&cells, &mut record, &out)?;
    }
    let table = report::markdown(&record, &all);
    fs::write(out.join("speed.md"), &table)?;
    fs::write(out.join("speed.svg"), chart::draw(&record, &all))?;
    println!("{table}");
    println!("written to {}", out.display());
    Ok(())
}

/// Settings that do not change from cell to cell.
struct Bench<'a> {
    args: &'a Args,
    started: Instant,
    models: PathBuf,
    ours: Side,
    commit: String,
    n_threads: usize,
}

impl<'a> Bench<'a> {
    fn new(args: &'a Args) -> anyhow::Result<Self> {
        let started = Instant::now();
        let n_threads = match args.threads {
            Some(n_threads) => n_threads,
            None => thread::available_parallelism()?.get(),
        };
        let program = match &args.tokenmill {
            Some(program) => program.clone(),
            None => release_build()?,
        };
        Ok(Self {
            args,
            started,
            models: (args.models.clone()).unwrap_or_else(|| workspace_root().join("target/bench-models")),
            ours: Side::BenchProgram(vec![program.into(), "bench".into()]),
            commit: record::commit(10, &["crates", "Cargo.toml", "Cargo.lock"])?,
            n_threads,
        })
    }

    fn run(&self, cells: &[Cell], record: &mut Record, out: &Path) -> anyhow::Result<()> {
        let budget = self.args.budget.map(Duration::from_secs);
        for (cell_idx, cell) in cells.iter().enumerate() {
            if budget.is_some_and(|budget| self.started.elapsed() > budget) {
                println!("{} cells are left for --resume", cells.len() - cell_idx);
                break;
            }
            let cell_started = Instant::now();
            let figure = self.figure(cell).with_context(|| cell.to_string())?;
            println!(
                "{cell}: {:.2} {}{} ({:.0} s)",
                figure.ours.spread.median,
                figure.unit,
                figure
                    .ratio
                    .map_or_else(String::new, |ratio| format!(", ratio {ratio:.2}")),
                cell_started.elapsed().as_secs_f64()
            );
            record.figures.insert(cell.to_string(), figure);
            record.save(out)?;
        }
        Ok(())
    }

    /// Lists the configurations of the peer that a cell is measured with.
    fn peers(&self, cell: &Cell) -> Vec<Side> {
        if let Some(folder) = &self.args.vs_llama {
            let configs = LlamaConfig::candidates(cell.work, cell.kv);
            let side = |config| Side::LlamaCpp(folder.clone(), config);
            return configs.into_iter().map(side).collect();
        }
        let words = |line: &String| line.split_whitespace().map(Into::into).collect();
        self.args.vs.iter().map(words).map(Side::BenchProgram).collect()
    }

    /// Measures a cell. The first round runs every configuration of the peer, the others its fastest.
    fn figure(&self, cell: &Cell) -> anyhow::Result<Figure> {
        let model = self.model(cell)?;
        let cost = ModelCost::of(&GgufFile::open(&model)?)?.of_token(cell.work, cell.kv);
        let task = Task {
            model: &model,
            work: cell.work,
            kv: cell.kv,
            n_threads: self.n_threads,
            repetitions: self.args.repetitions,
        };
        let is_time = cell.work == Work::Load;
        let mut ours = Series::new(&self.ours, task);
        let mut peers: Vec<Series> = self
            .peers(cell)
            .iter()
            .map(|side| Series::new(side, task))
            .collect();
        if is_time {
            // The file must be in the page cache, whichever side starts first.
            self.ours.run(task)?;
        }
        for round in 0..self.args.rounds {
            ours.run(task)?;
            if round == 0 {
                peers.iter_mut().try_for_each(|peer| peer.run(task))?;
                let speed = |series: &Series| {
                    let sum: f64 = series.samples.iter().sum();
                    if is_time {
                        -sum
                    } else {
                        sum / series.samples.len() as f64
                    }
                };
                peers.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
            } else if let Some(fastest) = peers.first_mut() {
                fastest.run(task)?;
            }
        }
        let mut figure = Figure {
            unit: if is_time { "s" } else { "tokens/s" }.to_owned(),
            commit: self.commit.clone(),
            measured_at: output_of("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"])?,
            ours: ours.figure()?,
            peers: peers
                .into_iter()
                .map(Series::figure)
                .collect::<anyhow::Result<_>>()?,
            ratio: None,
            cost,
            steps: cost.map(|cost| steps::measure(task, cost)).transpose()?,
        };
        figure.ratio = figure.speedup();
        Ok(figure)
    }

    /// Returns the path of the model's file, which is made if it is missing.
    fn model(&self, cell: &Cell) -> anyhow::Result<PathBuf> {
        let path = self.models.join(format!("{}-{}.gguf", cell.preset, cell.recipe));
        if !path.exists() {
            fs::create_dir_all(&self.models)?;
            synth::run(&synth::Args::new(cell.preset, cell.recipe, &path))?;
        }
        Ok(path)
    }
}

/// The runs of one side.
struct Series {
    side: Side,
    command: String,
    samples: Vec<f64>,
    peak_memory_bytes: Option<u64>,
}

impl Series {
    fn new(side: &Side, task: Task<'_>) -> Self {
        let words = side.words(task);
        let words: Vec<_> = words
            .iter()
            .map(|word| Path::new(word).file_name().unwrap_or(word).to_string_lossy())
            .collect();
        Self {
            side: side.clone(),
            command: words.join(" "),
            samples: Vec::new(),
            peak_memory_bytes: None,
        }
    }

    fn run(&mut self, task: Task<'_>) -> anyhow::Result<()> {
        let Outcome {
            samples,
            peak_memory_bytes,
        } = self.side.run(task)?;
        self.samples.extend(samples);
        self.peak_memory_bytes = self.peak_memory_bytes.max(peak_memory_bytes);
        Ok(())
    }

    fn figure(self) -> anyhow::Result<SideFigure> {
        Ok(SideFigure {
            name: self.side.name(),
            command: self.command,
            spread: Spread::of(&self.samples)?,
            samples: self.samples,
            peak_memory_bytes: self.peak_memory_bytes,
        })
    }
}

/// Builds the program in its release form.
fn release_build() -> anyhow::Result<PathBuf> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--release", "--quiet", "-p", "tokenmill-cli"])
        .current_dir(workspace_root())
        .status()?;
    ensure!(status.success(), "the release build failed");
    Ok(workspace_root().join("target/release/tokenmill"))
}

/// Returns `bench/runs/DATE-CPU`.
fn default_folder() -> anyhow::Result<PathBuf> {
    let machine = Machine::this()?;
    let name: String = machine
        .cpu
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .collect();
    let date = output_of("date", &["-u", "+%F"])?;
    let folder = format!("bench/runs/{date}-{name}-{}cpu", machine.n_processors);
    Ok(workspace_root().join(folder))
}
