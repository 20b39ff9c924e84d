//! [`Hybrid`]: a decode step whose first layers are on the CPU, as `-ngl` places them.
//!
//! The CPU's part is counted, not measured: it takes the time to read its weights, keys and values, or the time to multiply, whichever is longer,
//! by the command's figures, so it is a lower bound. CPU and GPU take turns, as in decode steps of fewer than 128 rows. Invariant: each layer is on
//! one side.

use std::{fmt::Write as _, str::FromStr};

use anyhow::{Context, bail, ensure};

use super::step::{Shape, Step};
use crate::synth::outline::{self, LayerCosts};

/// The assumed speeds of a CPU and of the link to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Host {
    /// Bytes a second that the CPU reads.
    cpu: f64,
    /// Multiplications a second.
    multiplies: f64,
    /// Bytes a second between both sides.
    link: f64,
    /// Seconds of a crossing, however few bytes cross.
    crossing: f64,
}

impl FromStr for Host {
    type Err = anyhow::Error;

    /// Reads `cpu=200,multiplies=3000,link=25,crossing=15`: GB/s, billions a second, GB/s and microseconds.
    fn from_str(text: &str) -> anyhow::Result<Self> {
        let mut figures = [None; 4];
        for part in text.split(',') {
            let (name, value) = part.split_once('=').context("a figure is NAME=NUMBER")?;
            let Some(place) = Self::NAMES.iter().position(|known| *known == name) else {
                bail!("`{name}` is none of {}", Self::NAMES.join(", "));
            };
            let value: f64 = value.parse().with_context(|| format!("`{value}` is no number"))?;
            ensure!(value > 0.0 && value.is_finite(), "{name} must be positive");
            figures[place] = Some(value);
        }
        let figure =
            |place: usize| figures[place].with_context(|| format!("{} is missing", Self::NAMES[place]));
        Ok(Self {
            cpu: figure(0)? * 1e9,
            multiplies: figure(1)? * 1e9,
            link: figure(2)? * 1e9,
            crossing: figure(3)? * 1e-6,
        })
    }
}

impl Host {
    const NAMES: [&str; 4] = ["cpu", "multiplies", "link", "crossing"];
}

/// Holds the times of a step on both sides.
pub(super) struct Hybrid<'a> {
    step: &'a Step,
    n_rows: usize,
    n_cpu_layers: u32,
    cpu_us: f64,
    crossing_us: f64,
}

impl<'a> Hybrid<'a> {
    /// Adds the CPU's layers to the GPU's part of a step.
    ///
    /// # Errors
    /// An unknown model or type.
    pub(super) fn of(
        shape: &Shape<'_>,
        step: &'a Step,
        n_cpu_layers: u32,
        host: Host,
    ) -> anyhow::Result<Self> {
        let costs = outline::layer_costs(shape.model, shape.recipe)?;
        let n_rows = step.batch.n_tokens();
        Ok(Self {
            step,
            n_rows,
            n_cpu_layers,
            cpu_us: cpu_us(&costs, n_cpu_layers, n_rows, shape.context, host),
            // A row of hidden states for each token; the tokens that come back are few bytes.
            crossing_us: (host.crossing + (4 * costs.n_embd * n_rows) as f64 / host.link) * 1e6,
        })
    }

    /// Returns the least and the most tokens a second that a card may reach.
    fn rate_range(&self) -> [f64; 2] {
        [self.step.most_us(), self.step.us()]
            .map(|gpu_us| self.n_rows as f64 * 1e6 / (self.cpu_us + self.crossing_us + gpu_us))
    }

    /// Renders a line for people.
    pub(super) fn render(&self) -> String {
        let [least, most] = self.rate_range();
        let mut out = String::new();
        let _ = write!(
            out,
            "{} sequences, the first {} layers on the CPU: {:.1} ms there, {:.2} ms to cross, {:.1} to {:.1} ms on the GPU, {least:.0} to {most:.0} tokens/s \
             (simulated; a card may give 20 to 40 % less)",
            self.n_rows,
            self.n_cpu_layers,
            self.cpu_us / 1e3,
            self.crossing_us / 1e3,
            self.step.us() / 1e3,
            self.step.most_us() / 1e3,
        );
        out
    }
}

/// Returns the microseconds that the CPU takes for some layers.
fn cpu_us(costs: &LayerCosts, n_layers: u32, n_rows: usize, context: usize, host: Host) -> f64 {
    let kv_bytes = (n_rows * context * costs.kv_bytes_per_token) as f64;
    let reads = (costs.weight_bytes as f64 + kv_bytes) / host.cpu;
    let multiplies = (n_rows * costs.n_weights) as f64 / host.multiplies;
    f64::from(n_layers) * reads.max(multiplies) * 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_reads_or_multiplies_whichever_takes_longer() {
        let host: Host = "cpu=10,multiplies=100,link=25,crossing=15".parse().unwrap();
        let costs = LayerCosts {
            weight_bytes: 1_000_000,
            n_weights: 2_000_000,
            kv_bytes_per_token: 1000,
            n_embd: 64,
        };
        let us = |n_rows, context| cpu_us(&costs, 2, n_rows, context, host);
        // 1 MB of weights and 1 kB of keys and values at 10 GB/s, twice; then 32 times 2 million products at 100 billion a second.
        assert!((us(1, 1) - 200.2).abs() < 1e-9);
        assert!((us(32, 1) - 1280.0).abs() < 1e-9);
        assert!((us(32, 1000) - 6600.0).abs() < 1e-9);
    }

    #[test]
    fn what_is_wrong_with_figures_is_said() {
        for (text, said) in [
            ("cpu=10", "multiplies is missing"),
            ("cpu=0,multiplies=1,link=1,crossing=1", "cpu must be positive"),
            ("gpu=10", "`gpu` is none of cpu, multiplies, link, crossing"),
            ("cpu", "a figure is NAME=NUMBER"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap_err().to_string(), said);
        }
    }
}
