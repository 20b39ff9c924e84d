//! `bench kernels`: counts of the kernels at the shapes of an 8B model (slices of it), on the simulator, as JSON.
//!
//! The launches are made as `kernel-bench` makes its rows, of zeros. The figures are those of the PTX, exact and the same on every machine: they
//! tell how much memory traffic a kernel causes, not how fast it is. Invariant: a kernel has what its own launches added to the counters.

use std::{collections::BTreeSet, path::PathBuf};

use serde_json::{Map, Value, json};
use tokenmill_backend::KvType;
use tokenmill_cuda_exec::{Device, SampleRecord, modules::PAIRS};
use tokenmill_gguf::TensorType;
use tokenmill_ptx_sim::{BufferTraffic, Counters};
use tokenmill_quant::Format;
use tokenmill_sim_driver::{SimOptions, Simulator};

use crate::{
    kernel_bench::{Data, HEADS, N_EMBD, N_FF, What, Workshop, wait},
    measure::record,
};

/// Count what the kernels do at the shapes of an 8B model, on the simulator
#[derive(clap::Args)]
pub(super) struct Args {
    /// Write the figures to this file instead of the terminal
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Counts.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let report = json!({ "source": "ptx-sim", "kernels": count(&counted())? });
    match &args.out {
        Some(out) => record::write(out, &report)?,
        None => println!("{report:#}"),
    }
    Ok(())
}

/// Lists the launches to count.
fn counted() -> Vec<What> {
    let product = |ty, n_out, n_in, n_rows| What::Product {
        ty,
        shape: [n_out, n_in],
        n_rows,
    };
    let mut all = Vec::new();
    for ty in Format::all().iter().map(Format::tensor_type) {
        let shapes = [(1, N_EMBD), (1, N_FF), (4, N_EMBD), (8, N_EMBD)];
        all.extend(shapes.map(|(n_rows, n_in)| product(ty, 64, n_in, n_rows)));
    }
    let (n_out, n_rows) = (64, 1);
    let gated = [TensorType::Q4_K, TensorType::Q8_0, TensorType::F16];
    all.extend(gated.map(|ty| What::Gated { ty, n_out, n_rows }));
    let n_outs = [n_out, 32];
    all.extend(PAIRS.map(|types| What::Qkv {
        types,
        n_outs,
        n_rows,
    }));
    let quantized = Format::all().iter().filter(|format| !format.is_float());
    all.extend(quantized.map(|format| product(format.tensor_type(), 128, N_EMBD, 64)));
    all.push(What::AddNorm { n_rows });
    for (n_ctx, window) in [(512, None), (4096, None), (4096, Some(1024))] {
        all.push(What::Decode {
            ty: KvType::F16,
            heads: HEADS,
            n_seqs: 1,
            n_ctx,
            window,
        });
    }
    all.extend([32, 64, 256].map(|n_tokens| What::Prompt {
        ty: KvType::F16,
        head_dim: 128,
        n_before: 1024,
        n_tokens,
    }));
    all.extend([What::Argmax, What::RopeKv]);
    all.extend(
        [(SampleRecord::GREEDY, 1.0), (0, 0.9)].map(|(flags, top_p)| What::Sample {
            flags,
            top_k: 0,
            top_p,
        }),
    );
    all.extend([TensorType::Q4_K, TensorType::F16].map(|ty| What::Embed { ty }));
    all
}

/// Launches each and returns a row for each kernel of it.
fn count(all: &[What]) -> anyhow::Result<Vec<Value>> {
    let simulator = Simulator::new(&SimOptions::default());
    let device: Device = simulator.device();
    let mut shop = Workshop::new(&device, 1, 1, Data::Zeros)?;
    let mut rows = Vec::new();
    for what in all {
        let mut work = shop.make(*what)?;
        wait(&device)?;
        let before = simulator.counters();
        let (done, launches) = device.launches_of(|| (work.launch)(0));
        done?;
        wait(&device)?;
        let after = simulator.counters();
        let kernels: BTreeSet<_> = launches
            .iter()
            .map(|launch| (&launch.module, &launch.name))
            .collect();
        for (module, name) in kernels {
            let (n_launches, counters) = &after[name];
            let (n_before, before) = before.get(name).cloned().unwrap_or_default();
            let mut row = figures(counters, &before, work.n_flops / 2);
            row["kernel"] = json!(format!("{module}/{name}"));
            row["shape"] = json!(work.shape);
            row["launches"] = json!(n_launches - n_before);
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Returns the difference of two states of a kernel's counters, with the buffers that it reads, the most read one first.
fn figures(after: &Counters, before: &Counters, n_multiply_adds: usize) -> Value {
    let of = |pick: fn(&Counters) -> u64| pick(after) - pick(before);
    let rounded = |ratio: f64| (ratio * 1000.0).round() / 1000.0;
    let reads = after.buffers.iter().map(|(address, buffer)| {
        let before = before.buffers.get(address).copied().unwrap_or_default();
        let of = |pick: fn(&BufferTraffic) -> u64| pick(buffer) - pick(&before);
        [
            of(|buffer| buffer.loaded_sectors),
            of(|buffer| buffer.unique_loaded_sectors),
        ]
    });
    let mut reads: Vec<[u64; 2]> = reads.filter(|[requested, _]| *requested > 0).collect();
    reads.sort_unstable_by(|a, b| b.cmp(a));
    let reads = reads.iter().map(|&[requested, necessary]| {
        json!({
            "sectors_requested": requested,
            "sectors_necessary": necessary,
            "ratio": rounded(requested as f64 / necessary as f64),
        })
    });
    let instructions: Map<String, Value> = (after.instructions.iter())
        .map(|(class, count)| (class, count - before.of(*class)))
        .filter(|(_, count)| *count > 0)
        .map(|(class, count)| (class.name().to_owned(), json!(count)))
        .collect();
    let warp_instructions = of(Counters::warp_instructions);
    json!({
        "thread_blocks": of(|counters| counters.thread_blocks),
        "warp_instructions": warp_instructions,
        "thread_instructions_per_multiply_add": rounded(warp_instructions as f64 * 32.0 / n_multiply_adds as f64),
        "reads": reads.collect::<Vec<Value>>(),
        "load_sectors": of(|counters| counters.loads.sectors),
        "load_sectors_necessary": of(|counters| counters.loads.necessary_sectors),
        "store_sectors": of(|counters| counters.stores.sectors),
        "store_sectors_necessary": of(|counters| counters.stores.necessary_sectors),
        "shared_wavefronts": of(|counters| counters.shared.wavefronts),
        "shared_wavefronts_without_conflicts": of(|counters| counters.shared.ideal_wavefronts),
        "instructions": instructions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_reads_its_weights_once_however_often_it_was_launched_before() {
        let product = What::Product {
            ty: TensorType::Q8_0,
            shape: [64, N_EMBD],
            n_rows: 1,
        };
        let rows = count(&[product, product]).unwrap();
        let row = &rows[0];
        assert_eq!(row["kernel"], "matvec_q8_0/matvec_m1");
        assert_eq!(row["launches"], 1);
        // 34 bytes for 32 weights, in sectors of 32 bytes.
        let n_sectors = 64 * N_EMBD / 32 * 34 / 32;
        let weights = json!({ "sectors_requested": n_sectors, "sectors_necessary": n_sectors, "ratio": 1.0 });
        assert_eq!(row["reads"][0], weights);
        assert_eq!(rows, [row.clone(), row.clone()]);
    }
}
