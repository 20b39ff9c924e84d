//! [`DraftFacts`]: the facts that a loaded model reports about its draft model or MTP layer; and the size of
//! its KV cache.
//!
//! Draft models and MTP layers share both.

use tokenmill_backend::{Executor, MemoryPlan, PAGE_TOKENS};
use tokenmill_model::ModelOptions;

/// Tokens that the drafting model computes at once: it has a few of each sequence to compute, and prompts in parts.
const MAX_STEP_TOKENS: usize = 128;

/// The facts that a loaded model reports about its draft model or MTP layer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DraftFacts {
    /// The name of its file or folder.
    pub name: String,
    /// The memory that it takes.
    pub memory: MemoryPlan,
    /// Length of its context in tokens; beyond it there are no drafts.
    pub n_ctx: usize,
    /// Whether it is a layer of the model itself.
    pub is_own_layer: bool,
}

/// A loaded draft model or MTP layer.
pub struct LoadedGuesser {
    /// Computes the drafts.
    pub(crate) executor: Box<dyn Executor + Send>,
    /// The facts that are reported about it.
    pub(crate) facts: DraftFacts,
}

/// Returns the options of a draft next to a model with `options`: for as many sequences, and at most
/// `n_ctx_train` tokens.
pub(crate) fn options_next_to(n_ctx_train: usize, options: &ModelOptions) -> ModelOptions {
    let n_ctx = options.n_ctx.unwrap_or(n_ctx_train).min(n_ctx_train);
    let n_full = n_ctx.div_ceil(PAGE_TOKENS);
    let n_pages = options.n_pages.unwrap_or(n_full);
    ModelOptions {
        n_ctx: Some(n_ctx),
        max_batch_tokens: MAX_STEP_TOKENS.max(options.max_batch_seqs),
        max_logit_rows: options.max_batch_seqs,
        n_pages: Some(
            n_pages
                .min(n_full.saturating_mul(options.max_batch_seqs))
                .max(n_full),
        ),
        n_host_pages: 0,
        adapter_bytes: 0,
        ..options.clone()
    }
}
