//! Progress bars on stderr, shown only where a person watches.
//!
//! Separate so that every long work looks the same. `NO_COLOR` and a stderr that is no terminal are honoured by the
//! library below.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar that counts bytes.
pub(crate) fn bytes(what: &str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {wide_bar:.cyan} {bytes}/{total_bytes}")
}

/// A bar that counts steps.
pub(crate) fn steps(what: &str, total: u64) -> ProgressBar {
    bar(what, total, "{msg} {wide_bar:.cyan} {pos}/{len} {eta}")
}

fn bar(what: &str, total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("the templates above are well-formed");
    let bar = ProgressBar::new(total)
        .with_style(style)
        .with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
