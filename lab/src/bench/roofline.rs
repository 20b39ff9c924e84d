//! [`ModelCost`]: the bytes that a token must move and the products it must compute, and the resulting bound on the speed.
//!
//! A step must read the weights once, and the keys and values of the context. It must multiply every weight with every token,
//! queries with keys, and attention weights with values. The other instructions of a product leave fewer slots for
//! multiplications, which is a separate bound. Nothing else counts here: a bound that ignores work is still a bound.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokenmill_cpu_exec::product_instructions;
use tokenmill_gguf::{GgufFile, TensorInfo, TensorType};

use super::{
    cell::{Kv, Work},
    limits::Limits,
};

/// Tokens that one step of a prompt computes, the default of both sides.
const STEP_TOKENS: usize = 512;

/// Holds the sizes of a model that decide the cost of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ModelCost {
    /// Bytes of the matrices that every step reads, including the head.
    weight_bytes: f64,
    /// Bytes of the matrices of experts.
    expert_bytes: f64,
    /// The share of the experts that a token uses; 1 without experts.
    expert_share: f64,
    /// Weights of the layers that a token is multiplied with.
    layer_weights: f64,
    /// The same, each divided by its format's share of multiplications; `None` if the share is unknown.
    layer_slots: Option<f64>,
    /// Weights of the head.
    head_weights: f64,
    /// Values of a query in all layers.
    query_len: f64,
    /// Values of a key in all layers.
    key_len: f64,
    /// Tokens that layers with a sliding window see. If both kinds exist, layers without a window count as seeing no more.
    window: f64,
}

/// The minimal cost of a token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Cost {
    pub(super) bytes: f64,
    pub(super) multiplies: f64,
    /// Multiplications, and those that could have been done in place of the other instructions, if rows share the weights.
    pub(super) slots: Option<f64>,
}

/// The bounds on the speed, in tokens per second, each by its reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bound {
    pub(super) memory: f64,
    pub(super) arithmetic: f64,
    pub(super) instruction_mix: Option<f64>,
}

/// Number of 8-bit multiplications in the time of one in f32.
const FLOAT_SLOTS: f64 = 4.0;

/// Returns the share of multiplications among the instructions that two vector ports issue, in the product of many rows by a type.
fn multiplying_share(ty: TensorType) -> Option<f64> {
    Some(64.0 / f64::from(product_instructions(ty)?))
}

impl ModelCost {
    /// Reads the sizes from a file's header.
    ///
    /// # Errors
    /// Metadata that a decoder has is missing.
    pub(super) fn of(file: &GgufFile) -> anyhow::Result<Self> {
        let metadata = file.metadata();
        let arch = metadata.str("general.architecture")?;
        let size = |key: &str| -> anyhow::Result<f64> { Ok(metadata.u32(&format!("{arch}.{key}"))?.into()) };
        let n_heads = size("attention.head_count")?;
        let opt_size = |key: &str| -> anyhow::Result<Option<f64>> {
            Ok(metadata.opt_u32(&format!("{arch}.{key}"))?.map(f64::from))
        };
        let expert_share = match (opt_size("expert_used_count")?, opt_size("expert_count")?) {
            (Some(n_used), Some(n_experts)) => n_used / n_experts,
            _ => 1.0,
        };
        let n_kv_heads = size("attention.head_count_kv")?;
        let head_dim = match metadata.opt_u32(&format!("{arch}.attention.key_length"))? {
            Some(head_dim) => head_dim.into(),
            None => size("embedding_length")? / n_heads,
        };
        let head = file
            .tensor("output.weight")
            .or_else(|| file.tensor("token_embd.weight"))
            .context("the model has no head")?
            .info;
        let layers = || {
            file.tensors()
                .filter(|tensor| tensor.name.starts_with("blk.") && tensor.dims.len() >= 2)
        };
        let is_of_experts = |tensor: &TensorInfo| tensor.name.ends_with("_exps.weight");
        let bytes_of = |of_experts| -> usize {
            (layers().filter(|tensor| is_of_experts(tensor) == of_experts))
                .map(|tensor| tensor.n_bytes)
                .sum()
        };
        let multiplied = |tensor: &TensorInfo| {
            let share = if is_of_experts(tensor) { expert_share } else { 1.0 };
            tensor.n_elements() as f64 * share
        };
        // Recurrent layers have no keys.
        let n_layers = layers()
            .filter(|tensor| tensor.name.ends_with(".attn_k.weight"))
            .count() as f64;
        Ok(Self {
            weight_bytes: (bytes_of(false) + head.n_bytes) as f64,
            expert_bytes: bytes_of(true) as f64,
            expert_share,
            window: opt_size("attention.sliding_window")?.unwrap_or(f64::INFINITY),
            layer_weights: layers().map(multiplied).sum(),
            layer_slots: layers()
                .map(|tensor| Some(multiplied(tensor) / multiplying_share(tensor.ty)?))
                .sum(),
            head_weights: head.n_elements() as f64,
            query_len: n_layers * n_heads * head_dim,
            key_len: n_layers * n_kv_heads * head_dim,
        })
    }

