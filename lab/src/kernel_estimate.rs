//! `kernel-estimate`: estimates how long the launches of a step take on an absent GPU, by the timing model of `ptx-sim`.
//!
//! The step is the program's own: a model of real shape, whose weights are holes in its file, is loaded and run on the simulated driver, which
//! estimates each launch instead of running it. The parts: `step` runs it, `table` prints it, `sampling` does so for sampling alone, `demands`
//! has CI's demands on the launches, `published` compares with others' measurements, `range` says how much longer a card may take, `hybrid`
//! adds a CPU that has the first layers. Estimates are not measurements; decision record 30 states their value.

mod adapters;
mod demands;
mod hybrid;
mod published;
mod range;
mod sampling;
mod step;
mod table;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokenmill_backend::KvType;
use tokenmill_cuda_exec::Launches;
use tokenmill_ptx_sim::DeviceProfile;

use hybrid::{Host, Hybrid};
use step::{Batch, Shape, Step};

pub(crate) use step::simulator;

use crate::{measure::record, synth::outline};

/// Number of rows from which on CPU and GPU compute parts of a step in parallel.
const OVERLAP_ROWS: usize = 128;

/// Estimate how long the launches of a step take on a GPU, on the simulator
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub struct Args {
    /// Model with the shapes to take: a preset of `synth`
    #[arg(long, default_value = "llama-3-8b")]
    model: String,
    /// Type of the weights, as `synth` names it
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_K_M")]
    recipe: String,
    /// The GPU: h100, h200, h100-pcie, a100, rtx-4090 or rtx-pro-6000
    #[arg(long, default_value = "h200")]
    device: String,
    /// Sequences that decode a token each; one step for each number
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "N,..")]
    rows: Vec<usize>,
    /// Instead of decoding, tokens of a prompt that one sequence has in one step; one step for each number
    #[arg(long, value_delimiter = ',', value_name = "N,..", conflicts_with = "rows")]
    prefill: Vec<usize>,
    /// Instead of steps, the launches of sampling alone, with `--rows` rows of made up logits
    #[arg(long, conflicts_with_all = ["prefill", "model", "recipe", "context", "kv_type", "layers", "adapters", "shared_prefix", "apart", "warm_code"])]
    sampling: bool,
    /// Let each launch begin only when the one before it is done, as GPUs before the H100 do
    #[arg(long)]
    in_order: bool,
    /// Tokens of each sequence, the new ones among them; of a prompt at least its own
    #[arg(long, default_value_t = 512)]
    context: usize,
    /// Type of the stored keys and values, f32, f16, q8_0 or e4m3
    #[arg(long, value_name = "TYPE", default_value_t = KvType::F16)]
    kv_type: KvType,
    /// Take only the first layers of the model
    #[arg(long, value_name = "N")]
    layers: Option<u32>,
    /// Give the first layers, this many, to the CPU and the others to the GPU, as `-ngl` does
    #[arg(long, value_name = "N", requires = "host", conflicts_with_all = ["layers", "prefill", "sampling"], value_parser = clap::value_parser!(u32).range(1..))]
    cpu_layers: Option<u32>,
    /// Speed of that CPU and of the link: GB/s, billions of multiplications a second, GB/s of the link and microseconds of a crossing, such as
    /// `cpu=200,multiplies=3000,link=25,crossing=15`
    #[arg(long, value_name = "LIST", requires = "cpu_layers")]
    host: Option<Host>,
    /// Give the sequences four adapters of this rank in turn, each of all matrices of the layers
    #[arg(long, value_name = "RANK", value_parser = clap::value_parser!(u32).range(1..))]
    adapters: Option<u32>,
    /// Let all sequences that decode begin with this many tokens, whose pages they share, as behind one system prompt
    #[arg(long, value_name = "TOKENS", default_value_t = 0, conflicts_with = "prefill")]
    shared_prefix: usize,
    /// Attend to pages that sequences share for each sequence by itself
    #[arg(long)]
    apart: bool,
    /// Assume that the code of all kernels is in the caches of instructions, as estimates before 2026-11-29 did
    #[arg(long)]
    warm_code: bool,
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Instead compare others' measurements with predictions
    #[arg(long)]
    published: bool,
    /// Instead compare the launches with `kernels/latency.list`, the demands that they do not meet yet
    #[arg(long)]
    check: bool,
    /// Instead write `kernels/latency.list` again
    #[arg(long)]
    update: bool,
}

/// More tokens take hours to play, without new information.
const MAX_PROMPT: usize = 8192;

