//! [`Bar`]: the progress of making predictions. Invariant: a bar that cannot be shown stops nothing.

use std::io::{IsTerminal as _, Write as _};

/// Shows the progress on standard error.
pub(super) struct Bar {
    device: &'static str,
    n_begun: usize,
    n_all: usize,
    is_terminal: bool,
}

impl Bar {
    const WIDTH: usize = 30;

    pub(super) fn new(device: &'static str, n_all: usize) -> Self {
        Self {
            device,
            n_begun: 0,
            n_all,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Shows that another prediction begins.
    pub(super) fn show(&mut self, name: &str) {
        let filled = Self::WIDTH * self.n_begun / self.n_all;
        self.n_begun += 1;
        let bar = format!("{}{}", "#".repeat(filled), ".".repeat(Self::WIDTH - filled));
        let text = format!(
            "predicting for {}: [{bar}] {}/{} {name}",
            self.device, self.n_begun, self.n_all
        );
        // A bar that cannot be shown is no reason to stop.
        let _ = if self.is_terminal {
            write!(std::io::stderr(), "\r\x1b[K{text}")
        } else {
            writeln!(std::io::stderr(), "{text}")
        };
    }

    pub(super) fn end(&self) {
        if self.is_terminal {
            let _ = writeln!(std::io::stderr());
        }
    }
}
