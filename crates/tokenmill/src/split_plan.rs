//! [`SplitPlan`]: the place of each part of a model, before it is loaded.
//!
//! A program can show it. Invariant: the rows of a side add up to the load's memory on that side.

use std::{collections::BTreeMap, fmt};

use tokenmill_backend::{MemoryPlan, NetworkPart, Side};
use tokenmill_placed::{Bandwidths, LayerPlacement, Placement, Traffic};

use crate::measurements::MeasuredWhen;

/// Describes which parts of a model will be on the GPU and which on the CPU.
#[derive(Debug)]
pub struct SplitPlan {
    /// The GPU in words.
    pub(crate) gpu: String,
    /// Bytes of its memory that a model may take.
    pub(crate) room_bytes: u64,
    /// Reason for the split.
    pub(crate) reason: SplitReason,
    pub(crate) placement: Placement,
    /// Bytes of each part's weights on the host and on the device.
    pub(crate) weights: [BTreeMap<NetworkPart, usize>; 2],
    pub(crate) memory: MemoryPlan,
}

/// The reason for a model's split.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum SplitReason {
    /// It was requested.
    AsAsked,
    /// The number of layers was open, not everything fits, and this split takes the least time for a token.
    Quickest {
        /// By which that was decided.
        bandwidths: Bandwidths,
        /// Where they come from.
        when: MeasuredWhen,
        /// Bytes that a token reads on each side and sends between them.
        traffic: Traffic,
        /// Placements that fit into the memories of both sides.
        n_fitting: usize,
        /// Seconds of a token, from bytes and crossings only.
        seconds: f64,
        /// Seconds of a token on only the CPU.
        cpu_alone_seconds: f64,
    },
}

/// A row of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitRow {
    /// Name of the part.
    pub part: String,
    /// Where.
    pub side: Side,
    /// Memory of the part, in bytes.
    pub n_bytes: usize,
}

impl SplitPlan {
    /// The rows: weights from the first layer to the last, then the memory of sequences, then that of steps.
    pub fn rows(&self) -> Vec<SplitRow> {
        let mut rows = Vec::new();
        self.push(&mut rows, "token embedding", |part| *part == NetworkPart::Input);
        let layers = self.placement.layers();
        let mut first = 0;
        for run in layers.chunk_by(|a, b| a == b) {
            let range = first..first + run.len();
            first = range.end;
            let name = match run.len() {
                1 => format!("layer {}", range.start),
                _ => format!("layers {} to {}", range.start, range.end - 1),
            };
            let is_in = |part: &NetworkPart, range: &std::ops::Range<usize>| matches!(part, NetworkPart::Mixer(idx) | NetworkPart::Ffn(idx) | NetworkPart::Experts(idx) if range.contains(idx));
            if run[0] == LayerPlacement::whole(run[0].mixer) && self.placement.min_device_tokens() == 1 {
                self.push(&mut rows, &name, |part| is_in(part, &range));
                continue;
            }
            self.push(&mut rows, &format!("{name}, attention"), |part| {
                is_in(part, &range) && matches!(part, NetworkPart::Mixer(_))
            });
            self.push(&mut rows, &format!("{name}, feed-forward"), |part| {
                is_in(part, &range) && matches!(part, NetworkPart::Ffn(_))
            });
            self.push(&mut rows, &format!("{name}, experts"), |part| {
                is_in(part, &range) && matches!(part, NetworkPart::Experts(_))
            });
        }
        self.push(&mut rows, "head", |part| *part == NetworkPart::Output);
        self.push(&mut rows, "frequencies", |part| *part == NetworkPart::Common);
        self.push_memory(&mut rows, "keys and values", |plan| {
            plan.kv_bytes.saturating_sub(plan.host_tier_bytes)
        });
        if self.host_tier_bytes() > 0 {
            rows.push(SplitRow {
                part: "host tier of keys and values".to_owned(),
                side: Side::Host,
                n_bytes: self.host_tier_bytes(),
            });
        }
        self.push_memory(&mut rows, "recurrent states", |plan| plan.states_bytes);
        self.push_memory(&mut rows, "steps", |plan| {
            plan.activations_bytes.saturating_add(plan.workspace_bytes)
        });
        rows
    }