/// Returns the microseconds of a step in which `n_seqs` sequences decode after `n_ctx` tokens in all, or, if that is 0, one has a prompt of `n_ctx`.
///
/// # Errors
/// An unknown model or type, or a context beyond the model's.
pub(crate) fn predict(
    [model, recipe]: [&str; 2],
    n_seqs: usize,
    n_ctx: usize,
    device: &'static DeviceProfile,
) -> anyhow::Result<f64> {
    let shape = Shape::of(model, recipe, n_ctx);
    let batch = match n_seqs {
        0 => Batch::Prefill { n_tokens: n_ctx },
        n_seqs => Batch::Decode { n_seqs },
    };
    let steps = Step::estimate(&shape, &[batch], device, Launches::Early)?;
    Ok(steps.iter().map(Step::us).sum())
}

/// Estimates and prints.
///
/// # Errors
/// An unknown model, type or device, or a context beyond the model's.
pub fn run(args: &Args) -> anyhow::Result<()> {
    if args.update {
        return demands::update();
    }
    if args.published {
        return published::check();
    }
    if args.check {
        return demands::check();
    }
    let device = device(&args.device)?;
    ensure!(
        !args.rows.is_empty() && args.rows.iter().all(|n| (1..=256).contains(n)),
        "a step has 1 to 256 rows"
    );
    ensure!(
        args.prefill.iter().all(|n| (1..=MAX_PROMPT).contains(n)),
        "a prompt has 1 to {MAX_PROMPT} tokens in a step"
    );
    ensure!(
        args.shared_prefix < args.context.max(1),
        "{} tokens cannot be shared of a context of {}",
        args.shared_prefix,
        args.context
    );
    let n_layers = match args.cpu_layers {
        None => args.layers,
        Some(n_cpu) => {
            ensure!(
                args.rows.iter().all(|&n_rows| n_rows < OVERLAP_ROWS),
                "with {OVERLAP_ROWS} rows and more, CPU and GPU compute at once, which `--cpu-layers` does not estimate"
            );
            let n_layers = outline::n_layers(&args.model)?;
            ensure!(n_cpu < n_layers, "{} has {n_layers} layers", args.model);
            Some(n_layers - n_cpu)
        }
    };
    let shape = Shape {
        model: &args.model,
        recipe: &args.recipe,
        n_layers,
        context: args.context,
        kv_type: args.kv_type,
        adapter_rank: args.adapters.map(|rank| rank as usize),
        shared_prefix: args.shared_prefix,
        reads_apart: args.apart,
        is_code_warm: args.warm_code,
    };
    let launches = if args.in_order {
        Launches::InOrder
    } else {
        Launches::Early
    };
    if args.sampling {
        let mut report = Vec::new();
        for &n_rows in &args.rows {
            let all = sampling::estimate(n_rows, device, launches)?;
            println!("{}", sampling::render(&all));
            report.extend(all.iter().map(sampling::Sampled::json));
        }
        return write_json(args, "sampling", &report);
    }
    let batches: Vec<Batch> = if args.prefill.is_empty() {
        args.rows.iter().map(|&n_seqs| Batch::Decode { n_seqs }).collect()
    } else {
        (args.prefill.iter())
            .map(|&n_tokens| Batch::Prefill { n_tokens })
            .collect()
    };
    let steps = Step::estimate(&shape, &batches, device, launches)?;
    let mut report = Vec::new();
    for step in &steps {
        println!("{}", table::render(&shape, step));
        report.push(table::json(&shape, step));
    }
    if let (Some(n_cpu), Some(host)) = (args.cpu_layers, args.host) {
        for step in &steps {
            println!("{}", Hybrid::of(&shape, step, n_cpu, host)?.render());
        }
    }
    write_json(args, "steps", &report)
}

/// Writes the figures to the requested file.
fn write_json(args: &Args, what: &str, figures: &[Value]) -> anyhow::Result<()> {
    let report = json!({ "source": "the timing model of ptx-sim; not measured", what: figures });
    record::write_asked(args.json.as_deref(), &report)
}

/// Finds a GPU by its name.
///
/// # Errors
/// An unknown name.
pub(crate) fn device(name: &str) -> anyhow::Result<&'static DeviceProfile> {
    DeviceProfile::find(name).with_context(|| {
        let known = DeviceProfile::ALL.map(|device| device.name).join(", ");
        format!("unknown device `{name}`; known are {known}")
    })
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches};

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: super::Args,
    }

    #[test]
    fn sampling_alone_has_no_model() {
        let parse = |words: &[&str]| {
            let words = ["kernel-estimate", "--sampling"].iter().chain(words);
            let matches = Line::command().try_get_matches_from(words)?;
            Line::from_arg_matches(&matches).map(|line| line.args.sampling)
        };
        assert!(parse(&["--rows", "4", "--device", "h100"]).unwrap());
        for words in [
            ["--model", "llama-3-8b"],
            ["--type", "BF16"],
            ["--context", "512"],
            ["--kv-type", "e4m3"],
            ["--layers", "1"],
            ["--adapters", "16"],
            ["--prefill", "16"],
        ] {
            let kind = parse(&words).unwrap_err().kind();
            assert_eq!(kind, clap::error::ErrorKind::ArgumentConflict, "{words:?}");
        }
    }
}
