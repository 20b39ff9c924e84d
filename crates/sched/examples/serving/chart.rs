//! Throughput and latency against the number of sequences, as a drawing.

use std::fmt::Write as _;

const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 180.0;
const GAP: f64 = 64.0;

/// One number of sequences, as measured.
pub(crate) struct Point {
    pub(crate) n_seqs: usize,
    /// Tokens per second of all sequences together.
    pub(crate) bare: f64,
    pub(crate) engine: f64,
}

impl Point {
    /// Milliseconds between two tokens of a sequence, at a rate.
    fn ms_per_token(&self, rate: f64) -> f64 {
        self.n_seqs as f64 * 1e3 / rate
    }
}

/// Draws two panels side by side as SVG.
pub(crate) fn draw(title: &str, points: &[Point]) -> String {
    let (width, height) = (2.0 * WIDTH + 3.0 * GAP, HEIGHT + 2.2 * GAP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{GAP}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{title}</text>\n"
    );
    let rates = |of: fn(&Point) -> f64| points.iter().map(of).collect::<Vec<_>>();
    let panels = [
        (
            "tokens/s of all sequences",
            rates(|point| point.bare),
            rates(|point| point.engine),
        ),
        (
            "ms between two tokens of a sequence",
            rates(|point| point.ms_per_token(point.bare)),
            rates(|point| point.ms_per_token(point.engine)),
        ),
    ];
    for (index, (title, bare, engine)) in panels.into_iter().enumerate() {
        let left = GAP + index as f64 * (WIDTH + GAP);
        panel(
            &mut svg,
            left,
            title,
            points,
            &[("#9ca3af", &bare), ("#2563eb", &engine)],
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{GAP}\" y=\"{}\" fill=\"#2563eb\">through the engine</text>\
         <text x=\"{}\" y=\"{}\" fill=\"#6b7280\">bare executor</text>",
        height - 12.0,
        GAP + 140.0,
        height - 12.0
    );
    svg.push_str("</svg>\n");
    svg
}

/// One panel: the number of sequences to the right, `series` upwards.
fn panel(svg: &mut String, left: f64, title: &str, points: &[Point], series: &[(&str, &[f64])]) {
    let top = 0.9 * GAP;
    let bottom = top + HEIGHT;
    let most = points.iter().map(|point| point.n_seqs).max().unwrap_or(1) as f64;
    let largest = series
        .iter()
        .flat_map(|(_, values)| values.iter())
        .copied()
        .fold(f64::MIN_POSITIVE, f64::max);
    let x = |n_seqs: usize| left + n_seqs as f64 / most * WIDTH;
    let y = |value: f64| bottom - value / largest * HEIGHT;
    let _ = writeln!(
        svg,
        "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
        top - 10.0
    );
    for part in [0.0, 0.5, 1.0] {
        let _ = writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{}\" y1=\"{1}\" y2=\"{1}\" stroke=\"#ddd\"/>\
             <text x=\"{2}\" y=\"{3}\" text-anchor=\"end\">{4:.0}</text>",
            left + WIDTH,
            y(part * largest),
            left - 6.0,
            y(part * largest) + 4.0,
            part * largest
        );
    }
    for point in points {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(point.n_seqs),
            bottom + 18.0,
            point.n_seqs
        );
    }
    for (color, values) in series {
        let line: Vec<String> = points
            .iter()
            .zip(*values)
            .map(|(point, &value)| format!("{:.1},{:.1}", x(point.n_seqs), y(value)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            line.join(" ")
        );
    }
}
