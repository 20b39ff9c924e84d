//! The record as a drawing: how much of the machine's limit each side reaches, a pair of bars for each cell.
//!
//! Shares of a limit, because tokens per second of a small and a large model do not fit on one axis, and because the
//! empty part of a bar is what is left to win. Ours is what single steps reached of the limits sampled around them; the peer's is
//! that, divided by how much faster ours was as a whole program.

use std::fmt::Write as _;

use super::{cell::Cell, record::Record};

const LABEL_WIDTH: f64 = 260.0;
const BAR_WIDTH: f64 = 420.0;
const BAR_HEIGHT: f64 = 11.0;
const ROW_HEIGHT: f64 = 32.0;
const TOP: f64 = 58.0;
/// Room behind the bars for what they stand for.
const RIGHT: f64 = 80.0;
/// The longest bar, since a share can exceed one.
const MAX_SHARE: f64 = 1.1;
const OURS: &str = "#2563eb";
const PEERS: &str = "#a3a3a3";

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
    let width = LABEL_WIDTH + BAR_WIDTH + RIGHT;
    let bottom = TOP + rows.len() as f64 * ROW_HEIGHT;
    let height = bottom + 14.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"14\" font-weight=\"bold\">Share of the limit that single steps reach, tokens/s of whole runs at the bars</text>\n"
    );
    for (x, color, name) in [
        (LABEL_WIDTH, OURS, "tokenmill"),
        (LABEL_WIDTH + 100.0, PEERS, "llama.cpp, its best configuration"),
    ] {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"30\" width=\"10\" height=\"10\" fill=\"{color}\"/><text x=\"{}\" y=\"39\">{name}</text>",
            x + 14.0
        );
    }
    for percent in [0, 25, 50, 75, 100] {
        let x = LABEL_WIDTH + BAR_WIDTH * f64::from(percent) / 100.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{percent} %</text>",
            TOP - 4.0
        );
    }
    for (row_idx, (name, figure, share)) in rows.iter().enumerate() {
        let top = TOP + row_idx as f64 * ROW_HEIGHT + 4.0;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            LABEL_WIDTH - 8.0,
            top + BAR_HEIGHT + 4.0
        );
        let peer = figure.best_peer().zip(figure.speedup());
        let sides = [
            Some((&figure.ours, *share, OURS)),
            peer.map(|(peer, speedup)| (peer, share / speedup, PEERS)),
        ];
        for (bar_idx, (side, share, color)) in sides.into_iter().flatten().enumerate() {
            let median = side.spread.median;
            let length = BAR_WIDTH * share.min(MAX_SHARE);
            let y = top + bar_idx as f64 * (BAR_HEIGHT + 1.0);
            let _ = writeln!(
                svg,
                "<rect x=\"{LABEL_WIDTH}\" y=\"{y}\" width=\"{length:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{color}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" font-size=\"10\">{median:.1}</text>",
                LABEL_WIDTH + length + 4.0,
                y + BAR_HEIGHT - 2.0
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
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
