//! [`LeftOut`]: commands of a pipe that failed, and the resulting exit code.
//!
//! A failed turn, in contrast, ends the chat. Invariant: the chat continues, and its exit code is that of the
//! first failure.

use crate::failure::Failure;

/// Commands of a pipe that failed.
#[derive(Default)]
pub(super) struct LeftOut {
    first: Option<Failure>,
    n: usize,
}

impl LeftOut {
    pub(super) fn add(&mut self, failure: Failure) {
        self.first.get_or_insert(failure);
        self.n += 1;
    }

    /// How the chat ends: as the first of them did.
    pub(super) fn end(self) -> Result<(), Failure> {
        let Some(mut failure) = self.first else {
            return Ok(());
        };
        failure.message = match self.n {
            1 => "one command failed and was skipped".to_owned(),
            n => format!("{n} commands failed and were skipped"),
        };
        // It was printed when the command failed.
        failure.hint = None;
        Err(failure)
    }
}
