//! Arguments of a [`Backend`](crate::Backend)'s operations other than buffers: matrices, norms, ropes, attention, activations.
//!
//! Separate from the trait because a network is made of these. They are generic over the device's matrices `M` and vectors
//! `V`. Invariant: they hold weights and numbers of the network, nothing of a step.

use crate::Memory;

/// Which rows [`Backend::gather`](crate::Backend::gather) picks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSet {
    /// Of `T` token rows the `O` that yield an output: the union of logit and hidden rows, ascending.
    Outputs,
    /// Of `O` output rows the `L` that are logit rows.
    LogitsOfOutputs,
}

/// A matrix with its optional bias, or those of experts, one after the other.
pub struct Linear<M, V> {
    /// `[n_out, n_in]`, of experts `[n_experts * n_out, n_in]`.
    pub matrix: M,
    /// `[n_out]`, of experts `[n_experts * n_out]`.
    pub bias: Option<V>,
    /// Width of the output.
    pub n_out: usize,
    /// Width of the input.
    pub n_in: usize,
    /// Its place among the weights that adapters change; `None` for those that none can change.
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
#[derive(Clone, Copy, Debug)]
pub struct Norm<V> {
    /// RMS or layer norm.
    pub kind: NormKind,
    /// Values normalized together.
    pub width: usize,
    /// `[width]`, or as [`Backend::norm_in_place`](crate::Backend::norm_in_place) says; absent means 1.
    pub weight: Option<V>,
    /// `[width]`; absent means 0.
    pub bias: Option<V>,
    /// Added under the square root.
    pub eps: f32,
}

/// Which values of a head form the pairs that rope rotates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours: `(x[2i], x[2i + 1])`.
    Norm,
    /// Halves: `(x[i], x[i + n_dims / 2])`.
    Neox,
}

/// Which of a token's three positions, time, row and column, turns a pair of a head. They differ for the inputs of an image, see
/// [`ForwardBatch::rope_positions`](crate::ForwardBatch::rope_positions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RopeAxes {
    /// The position in the sequence turns all.
    #[default]
    One,
    /// So many pairs are turned by time, then so many by row, then so many by column.
    Sections([usize; 3]),
    /// The axes take turns, row and column until each has so many pairs; time turns the others.
    Interleaved([usize; 3]),
}

impl RopeAxes {
    /// The axis that turns a pair: 0 for time, 1 for row, 2 for column; `None` for the position in the sequence.
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
#[derive(Clone, Copy, Debug)]
pub struct Rope<V> {
    /// Which values form a pair.
    pub style: RopeStyle,
    /// Width of a head.
    pub head_dim: usize,
    /// Values of a head that are rotated, even; the rest stays.
    pub n_dims: usize,
    /// Radians per position, `[n_dims / 2]`.
    pub inv_freqs: V,
    /// Multiplies the rotated values.
    pub magnitude: f32,
    /// Which position turns which pair.
    pub axes: RopeAxes,
}

/// How much a token's queries grow with its position `p`: by `1 + scale * ln(1 + floor((p + offset) / interval))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    /// Multiplies the logarithm.
    pub scale: f32,
    /// Positions between one factor and the next.
    pub interval: usize,
    /// Added to the position.
    pub offset: usize,
}

impl Temperature {
    /// The factor of a position.
    pub fn factor(&self, position: usize) -> f32 {
        1.0 + self.scale * (1.0 + ((position + self.offset) / self.interval) as f32).ln()
    }
}

/// Attention of one layer.
///
/// For query position `p`, head `h` and its KV head `g = h / (n_heads / n_kv_heads)`, over positions `j` from
/// `max(0, p + 1 - window)`, in chunks from `p - p % window`, to `p`: `s[j] = scale * dot(q[h], k[j][g]) - slopes[h] * |p - j|`, capped to
/// `softcap * tanh(s / softcap)`;
/// weights are `exp(s[j] - m) / (sum_j exp(s[j] - m) + exp(sinks[h] - m))`; the output is their sum over `v[j][g]`.
/// Where the step says so ([`ForwardBatch::last_seen`](crate::ForwardBatch::last_seen)), causal attention goes up to another
/// position than `p`, and a window is other positions ([`ForwardBatch::window_seen`](crate::ForwardBatch::window_seen)).
/// Where attention is not causal, positions after `p` are seen too: up to `p + window - 1`, or the last of the sequence.
///
/// The KV store knows the number of KV heads, which divides `n_heads`, and the widths of heads.
#[derive(Clone, Copy, Debug)]
pub struct Attention<V> {
    /// Index of the layer in the KV store.
    pub layer_idx: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Whether a query sees nothing after its own position. Otherwise all of its sequence is in the step.
    pub is_causal: bool,
    /// How many positions a query sees to either side that it sees, its own included; `None` sees all.
    pub window: Option<usize>,
    /// Whether windows lie one after the other as chunks, and a query sees its own from the beginning on, instead of one window
    /// ending at each query. Causal attention alone has chunks.
    pub is_chunked: bool,
    /// Caps the scores.
    pub softcap: Option<f32>,
    /// A score per head that takes weight and adds nothing, `[n_heads]`.
    pub sinks: Option<V>,
    /// How much less a position weighs for each step of its distance (ALiBi), `[n_heads]`.
    pub slopes: Option<V>,
}

impl<V> Rope<V> {
    /// The same rope with its frequencies as `view` shows them.
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
    /// The same attention with its vectors as `view` shows them.
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

/// The arguments of [`Backend::linear_add_norm`](crate::Backend::linear_add_norm): the product that ends a half of a layer, and the norm that the next
/// half begins with.
pub struct LinearAddNorm<'a, B: Memory> {
    /// The product.
    pub linear: &'a Linear<B::Matrix, B::Vector>,
    /// What it multiplies, `[n_rows, n_in]`.
    pub input: &'a B::Buffer,
    /// Multiplies what is added.
    pub scale: f32,
    /// Scratch, `[n_rows, n_out]`.
    pub delta: &'a mut B::Buffer,
    /// The stream, which is added to.
    pub hidden: &'a mut B::Buffer,
    /// The norm of the stream.
    pub norm: &'a Norm<B::Vector>,
    /// The normed stream.
    pub normed: &'a mut B::Buffer,
}

/// The function inside a feed-forward network.
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
    /// `x / (1 + exp(-1.702 x))`. Only encoders of images have it, so devices without rows of inputs need not.
    GeluQuick,
    /// `min(x, 7)` by the sigmoid of 1.702 times itself, and the other factor of a gated pair is `clamp(up, -7, 7) + 1`
    /// instead of `up`: SwiGLU with the limits of gpt-oss. Without a pair it is the first factor alone.
    ClippedSwiglu,
}

impl Activation {
    /// Multiplies the argument of the sigmoid of [`Activation::ClippedSwiglu`].
    pub const CLIPPED_ALPHA: f32 = 1.702;
    /// Where [`Activation::ClippedSwiglu`] clips.
    pub const CLIPPED_LIMIT: f32 = 7.0;
}
