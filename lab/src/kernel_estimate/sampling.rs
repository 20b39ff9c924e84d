//! The launches of sampling, as the simulated driver estimates them, for rows that are sampled in different ways.
//!
//! The time of these kernels depends on the logits, and an estimated step computes none. So the rows are invented: numbers of a normal
//! distribution, wide or narrow, which belong to no model. Invariant: launches are the program's own.

use serde_json::{Value, json};
use tokenmill_cuda_exec::{Launches, SampleRecord};
use tokenmill_ptx_sim::DeviceProfile;
use tokenmill_sim_driver::LaunchEstimate;

use super::step::simulator;
use crate::{
    kernel_bench::{Data, Workshop, drawn, estimates},
    measure::report::Table,
};

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

const fn way(name: &'static str, top_k: u32, top_p: f32, deviation: f32) -> Way {
    Way {
        name,
        flags: 0,
        top_k,
        top_p,
        min_p: 0.0,
        n_top: 0,
        deviation,
        spreads: true,
    }
}

#[rustfmt::skip]
const WAYS: [Way; 10] = [
    Way { flags: SampleRecord::GREEDY, ..way("greedy, of a step that has other rows too", 0, 1.0, NARROW) },
    way("top-k 40, top-p 0.95", 40, 0.95, NARROW),
    Way {
        flags: SampleRecord::LOGPROBS,
        n_top: 20,
        ..way("top-k 40, top-p 0.95, 20 log-probabilities", 40, 0.95, NARROW)
    },
    way("top-p 0.95, few tokens likely", 0, 0.95, NARROW),
    way("top-p 0.95, many tokens likely", 0, 0.95, WIDE),
    Way { spreads: false, ..way("the same in one thread block", 0, 0.95, WIDE) },
    way("top-k 200, top-p 0.95, many tokens likely", 200, 0.95, WIDE),
    Way { min_p: 0.05, ..way("min-p 0.05", 0, 1.0, NARROW) },
    way("temperature alone", 0, 1.0, NARROW),
    Way { spreads: false, ..way("the same in one thread block", 0, 1.0, NARROW) },
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
    let simulator = simulator(device, false)?;
    let gpu = simulator.device_with_launches(begin);
    let rows = (0..n_rows as u32).map(|row| SampleRecord {
        seed: row.into(),
        position: 512,
        flags: way.flags,
        top_k: way.top_k,
        top_p: way.top_p,
        ln_min_p: way.min_p.ln(),
        n_top: way.n_top,
        top_start: row * way.n_top,
        ..drawn()
    });
    let shop = Workshop::new(&gpu, 1, 1, Data::Zeros)?;
    let mut work = shop.sample_rows(logits(n_rows, way.deviation), rows.collect(), way.spreads)?;
    let mut once = || estimates(&simulator, &gpu, &mut work, 1);
    // The second time the logits are in the L2 cache, as after the product that computes them.
    once()?;
    once()
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
    let Some(first) = all.first() else {
        return String::new();
    };
    let mut table = Table::new(&["way", "deviation:", "each launch, us", "with launching, us:"]);
    for sampled in all {
        let each: Vec<String> = (sampled.launches.iter())
            .map(|launch| format!("`{}` {:.1}", launch.kernel, launch.estimate.us))
            .collect();
        let us = format!("{:.1}", sampled.us());
        table.row(&[&sampled.name, &sampled.deviation, &each.join(", "), &us]);
    }
    let word = if first.n_rows == 1 { "row" } else { "rows" };
    format!(
        "sampling, {} {word} of {N_VOCAB} made up logits, {} (estimated, not measured)\n\n{table}",
        first.n_rows, first.device
    )
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
            let us = us_of(&way("top-p", 0, 0.95, deviation));
            assert!(us <= most_us, "deviation {deviation}: {us:.1} us");
        }
    }
}
