//! The record as a drawing: how much of the machine's limit each side reaches, a pair of bars for each cell.
//!
//! It shows shares of a limit, because tokens per second of a small and a large model do not fit on one axis, and because the
//! empty part of a bar is the possible gain. Our share is that of single steps in the limits sampled around them; the peer's is
//! ours, divided by our speedup as a whole program.

use tokenmill_chart::{Anchor, BLUE, Bar, Chart, GRAY};

use super::{cell::Cell, record::Record};

const LABEL_WIDTH: f64 = 260.0;
const BAR_WIDTH: f64 = 420.0;
const BAR_HEIGHT: f64 = 11.0;
const ROW_HEIGHT: f64 = 32.0;
const TOP: f64 = 58.0;
/// Space after the bars for their labels.
const RIGHT: f64 = 80.0;
/// The longest bar, since a share can exceed one.
const MAX_SHARE: f64 = 1.1;

/// Draws the cells that the record has a limit for, in the order of `cells`.
pub(super) fn draw(record: &Record, cells: &[Cell]) -> String {
    let rows: Vec<_> = cells
        .iter()
        .filter_map(|cell| {
            let name = cell.to_string();
            let figure = record.figures.get(&name)?;
            Some((name, figure, figure.steps?.share.median))
        })
        .collect();
    let bottom = TOP + rows.len() as f64 * ROW_HEIGHT;
    let mut chart = Chart::new(LABEL_WIDTH + BAR_WIDTH + RIGHT, bottom + 14.0);
    chart.title(
        [12.0, 20.0],
        "Share of the limit that single steps reach, tokens/s of whole runs at the bars",
    );
    chart.legend([LABEL_WIDTH, 39.0], BLUE, "tokenmill");
    chart.legend(
        [LABEL_WIDTH + 100.0, 39.0],
        GRAY,
        "llama.cpp, its best configuration",
    );
    for percent in [0, 25, 50, 75, 100] {
        let x = LABEL_WIDTH + BAR_WIDTH * f64::from(percent) / 100.0;
        chart.line([x, TOP], [x, bottom]);
        chart.text([x, TOP - 4.0], Anchor::Middle, &format!("{percent} %"));
    }
    for (row_idx, (name, figure, share)) in rows.iter().enumerate() {
        let top = TOP + row_idx as f64 * ROW_HEIGHT + 4.0;
        let peer = figure.best_peer().zip(figure.speedup());
        let sides = [
            Some((&figure.ours, *share, BLUE)),
            peer.map(|(peer, speedup)| (peer, share / speedup, GRAY)),
        ];
        let bars: Vec<Bar<'_>> = (sides.into_iter().flatten())
            .map(|(side, share, color)| Bar {
                color,
                length: BAR_WIDTH * share.min(MAX_SHARE),
                value: format!("{:.1}", side.spread.median),
            })
            .collect();
        chart.bars([LABEL_WIDTH, top], BAR_HEIGHT, name, &bars);
    }
    chart.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        cell,
        record::tests::{figure, step_figure},
    };

    #[test]
    fn a_cell_with_a_limit_gets_two_bars() {
        let cells = cell::all();
        let mut record = Record::default();
        let mut measured = figure("tokens/s", 30.0, &[15.0]);
        measured.steps = Some(step_figure(0.5));
        record.figures.insert(cells[0].to_string(), measured);
        record
            .figures
            .insert(cells[1].to_string(), figure("s", 1.0, &[2.0]));
        let svg = draw(&record, &cells);
        assert!(svg.contains(&cells[0].to_string()) && !svg.contains(&cells[1].to_string()));
        assert!(
            svg.contains("width=\"210.0\"") && svg.contains("width=\"105.0\""),
            "{svg}"
        );
    }
}
