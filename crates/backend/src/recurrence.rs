//! [`RecurrentOperations`], which carry a state from token to token, and their arguments: short convolution, gated delta
//! rule, state space models.
//!
//! Each operation reads and writes its layer of the sequences' states. The device knows the slots of states
//! from the step's values ([`SeqState`](crate::SeqState)): a state is read before a sequence's first token
//! (zeros at position 0) and written after its last, and after the token of a requested snapshot. Invariant:
//! a step computes what its tokens would give one at a time, so results do not depend on how a prompt was cut
//! into steps.

use crate::{BackendError, Memory, StepShape};

/// The operations on recurrent states. Every operation's error is a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait RecurrentOperations: Memory {
    /// Convolves each sequence's rows with its own earlier ones, channel by channel. See [`ShortConv`] for
    /// the formula and the state. `input`, `output`: `[T, n_channels]`.
    fn short_conv(
        &mut self,
        conv: &ShortConv<Self::Vector>,
        shape: &StepShape,
        input: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Runs the gated delta rule over each sequence's rows. See [`DeltaNet`] for the formula and
    /// [`DeltaNetRows`] for the rows, which are modified. `output`: `[T, n_v_heads * head_dim_v]`.
    fn delta_net(
        &mut self,
        net: &DeltaNet<Self::Vector>,
        shape: &StepShape,
        rows: DeltaNetRows<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Runs a selective state space model over each sequence's rows. See [`SsmScan`] for the formula and
    /// [`SsmRows`] for the rows; `dt` is modified. `output`: `[T, n_heads * head_dim]`.
    fn ssm_scan(
        &mut self,
        scan: &SsmScan<Self::Vector>,
        shape: &StepShape,
        rows: SsmRows<'_, Self::Buffer>,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;
}

/// A causal convolution of each channel separately.
///
/// With `x[t]` a sequence's rows, taken from the state before the step, and zero before position 0:
/// `y[t][c] = bias[c] + sum_j weight[c][j] * x[t - (n_taps - 1) + j][c]`, then SiLU if `has_silu`. The state is the
/// last `n_taps - 1` rows of `x`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConv<V> {
    /// Index of the layer in the store of states.
    pub state_idx: usize,
    /// Number of channels.
    pub n_channels: usize,
    /// Number of rows per output value, its own included; 2 to 16.
    pub n_taps: usize,
    /// `[n_channels, n_taps]`, the newest row's factor last.
    pub weight: V,
    /// `[n_channels]`; absent means 0.
    pub bias: Option<V>,
    /// Whether the result goes through SiLU.
    pub has_silu: bool,
}

impl<V> ShortConv<V> {
    /// Returns the same convolution with its vectors mapped by `view`.
    pub fn map<'a, W>(&'a self, view: impl Fn(&'a V) -> W) -> ShortConv<W> {
        ShortConv {
            state_idx: self.state_idx,
            n_channels: self.n_channels,
            n_taps: self.n_taps,
            weight: view(&self.weight),
            bias: self.bias.as_ref().map(view),
            has_silu: self.has_silu,
        }
    }
}

/// The mapping from value heads to key heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyHeads {
    /// Consecutive value heads share one: `h / (n_v_heads / n_k_heads)`.
    Grouped,
    /// Key heads alternate: `h % n_k_heads`.
    Tiled,
}

/// The granularity of a delta net's decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaDecays {
    /// One decay for the state of a head.
    OfHeads,
    /// One decay per row of the state, that is, per channel of a key (KDA).
    OfChannels,
}

/// The gated delta rule of one layer.
///
/// For value head `h` with key head `g`, at each token, with `q` and `k` scaled to length 1
/// (`x / sqrt(sum(x^2) + 1e-6)`) and `q` divided by `sqrt(head_dim_k)`:
///
/// ```text
/// decay = exp(a[h] * softplus(alpha[h] + dt_bias[h]))      rate = sigmoid(beta[h])
/// S = decay * S                            row by row, `S[i] = decay[i] * S[i]`, where each row has its own `alpha` and `dt_bias`
/// S = S + k[g] (rate * (v[h] - S^T k[g]))^T
/// y[h] = S^T q[g]
/// ```
///
/// `S: [head_dim_k, head_dim_v]` is the state, one for each value head.
/// Source: "Gated Delta Networks: Improving Mamba2 with Delta Rule", Yang et al. 2024.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaNet<V> {
    /// Index of the layer in the store of states.
    pub state_idx: usize,
    /// Number of query and key heads.
    pub n_k_heads: usize,
    /// Number of value heads, a multiple of the key heads.
    pub n_v_heads: usize,
    /// Width of a query and key head.
    pub head_dim_k: usize,
    /// Width of a value head.
    pub head_dim_v: usize,
    /// The mapping from value heads to key heads.
    pub key_heads: KeyHeads,
    /// The granularity of decays.
    pub decays: DeltaDecays,
    /// Negative decay rates, `[n_v_heads]`.
    pub a: V,
    /// `[n_v_heads]`, or `[n_v_heads, head_dim_k]` with a decay per channel.
    pub dt_bias: V,
}

impl<V> DeltaNet<V> {
    /// Returns the width of a token's queries, keys and values.
    pub fn qkv_width(&self) -> usize {
        2 * self.n_k_heads * self.head_dim_k + self.n_v_heads * self.head_dim_v
    }

