//! The record as a Markdown table.

use std::fmt::Write as _;

use super::{
    cell::Cell,
    record::{Figure, Record, SideFigure},
    roofline::Limit,
};
use crate::measure::{report::Table, rounds::Spread};

const TITLES: [&str; 8] = [
    "work",
    "tokenmill:",
    "peer, at its best:",
    "ratio:",
    "limit:",
    "a step's share of it:",
    "of its instruction mix:",
    "memory, MiB:",
];

/// Writes the cells that the record has, in the order of `cells`.
pub(super) fn markdown(record: &Record, cells: &[Cell]) -> String {
    let machine = &record.machine;
    let mut text = format!(
        "{}, {} processors ({}), {}. Median (least..most). Limits are those of the machine beside our steps: bytes read, or \
         8-bit integers multiplied, per second; a share is of the \
         mean of a sample right before and one right after a step, and exceeds 100 % where the machine changed in between.\n\n",
        machine.cpu, machine.n_processors, machine.instruction_sets, machine.system
    );
    let mut table = Table::new(&TITLES);
    for cell in cells {
        let name = cell.to_string();
        if let Some(figure) = record.figures.get(&name) {
            row(&mut table, &name, figure);
        }
    }
    let _ = write!(text, "{table}");
    text
}

fn row(table: &mut Table, name: &str, figure: &Figure) {
    let unit = if figure.is_time() { " s" } else { "" };
    let peer = figure.best_peer();
    let peer_speed = peer.map_or_else(String::new, |peer| spread(peer.spread) + unit);
    let ratio = figure
        .speedup()
        .map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let steps = figure.steps.as_ref();
    let limit = (figure.cost.zip(steps)).map_or_else(String::new, |(cost, steps)| {
        let limits = steps.limits();
        match cost.bound(limits).limit() {
            Limit::Memory => format!("{:.1} GB/s", limits.read_bytes_s / 1e9),
            Limit::Arithmetic => format!("{:.0} G/s", limits.multiplies_s / 1e9),
        }
    });
    let share = steps.map_or_else(String::new, |steps| percent(steps.share));
    let mix_share = (steps.and_then(|steps| steps.mix_share)).map_or_else(String::new, percent);
    let memory = |side: Option<&SideFigure>| {
        side.and_then(|side| side.peak_memory_bytes)
            .map(|n_bytes| (n_bytes >> 20).to_string())
    };
    let memory: Vec<String> = [memory(Some(&figure.ours)), memory(peer)]
        .into_iter()
        .flatten()
        .collect();
    let ours = spread(figure.ours.spread) + unit;
    let memory = memory.join(" / ");
    table.row(&[
        &name,
        &ours,
        &peer_speed,
        &ratio,
        &limit,
        &share,
        &mix_share,
        &memory,
    ]);
}

/// Renders `84 % (80..88)`.
fn percent(share: Spread) -> String {
    format!(
        "{:.0} % ({:.0}..{:.0})",
        100.0 * share.median,
        100.0 * share.min,
        100.0 * share.max
    )
}

/// Renders `17.5 (17.1..17.9)`, with more digits for small numbers.
fn spread(spread: Spread) -> String {
    let digits = if spread.median < 3.0 { 2 } else { 1 };
    format!(
        "{:.digits$} ({:.digits$}..{:.digits$})",
        spread.median, spread.min, spread.max
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        cell,
        record::tests::{COST, figure, step_figure},
    };

    #[test]
    fn a_row_has_both_sides_and_the_limit() {
        let mut table = Table::new(&TITLES);
        let mut decode = figure("tokens/s", 30.0, &[10.0, 15.0]);
        decode.cost = Some(COST);
        decode.steps = Some(step_figure(0.75));
        row(&mut table, "m/Q4_0/tg128", &decode);
        row(&mut table, "m/Q4_0/load", &figure("s", 0.25, &[]));
        let text = table.to_string();
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| m/Q4_0/tg128 | 30.0 (30.0..30.0) | 15.0 (15.0..15.0) | 2.00 | 30.0 GB/s | 75 % (75..75) |  | 900 / 900 |",
                "| m/Q4_0/load | 0.25 (0.25..0.25) s |  |  |  |  |  | 900 |",
            ]
        );
    }

    #[test]
    fn cells_that_were_not_measured_have_no_row() {
        let table = markdown(&Record::default(), &cell::all());
        assert!(table.ends_with(&Table::new(&TITLES).to_string()));
    }
}
