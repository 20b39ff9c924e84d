//! [`Prefilled`] holds the pages of a prompt, and the logits after it.
//!
//! Invariant: while it lives no other request evicts its pages, and requests with this prefix compute none of
//! them again.

use crate::{
    engine::{Engine, prefix_transfer::PrefixReader},
    error::EngineError,
};

/// Maximum attempts to compute a prompt if its pages are evicted before they are held.
const MAX_TRIALS: usize = 3;

/// Holds a computed prompt, whose pages stay until this is dropped.
#[derive(Debug)]
pub struct Prefilled {
    logits: Vec<f32>,
    memory: PrefixReader,
}

impl Prefilled {
    /// Returns the logits of the prompt's last position, `[n_vocab]`.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Returns how many tokens' pages are held: the full pages of the prompt, or fewer if the KV cache has no room for all.
    pub fn n_tokens(&self) -> usize {
        self.memory.n_tokens()
    }
}

impl Engine {
    /// Computes `prompt` as [`Self::prefill_batch`] does, and holds its pages, which requests with this prefix reuse until the handle is
    /// dropped.
    ///
    /// # Errors
    /// Returns the errors of [`Self::prefill_batch`] and [`Self::read_prefix`].
    pub fn prefill(&self, prompt: &[u32]) -> Result<Prefilled, EngineError> {
        let mut n_trials = 1;
        loop {
            let logits = self.prefill_batch(prompt)?;
            let memory = self.read_prefix(prompt, 0)?;
            // Another request may have evicted pages between the two calls.
            let is_whole = prompt.len() - memory.n_tokens() < tokenmill_backend::PAGE_TOKENS;
            if is_whole || n_trials == MAX_TRIALS {
                return Ok(Prefilled { logits, memory });
            }
            n_trials += 1;
        }
    }
}
