//! Arguments of a [`Backend`](crate::Backend)'s operations other than buffers: matrices, norms, ropes,
//! attention, activations.
//!
//! A network is made of these. They are generic over the device's matrices `M` and vectors `V`. Invariant:
//! they hold weights and numbers of the network, and nothing of a step.

use crate::Memory;

/// The rows that [`Backend::gather`](crate::Backend::gather) picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSet {
    /// From `T` token rows, the `O` rows that yield an output: the union of logit and hidden rows, ascending.
    Outputs,
    /// From `O` output rows, the `L` logit rows.
    LogitsOfOutputs,
}

/// A matrix with its optional bias, or the concatenated matrices of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear<M, V> {
    /// `[n_out, n_in]`, for experts `[n_experts * n_out, n_in]`.
    pub matrix: M,
    /// `[n_out]`, for experts `[n_experts * n_out]`.
    pub bias: Option<V>,
    /// Width of the output.
    pub n_out: usize,
    /// Width of the input.
    pub n_in: usize,
    /// Its index among the weights that adapters can change; `None` if adapters cannot change it.
    pub adapter_place: Option<u32>,
}

/// One product of [`Backend::linear_group`](crate::Backend::linear_group).
pub struct LinearJob<'a, B: Memory> {
    /// The matrix.
    pub linear: &'a Linear<B::Matrix, B::Vector>,
    /// `[n_rows, n_out]`.
    pub output: &'a mut B::Buffer,
}

/// How a norm measures a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// `(x - mean) / sqrt(variance + eps)`.
    Layer,
}

/// A norm with its weights: `weight * normalized + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm<V> {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Number of values normalized together.
    pub width: usize,
    /// `[width]`, or as described at [`Backend::norm_in_place`](crate::Backend::norm_in_place); absent means
    /// 1.
    pub weight: Option<V>,
    /// `[width]`; absent means 0.
    pub bias: Option<V>,
    /// Epsilon, added under the square root.
    pub eps: f32,
}

/// The values of a head that form a rotated pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Adjacent values: `(x[2i], x[2i + 1])`.
    Norm,
    /// Values half a head apart: `(x[i], x[i + n_dims / 2])`.
    Neox,
}

/// The position (time, row or column) that rotates a pair of a head. The three differ only for the inputs of
/// an image, see [`ForwardBatch::rope_positions`](crate::ForwardBatch::rope_positions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopeAxes {
    /// The position in the sequence rotates all pairs.
    #[default]
    One,
    /// Consecutive sections: these numbers of pairs rotate by time, then by row, then by column.
    Sections([usize; 3]),
    /// Alternating axes: row and column alternate until each has its number of pairs; time rotates the
    /// others.
    Interleaved([usize; 3]),
}

impl RopeAxes {
    /// Returns the axis that rotates a pair: 0 for time, 1 for row, 2 for column; `None` for the position in
    /// the sequence.
    pub fn of_pair(self, pair: usize) -> Option<usize> {
        match self {
            Self::One => None,
            Self::Sections([time, row, _]) => {
                Some(usize::from(pair >= time) + usize::from(pair >= time + row))
            }
            Self::Interleaved(n_pairs) => {
                let axis = pair % 3;
                Some(if pair / 3 < n_pairs[axis] { axis } else { 0 })
            }
        }
    }
}

/// A rotary embedding. Every scaling (linear, llama3, YaRN) is folded into the frequencies and the magnitude at load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rope<V> {
    /// The values that form a pair.
    pub style: RopeStyle,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of rotated values per head, even; the rest is unchanged.
    pub n_dims: usize,
    /// Radians per position, `[n_dims / 2]`.
    pub inv_freqs: V,
    /// Factor of the rotated values.
    pub magnitude: f32,
    /// The position that rotates each pair.
    pub axes: RopeAxes,
}

/// The growth of a token's queries with its position `p`: by
/// `1 + scale * ln(1 + floor((p + offset) / interval))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub scale: f32,
    /// Number of positions with the same factor.
    pub interval: usize,
    /// Offset of the position.
    pub offset: usize,
}

impl Temperature {
    /// Returns the factor at a position.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.scale * (1.0 + ((position + self.offset) / self.interval) as f32).ln()
    }
}