    /// Adds the weights of some parts, a row for each side that has any.
    fn push(&self, rows: &mut Vec<SplitRow>, name: &str, is_meant: impl Fn(&NetworkPart) -> bool) {
        for side in [Side::Device, Side::Host] {
            let parts = self.weights[side as usize]
                .iter()
                .filter(|(part, _)| is_meant(part));
            let n_bytes = parts.fold(0usize, |sum, (_, n_bytes)| sum.saturating_add(*n_bytes));
            if n_bytes > 0 {
                rows.push(SplitRow {
                    part: name.to_owned(),
                    side,
                    n_bytes,
                });
            }
        }
    }

    /// Adds some memory of the plan, a row for each side that has any.
    fn push_memory(&self, rows: &mut Vec<SplitRow>, name: &str, n_bytes: fn(&MemoryPlan) -> usize) {
        let plans = [
            (Side::Device, Some(&self.memory)),
            (Side::Host, self.memory.on_host.as_deref()),
        ];
        for (side, plan) in plans {
            let n_bytes = plan.map_or(0, n_bytes);
            if n_bytes > 0 {
                rows.push(SplitRow {
                    part: name.to_owned(),
                    side,
                    n_bytes,
                });
            }
        }
    }

    /// Returns the total memory of a side, in bytes.
    pub fn bytes_on(&self, side: Side) -> usize {
        let on_host = self.memory.on_host.as_deref();
        match side {
            Side::Device => self.memory.device_bytes(),
            Side::Host => on_host
                .map_or(0, MemoryPlan::device_bytes)
                .saturating_add(self.host_tier_bytes()),
        }
    }

    /// The host tier of both sides' keys and values.
    fn host_tier_bytes(&self) -> usize {
        let of_host = self
            .memory
            .on_host
            .as_deref()
            .map_or(0, |plan| plan.host_tier_bytes);
        self.memory.host_tier_bytes.saturating_add(of_host)
    }
}

/// Prints a table, followed by the reason for the split.
impl fmt::Display for SplitPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |n_bytes: usize| n_bytes as f64 / f64::from(1 << 20);
        let place = |side| match side {
            Side::Device => "GPU",
            Side::Host => "CPU",
        };
        let rows = self.rows();
        let width = rows
            .iter()
            .map(|row| row.part.len())
            .max()
            .unwrap_or(0)
            .max("all".len());
        for SplitRow { part, side, n_bytes } in &rows {
            writeln!(f, "{part:width$}  {}  {:10.2} MiB", place(*side), mib(*n_bytes))?;
        }
        for side in [Side::Device, Side::Host] {
            writeln!(
                f,
                "{:width$}  {}  {:10.2} MiB",
                "all",
                place(side),
                mib(self.bytes_on(side))
            )?;
        }
        let room = self.room_bytes >> 20;
        match &self.reason {
            SplitReason::AsAsked => write!(f, "split as requested; {} has room for {room} MiB", self.gpu),
            SplitReason::Quickest {
                bandwidths,
                when,
                traffic,
                n_fitting,
                seconds,
                cpu_alone_seconds,
            } => {
                writeln!(f, "bandwidths {when}: {bandwidths}")?;
                let times = if traffic.n_crossings == 1 { "time" } else { "times" };
                writeln!(
                    f,
                    "a token reads {:.2} MiB on the GPU and {:.2} MiB on the CPU and crosses {} {times}: {} tokens/s by that, the CPU alone {}",
                    mib(traffic.device_bytes as usize),
                    mib(traffic.host_bytes as usize),
                    traffic.n_crossings,
                    per_s(*seconds),
                    per_s(*cpu_alone_seconds),
                )?;
                write!(
                    f,
                    "split since {} has room for {room} MiB; this is the quickest of {n_fitting} placements that fit",
                    self.gpu
                )
            }
        }
    }
}

/// Returns the rate per second for a duration.
fn per_s(seconds: f64) -> String {
    let rate = 1.0 / seconds;
    if rate < 100.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}