    /// Returns the number of decays of a value head.
    pub fn decays_of_head(&self) -> usize {
        match self.decays {
            DeltaDecays::OfHeads => 1,
            DeltaDecays::OfChannels => self.head_dim_k,
        }
    }

    /// Returns the key head of a value head.
    pub fn key_head(&self, v_head: usize) -> usize {
        match self.key_heads {
            KeyHeads::Grouped => v_head / (self.n_v_heads / self.n_k_heads),
            KeyHeads::Tiled => v_head % self.n_k_heads,
        }
    }

    /// Returns the same rule with its vectors mapped by `view`.
    pub fn map<'a, W>(&'a self, view: impl Fn(&'a V) -> W) -> DeltaNet<W> {
        DeltaNet {
            state_idx: self.state_idx,
            n_k_heads: self.n_k_heads,
            n_v_heads: self.n_v_heads,
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
            key_heads: self.key_heads,
            decays: self.decays,
            a: view(&self.a),
            dt_bias: view(&self.dt_bias),
        }
    }
}

/// The rows that [`RecurrentOperations::delta_net`] reads. They also serve as scratch.
#[derive(Debug)]
pub struct DeltaNetRows<'a, T: ?Sized> {
    /// Queries, keys and values: `[T, 2 * n_k_heads * head_dim_k + n_v_heads * head_dim_v]`.
    pub qkv: &'a mut T,
    /// `[T, n_v_heads]`, or `[T, n_v_heads, head_dim_k]` with a decay per channel.
    pub alpha: &'a mut T,
    /// `[T, n_v_heads]`.
    pub beta: &'a mut T,
}

/// A selective state space model of one layer: Mamba 2, and Mamba as the special case of heads of width 1
/// with a decay per state index.
///
/// For head `h` with group `g = h / (n_heads / n_groups)`, at each token, with `dt = softplus(dt[h] + dt_bias[h])`:
///
/// ```text
/// S[p][n] = exp(dt * a[h]) * S[p][n] + dt * x[h][p] * b[g][n]        a[n][h] instead of a[h] with `has_own_decays`
/// y[h][p] = sum_n c[g][n] * S[p][n] + skip[h] * x[h][p]
/// ```
///
/// `S: [head_dim, n_state]` is the state, one for each head.
/// Sources: "Mamba", Gu and Dao 2023, section 3.2; "Transformers are SSMs", Dao and Gu 2024, section 7.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsmScan<V> {
    /// Index of the layer in the store of states.
    pub state_idx: usize,
    /// Number of heads.
    pub n_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Number of groups of heads that share `b` and `c`, a divisor of `n_heads`.
    pub n_groups: usize,
    /// Width of the state.
    pub n_state: usize,
    /// Whether each index of the state has its own decay.
    pub has_own_decays: bool,
    /// Negative decay rates: `[n_heads]`, or `[n_state, n_heads]`.
    pub a: V,
    /// `[n_heads]`.
    pub skip: V,
    /// `[n_heads]`.
    pub dt_bias: V,
}

impl<V> SsmScan<V> {
    /// Returns the same model with its vectors mapped by `view`.
    pub fn map<'a, W>(&'a self, view: impl Fn(&'a V) -> W) -> SsmScan<W> {
        SsmScan {
            state_idx: self.state_idx,
            n_heads: self.n_heads,
            head_dim: self.head_dim,
            n_groups: self.n_groups,
            n_state: self.n_state,
            has_own_decays: self.has_own_decays,
            a: view(&self.a),
            skip: view(&self.skip),
            dt_bias: view(&self.dt_bias),
        }
    }
}

/// The rows that [`RecurrentOperations::ssm_scan`] reads.
#[derive(Debug)]
pub struct SsmRows<'a, T: ?Sized> {
    /// `[T, n_heads * head_dim]`.
    pub x: Columns<'a, T>,
    /// `[T, n_groups * n_state]`.
    pub b: Columns<'a, T>,
    /// `[T, n_groups * n_state]`.
    pub c: Columns<'a, T>,
    /// `[T, n_heads]`; also scratch.
    pub dt: &'a mut T,
}

/// Some adjacent columns of a buffer's rows.
#[derive(Debug)]
pub struct Columns<'a, T: ?Sized> {
    /// The buffer.
    pub rows: &'a T,
    /// Number of values per row.
    pub row_width: usize,
    /// The first column.
    pub first: usize,
}

impl<'a, T: ?Sized> Columns<'a, T> {
    /// Returns all columns.
    pub fn all(rows: &'a T, row_width: usize) -> Self {
        Self {
            rows,
            row_width,
            first: 0,
        }
    }

    /// Returns the same columns of the buffer mapped by `view`.
    pub fn map<W: ?Sized>(&self, view: impl Fn(&'a T) -> &'a W) -> Columns<'a, W> {
        Columns {
            rows: view(self.rows),
            row_width: self.row_width,
            first: self.first,
        }
    }
}

impl Columns<'_, [f32]> {
    /// Returns `len` values of row `row_idx`, from column `start` of these on.
    ///
    /// # Panics
    /// If the buffer does not have them.
    pub fn part(&self, row_idx: usize, start: usize, len: usize) -> &[f32] {
        &self.rows[row_idx * self.row_width + self.first + start..][..len]
    }
}
