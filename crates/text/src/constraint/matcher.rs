//! [`ConstraintMatcher`]: one sample's way through a constraint.
//!
//! Separate from the compiled constraint, which samples share. Invariants: a mask has a bit for each token that the text may
//! continue with and for nothing else, with the ends only where the text is complete; a token that was not in the mask is an
//! error, not a panic.

use std::{fmt, sync::Arc};

use llguidance::Matcher;

use super::{
    error::{ConstraintError, first_line},
    marker::Marker,
    vocabulary::Vocabulary,
};

/// One sample's way through a constraint.
pub struct ConstraintMatcher {
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    end_ids: Box<[u32]>,
    /// What the constraint waits for.
    marker: Option<Marker>,
    /// Whether it still waits.
    waits: Option<Marker>,
    /// Tokens so far, up to the one that completed the marker.
    before: Vec<u32>,
    /// Tokens since.
    n_inside: usize,
    is_complete: bool,
    /// Whether the newest token is one of the end.
    has_ended: bool,
}

impl fmt::Debug for ConstraintMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintMatcher")
            .field("waits", &self.waits.is_some())
            .field("n_inside", &self.n_inside)
            .field("is_complete", &self.is_complete)
            .finish_non_exhaustive()
    }
}

impl ConstraintMatcher {
    pub(super) fn new(
        matcher: Matcher,
        vocabulary: Arc<Vocabulary>,
        end_ids: &[u32],
        marker: Option<Marker>,
    ) -> Self {
        Self {
            matcher,
            vocabulary,
            end_ids: end_ids.into(),
            waits: marker.clone(),
            marker,
            before: Vec::new(),
            n_inside: 0,
            is_complete: false,
            has_ended: false,
        }
    }

    /// Writes the mask of the tokens that may come next: bit `id % 32` of word `id / 32`. Words beyond the vocabulary become
    /// zero.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] where a limit of a step is exceeded.
    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
        words.fill(0);
        let n_tokens = self.vocabulary.n_tokens;
        if self.waits.is_some() {
            let n_words = n_tokens.div_ceil(32).min(words.len());
            words[..n_words].fill(u32::MAX);
            clear_from(words, n_tokens);
            self.set_ends(words, false);
            return Ok(());
        }
        if !self.is_complete {
            let mask = self.matcher.compute_mask().map_err(|error| step_error(&error))?;
            for (word, &bits) in words.iter_mut().zip(mask.as_slice()) {
                *word = bits;
            }
            clear_from(words, n_tokens);
            let may_end = mask.is_allowed(n_tokens as u32);
            if words.iter().any(|&word| word != 0) {
                self.set_ends(words, may_end);
                return Ok(());
            }
            if !may_end {
                return Err(ConstraintError::Step {
                    reason: "no token of the vocabulary continues the text".to_owned(),
                });
            }
            self.is_complete = true;
        }
        self.set_ends(words, true);
        Ok(())
    }

    /// Takes in the token that came.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] for a token that the mask forbids, or where a limit is exceeded.
    pub fn commit(&mut self, id: u32) -> Result<(), ConstraintError> {
        if let Some(marker) = &mut self.waits {
            self.before.push(id);
            let Some(behind) = marker.push(self.vocabulary.bytes_of(id)) else {
                return Ok(());
            };
            self.waits = None;
            // Space after a marker is the template's, not the constraint's.
            let behind = behind.trim_ascii_start();
            let tokens = self.vocabulary.env.tok_trie().greedy_tokenize(behind);
            return self.consume(&tokens);
        }
        self.n_inside += 1;
        if self.end_ids.contains(&id) {
            (self.is_complete, self.has_ended) = (true, true);
            return Ok(());
        }
        if self.is_complete {
            return Err(ConstraintError::Step {
                reason: format!("token {id} comes after the end"),
            });
        }
        self.consume(&[id])
    }

    fn consume(&mut self, ids: &[u32]) -> Result<(), ConstraintError> {
        self.matcher
            .consume_tokens(ids)
            .map_err(|error| step_error(&error))?;
        self.is_complete = self.matcher.is_stopped();
        Ok(())
    }

    /// Whether the text is complete and nothing may follow it.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Takes back the newest tokens, for instance those that a draft proposed in vain.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] for more tokens than there are.
    pub fn rollback(&mut self, n_tokens: usize) -> Result<(), ConstraintError> {
        if n_tokens == 0 {
            return Ok(());
        }
        if n_tokens <= self.n_inside {
            self.n_inside -= n_tokens;
            // The token of an end never reached the grammar.
            let n_in_grammar = n_tokens - usize::from(std::mem::take(&mut self.has_ended));
            self.matcher
                .rollback(n_in_grammar)
                .map_err(|error| step_error(&error))?;
            self.is_complete = self.matcher.is_stopped();
            return Ok(());
        }
        let n_left = (self.before.len() + self.n_inside).checked_sub(n_tokens);
        let Some(n_left) = n_left.filter(|_| self.marker.is_some()) else {
            return Err(ConstraintError::Step {
                reason: format!("{n_tokens} tokens are taken back, and there are fewer"),
            });
        };
        self.matcher.reset().map_err(|error| step_error(&error))?;
        self.n_inside = 0;
        (self.is_complete, self.has_ended) = (false, false);
        self.waits.clone_from(&self.marker);
        self.before.truncate(n_left);
        if let Some(marker) = &mut self.waits {
            for &id in &self.before {
                marker.push(self.vocabulary.bytes_of(id));
            }
        }
        Ok(())
    }

    fn set_ends(&self, words: &mut [u32], may_end: bool) {
        for &id in &self.end_ids {
            if let Some(word) = words.get_mut(id as usize / 32) {
                let bit = 1 << (id % 32);
                *word = if may_end { *word | bit } else { *word & !bit };
            }
        }
    }
}

/// Clears the bits of the ids from `first` on.
fn clear_from(words: &mut [u32], first: usize) {
    if let Some(word) = words.get_mut(first / 32) {
        *word &= (1 << (first % 32)) - 1;
    }
    if let Some(rest) = words.get_mut(first / 32 + 1..) {
        rest.fill(0);
    }
}

fn step_error(error: &impl fmt::Display) -> ConstraintError {
    ConstraintError::Step {
        reason: first_line(&error.to_string()),
    }
}
