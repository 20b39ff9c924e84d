//! [`MixerDescriptor`]: the part of a layer that moves information between positions.
//!
//! Each kind has its own sizes, checks and memory. Invariant: a descriptor that passed
//! [`MixerDescriptor::validate`] can be built and run.

use tokenmill_backend::{AttentionShape, KvLayerShape, StateLayerShape, Temperature};

use crate::{
    LoadError, RopeDescriptor,
    error::{check, check_positive},
};

use super::{
    DeltaNetDescriptor, KimiDeltaDescriptor, LatentDescriptor, MAX_WIDTH, Presence, ShortConvDescriptor,
    SsmDescriptor, WIDTH,
};

/// The mixer of one layer.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerDescriptor {
    /// None: the layer is a feed-forward network alone.
    None,
    /// Attention over stored keys and values.
    Attention(AttentionDescriptor),
    /// Attention over latent rows.
    Latent(LatentDescriptor),
    /// A gated delta net.
    DeltaNet(DeltaNetDescriptor),
    /// A gated delta net with a decay per channel (KDA).
    KimiDelta(KimiDeltaDescriptor),
    /// A state space model.
    Ssm(SsmDescriptor),
    /// A gated short convolution.
    ShortConv(ShortConvDescriptor),
    /// Attention and a state space model that read the same rows; their outputs are added.
    Both {
        /// The attention.
        attention: AttentionDescriptor,
        /// The state space model.
        ssm: SsmDescriptor,
    },
}

impl MixerDescriptor {
    /// Returns whether the layer has no mixer.
    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Returns the attention, if the mixer has one.
    pub fn attention(&self) -> Option<&AttentionDescriptor> {
        match self {
            Self::Attention(attention) | Self::Both { attention, .. } => Some(attention),
            _ => None,
        }
    }

    /// Returns the latent attention, if the mixer is one.
    pub fn latent(&self) -> Option<&LatentDescriptor> {
        match self {
            Self::Latent(latent) => Some(latent),
            _ => None,
        }
    }

    /// Returns the widths of the attention, if the mixer attends.
    pub fn attention_shape(&self) -> Option<AttentionShape> {
        let attention = self.attention().map(AttentionDescriptor::shape);
        attention.or_else(|| self.latent().map(LatentDescriptor::shape))
    }

    /// Returns the layer's shape in the KV store, if it attends.
    pub fn kv_shape(&self) -> Option<KvLayerShape> {
        let attention = self.attention().map(AttentionDescriptor::kv_shape);
        attention.or_else(|| self.latent().map(LatentDescriptor::kv_shape))
    }

    /// Returns the earlier layer whose keys and values are read, if the mixer stores none of its own.
    pub fn shares_kv_of(&self) -> Option<usize> {
        self.attention().and_then(|attention| attention.shares_kv_of)
    }

    /// Returns the state space model, if the mixer has one.
    pub fn ssm(&self) -> Option<&SsmDescriptor> {
        match self {
            Self::Ssm(ssm) | Self::Both { ssm, .. } => Some(ssm),
            _ => None,
        }
    }

    /// Returns the shape of a sequence's state for the layer, if it is recurrent.
    pub fn state_shape(&self) -> Option<StateLayerShape> {
        match self {
            Self::None | Self::Attention(_) | Self::Latent(_) => None,
            Self::DeltaNet(net) => Some(net.state_shape()),
            Self::KimiDelta(net) => Some(net.state_shape()),
            Self::Ssm(ssm) | Self::Both { ssm, .. } => Some(ssm.state_shape()),
            Self::ShortConv(conv) => Some(conv.state_shape()),
        }
    }

