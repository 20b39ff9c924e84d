//! The divergence along the text as a drawing: where a smaller file is far from its original.
//!
//! A mean over a text hides that some of its parts suffer more than others.

use tokenmill_chart::{Axis, BLUE, Chart, Curve, GRAY, Panel};

use super::super::perplexity::divergence::{Divergence, Part};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 160.0;
const GAP: f64 = 60.0;
/// Nats at the top of the scale at least: less is rounding.
const LEAST_SCALE: f64 = 1e-4;
/// Parts of the text that have a point each.
const MAX_PARTS: usize = 64;

/// Draws the divergence and the share of the same likeliest tokens, one above the other, as SVG.
pub(super) fn draw(names: [&str; 2], divergence: &Divergence) -> String {
    let parts = divergence.along(MAX_PARTS);
    let figures = divergence.figures();
    let n_positions = parts.last().map_or(0, |part| part.end);
    let curve = |value: fn(&Part) -> f64| -> Vec<(f64, f64)> {
        parts
            .iter()
            .map(|part| ((part.start + part.end) as f64 / 2.0, value(part)))
            .collect()
    };
    let whole = |value: f64| [(0.0, value), (n_positions as f64, value)];
    // Rounding may give a little less than nothing.
    let kl = curve(|part| part.mean_kl.max(0.0));
    let same = curve(|part| 100.0 * part.same_top);
    let greatest = kl.iter().map(|point| point.1).fold(LEAST_SCALE, f64::max);
    let n_decimals = decimals_for(greatest);
    let x = || Axis::in_parts(n_positions as f64, 4, 0);
    let mut chart = Chart::new(WIDTH + 2.0 * GAP, 2.0 * (HEIGHT + GAP) + 1.6 * GAP);
    chart.title([GAP, 24.0], &format!("{} against {}", names[1], names[0]));
    chart.legend(
        [GAP, 46.0],
        BLUE,
        &format!("mean of {} positions", positions_of(&parts)),
    );
    chart.legend([GAP + 220.0, 46.0], GRAY, "mean of all");
    let panels = [
        (
            "KL divergence, nats",
            Axis::in_parts(greatest, 2, n_decimals),
            kl,
            whole(figures.mean.max(0.0)),
        ),
        (
            "the same likeliest token, %",
            Axis::in_parts(100.0, 2, 0),
            same,
            whole(100.0 * figures.same_top),
        ),
    ];
    let mut top = 1.6 * GAP;
    for (title, y, points, mean) in &panels {
        let panel = Panel {
            title,
            x: x(),
            y: y.clone(),
            curves: &[
                Curve {
                    color: GRAY,
                    points: mean,
                },
                Curve { color: BLUE, points },
            ],
        };
        chart.panel([GAP, top], [WIDTH, HEIGHT], &panel);
        top += HEIGHT + GAP;
    }
    chart.text(
        [GAP + WIDTH, top - 0.3 * GAP],
        tokenmill_chart::Anchor::End,
        "scored positions, in the order of the text",
    );
    chart.finish()
}

/// How many positions a part has; the last one may have fewer.
fn positions_of(parts: &[Part]) -> usize {
    parts.first().map_or(0, |part| part.end - part.start)
}

/// Decimals that show two digits of a number.
fn decimals_for(greatest: f64) -> usize {
    match greatest {
        n if n >= 10.0 => 0,
        n if n > 0.0 => (1.0 - n.log10().floor()).clamp(0.0, 9.0) as usize,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_suffers_stands_out() {
        let mut divergence = Divergence::default();
        let sure = [0.9_f32.ln(), 0.1_f32.ln()];
        for position in 0..100 {
            let is_bad = position >= 75;
            let own = if is_bad { [sure[1], sure[0]] } else { sure };
            divergence.push(&sure, &own, 0);
        }
        let parts = divergence.along(4);
        let ranges: Vec<_> = parts.iter().map(|part| (part.start, part.end)).collect();
        assert_eq!(ranges, [(0, 25), (25, 50), (50, 75), (75, 100)]);
        assert!(parts[0].mean_kl.abs() < 1e-6 && parts[0].same_top == 1.0);
        // 0.9 ln 9 + 0.1 ln (1 / 9).
        assert!((parts[3].mean_kl - 0.8 * 9.0_f64.ln()).abs() < 1e-5 && parts[3].same_top == 0.0);
        let svg = draw(["a<b", "c"], &divergence);
        assert!(
            svg.contains("c against a&lt;b") && svg.matches("<polyline").count() == 4,
            "{svg}"
        );
        assert!(svg.contains(">1.8<") && svg.contains(">100<"), "{svg}");
    }

    #[test]
    fn more_parts_than_positions_are_positions() {
        let mut divergence = Divergence::default();
        divergence.push(&[0.0], &[0.0], 0);
        assert_eq!(divergence.along(64).len(), 1);
        assert!(Divergence::default().along(64).is_empty());
        assert!(!draw(["a", "b"], &Divergence::default()).contains("NaN"));
        assert_eq!([12.0, 1.5, 0.031, 0.0].map(decimals_for), [0, 1, 3, 0]);
    }
}
