//! Checks non-token inputs, and the later positions that tokens see.
//!
//! Part of [`ForwardBatch::validate`]; few batches have any. Invariant: no missing row is referenced, and no
//! token sees a position that its step does not store.

use std::ops::Range;

use crate::{BatchError, ForwardBatch, TokenSource};

impl ForwardBatch {
    /// Returns the lengths of the optional per-token lists.
    pub(crate) fn lengths_of_places(&self) -> [(&'static str, usize); 3] {
        [
            ("last_seen", self.last_seen.len()),
            ("rope_positions", self.rope_positions.len()),
            ("window_seen", self.window_seen.len()),
        ]
    }

    /// Checks that every referenced input row exists, that the network accepts such inputs, and that they are
    /// `width` wide.
    ///
    /// # Errors
    /// [`BatchError::InputRow`] or [`BatchError::Length`].
    pub fn validate_input_rows(&self, width: usize, takes_rows: bool) -> Result<(), BatchError> {
        let sees_others = !self.last_seen.is_empty() || !self.window_seen.is_empty();
        if sees_others && !takes_rows {
            return Err(BatchError::LastSeen { token_idx: 0 });
        }
        let length = |what, expected, found| {
            if expected == found {
                return Ok(());
            }
            Err(BatchError::Length {
                what,
                expected,
                found,
            })
        };
        if !takes_rows {
            length("rope_positions", 0, self.rope_positions.len())?;
        }
        let n_rows = if takes_rows {
            self.input_rows.len() / width
        } else {
            0
        };
        length("input_rows", n_rows * width, self.input_rows.len())?;
        if n_rows > 0 {
            length("row of `input_rows`", width, self.input_width)?;
        }
        for (index, token) in self.tokens.iter().enumerate() {
            if let TokenSource::Row(row) = *token
                && row as usize >= n_rows
            {
                return Err(BatchError::InputRow { index, row, n_rows });
            }
        }
        Ok(())
    }

    /// Checks that there is one hidden state per token if the network reads them, `n_embd` wide, and none
    /// otherwise.
    ///
    /// # Errors
    /// [`BatchError::Length`].
    pub fn validate_hidden_inputs(&self, n_embd: usize, reads_hidden: bool) -> Result<(), BatchError> {
        let expected = if reads_hidden { self.n_tokens() * n_embd } else { 0 };
        if self.hidden_inputs.len() == expected {
            return Ok(());
        }
        Err(BatchError::Length {
            what: "hidden_inputs",
            expected,
            found: self.hidden_inputs.len(),
        })
    }

    /// Checks the last positions that the tokens of a sequence see; its context has `context_len` positions
    /// after the step.
    pub(crate) fn validate_last_seen(
        &self,
        tokens: Range<usize>,
        context_len: usize,
    ) -> Result<(), BatchError> {
        let mut window = [0; 2];
        for token_idx in tokens.clone().filter(|_| !self.window_seen.is_empty()) {
            let [first, last] = self.window_seen[token_idx];
            let own = self.positions[token_idx];
            let is_right = window[0] <= first
                && window[1] <= last
                && (first..=last).contains(&own)
                && (last as usize) < context_len;
            if !is_right {
                return Err(BatchError::LastSeen { token_idx });
            }
            window = [first, last];
        }
        let mut last = 0;
        for token_idx in tokens.filter(|_| !self.last_seen.is_empty()) {
            let seen = self.last_seen[token_idx];
            let is_right = seen >= last && seen >= self.positions[token_idx] && (seen as usize) < context_len;
            if !is_right {
                return Err(BatchError::LastSeen { token_idx });
            }
            last = seen;
        }
        Ok(())
    }
}
