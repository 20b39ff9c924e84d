//! Progress bars on stderr, shown only on a terminal.
//!
//! All long work uses them. The library below obeys `NO_COLOR`, and shows nothing if stderr is not a
//! terminal.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The template of a bar with a known number of bytes: how many, how fast, and how long the rest will take.
const KNOWN_BYTES: &str = "{msg} {wide_bar:.cyan} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// A bar that counts bytes. Until the total is known, it shows only the finished bytes and the time.
pub(crate) fn bytes(what: &str) -> ProgressBar {
    show(ProgressBar::no_length(), what, "{msg} {elapsed}")
}

/// Moves a bar of [`bytes`].
pub(crate) fn set_bytes(bar: &ProgressBar, n_done: usize, n_total: usize) {
    if bar.length().is_none() {
        bar.set_style(style(KNOWN_BYTES));
        // Speed and remaining time are those of this work, without earlier downloads.
        bar.reset_eta();
    }
    bar.set_length(n_total as u64);
    bar.set_position(n_done as u64);
}

/// A bar for a transfer. It shows nothing before [`Transfer::begin`].
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) bar: ProgressBar,
    /// Taken when it begins.
    shown_at: Mutex<Option<ProgressDrawTarget>>,
}

impl Transfer {
    /// Creates a bar that is hidden.
    pub(crate) fn new(what: &str) -> Self {
        Self::shown_at(ProgressDrawTarget::stderr(), what)
    }

    fn shown_at(target: ProgressDrawTarget, what: &str) -> Self {
        let bar =
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_message(what.to_owned());
        Self {
            bar: bar.with_style(style(KNOWN_BYTES)),
            shown_at: Mutex::new(Some(target)),
        }
    }

    /// Begins to show the bar; later calls change nothing. Speed and rest are counted from here: earlier bytes have no speed.
    pub(crate) fn begin(&self, n_total: u64) {
        let target = self
            .shown_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(target) = target else { return };
        self.bar.set_length(n_total);
        self.bar.set_draw_target(target);
        self.bar.reset_eta();
        self.bar.enable_steady_tick(Duration::from_millis(200));
    }
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
    use std::{io, sync::Arc};

    use indicatif::TermLike;

    use super::*;

    /// Holds the drawn text, as a terminal would show it.
    #[derive(Clone, Debug, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        fn write(&self, text: &str) {
            self.0.lock().expect("no panic").push_str(text);
        }

        fn shown(&self) -> String {
            self.0.lock().expect("no panic").clone()
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _n: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write(text);
            Ok(())
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.write(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_bar_of_a_transfer_is_hidden_until_it_begins() {
        let screen = Screen::default();
        let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
        assert!(!target.is_hidden(), "a bar that is shown on it would be seen");
        let transfer = Transfer::shown_at(target, "downloading");
        transfer.bar.force_draw();
        assert_eq!(screen.shown(), "");
        transfer.begin(3 << 20);
        transfer.bar.set_position(1 << 20);
        transfer.bar.force_draw();
        let shown = screen.shown();
        assert!(
            shown.contains("downloading") && shown.contains("3.00 MiB"),
            "{shown}"
        );
        // Another part of the same transfer begins.
        transfer.begin(7);
        assert_eq!(transfer.bar.length(), Some(3 << 20));
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