/// Attention of one layer.
///
/// For query position `p`, head `h` and its KV head `g = h / (n_heads / n_kv_heads)`, over positions `j` from
/// `max(0, p + 1 - window)`, with chunks from `p - p % window`, to `p`:
/// `s[j] = scale * dot(q[h], k[j][g]) - slopes[h] * |p - j|`, capped to `softcap * tanh(s / softcap)`; weights are
/// `exp(s[j] - m) / (sum_j exp(s[j] - m) + exp(sinks[h] - m))`; the output is the weighted sum of `v[j][g]`. If the step sets
/// [`ForwardBatch::last_seen`](crate::ForwardBatch::last_seen), causal attention ends at that position
/// instead of `p`; [`ForwardBatch::window_seen`](crate::ForwardBatch::window_seen) replaces the window.
/// Non-causal attention also sees positions after `p`: up to `p + window - 1`, or the last of the sequence.
///
/// The KV store knows the number of KV heads, which divides `n_heads`, and the widths of heads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention<V> {
    /// Index of the layer in the KV store.
    pub layer_idx: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Whether a query sees nothing after its own position. Otherwise all of its sequence is in the step.
    pub is_causal: bool,
    /// Number of positions that a query sees on each side, its own included; `None` sees all.
    pub window: Option<usize>,
    /// Whether windows are fixed chunks, with a query seeing its chunk from the start, instead of ending at
    /// each query. Only causal attention has chunks.
    pub is_chunked: bool,
    /// Cap of the scores.
    pub softcap: Option<f32>,
    /// A score per head that takes weight and contributes no value, `[n_heads]`.
    pub sinks: Option<V>,
    /// The slopes of ALiBi: how much the score falls per position of distance, `[n_heads]`.
    pub slopes: Option<V>,
}

impl<V> Rope<V> {
    /// Returns the same rope with its frequencies mapped by `view`.
    pub fn map<'a, W>(&'a self, view: impl Fn(&'a V) -> W) -> Rope<W> {
        Rope {
            style: self.style,
            head_dim: self.head_dim,
            n_dims: self.n_dims,
            inv_freqs: view(&self.inv_freqs),
            magnitude: self.magnitude,
            axes: self.axes,
        }
    }
}

impl<V> Attention<V> {
    /// Returns the same attention with its vectors mapped by `view`.
    pub fn map<'a, W>(&'a self, view: impl Fn(&'a V) -> W) -> Attention<W> {
        Attention {
            layer_idx: self.layer_idx,
            n_heads: self.n_heads,
            scale: self.scale,
            is_causal: self.is_causal,
            window: self.window,
            is_chunked: self.is_chunked,
            softcap: self.softcap,
            sinks: self.sinks.as_ref().map(&view),
            slopes: self.slopes.as_ref().map(&view),
        }
    }
}

/// The arguments of [`Backend::rope_store_kv`](crate::Backend::rope_store_kv).
pub struct RopeStoreKv<'a, B: Memory> {
    /// Index of the layer in the KV store.
    pub layer_idx: usize,
    /// Norm of the query heads.
    pub q_norm: Option<&'a Norm<B::Vector>>,
    /// Norm of the key heads.
    pub k_norm: Option<&'a Norm<B::Vector>>,
    /// Rotation of both.
    pub rope: Option<&'a Rope<B::Vector>>,
    /// Width of a query row, all heads.
    pub q_width: usize,
    /// Width of a key row, all heads.
    pub k_width: usize,
    /// Queries, changed in place.
    pub q: &'a mut B::Buffer,
    /// Keys, changed in place and stored.
    pub k: &'a mut B::Buffer,
    /// Values, stored.
    pub v: &'a B::Buffer,
}

/// The arguments of [`Backend::linear_add_norm`](crate::Backend::linear_add_norm): the product that ends half
/// a layer, and the norm at the start of the next half.
pub struct LinearAddNorm<'a, B: Memory> {
    /// The product.
    pub linear: &'a Linear<B::Matrix, B::Vector>,
    /// Its input, `[n_rows, n_in]`.
    pub input: &'a B::Buffer,
    /// Factor of the product.
    pub scale: f32,
    /// Scratch, `[n_rows, n_out]`.
    pub delta: &'a mut B::Buffer,
    /// The stream, to which the product is added.
    pub hidden: &'a mut B::Buffer,
    /// The norm of the stream.
    pub norm: &'a Norm<B::Vector>,
    /// The normed stream.
    pub normed: &'a mut B::Buffer,
}

/// The activation of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x * (1 + erf(x / sqrt(2))) / 2`.
    GeluErf,
    /// `x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `1 / (1 + exp(-x))`: with an `up`, a gate.
    Sigmoid,
    /// `x`: with an `up`, a product.
    Identity,
    /// `x / (1 + exp(-1.702 x))`. Only image encoders use it, so devices without non-token inputs need not
    /// support it.
    GeluQuick,
    /// SwiGLU with the limits of gpt-oss: `min(x, 7)` times the sigmoid of 1.702 times itself; the other
    /// factor of a gated pair is `clamp(up, -7, 7) + 1` instead of `up`. Without a pair it is the first
    /// factor alone.
    ClippedSwiglu,
}

impl Activation {
    /// Factor inside the sigmoid of [`Activation::ClippedSwiglu`].
    pub const CLIPPED_ALPHA: f32 = 1.702;
    /// Limit of [`Activation::ClippedSwiglu`].
    pub const CLIPPED_LIMIT: f32 = 7.0;
}
