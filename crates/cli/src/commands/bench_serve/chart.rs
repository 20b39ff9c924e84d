//! The distributions as a drawing: for each time, the share of measurements that do not exceed it.

use tokenmill_chart::{Axis, BLUE, Chart, Curve, Panel};

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
    let mut chart = Chart::new(3.0 * WIDTH + 4.0 * GAP, HEIGHT + 1.6 * GAP);
    for (index, (title, distribution)) in panels.into_iter().enumerate() {
        let left = GAP + index as f64 * (WIDTH + GAP);
        let panel = Panel {
            title,
            x: Axis::in_parts(distribution.percentile(100.0), 2, 1),
            y: Axis::with_ticks(
                1.0,
                [0.0, 0.5, 0.9, 1.0].map(|share| (share, format!("{:.0} %", share * 100.0))),
            ),
            curves: &[Curve {
                color: BLUE,
                points: &steps(distribution),
            }],
        };
        chart.panel([left, 0.6 * GAP], [WIDTH, HEIGHT], &panel);
    }
    chart.finish()
}

/// At each measurement the share rises by one.
fn steps(distribution: &Distribution) -> Vec<(f64, f64)> {
    let values = distribution.sorted();
    let share = |n: usize| n as f64 / values.len() as f64;
    let mut points = vec![(0.0, 0.0)];
    for (index, &value) in values.iter().enumerate() {
        points.extend([(value, share(index)), (value, share(index + 1))]);
    }
    points
}
