//! Prints a step: a table of its launches, and the same as JSON.
//!
//! Launches that are alike are one row, in the order of their first.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tokenmill_sim_driver::LaunchEstimate;

use super::step::{Batch, Shape, Step};
use crate::measure::report::Table;

/// Launches that are alike.
struct Row<'a> {
    launch: &'a LaunchEstimate,
    count: usize,
}

fn rows(step: &Step) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for launch in &step.launches {
        let is_alike = |row: &&mut Row<'_>| {
            let other = row.launch;
            (&other.module, &other.kernel, other.grid, other.block)
                == (&launch.module, &launch.kernel, launch.grid, launch.block)
                && (other.estimate.us - launch.estimate.us).abs() < 0.05
                && (other.estimate.gap_us - launch.estimate.gap_us).abs() < 0.05
        };
        match rows.iter_mut().find(is_alike) {
            Some(row) => row.count += 1,
            None => rows.push(Row { launch, count: 1 }),
        }
    }
    rows
}

/// Returns a grid and the threads of a thread block.
pub(super) fn grid(launch: &LaunchEstimate) -> String {
    let [x, y, z] = launch.grid;
    let [threads, ..] = launch.block;
    let mut text = x.to_string();
    if y > 1 || z > 1 {
        let _ = write!(text, "*{y}");
    }
    if z > 1 {
        let _ = write!(text, "*{z}");
    }
    format!("{text}x{threads}")
}

/// Returns tokens a second.
fn rate(step: &Step) -> f64 {
    step.batch.n_tokens() as f64 * 1e6 / step.us()
}

/// Returns the least and the most tokens a second that a card may reach, as far as published figures tell.
fn rate_range(step: &Step) -> [f64; 2] {
    [step.most_us(), step.us()].map(|us| step.batch.n_tokens() as f64 * 1e6 / us)
}

/// Returns the share of the bandwidth of device memory that a step uses.
fn share(step: &Step) -> f64 {
    step.dram_bytes() / (step.us() * 1e-6) / step.device.dram_bytes_per_s
}

/// Renders the table.
pub(super) fn render(shape: &Shape<'_>, step: &Step) -> String {
    let what = match step.batch {
        Batch::Decode { n_seqs: 1 } => "1 row".to_owned(),
        Batch::Decode { n_seqs } => format!("{n_seqs} rows"),
        Batch::Prefill { n_tokens } => format!("a prompt of {n_tokens} tokens"),
    };
    let layers = shape
        .n_layers
        .map_or_else(String::new, |n| format!(", first {n} layers"));
    let mut table = Table::new(&[
        "launch",
        "n:",
        "grid x threads:",
        "rounds:",
        "gap:",
        "us each:",
        "us all:",
        "GB/s:",
        "KB in flight, mean / most:",
        "limit",
    ]);
    for Row { launch, count } in rows(step) {
        let estimate = &launch.estimate;
        let [mean, most] = [estimate.in_flight, estimate.in_flight_peak].map(|bytes| bytes / 1024.0);
        table.row(&[
            &format!("`{}/{}`", launch.module, launch.kernel),
            &count,
            &grid(launch),
            &format!("{:.2}", estimate.rounds),
            &format!("{:.1}", estimate.gap_us),
            &format!("{:.1}", estimate.us),
            &format!("{:.0}", estimate.us * count as f64),
            &format!("{:.0}", estimate.dram_bytes / estimate.us / 1e3),
            &format!("{mean:.1} / {most:.1}"),
            &estimate.limiter,
        ]);
    }
    let n = step.launches.len();
    let each = format!("{:.1}", step.gaps_us() / n as f64);
    let all = format!("{:.0}", step.gaps_us());
    table.row(&[&"between launches", &n, &"", &"", &each, &"", &all, &"", &"", &""]);
    format!(
        "{} {}{layers}, {what}, context {}, keys and values {}, {} (estimated, not measured)\n\n{table}\n\
         {:.2} to {:.2} ms a step, {:.0} to {:.0} tokens/s, {:.2} GB from device memory, at most {:.0} % of its bandwidth\n",
        shape.model,
        shape.recipe,
        step.batch.context(shape),
        shape.kv_type,
        step.device.name,
        step.us() / 1e3,
        step.most_us() / 1e3,
        rate_range(step)[0],
        rate_range(step)[1],
        step.dram_bytes() / 1e9,
        share(step) * 100.0
    )
}

/// Returns the figures.
pub(super) fn json(shape: &Shape<'_>, step: &Step) -> Value {
    let launches: Vec<Value> = rows(step)
        .into_iter()
        .map(|Row { launch, count }| {
            let estimate = &launch.estimate;
            json!({
                "kernel": format!("{}/{}", launch.module, launch.kernel),
                "count": count,
                "grid": launch.grid,
                "threads": launch.block[0],
                "us": estimate.us,
                "gap_us": estimate.gap_us,
                "thread_blocks_at_work": estimate.working_blocks,
                "resident_thread_blocks": estimate.resident_blocks,
                "rounds": estimate.rounds,
                "cold_code_bytes": estimate.cold_code_bytes,
                "dram_bytes": estimate.dram_bytes,
                "l2_bytes": estimate.l2_bytes,
                "in_flight_bytes": estimate.in_flight,
                "in_flight_peak_bytes": estimate.in_flight_peak,
                "issue_share": estimate.issue_share,
                "dram_share": estimate.dram_share,
                "limiter": estimate.limiter.name(),
            })
        })
        .collect();
    json!({
        "model": shape.model,
        "type": shape.recipe,
        "layers": shape.n_layers,
        "rows": step.batch.n_tokens(),
        "is_prompt": matches!(step.batch, Batch::Prefill { .. }),
        "context": step.batch.context(shape),
        "kv_type": shape.kv_type.name(),
        "device": step.device.name,
        "launch_us": step.device.launch_us,
        "gaps_us": step.gaps_us(),
        "us": step.us(),
        "tokens_per_s": rate(step),
        "most_us": step.most_us(),
        "tokens_per_s_range": rate_range(step),
        "dram_bytes": step.dram_bytes(),
        "launches": launches,
    })
}
