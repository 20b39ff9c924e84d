//! `bench device`: the speed of a model on a GPU, in tokens per second and in milliseconds of the device by phase.
//!
//! Unlike `cells`, which compares programs through the product's own commands, it looks inside: graphs against eager launches, batches
//! of decode, the copy bandwidth. Invariant: every figure is a measurement of this run, and a simulated device gives no times.

use std::{path::PathBuf, time::Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokenmill_backend::{DeviceTimes, Executor, RowOutput, SamplingParams};
use tokenmill_cuda_exec::{CudaBackend, Device, Stream};
use tokenmill_model::{LoadProgress, Model, ModelExecutor, ModelOptions};
use tokenmill_sim_driver::Simulator;

use crate::{
    gpu::DeviceChoice,
    measure::{
        record,
        report::{Table, number},
        subject::{self, Sequences},
    },
};

/// Measure prefill, decode of several batch sizes, replay against eager launches, and copies on a GPU
#[derive(clap::Args)]
pub(super) struct Args {
    /// The model
    model: PathBuf,
    /// Where to compute; `sim` shows that the command works and measures nothing.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cuda)]
    device: DeviceChoice,
    /// Tokens of the prompt.
    #[arg(long, default_value_t = 512)]
    n_prompt: usize,
    /// Tokens that each sequence generates.
    #[arg(long, default_value_t = 128)]
    n_gen: usize,
    /// Sequences that generate together.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    batches: Vec<usize>,
    /// Sample with temperature, top-k and top-p in place of taking the likeliest token.
    #[arg(long)]
    sampled: bool,
    /// Read the prompt once for each sequence, and measure replayed graphs alone: for long prompts.
    #[arg(long)]
    once: bool,
    /// Also write the figures to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Bytes of each of the two buffers whose copy gives the bandwidth.
const COPY_BYTES: usize = 1 << 30;

/// Measures.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    ensure!(
        args.n_prompt > 0 && args.n_gen > 1 && args.batches.iter().all(|&n| n > 0),
        "lengths and batches must be positive, and a generation must have two tokens"
    );
    let device = args.device.open()?;
    let is_measured = device.info().name != Simulator::DEVICE_NAME;
    let model = Model::open(&args.model)?;
    let mut report = json!({
        "model": args.model.file_name().map(|name| name.to_string_lossy()),
        "device": device.info().name,
        "compute_capability": format!("{}.{}", device.info().capability.0, device.info().capability.1),
        "is_measured": is_measured,
        "is_sampled": args.sampled,
    });
    if is_measured {
        report["copy_bytes_per_s"] = json!(copy_bandwidth(&device)?);
    }
    report["load"] = load_report(&model, args, &device, is_measured)?;
    let ways: &[bool] = if args.once { &[true] } else { &[true, false] };
    for &uses_graphs in ways {
        let name = if uses_graphs { "graphs" } else { "eager" };
        report[name] = measure(&model, args, &device, uses_graphs, is_measured)?;
    }
    report["replay_against_eager"] = replay_against_eager(&report);
    println!("{report:#}");
    print!("{}", replay_table(&report["replay_against_eager"]));
    record::write_asked(args.json.as_deref(), &report)
}

/// Puts each batch's replayed steps next to its eager ones; empty if one of the two was not run.
fn replay_against_eager(report: &Value) -> Value {
    let rows = |way: &str| report[way]["decode"].as_array().cloned().unwrap_or_default();
    let pairs = rows("graphs").into_iter().zip(rows("eager"));
    pairs
        .map(|(replayed, eager)| {
            let rates = [&replayed, &eager].map(|row| row["tokens_per_s"].as_f64());
            json!({
                "sequences": replayed["sequences"],
                "replayed_tokens_per_s": rates[0],
                "eager_tokens_per_s": rates[1],
                "ratio": rates[0].zip(rates[1]).map(|(replayed, eager)| replayed / eager),
            })
        })
        .collect()
}

/// Renders the same as a table.
fn replay_table(rows: &Value) -> Table {
    let titles = [
        "sequences:",
        "replayed, tokens/s:",
        "eager, tokens/s:",
        "replayed / eager:",
    ];
    let mut table = Table::new(&titles);
    for row in rows.as_array().into_iter().flatten() {
        let number = |name: &str, n_digits| number(row[name].as_f64(), n_digits);
        table.row(&[
            &row["sequences"],
            &number("replayed_tokens_per_s", 1),
            &number("eager_tokens_per_s", 1),
            &number("ratio", 2),
        ]);
    }
    table
}

/// Measures the bytes read and written in a second by a copy within the device.
pub(crate) fn copy_bandwidth(device: &Device) -> anyhow::Result<f64> {
    let from = device.alloc::<u8>("the copy", COPY_BYTES)?;
    let mut to = device.alloc::<u8>("the copy", COPY_BYTES)?;
    let (begun, ended) = (device.timed_fence()?, device.timed_fence()?);
    let n_copies = 20;
    device.copy(Stream::Compute, from.view(), &to.view_mut())?;
    begun.record(Stream::Compute)?;
    for _ in 0..n_copies {
        device.copy(Stream::Compute, from.view(), &to.view_mut())?;
    }
    ended.record(Stream::Compute)?;
    ended.synchronize()?;
    let seconds = f64::from(begun.elapsed_ms(&ended)?) / 1e3;
    Ok(2.0 * (n_copies * COPY_BYTES) as f64 / seconds)
}

