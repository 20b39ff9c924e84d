//! Small charts of measurements as SVG: panels with curves over two axes, and rows of bars.
//!
//! A [`Chart`] is a drawing of a fixed size; [`Chart::finish`] returns its text. It is shared by the
//! measuring programs, so that all of them draw alike. Invariant: text is escaped, so a model may have any name.
//!
//! ```
//! use tokenmill_chart::{Axis, BLUE, Chart, Curve, Panel};
//!
//! let mut chart = Chart::new(400.0, 240.0);
//! let panel = Panel {
//!     title: "tokens/s",
//!     x: Axis::with_ticks(4.0, [1.0, 2.0, 4.0].map(|n| (n, format!("{n}")))),
//!     y: Axis::in_parts(30.0, 2, 0),
//!     curves: &[Curve { color: BLUE, points: &[(1.0, 10.0), (4.0, 30.0)] }],
//! };
//! chart.panel([60.0, 40.0], [300.0, 160.0], &panel);
//! assert!(chart.finish().starts_with("<svg"));
//! ```
#![forbid(unsafe_code)]

use std::fmt::Write as _;

/// Color of the measured subject.
pub const BLUE: &str = "#2563eb";
/// Color of the subject that it is compared with.
pub const GRAY: &str = "#9ca3af";

/// Side of its position on which a text is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    /// It begins there.
    Start,
    /// Its middle is there.
    Middle,
    /// It ends there.
    End,
}

/// A drawing.
#[derive(Clone, Debug)]
pub struct Chart {
    size: [f64; 2],
    body: String,
}

/// One direction of a panel, from 0 on.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    max: f64,
    ticks: Vec<(f64, String)>,
}

/// Points that are joined in order.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// As SVG has it.
    pub color: &'a str,
    /// To the right, and upwards.
    pub points: &'a [(f64, f64)],
}

/// Curves over two axes.
#[derive(Clone, Debug)]
pub struct Panel<'a> {
    /// Stands above it.
    pub title: &'a str,
    /// To the right.
    pub x: Axis,
    /// Upwards, with a line across the panel at each tick.
    pub y: Axis,
    /// The curves to draw.
    pub curves: &'a [Curve<'a>],
}

/// A bar and the value after it.
#[derive(Clone, Debug)]
pub struct Bar<'a> {
    /// As SVG has it.
    pub color: &'a str,
    /// Length in the drawing's units.
    pub length: f64,
    /// The text after the bar.
    pub value: String,
}

impl Axis {
    /// Returns an axis to `max`, labelled at some places. A `max` that is not positive counts as the smallest number.
    pub fn with_ticks(max: f64, ticks: impl IntoIterator<Item = (f64, String)>) -> Self {
        Self {
            max: max.max(f64::MIN_POSITIVE),
            ticks: ticks.into_iter().collect(),
        }
    }

    /// Creates an axis to `max`, labelled at both ends and between `n_parts` equal parts, with `n_decimals`
    /// decimals.
    pub fn in_parts(max: f64, n_parts: usize, n_decimals: usize) -> Self {
        let tick = |part: usize| {
            let value = max * part as f64 / n_parts as f64;
            (value, format!("{value:.n_decimals$}"))
        };
        Self::with_ticks(max, (0..=n_parts).map(tick))
    }
}

impl Chart {
    /// Creates a white drawing of this width and height.
    pub fn new(width: f64, height: f64) -> Self {
        Self {
            size: [width, height],
            body: String::new(),
        }
    }

