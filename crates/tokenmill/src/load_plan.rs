//! [`LoadPlan`] reports how much device memory a model will need, before it is loaded.
//!
//! `split_plan` decides the place of each part. Invariant: it is reported when only the weights remain to be
//! read.

use tokenmill_backend::{MemoryPlan, PAGE_TOKENS};
use tokenmill_model::{Model, ModelOptions};

/// Describes the memory of a load.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoadPlan<'a> {
    /// Memory of the device, or of the GPU that needs most.
    pub memory: &'a MemoryPlan,
    /// Tokens of a sequence.
    pub n_ctx: usize,
    /// Whole contexts that the keys and values of all sequences have room for.
    pub n_contexts: usize,
    /// Whether it is GPU memory.
    pub is_on_gpu: bool,
}

impl<'a> LoadPlan<'a> {
    pub(crate) fn new(
        model: &Model,
        options: &ModelOptions,
        memory: &'a MemoryPlan,
        is_on_gpu: bool,
    ) -> Self {
        let descriptor = model.descriptor();
        let asked = options.n_ctx.unwrap_or(descriptor.n_ctx_train);
        let n_ctx = match descriptor.n_learned_positions {
            Some(n_positions) => asked.min(n_positions),
            None => asked,
        };
        let n_kv_tokens = options.n_pages.map_or(n_ctx, |n_pages| n_pages * PAGE_TOKENS);
        Self {
            memory,
            n_ctx,
            n_contexts: n_kv_tokens / n_ctx.max(1),
            is_on_gpu,
        }
    }
}
