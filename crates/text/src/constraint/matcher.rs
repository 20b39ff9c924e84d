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

/// What a constraint waits for.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    /// Tokens that close the gate where the text begins with one of them; without them it is closed at the start.
    pub(super) open_ids: Option<Arc<[u32]>>,
    /// What opens it.
    pub(super) marker: Marker,
}

/// One sample's way through a constraint.
pub struct ConstraintMatcher {
    matcher: Matcher,
    vocabulary: Arc<Vocabulary>,
    end_ids: Box<[u32]>,
    /// What the constraint waits for.
    gate: Option<Gate>,
    /// Whether it waits now.
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
        gate: Option<Gate>,
    ) -> Self {
        let waits = at_start(gate.as_ref());
        Self {
            matcher,
            vocabulary,
            end_ids: end_ids.into(),
            waits,
            gate,
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
        self.fill(words)?;
        if self.is_fresh() {
            let open_ids = self.gate.as_ref().and_then(|gate| gate.open_ids.as_deref());
            for &id in open_ids.into_iter().flatten() {
                if let Some(word) = words.get_mut(id as usize / 32) {
                    *word |= 1 << (id % 32);
                }
            }
        }
        Ok(())
    }

    /// Whether no token has come.
    fn is_fresh(&self) -> bool {
        self.before.is_empty() && self.n_inside == 0
    }

    fn fill(&mut self, words: &mut [u32]) -> Result<(), ConstraintError> {
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
        let is_opening = |gate: &Gate| gate.open_ids.as_ref().is_some_and(|ids| ids.contains(&id));
        if self.is_fresh()
            && let Some(gate) = self.gate.as_ref().filter(|gate| is_opening(gate))
        {
            self.waits = Some(gate.marker.clone());
            self.before.push(id);
            return Ok(());
        }
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

    /// Takes back the newest tokens, for instance those that a draft proposed and that were refused.
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
        let Some(n_left) = n_left else {
            return Err(ConstraintError::Step {
                reason: format!("{n_tokens} tokens are taken back, and there are fewer"),
            });
        };
        self.matcher.reset().map_err(|error| step_error(&error))?;
        self.n_inside = 0;
        (self.is_complete, self.has_ended) = (false, false);
        self.waits = at_start(self.gate.as_ref());
        let mut before = std::mem::take(&mut self.before);
        before.truncate(n_left);
        before.into_iter().try_for_each(|id| self.commit(id))
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

/// What is waited for before the first token.
fn at_start(gate: Option<&Gate>) -> Option<Marker> {
    gate.filter(|gate| gate.open_ids.is_none())
        .map(|gate| gate.marker.clone())
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
