//! [`SideBySide`]: generates several sequences at once through the engine, which calibrates itself by them.
//!
//! The tests of one sequence, in contrast, are llama-bench's and know no engine. Invariant: every sequence
//! has all its tokens, so each counted step has the same number of decode rows.

use tokenmill_sched::{Engine, GenerateParams, Throughput};

use crate::failure::Failure;

/// Measures an engine without other users.
pub(super) struct SideBySide {
    pub(super) engine: Engine,
}

impl SideBySide {
    /// Tokens of each prompt: short, so that nearly all of the time is decoding.
    pub(super) const N_PROMPT: usize = 1;

    /// Positions that a sequence of `n_gen` tokens takes.
    pub(super) fn n_ctx(n_gen: usize) -> usize {
        n_gen.saturating_add(Self::N_PROMPT)
    }

    /// Generates `n_gen` tokens, at least two, in each of `n_seqs` sequences; gives the tokens per second of all together,
    /// the sum over the streams, each from its first token to its last.
    ///
    /// # Errors
    /// A step that fails.
    pub(super) fn measure(&self, n_seqs: usize, n_gen: usize) -> Result<f64, Failure> {
        let n_vocab = self.engine.limits().n_vocab.max(1);
        let prompts: Vec<Vec<u32>> = (0..n_seqs)
            .map(|own| vec![(own % n_vocab) as u32; Self::N_PROMPT])
            .collect();
        let params = GenerateParams {
            max_tokens: Some(n_gen),
            uses_prefix_cache: false,
            ..GenerateParams::default()
        };
        let mut tokens_per_s = 0.0;
        for output in self.engine.batch_generate(&prompts, &params)? {
            let timings = output?.timings;
            let span = timings.total.saturating_sub(timings.first_token);
            tokens_per_s += (n_gen - 1) as f64 / span.as_secs_f64();
        }
        Ok(tokens_per_s)
    }

    /// Returns the engine's estimate of its throughput.
    ///
    /// # Errors
    /// Fails if nothing was measured.
    pub(super) fn throughput(&self, n_seqs: usize) -> Result<Throughput, Failure> {
        Ok(self.engine.throughput(n_seqs)?)
    }
}
