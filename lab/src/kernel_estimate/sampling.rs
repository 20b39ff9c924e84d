//! The launches of sampling, as the simulated driver estimates them, for rows that are sampled in different ways.
//!
//! The time of these kernels depends on the logits, and an estimated step computes none. So the rows are invented: numbers of a normal
//! distribution, wide or narrow, which belong to no model. Invariant: launches are the program's own.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokenmill_cuda_exec::{Launches, Ops, SampleInputs, SampleOutputs, SampleRecord, SampleScratch};
use tokenmill_ptx_sim::DeviceProfile;
use tokenmill_sim_driver::{LaunchEstimate, Simulator};

use super::step::registers;

const N_VOCAB: usize = 128_256;
/// Standard deviations of logits: in the narrow kind few tokens have 95 % of the probability, in the wide kind a fifth of the vocabulary.
const NARROW: f32 = 4.0;
const WIDE: f32 = 2.5;

/// A way to sample.
#[derive(Clone, Copy)]
struct Way {
    name: &'static str,
    flags: u32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    n_top: u32,
    deviation: f32,
    /// Whether a row that may draw many tokens has the launches for it, as in the program.
    spreads: bool,
}

const PLAIN: Way = Way {
    name: "",
    flags: 0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    n_top: 0,
    deviation: NARROW,
    spreads: true,
};

const WAYS: [Way; 10] = [
    Way {
        name: "greedy, of a step that has other rows too",
        flags: SampleRecord::GREEDY,
        ..PLAIN
    },
    Way {
        name: "top-k 40, top-p 0.95",
        top_k: 40,
        top_p: 0.95,
        ..PLAIN
    },
    Way {
        name: "top-k 40, top-p 0.95, 20 log-probabilities",
        flags: SampleRecord::LOGPROBS,
        top_k: 40,
        top_p: 0.95,
        n_top: 20,
        ..PLAIN
    },
    Way {
        name: "top-p 0.95, few tokens likely",
        top_p: 0.95,
        ..PLAIN
    },
    Way {
        name: "top-p 0.95, many tokens likely",
        top_p: 0.95,
        deviation: WIDE,
        ..PLAIN
    },
    Way {
        name: "the same in one thread block",
        top_p: 0.95,
        deviation: WIDE,
        spreads: false,
        ..PLAIN
    },
    Way {
        name: "top-k 200, top-p 0.95, many tokens likely",
        top_k: 200,
        top_p: 0.95,
        deviation: WIDE,
        ..PLAIN
    },
    Way {
        name: "min-p 0.05",
        min_p: 0.05,
        ..PLAIN
    },
    Way {
        name: "temperature alone",
        ..PLAIN
    },
    Way {
        name: "the same in one thread block",
        spreads: false,
        ..PLAIN
    },
];

/// The estimated launches of one way of sampling.
pub(super) struct Sampled {
    name: &'static str,
    deviation: f32,
    n_rows: usize,
    device: &'static str,
    launches: Vec<LaunchEstimate>,
}

impl Sampled {
    fn us(&self) -> f64 {
        let launches = self.launches.iter().map(|launch| &launch.estimate);
        launches.map(|estimate| estimate.us + estimate.gap_us).sum()
    }

    pub(super) fn json(&self) -> Value {
        let launches: Vec<Value> = (self.launches.iter())
            .map(|launch| {
                json!({
                    "kernel": launch.kernel,
                    "us": launch.estimate.us,
                    "gap_us": launch.estimate.gap_us,
                    "limiter": launch.estimate.limiter.name(),
                })
            })
            .collect();
        json!({
            "sampling": self.name,
            "deviation": self.deviation,
            "n_vocab": N_VOCAB,
            "rows": self.n_rows,
            "device": self.device,
            "us": self.us(),
            "launches": launches,
        })
    }
}

/// Estimates all ways with so many rows.
///
/// # Errors
/// A kernel without registers in the lock, or one with a fault that stops a device.
pub(super) fn estimate(
    n_rows: usize,
    device: &'static DeviceProfile,
    begin: Launches,
) -> anyhow::Result<Vec<Sampled>> {
    WAYS.iter()
        .map(|way| {
            Ok(Sampled {
                name: way.name,
                deviation: way.deviation,
                n_rows,
                device: device.name,
                launches: launches_of(way, n_rows, device, begin)?,
            })
        })
        .collect()
}