    /// Returns the cost of an average token of some work; `None` if the figure is not a speed.
    pub(super) fn of_token(&self, work: Work, kv: Kv) -> Option<Cost> {
        // Tokens that share a reading of the weights, tokens that share a row of logits, and tokens of context.
        let (n_sharing, n_per_logits, n_context) = match work {
            Work::Prefill { n_tokens } => {
                let n_sharing = n_tokens.min(STEP_TOKENS);
                (n_sharing, n_sharing, n_tokens as f64 / 2.0)
            }
            Work::Decode { n_tokens, n_depth } => (1, 1, n_depth as f64 + n_tokens as f64 / 2.0),
            Work::Batch { n_seqs, n_tokens } => (n_seqs, 1, n_tokens as f64 / 2.0),
            Work::Load => return None,
        };
        let n_context = self.window.min(n_context);
        // If tokens choose their experts by chance: the share that some token of a step uses.
        let expert_bytes = self.expert_bytes * (1.0 - (1.0 - self.expert_share).powi(n_sharing as i32));
        // Keys and values of a step's own tokens never leave the cache, so those of a prompt do not count.
        let kv_bytes = match work {
            Work::Prefill { .. } => 0.0,
            _ => 2.0 * self.key_len * n_context * kv.value_bits() / 8.0,
        };
        let head = self.head_weights / n_per_logits as f64;
        let attention = 2.0 * self.query_len * n_context;
        let slots = (self.layer_slots.filter(|_| n_sharing > 1))
            .map(|layers| layers + head + FLOAT_SLOTS * attention);
        Some(Cost {
            bytes: (self.weight_bytes + expert_bytes) / n_sharing as f64 + kv_bytes,
            multiplies: self.layer_weights + head + attention,
            slots,
        })
    }
}

impl Cost {
    /// Returns the bound on the tokens per second under `limits`.
    pub(super) fn bound(self, limits: Limits) -> Bound {
        Bound {
            memory: limits.read_bytes_s / self.bytes,
            arithmetic: limits.multiplies_s / self.multiplies,
            instruction_mix: self.slots.map(|slots| limits.multiplies_s / slots),
        }
    }
}

/// A resource of the machine that limits the speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Memory,
    Arithmetic,
}

impl Bound {
    /// Returns the lower of the two.
    pub(super) fn tokens_s(self) -> f64 {
        self.memory.min(self.arithmetic)
    }

    /// Returns the limit that it comes from.
    pub(super) fn limit(self) -> Limit {
        if self.memory < self.arithmetic {
            Limit::Memory
        } else {
            Limit::Arithmetic
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelCost = ModelCost {
        weight_bytes: 1000.0,
        expert_bytes: 0.0,
        expert_share: 1.0,
        window: f64::INFINITY,
        layer_weights: 1600.0,
        layer_slots: Some(2000.0),
        head_weights: 400.0,
        query_len: 8.0,
        key_len: 4.0,
    };

    #[test]
    fn a_decoded_token_reads_all_weights_and_its_context() {
        let work = Work::decode(20, 90);
        let cost = MODEL.of_token(work, Kv::F16).unwrap();
        assert_eq!(
            cost,
            Cost {
                bytes: 1000.0 + 2.0 * 4.0 * 100.0 * 2.0,
                multiplies: 2000.0 + 1600.0,
                slots: None
            }
        );
        let narrow = MODEL.of_token(work, Kv::Q8_0).unwrap();
        assert_eq!(narrow.bytes, 1000.0 + 850.0);
    }

    #[test]
    fn tokens_of_a_step_share_the_weights() {
        let prefill = MODEL.of_token(Work::prefill(100), Kv::F16).unwrap();
        assert_eq!(
            prefill,
            Cost {
                bytes: 10.0,
                multiplies: 1600.0 + 4.0 + 800.0,
                slots: Some(2000.0 + 4.0 + 3200.0)
            }
        );
        let batch = Work::batch(4, 2);
        assert_eq!(MODEL.of_token(batch, Kv::F16).unwrap().bytes, 250.0 + 16.0);
        assert_eq!(MODEL.of_token(Work::Load, Kv::F16), None);
    }

    #[test]
    fn unused_experts_and_what_is_beyond_the_window_are_not_read() {
        let model = ModelCost {
            expert_bytes: 800.0,
            expert_share: 0.25,
            window: 10.0,
            ..MODEL
        };
        let work = Work::decode(20, 90);
        let cost = model.of_token(work, Kv::F16).unwrap();
        assert_eq!(cost.bytes, 1000.0 + 200.0 + 2.0 * 4.0 * 10.0 * 2.0);
        let batch = Work::batch(2, 0);
        // Two tokens use a quarter of the experts each, and a quarter of those together.
        assert_eq!(model.of_token(batch, Kv::F16).unwrap().bytes, 675.0);
    }

    #[test]
    fn the_lower_limit_binds() {
        let limits = Limits {
            read_bytes_s: 100.0,
            multiplies_s: 1000.0,
        };
        let bound = Cost {
            bytes: 10.0,
            multiplies: 10.0,
            slots: Some(20.0),
        }
        .bound(limits);
        assert_eq!((bound.tokens_s(), bound.limit()), (10.0, Limit::Memory));
        assert_eq!(bound.instruction_mix, Some(50.0));
    }
}