    /// Returns the width of the rows that the mixer passes to its output projection; the wider one if there
    /// are two.
    pub fn output_width(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Attention(attention) => attention.output_width(),
            Self::Both { attention, ssm } => attention.output_width().max(ssm.inner_width()),
            Self::Latent(latent) => latent.n_heads * latent.head_dim_v,
            Self::DeltaNet(net) => net.v_width(),
            Self::KimiDelta(net) => net.width(),
            Self::Ssm(ssm) => ssm.inner_width(),
            Self::ShortConv(conv) => conv.n_channels,
        }
    }

    /// Returns the width of the widest row that a matrix reads, apart from the layer's input and rows of
    /// single heads.
    pub(super) fn widest_input(&self) -> usize {
        let q_rank = self.latent().and_then(|latent| latent.q_rank).unwrap_or(0);
        self.output_width().max(q_rank)
    }

    /// Checks that all sizes fit together.
    pub(super) fn validate(&self, ropes: &[RopeDescriptor]) -> Result<(), LoadError> {
        match self {
            Self::None => Ok(()),
            Self::Attention(attention) => attention.validate(ropes),
            Self::Latent(latent) => latent.validate(ropes),
            Self::DeltaNet(net) => net.validate(),
            Self::KimiDelta(net) => net.validate(),
            Self::Ssm(ssm) => ssm.validate(),
            Self::ShortConv(conv) => conv.validate(),
            Self::Both { attention, ssm } => {
                attention.validate(ropes)?;
                ssm.validate()
            }
        }
    }
}

/// Attention of one layer.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "switches that have nothing to do with each other"
)]
pub struct AttentionDescriptor {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads.
    pub n_kv_heads: usize,
    /// Width of a query and key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Index in [`Descriptor::ropes`](crate::Descriptor::ropes); `None` for a layer without positions.
    pub rope: Option<usize>,
    /// Whether a query sees nothing after its own position.
    pub is_causal: bool,
    /// Number of positions that a query sees on each side, its own included; `None` sees all.
    pub window: Option<usize>,
    /// Whether windows are fixed chunks instead of ending at each query.
    pub is_chunked: bool,
    /// Caps the scores.
    pub softcap: Option<f32>,
    /// Whether each head has an attention sink.
    pub has_sinks: bool,
    /// The `max_bias` of ALiBi, which determines each head's slope: distant positions weigh less.
    ///
    /// Source: "Train Short, Test Long", Press et al. 2021.
    pub alibi: Option<f32>,
    /// How queries are scaled with their position.
    pub temperature: Option<Temperature>,
    /// Norm of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Whether that norm follows rope instead of preceding it.
    pub is_normed_after_rope: bool,
    /// Whether values are the output of the key projection, before its norm and rope.
    pub takes_keys_as_values: bool,
    /// Whether each head of the values is normed, without a weight.
    pub has_v_norm: bool,
    /// An earlier layer whose keys and values are read; `None` for a layer that stores its own.
    pub shares_kv_of: Option<usize>,
    /// The gate of each head's output, applied as `sigmoid(gate) * output`.
    pub output_gate: Option<OutputGate>,
    /// Biases of q, k and v.
    pub qkv_bias: Presence,
    /// Bias of the output projection.
    pub output_bias: Presence,
}

impl AttentionDescriptor {
    /// Returns the width of a token's queries, all heads.
    pub fn q_width(&self) -> usize {
        self.n_heads * self.head_dim_k
    }

    /// Returns the width of a token's keys, all heads.
    pub fn k_width(&self) -> usize {
        self.n_kv_heads * self.head_dim_k
    }

    /// Returns the width of a token's values, all heads.
    pub fn v_width(&self) -> usize {
        self.n_kv_heads * self.head_dim_v
    }

    /// Returns the width of a token's attention output, all heads.
    pub fn output_width(&self) -> usize {
        self.n_heads * self.head_dim_v
    }

    /// Returns the slope of each head under ALiBi.
    pub fn alibi_slopes(&self) -> Option<Vec<f32>> {
        let max_bias = self.alibi?;
        // If the number of heads is not a power of two, heads beyond the next lower power get slopes between the
        // others.
        let n_whole = 1 << self.n_heads.ilog2();
        let slope = |step: usize, n: usize| (-max_bias * step as f32 / n as f32).exp2();
        let slopes = (0..self.n_heads).map(|head| match head.checked_sub(n_whole) {
            None => slope(head + 1, n_whole),
            Some(beyond) => slope(2 * beyond + 1, 2 * n_whole),
        });
        Some(slopes.collect())
    }