    /// Writes the heading.
    pub fn title(&mut self, [x, y]: [f64; 2], text: &str) {
        let text = escaped(text);
        self.add(&format!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"14\" font-weight=\"bold\">{text}</text>"
        ));
    }

    /// Writes a text.
    pub fn text(&mut self, [x, y]: [f64; 2], anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.add(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        ));
    }

    /// Draws the legend entry of a color.
    pub fn legend(&mut self, [x, y]: [f64; 2], color: &str, text: &str) {
        self.rect([x, y - 9.0], [10.0, 10.0], color);
        self.text([x + 14.0, y], Anchor::Start, text);
    }

    /// Draws a thin line.
    pub fn line(&mut self, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.add(&format!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
        ));
    }

    fn rect(&mut self, [x, y]: [f64; 2], [width, height]: [f64; 2], color: &str) {
        self.add(&format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{color}\"/>"
        ));
    }

    /// Draws bars of a height below each other, with one label to their left.
    ///
    /// ```
    /// use tokenmill_chart::{BLUE, Bar, Chart};
    ///
    /// let mut chart = Chart::new(100.0, 40.0);
    /// let bar = |length| Bar { color: BLUE, length, value: format!("{length}") };
    /// chart.bars([30.0, 5.0], 10.0, "both", &[bar(40.0), bar(20.0)]);
    /// let svg = chart.finish();
    /// assert!(svg.contains("x=\"30.0\" y=\"5.0\" width=\"40.0\" height=\"10.0\""), "{svg}");
    /// assert!(svg.contains("x=\"30.0\" y=\"16.0\" width=\"20.0\""), "{svg}");
    /// ```
    pub fn bars(&mut self, [left, top]: [f64; 2], height: f64, label: &str, bars: &[Bar<'_>]) {
        let middle = top + bars.len() as f64 * (height + 1.0) / 2.0;
        self.text([left - 8.0, middle + 4.0], Anchor::End, label);
        for (index, bar) in bars.iter().enumerate() {
            let y = top + index as f64 * (height + 1.0);
            self.rect([left, y], [bar.length, height], bar.color);
            self.text(
                [left + bar.length + 4.0, y + height / 2.0 + 4.0],
                Anchor::Start,
                &bar.value,
            );
        }
    }

    /// Draws a panel whose axes begin at the lower left corner of the field of `size` at `place`. A curve spans it.
    ///
    /// ```
    /// use tokenmill_chart::{Axis, BLUE, Chart, Curve, Panel};
    ///
    /// let mut chart = Chart::new(200.0, 100.0);
    /// let panel = Panel {
    ///     title: "a < b & c",
    ///     x: Axis::in_parts(2.0, 1, 0),
    ///     y: Axis::in_parts(10.0, 2, 1),
    ///     curves: &[Curve { color: BLUE, points: &[(0.0, 0.0), (1.0, 10.0), (2.0, 5.0)] }],
    /// };
    /// chart.panel([20.0, 10.0], [100.0, 50.0], &panel);
    /// let svg = chart.finish();
    /// assert!(svg.contains("points=\"20.0,60.0 70.0,10.0 120.0,35.0\""), "{svg}");
    /// assert!(svg.contains(">a &lt; b &amp; c<"), "{svg}");
    /// assert!(svg.contains(">5.0<") && svg.contains(">2<"), "{svg}");
    /// ```
    ///
    /// Where nothing was measured, it is empty:
    ///
    /// ```
    /// use tokenmill_chart::{Axis, Chart, Curve, GRAY, Panel};
    ///
    /// let mut chart = Chart::new(10.0, 10.0);
    /// let panel = Panel {
    ///     title: "",
    ///     x: Axis::in_parts(0.0, 1, 0),
    ///     y: Axis::in_parts(0.0, 1, 0),
    ///     curves: &[Curve { color: GRAY, points: &[] }],
    /// };
    /// chart.panel([0.0, 0.0], [10.0, 10.0], &panel);
    /// assert!(!chart.finish().contains("NaN"));
    /// ```
    pub fn panel(&mut self, [left, top]: [f64; 2], [width, height]: [f64; 2], panel: &Panel<'_>) {
        let bottom = top + height;
        let x = |value: f64| left + value / panel.x.max * width;
        let y = |value: f64| bottom - value / panel.y.max * height;
        let title = escaped(panel.title);
        self.add(&format!(
            "<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>",
            top - 10.0
        ));
        for (value, label) in &panel.y.ticks {
            self.line([left, y(*value)], [left + width, y(*value)]);
            self.text([left - 6.0, y(*value) + 4.0], Anchor::End, label);
        }
        for (value, label) in &panel.x.ticks {
            self.text([x(*value), bottom + 18.0], Anchor::Middle, label);
        }
        for curve in panel.curves {
            let mut points = String::new();
            for (at, value) in curve.points {
                let _ = write!(points, "{:.1},{:.1} ", x(*at), y(*value));
            }
            self.add(&format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>",
                points.trim_end(),
                curve.color
            ));
        }
    }

    /// Returns the drawing as SVG.
    pub fn finish(self) -> String {
        let ([width, height], body) = (self.size, self.body);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n{body}</svg>\n"
        )
    }

    fn add(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
