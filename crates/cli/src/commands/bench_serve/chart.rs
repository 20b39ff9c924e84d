//! The distributions as a drawing: for each time, the share of measurements that do not exceed it.

use std::fmt::Write as _;

use super::report::{Distribution, Report};

const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 160.0;
const GAP: f64 = 60.0;

/// Draws three panels side by side as SVG.
pub(super) fn draw(report: &Report) -> String {
    let panels = [
        ("first token, ms", &report.first_ms),
        ("inter-token, ms", &report.inter_token_ms),
        ("end to end, ms", &report.total_ms),
    ];
    let (width, height) = (3.0 * WIDTH + 4.0 * GAP, HEIGHT + 1.6 * GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (index, (title, distribution)) in panels.into_iter().enumerate() {
        let left = GAP + index as f64 * (WIDTH + GAP);
        panel(&mut svg, left, title, distribution);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(svg: &mut String, left: f64, title: &str, distribution: &Distribution) {
    let top = 0.6 * GAP;
    let bottom = top + HEIGHT;
    let maximum = distribution.percentile(100.0).max(f64::MIN_POSITIVE);
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
        top - 12.0
    );
    for share in [0.0, 0.5, 0.9, 1.0] {
        let y = bottom - share * HEIGHT;
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"end\">{:.0} %</text>",
            left + WIDTH,
            left - 6.0,
            y + 4.0,
            share * 100.0
        );
    }
    for part in [0.0, 0.5, 1.0] {
        let x = left + part * WIDTH;
        let _ = writeln!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{:.1}</text>",
            bottom + 18.0,
            part * maximum
        );
    }
    let values = distribution.sorted();
    let mut path = format!("M{left:.1} {bottom:.1}");
    for (index, value) in values.iter().enumerate() {
        let x = left + value / maximum * WIDTH;
        let y = bottom - (index + 1) as f64 / values.len() as f64 * HEIGHT;
        let _ = write!(path, "H{x:.1}V{y:.1}");
    }
    let _ = writeln!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"#2563eb\" stroke-width=\"2\"/>"
    );
}