    /// Returns the attention that a backend prepares for.
    pub fn shape(&self) -> AttentionShape {
        AttentionShape {
            n_heads: self.n_heads,
            n_kv_heads: self.n_kv_heads,
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
        }
    }

    /// Returns the layer's contents of the KV store.
    pub fn kv_shape(&self) -> KvLayerShape {
        KvLayerShape {
            n_kv_heads: self.n_kv_heads,
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
            has_values_in_keys: false,
        }
    }

    fn validate(&self, ropes: &[RopeDescriptor]) -> Result<(), LoadError> {
        check(
            "head count",
            self.n_heads,
            (1..=MAX_WIDTH).contains(&self.n_heads),
            "at least 1",
        )?;
        check(
            "KV head count",
            self.n_kv_heads,
            self.n_kv_heads > 0 && self.n_heads.is_multiple_of(self.n_kv_heads),
            "a divisor of the head count",
        )?;
        for (what, head_dim) in [
            ("head width", self.head_dim_k),
            ("value head width", self.head_dim_v),
        ] {
            check(
                what,
                head_dim,
                (1..=MAX_WIDTH / self.n_heads).contains(&head_dim),
                WIDTH,
            )?;
        }
        check(
            "value head width of gated attention",
            self.head_dim_v,
            self.output_gate != Some(OutputGate::InQuery) || self.head_dim_v == self.head_dim_k,
            "the width of a key head",
        )?;
        check(
            "value head width",
            self.head_dim_v,
            !self.takes_keys_as_values || self.head_dim_v == self.head_dim_k,
            "the width of a key head, since values are keys",
        )?;
        check_positive("attention scale", self.scale)?;
        check_positive("attention softcap", self.softcap.unwrap_or(1.0))?;
        check(
            "sliding window",
            self.window.unwrap_or(1),
            self.window != Some(0),
            "at least 1",
        )?;
        check(
            "attention in chunks",
            "one without a window, or in both directions",
            !self.is_chunked || self.is_causal && self.window.is_some(),
            "a causal one, whose window is the length of a chunk",
        )?;
        check_positive("largest ALiBi bias", self.alibi.unwrap_or(1.0))?;
        if let Some(temperature) = self.temperature {
            check(
                "attention temperature",
                temperature.scale,
                temperature.scale >= 0.0 && temperature.scale.is_finite(),
                "a number, not negative",
            )?;
            let interval = temperature.interval;
            let is_right = (1..=u32::MAX as usize / 2).contains(&interval);
            check(
                "interval of the attention temperature",
                interval,
                is_right,
                "at least 1",
            )?;
        }
        let Some(rope) = self.rope.map(|rope_idx| &ropes[rope_idx]) else {
            return Ok(());
        };
        check(
            "rope dimension count",
            rope.n_dims,
            rope.n_dims <= self.head_dim_k,
            "at most the width of a head",
        )?;
        check(
            "head width",
            self.head_dim_k,
            rope.head_dim == self.head_dim_k,
            "the width that the layer's rope was made for",
        )
    }
}

/// The source of the gate on attention's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    /// A second half of the query projection, head by head.
    InQuery,
    /// Its own projection.
    Apart,
}

/// The extent of a norm of queries and keys. It is an RMS norm unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Each head separately, without a weight.
    PlainHead,
    /// Each head separately; one weight vector, shared by all heads.
    Head,
    /// Each head separately, with its own weights, by the network's kind of norm, without a bias.
    EachHead,
    /// All heads of a token together.
    Row,
    /// All heads of a token together, by the network's kind of norm.
    RowAsLayers,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alibi_slopes_are_those_of_the_paper() {
        let mut attention = AttentionDescriptor {
            alibi: Some(8.0),
            ..AttentionDescriptor::plain(8, 1, [8, 8])
        };
        let eight: Vec<f32> = (1..=8).map(|step| 0.5_f32.powi(step)).collect();
        assert_eq!(attention.alibi_slopes().unwrap(), eight);
        attention.n_heads = 6;
        let six: Vec<f32> = [2.0, 4.0, 6.0, 8.0, 1.0, 3.0]
            .map(|step: f32| (-step).exp2())
            .to_vec();
        assert_eq!(attention.alibi_slopes().unwrap(), six);
    }
}