fn launches_of(
    way: &Way,
    n_rows: usize,
    device: &'static DeviceProfile,
    begin: Launches,
) -> anyhow::Result<Vec<LaunchEstimate>> {
    // One GPU for each: launches that are alike except for the contents of memory would count as one.
    let simulator = Simulator::estimating(device, registers(device)?);
    let gpu = simulator.device_with_launches(begin);
    let ops = Ops::load(&gpu)?;
    let record = |row: usize| SampleRecord {
        seed: row as u64,
        position: 512,
        flags: way.flags,
        temperature: 0.8,
        top_k: way.top_k,
        top_p: way.top_p,
        ln_min_p: if way.min_p > 0.0 {
            way.min_p.ln()
        } else {
            f32::NEG_INFINITY
        },
        repeat_penalty: 1.0,
        newest: SampleRecord::NONE,
        mask_start: SampleRecord::NONE,
        n_top: way.n_top,
        top_start: row as u32 * way.n_top,
        ..SampleRecord::raw()
    };
    let words: Vec<u32> = (0..n_rows).flat_map(|row| record(row).to_words()).collect();
    let has_many = way.spreads && record(0).draws_many(N_VOCAB);
    let logits = gpu.upload("logits", &logits(n_rows, way.deviation))?;
    let records = gpu.upload("records", &words)?;
    let nothing = gpu.upload("nothing", &[0u32])?;
    let mut scratch = SampleScratch::new(&gpu, n_rows, N_VOCAB)?;
    let zeros = |n: usize| gpu.upload("results", &vec![0u32; n]);
    let n_tops = (n_rows * way.n_top as usize).max(1);
    let mut outputs = [
        zeros(n_rows)?,
        zeros(n_rows)?,
        zeros(n_rows)?,
        zeros(n_tops)?,
        zeros(n_tops)?,
    ];
    let mut launches = Vec::new();
    // The second time the logits are in the L2 cache, as after the product that computes them.
    for _ in 0..2 {
        simulator.take_estimates();
        let [tokens, status, logprobs, top_ids, top_logprobs] = &mut outputs;
        ops.sample(
            [n_rows, N_VOCAB],
            logits.view(),
            &SampleInputs {
                records: records.view(),
                words: nothing.view(),
                previous: nothing.view(),
                has_many,
            },
            SampleOutputs {
                scratch: &mut scratch,
                tokens: tokens.view_mut(),
                status: status.view_mut(),
                logprobs: logprobs.view_mut(),
                top_ids: top_ids.view_mut(),
                top_logprobs: top_logprobs.view_mut(),
            },
        )?;
        // Waits until they have run.
        gpu.download(outputs[0].view())?;
        launches = simulator.take_estimates();
    }
    Ok(launches)
}

/// Returns sums of twelve pseudo-random numbers, which are nearly normally distributed.
fn logits(n_rows: usize, deviation: f32) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..n_rows * N_VOCAB)
        .map(|_| deviation * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0))
        .collect()
}

/// Renders the table.
pub(super) fn render(all: &[Sampled]) -> String {
    let mut out = String::new();
    let Some(first) = all.first() else {
        return out;
    };
    let word = if first.n_rows == 1 { "row" } else { "rows" };
    let _ = writeln!(
        out,
        "sampling, {} {word} of {N_VOCAB} made up logits, {} (estimated, not measured)\n",
        first.n_rows, first.device
    );
    let _ = writeln!(out, "| way | deviation | each launch, us | with launching, us |");
    let _ = writeln!(out, "|---|---:|---|---:|");
    for sampled in all {
        let each: Vec<String> = (sampled.launches.iter())
            .map(|launch| format!("`{}` {:.1}", launch.kernel, launch.estimate.us))
            .collect();
        let _ = writeln!(
            out,
            "| {} | {} | {} | {:.1} |",
            sampled.name,
            sampled.deviation,
            each.join(", "),
            sampled.us()
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_top_p_alone_is_sampled_in_tens_of_microseconds() {
        let device = DeviceProfile::find("h200").unwrap();
        let us_of = |way: &Way| -> f64 {
            let launches = launches_of(way, 1, device, Launches::Early).unwrap();
            let estimates = launches.iter().map(|launch| &launch.estimate);
            estimates.map(|estimate| estimate.us + estimate.gap_us).sum()
        };
        // 22 and 30 us as it was written; in one thread block 336.
        for (deviation, most_us) in [(NARROW, 24.0), (WIDE, 32.0)] {
            let us = us_of(&Way {
                top_p: 0.95,
                deviation,
                ..PLAIN
            });
            assert!(us <= most_us, "deviation {deviation}: {us:.1} us");
        }
    }
}
