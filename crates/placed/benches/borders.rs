//! Measures the cost of host layers in a split network: their time over that of the same layers in a network that the CPU computes alone.
//!
//! The device's side is a stand-in that computes nothing, so that a step of the split network is its host layers and the border. There is a line
//! for each kind of step, with medians, for consecutive steps and for steps that each follow a wait: the host waits for the device while that
//! computes the rest, and caches and threads do not wait with it. So the CPU alone is measured after waits too. Both use all processors. Under
//! `cargo test`, a few steps are computed and nothing is asserted.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokenmill_backend::{
    Executor, ForwardBatch, KvType, PAGE_TOKENS, RowMask, RowOutput, SampleRow, Side, StepOutput,
    TokenSource, program::ProgramDevice,
};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_gguf::TensorType;
use tokenmill_model::{ModelExecutor, ModelOptions, build};
use tokenmill_placed::{Placed, Placement};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{ClockedBackend, ProductTime, SharedClock, TinyModel, tiny_llama};

/// Tokens of a sequence before a decode step.
const N_BEFORE: usize = 64;
/// Time for which the device works in each step, if it does.
const DEVICE_TIME: Duration = Duration::from_millis(5);
/// Consecutive steps before the other network's turn.
const N_IN_A_ROW: usize = 8;

/// A network of equal layers.
struct Network {
    name: &'static str,
    /// Number of compared layers.
    n_layers: usize,
    n_embd: usize,
    n_ff: usize,
}

/// The smaller a layer, the more its border weighs: layers of 3.2 MiB, and of 13.3 MiB, whose feed-forward networks are as wide as
/// those of Qwen2.5 0.5B. Attention is a tiny model's.
const NETWORKS: [Network; 2] = [
    Network {
        name: "8 layers, 512 wide",
        n_layers: 8,
        n_embd: 512,
        n_ff: 2048,
    },
    Network {
        name: "6 layers, 896 wide",
        n_layers: 6,
        n_embd: 896,
        n_ff: 4864,
    },
];

/// Steps: sequences, and tokens of each.
const STEPS: [(&str, usize, usize); 4] = [
    ("1 sequence", 1, 1),
    ("8 sequences", 8, 1),
    ("a prompt of 64", 1, 64),
    ("a prompt of 256", 1, 256),
];

fn model(network: &Network, n_layers: usize) -> TinyModel {
    let mut descriptor = tiny_llama();
    descriptor.n_embd = network.n_embd;
    descriptor.layers.truncate(1);
    descriptor.layers[0].dense_mut().n_ff = network.n_ff;
    let layer = descriptor.layers[0].clone();
    descriptor.layers.resize(n_layers, layer);
    TinyModel::random(descriptor, TensorType::Q8_0, 5)
}

fn cpu() -> CpuBackend {
    CpuBackend::new(None, CpuFeatures::detect()).expect("threads")
}

fn executor(model: &TinyModel, device: impl Into<Box<dyn ProgramDevice>>) -> ModelExecutor {
    let options = ModelOptions {
        n_ctx: Some(512),
        max_batch_tokens: 256,
        max_batch_seqs: 8,
        max_logit_rows: 256,
        n_pages: Some(64),
        kv_type: KvType::F16,
        ..ModelOptions::default()
    };
    build(&model.descriptor, model, device, &options, &mut |_| {}).expect("a tiny model loads")
}

/// Returns a step that samples from each row, so that both networks compute all rows of all layers.
fn batch(n_seqs: usize, n_tokens: usize) -> ForwardBatch {
    let mut batch = ForwardBatch::default();
    let first = if n_tokens == 1 { N_BEFORE } else { 0 };
    let n_pages = (first + n_tokens).div_ceil(PAGE_TOKENS) as u32;
    for seq in 0..n_seqs as u32 {
        let pages: Vec<u32> = (seq * n_pages..(seq + 1) * n_pages).collect();
        let tokens = (0..n_tokens as u32).map(|idx| TokenSource::Id((idx * 7 + seq) % 96));
        batch.push_sequence(tokens, first as u32, &pages);
    }
    batch.logit_rows = (0..batch.n_tokens() as u32).collect();
    let output = RowOutput::Sample(SampleRow {
        params: Arc::default(),
        history: 0..0,
        n_prompt: 0,
        mask: RowMask::Any,
    });
    batch.outputs = vec![output; batch.n_tokens()];
    batch
}

/// Runs some steps; adds the time of each, without the device's.
fn run(executor: &mut dyn Executor, batch: &ForwardBatch, device_time: Duration, times: &mut Vec<Duration>) {
    let mut output = StepOutput::default();
    for _ in 0..N_IN_A_ROW {
        let start = Instant::now();
        let ticket = executor.submit(batch).expect("a step");
        let submitted = Instant::now();
        // The host waits without sleeping, as for a GPU.
        while submitted.elapsed() < device_time {
            std::hint::spin_loop();
        }
        let worked = Instant::now();
        executor.wait(ticket, &mut output).expect("a step");
        times.push(submitted.duration_since(start) + worked.elapsed());
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let n_rounds: usize = if is_measured { 60 } else { 1 };
    println!("Q8_0; milliseconds of a step: alone, split, ratio; the same behind waits");
    for network in &NETWORKS[..if is_measured { NETWORKS.len() } else { 1 }] {
        let mut alone = executor(&model(network, network.n_layers), cpu());
        // One more layer, on the device.
        let split = model(network, network.n_layers + 1);
        let device = ClockedBackend::new(Side::Device, ProductTime::default(), SharedClock::default());
        let placement = Placement::last_layers(&split.descriptor.shape(), 1);
        let mut split = executor(&split, Placed::new(cpu(), device, placement));
        for (step, n_seqs, n_tokens) in STEPS {
            let batch = batch(n_seqs, n_tokens);
            // Steps of prompts are long, and few of them vary less.
            let n_rounds = if n_tokens > 1 {
                n_rounds.div_ceil(6)
            } else {
                n_rounds
            };
            let mut times = [const { Vec::new() }; 4];
            for _ in 0..n_rounds {
                run(&mut alone, &batch, Duration::ZERO, &mut times[0]);
                run(&mut split, &batch, Duration::ZERO, &mut times[1]);
                run(&mut alone, &batch, DEVICE_TIME, &mut times[2]);
                run(&mut split, &batch, DEVICE_TIME, &mut times[3]);
            }
            let [alone, split, alone_waits, split_waits] =
                times.each_mut().map(|times| median(times).as_secs_f64() * 1e3);
            println!(
                "{:<18} {step:<15} {alone:9.3} {split:9.3} {:6.3}   {alone_waits:9.3} {split_waits:9.3} {:6.3}",
                network.name,
                split / alone,
                split_waits / alone_waits
            );
        }
    }
}
