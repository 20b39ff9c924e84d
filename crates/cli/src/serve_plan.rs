//! [`ServePlan`] computes the memory that `serve` would need for a model, for commands that only report it.
//!
//! Separate because `inspect` and `doctor` both print it. Invariant: it matches what `serve` does with the same options.

use serde_json::{Value, json};
use tokenmill::{KvCache, load::MemoryPlan};
use tokenmill_model::Model as Network;

use crate::{
    failure::Failure,
    load::{LoadArgs, SERVE_SEQS},
    numbers::{counted, size},
};

/// Holds the memory that `serve` would need.
pub(crate) struct ServePlan {
    n_contexts: usize,
    n_ctx: usize,
    /// Memory on the CPU.
    memory: Result<MemoryPlan, String>,
}

impl ServePlan {
    /// Plans the memory for a network.
    ///
    /// # Errors
    /// Fails on options that cannot be satisfied.
    pub(crate) fn of(network: &Network, load: &LoadArgs) -> Result<Self, Failure> {
        let options = load.serve_options()?.fitted(network)?;
        let n_ctx = options.network_options(network.descriptor())?.n_ctx;
        Ok(Self {
            n_contexts: match options.kv_cache {
                KvCache::Contexts(n) | KvCache::Fitting(n) => n,
                KvCache::Tokens(_) => 1,
            },
            n_ctx: n_ctx.unwrap_or(network.descriptor().n_ctx_train),
            memory: options.plan(network).map_err(|error| error.to_string()),
        })
    }

    /// Describes the plan in words, or the reason why `serve` would fail.
    pub(crate) fn text(&self) -> Result<String, String> {
        let memory = self.memory.as_ref().map_err(Clone::clone)?;
        Ok(format!(
            "{} in all for {} of {} tokens and {SERVE_SEQS} sequences; `--kv-cache-tokens` and `--max-num-seqs` change this",
            size(memory.total_bytes()),
            counted(self.n_contexts, "context"),
            self.n_ctx
        ))
    }

    /// Returns the plan as JSON.
    pub(crate) fn json(&self) -> Value {
        match &self.memory {
            Ok(memory) => json!({ "contexts": self.n_contexts, "total_bytes": memory.total_bytes() }),
            Err(problem) => json!({ "problem": problem }),
        }
    }
}