fn sequences(model: &Model, args: &Args) -> Sequences {
    Sequences {
        n_seqs: args.batches.iter().copied().max().unwrap_or(1),
        n_ctx: (args.n_prompt + args.n_gen + 1).min(model.descriptor().n_ctx_train),
    }
}

fn options(model: &Model, args: &Args) -> ModelOptions {
    let sequences = sequences(model, args);
    sequences.options(args.n_prompt.clamp(sequences.n_seqs, 2048))
}

fn load(model: &Model, args: &Args, device: &Device, uses_graphs: bool) -> anyhow::Result<ModelExecutor> {
    let backend = CudaBackend::new(device.clone())?
        .with_graphs(uses_graphs)
        .with_trace()?;
    Ok(model.load_on(backend, &options(model, args), &mut |_: LoadProgress| {})?)
}

/// Reports the plan of the memory, and the duration of the load.
fn load_report(model: &Model, args: &Args, device: &Device, is_measured: bool) -> anyhow::Result<Value> {
    let plan = model.plan(&CudaBackend::new(device.clone())?, &options(model, args))?;
    let started = Instant::now();
    let executor = load(model, args, device, true)?;
    let seconds = started.elapsed().as_secs_f64();
    let (n_modules, kernels_took) = device.module_loads();
    drop(executor);
    Ok(json!({
        "seconds": is_measured.then_some(seconds),
        "kernel_modules": n_modules,
        "kernels_seconds": is_measured.then_some(kernels_took.as_secs_f64()),
        "weights_bytes": plan.weights_bytes,
        "total_bytes": plan.total_bytes(),
    }))
}

fn measure(
    model: &Model,
    args: &Args,
    device: &Device,
    uses_graphs: bool,
    is_measured: bool,
) -> anyhow::Result<Value> {
    let mut executor = load(model, args, device, uses_graphs)?;
    let sequences = sequences(model, args);
    let n_step_tokens = executor.limits().max_batch_tokens;
    let prompt = subject::tokens(0, args.n_prompt, model.descriptor().n_vocab);
    let mut prefill = |seq_idx: usize| -> anyhow::Result<f64> {
        let started = Instant::now();
        let row = |position| wanted(args, seq_idx, position);
        sequences.fill(&mut executor, seq_idx, &prompt, n_step_tokens, row)?;
        Ok(started.elapsed().as_secs_f64())
    };
    let mut prefill_seconds = f64::INFINITY;
    for _ in 0..if args.once { 1 } else { 3 } {
        prefill_seconds = prefill_seconds.min(prefill(0)?);
    }
    // Every sequence decodes after the prompt.
    for seq_idx in 1..sequences.n_seqs {
        prefill(seq_idx)?;
    }
    let mut rows = Vec::new();
    for &n_seqs in &args.batches {
        let mut tokens = vec![1u32; n_seqs];
        let mut step = |position: usize| {
            let row = |seq_idx| wanted(args, seq_idx, position);
            sequences.decode(&mut executor, &mut tokens, position, row)
        };
        let first = prompt.len().min(sequences.n_ctx.saturating_sub(args.n_gen));
        // The first step captures.
        step(first)?;
        let started = Instant::now();
        for index in 1..args.n_gen {
            step(first + index)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        let n_tokens = (args.n_gen - 1) * n_seqs;
        rows.push(json!({
            "sequences": n_seqs,
            "tokens": n_tokens,
            "tokens_per_s": is_measured.then(|| n_tokens as f64 / seconds),
        }));
    }
    let trace = executor.trace().context("the trace is on")?;
    let times = |times: DeviceTimes| {
        json!({
            "steps": times.n_steps,
            "tokens": times.n_tokens,
            "upload_ms": is_measured.then_some(times.upload_ms),
            "compute_ms": is_measured.then_some(times.compute_ms),
            "download_ms": is_measured.then_some(times.download_ms),
        })
    };
    Ok(json!({
        "prefill": {
            "tokens": args.n_prompt,
            "tokens_per_s": is_measured.then(|| args.n_prompt as f64 / prefill_seconds),
        },
        "decode": rows,
        "graphs": executor.backend::<CudaBackend>().n_graphs(),
        "device_time": { "prefill": times(trace.prefill), "decode": times(trace.decode) },
        "max_batch_tokens": executor.limits().max_batch_tokens,
    }))
}

/// Returns the output to request for a row: the likeliest token, or a drawn one.
fn wanted(args: &Args, seq_idx: usize, position: usize) -> RowOutput {
    if !args.sampled {
        return subject::greedy();
    }
    subject::sample(SamplingParams {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        seed: (seq_idx << 32 | position) as u64,
        ..SamplingParams::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replayed_steps_stand_next_to_eager_ones() {
        let row = |n: usize, rate: Option<f64>| json!({ "sequences": n, "tokens_per_s": rate });
        let mut report = json!({
            "graphs": { "decode": [row(1, Some(300.0)), row(64, None)] },
            "eager": { "decode": [row(1, Some(240.0)), row(64, None)] },
        });
        let rows = replay_against_eager(&report);
        assert_eq!(rows[0]["ratio"], 1.25);
        let table = replay_table(&rows).to_string();
        let lines: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(lines, ["| 1 | 300.0 | 240.0 | 1.25 |", "| 64 | - | - | - |"]);
        // With `--once` nothing runs eagerly.
        report["eager"] = Value::Null;
        assert_eq!(replay_against_eager(&report), json!([]));
    }
}
