//! Progress bars on stderr, shown only where a person watches.
//!
//! Separate so that every long work looks the same. `NO_COLOR` and a stderr that is no terminal are honoured by the
//! library below.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The template of a bar with a known number of bytes: how many, how fast, and how long the rest will take.
const KNOWN_BYTES: &str = "{msg} {wide_bar:.cyan} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// A bar that counts bytes. Until it is known how many there are, it shows only what is done and for how long.
pub(crate) fn bytes(what: &str) -> ProgressBar {
    show(ProgressBar::no_length(), what, "{msg} {elapsed}")
}

/// Moves a bar of [`bytes`].
pub(crate) fn set_bytes(bar: &ProgressBar, n_done: usize, n_total: usize) {
    if bar.length().is_none() {
        bar.set_style(style(KNOWN_BYTES));
        // Speed and rest are those of the work, and not of what was done before it.
        bar.reset_eta();
    }
    bar.set_length(n_total as u64);
    bar.set_position(n_done as u64);
}

/// A bar for a transfer. It shows nothing before [`begin_transfer`].
pub(crate) fn transfer(what: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_message(what.to_owned());
    bar.with_style(style(KNOWN_BYTES))
}

/// Begins to show a bar of [`transfer`]. Speed and rest are counted from here: what was there before came at no speed.
pub(crate) fn begin_transfer(bar: &ProgressBar, n_total: u64) {
    bar.set_length(n_total);
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.reset_eta();
    bar.enable_steady_tick(Duration::from_millis(200));
}

/// A bar that counts steps.
pub(crate) fn steps(what: &str, total: u64) -> ProgressBar {
    show(
        ProgressBar::new(total),
        what,
        "{msg} {wide_bar:.cyan} {pos}/{len} {eta}",
    )
}

fn show(bar: ProgressBar, what: &str, template: &str) -> ProgressBar {
    let bar = bar.with_style(style(template)).with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are well-formed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_of_a_transfer_is_hidden_until_it_begins() {
        assert!(transfer("downloading").is_hidden());
    }

    #[test]
    fn a_bar_has_no_length_before_it_is_known() {
        let bar = bytes("loading");
        assert_eq!(
            (bar.length(), bar.position()),
            (None, 0),
            "a bar of length 0 would be full"
        );
        set_bytes(&bar, 3, 10);
        assert_eq!((bar.length(), bar.position()), (Some(10), 3));
    }
}
