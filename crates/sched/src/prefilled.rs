//! [`Prefilled`]: a prompt whose pages are held, with the logits behind it.
//!
//! Separate from the calls that answer at once: this one is a handle. Invariant: while it lives no other request takes its pages, and
//! requests that begin as the prompt does compute none of them again.

use crate::{engine::Engine, error::EngineError, prefix_memory::PrefixReader};

/// How often a prompt is computed whose pages others took before they were held.
const MAX_TRIALS: usize = 3;

/// A prompt that was computed, whose pages stay until this is dropped.
#[derive(Debug)]
pub struct Prefilled {
    logits: Vec<f32>,
    memory: PrefixReader,
}

impl Prefilled {
    /// The logits of the prompt's last position, `[n_vocab]`.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Tokens whose pages are held: the whole pages of the prompt, and fewer only where the KV cache has no room for all of them.
    pub fn n_tokens(&self) -> usize {
        self.memory.n_tokens()
    }
}

impl Engine {
    /// Computes `prompt` as [`Self::prefill_batch`] does, and holds its pages: requests that begin so find them until the handle is
    /// dropped.
    ///
    /// # Errors
    /// As [`Self::prefill_batch`] and [`Self::read_prefix`].
    pub fn prefill(&self, prompt: &[u32]) -> Result<Prefilled, EngineError> {
        let mut n_trials = 1;
        loop {
            let logits = self.prefill_batch(prompt)?;
            let memory = self.read_prefix(prompt, 0)?;
            // Between the two, another request may have taken pages that nothing held.
            let is_whole = prompt.len() - memory.n_tokens() < tokenmill_backend::PAGE_TOKENS;
            if is_whole || n_trials == MAX_TRIALS {
                return Ok(Prefilled { logits, memory });
            }
            n_trials += 1;
        }
    }
}
