//! [`LoadPlan`]: what a model will take of a device's memory, before it is loaded there as a whole.
//!
//! Separate from `split_plan`, which says what goes where. Invariant: it is shown once nothing but reading weights is left to do.

use std::fmt;

use tokenmill_backend::MemoryPlan;
use tokenmill_model::{Model, ModelOptions};

/// Is shown the plan of a load on one device, or on each of several.
#[derive(Clone, Copy)]
pub struct PlanObserver(pub fn(&LoadPlan<'_>));

impl fmt::Debug for PlanObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PlanObserver").finish()
    }
}

impl PartialEq for PlanObserver {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::fn_addr_eq(self.0, other.0)
    }
}

impl Eq for PlanObserver {}

/// What a model will take.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct LoadPlan<'a> {
    /// The memory, of several GPUs that of the one that takes most.
    pub memory: &'a MemoryPlan,
    /// Tokens of a sequence.
    pub n_ctx: usize,
    /// Whether it is memory of a GPU.
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
        Self {
            memory,
            n_ctx,
            is_on_gpu,
        }
    }
}
