//! [`ServePlan`] computes the memory that `serve` would need for a model, for commands that only report it.
//!
//! `inspect` and `doctor` both print it. Invariant: it matches `serve` with the same options.

use serde_json::{Value, json};
use tokenmill::{
    KvCache,
    load::MemoryPlan,
    machine::{MemoryLimit, check_memory, fits_with_less_context, memory_limit},
};
use tokenmill_model::Model as Network;

use crate::{
    failure::Failure,
    load::LoadArgs,
    memory_words::beyond_text,
    numbers::{counted, size},
};

/// Holds the memory that `serve` would need.
pub(crate) struct ServePlan {
    n_contexts: usize,
    n_ctx: usize,
    n_seqs: usize,
    /// Memory on the CPU.
    memory: Result<MemoryPlan, String>,
    /// The limit that this memory exceeds.
    exceeded: Option<MemoryLimit>,
}

impl ServePlan {
    /// Plans the memory for a network.
    ///
    /// # Errors
    /// Fails on options that cannot be satisfied.
    pub(crate) fn of(network: &Network, load: &LoadArgs) -> Result<Self, Failure> {
        let options = load.serve_options()?.fitted(network)?;
        let n_ctx = options.network_options(network.descriptor())?.n_ctx;
        let memory = options.plan(network).map_err(|error| error.to_string());
        let limit = memory_limit();
        let is_too_large = memory
            .as_ref()
            .is_ok_and(|plan| check_memory(plan, limit).is_err());
        Ok(Self {
            n_contexts: match options.kv_cache {
                KvCache::Contexts(n) | KvCache::Fitting(n) => n,
                KvCache::Tokens(_) => 1,
            },
            n_ctx: n_ctx.unwrap_or(network.descriptor().n_ctx_train),
            n_seqs: options.n_seqs,
            memory,
            exceeded: limit.filter(|_| is_too_large),
        })
    }

    /// Whether `serve` would refuse to load it, as this machine cannot have the memory.
    pub(crate) fn is_too_large(&self) -> bool {
        self.exceeded.is_some()
    }

    /// Returns what to do about a plan that is too large.
    pub(crate) fn what_helps(&self) -> &'static str {
        let limit_bytes = self.exceeded.map_or(0, MemoryLimit::n_bytes);
        match &self.memory {
            Ok(plan) if fits_with_less_context(plan, limit_bytes) => {
                "a smaller context, `-c N`, takes less, and so do `-ctk q8_0 -ctv q8_0`"
            }
            _ => "no context is small enough; take a model of fewer or smaller weights",
        }
    }

    /// Describes the plan in words, or the reason why `serve` would fail.
    pub(crate) fn text(&self) -> Result<String, String> {
        let memory = self.memory.as_ref().map_err(Clone::clone)?;
        let beyond = (self.exceeded).map_or_else(String::new, |limit| format!(", {},", beyond_text(limit)));
        Ok(format!(
            "{} in all{beyond} for {} of {} tokens and {} sequences; `--kv-cache-tokens` and `--max-num-seqs` change this",
            size(memory.total_bytes()),
            counted(self.n_contexts, "context"),
            self.n_ctx,
            self.n_seqs
        ))
    }

    /// Returns the plan as JSON.
    pub(crate) fn json(&self) -> Value {
        match &self.memory {
            Ok(memory) => {
                let mut plan = json!({ "contexts": self.n_contexts, "total_bytes": memory.total_bytes() });
                if let Some(limit) = self.exceeded {
                    plan["problem"] = beyond_text(limit).trim_start_matches("which ").into();
                }
                plan
            }
            Err(problem) => json!({ "problem": problem }),
        }
    }
}
