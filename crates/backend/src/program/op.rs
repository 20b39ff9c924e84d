//! [`Op`]: one operation of a network, as data.
//!
//! Simple operations come first, in the order of a network; fused ones follow. A fused operation computes what its
//! [expansion](Op::expand) computes, which is its specification. Invariant: [`Op::visit`] is the only list of an operation's
//! operands.

use crate::{
    Activation, Attention, DeltaNet, Linear, Norm, Rope, Router, RowSet, ShortConv, SsmScan, Temperature,
    Xielu,
};

use super::{MatrixId, Value, VectorId};

/// A matrix with its bias, by index.
pub type LinearId = Linear<MatrixId, VectorId>;
/// A norm with its weights, by index.
pub type NormId = Norm<VectorId>;
/// A rotary embedding with its frequencies, by index.
pub type RopeId = Rope<VectorId>;
/// Attention with its vectors, by index.
pub type AttentionId = Attention<VectorId>;

/// One product of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProductTo {
    /// The matrix.
    pub linear: LinearId,
    /// The result, `[R, n_out]`.
    pub y: Value,
}

/// Columns of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueColumns {
    /// The value.
    pub x: Value,
    /// The first column.
    pub first: usize,
}

/// The initial value of [`Op::Combine`]'s result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriedValue {
    /// Zero.
    Nothing,
    /// These rows, whose memory the result takes over.
    Whole(Value),
    /// These rows, whose memory the result takes over, times the sigmoid of one value each, `[R, 1]`.
    Gated(Value, Value),
}

/// The rows that the experts' products read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertInputKind {
    /// `[R, n_in]`: all choices of a row read the row.
    OfRows,
    /// `[R * n_used, n_in]`: each choice has its own row.
    OfChoices,
}

/// Queries, keys and values on their way to the store, in [`Op::RopeStoreKv`] and [`Op::RopeAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoredHeads {
    /// Index of the layer in the KV store.
    pub layer_idx: usize,
    /// Norm of the query heads.
    pub q_norm: Option<NormId>,
    /// Norm of the key heads.
    pub k_norm: Option<NormId>,
    /// Rotation of both.
    pub rope: Option<RopeId>,
    /// Queries, `[T, n_heads * head_dim_k]`.
    pub q: Value,
    /// Keys, `[T, n_kv_heads * head_dim_k]`.
    pub k: Value,
    /// Values, `[T, n_kv_heads * head_dim_v]`.
    pub v: Value,
}

/// An operation. `R` stands for the rows of its operands.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the documentation of a variant names its operands")]
pub enum Op {
    /// Looks up the step's tokens, or copies their non-token inputs: `y[t] = scale * table[tokens[t]]`, `[T, width]`.
    Embed { table: MatrixId, scale: f32, y: Value },
    /// Copies the hidden state that each token follows, `[T, width]`.
    HiddenInputs { width: usize, y: Value },
    /// Adds a part of the non-token inputs to their rows: the columns from `part * width` on; `y` takes over `x: [T, width]`.
    AddInputRows { part: usize, x: Value, y: Value },
    /// Adds one row to all: `y[r] = x[r] + row`; `y` takes over `x`.
    AddRow { row: VectorId, x: Value, y: Value },
    /// Adds the row of each token's position: `y[t] = x[t] + table[positions[t]]`; `y` takes over `x: [T, width]`.
    AddPositions { table: VectorId, x: Value, y: Value },
    /// Multiplies each token's row by the factor of its position; `y` takes over `x: [T, width]`.
    ScaleByPosition {
        temperature: Temperature,
        x: Value,
        y: Value,
    },
    /// Norms every run of `norm.width` values of each row.
    Norm { norm: NormId, x: Value, y: Value },
    /// Multiplies: `y[r] = matrix * x[r] + bias`, `[R, n_out]`.
    Linear { linear: LinearId, x: Value, y: Value },
    /// Multiplies the part of each of `n_heads` heads by the head's matrix: `[R, n_heads * n_in]` to `[R, n_heads * n_out]`.
    HeadsLinear {
        heads: LinearId,
        n_heads: usize,
        x: Value,
        y: Value,
    },
    /// Rotates the heads of each token's row by its position; `y` takes over `x: [T, n_heads * head_dim]`.
    Rope { rope: RopeId, x: Value, y: Value },
    /// Stores each token's key and value row in its slot of a layer of the KV store.
    StoreKv { layer_idx: usize, k: Value, v: Value },
    /// Stores each token's latent row in its slot of a layer of the KV store.
    StoreLatent { layer_idx: usize, row: Value },
    /// Attends from each token's query to what its sequence has stored: `[T, n_heads * head_dim_k]` to `[T, n_heads * head_dim_v]`.
    Attention {
        attention: AttentionId,
        q: Value,
        y: Value,
    },
    /// Applies the activation, times `up` if there is one; `y` takes over `x`.
    Activation {
        activation: Activation,
        x: Value,
        up: Option<Value>,
        y: Value,
    },
    /// Applies [`Xielu`]; `y` takes over `x`.
    Xielu { xielu: Xielu, x: Value, y: Value },
    /// Keeps the part of each row above `cutoff` standard deviations over its mean; `y` takes over `x`.
    CutBelow { cutoff: f32, x: Value, y: Value },
    /// Adds: `y = x + scale * delta`; `y` takes over `x`.
    Add {
        scale: f32,
        x: Value,
        delta: Value,
        y: Value,
    },
    /// Scales and caps: `y = cap * tanh(scale * x / cap)`, or `scale * x`; `y` takes over `x`.
    Scale {
        scale: f32,
        cap: Option<f32>,
        x: Value,
        y: Value,
    },
    /// Copies the columns from `first` on, `[R, width]`.
    TakeColumns {
        first: usize,
        width: usize,
        x: Value,
        y: Value,
    },
    /// Joins each of `n_parts` parts of two rows: `y[r][p] = [left[r][p], right[r][p]]`.
    Join {
        n_parts: usize,
        left: Value,
        right: Value,
        y: Value,
    },
    /// Copies some rows.
    Gather { rows: RowSet, x: Value, y: Value },
    /// Names output rows as logit rows, in steps in which all have logits: `y` is `x`.
    AsLogits { x: Value, y: Value },
    /// Copies all rows. A pass inserts it where an operation takes over a value that is read later.
    Move { x: Value, y: Value },
    /// Selects the experts of each row by its logits, `[R, n_experts]`.
    Route {
        router: Router<VectorId>,
        x: Value,
        y: Value,
    },
    /// Multiplies each choice's row by the matrix of its expert: `[R * n_used, n_out]`.
    ExpertsLinear {
        experts: LinearId,
        routes: Value,
        rows: ExpertInputKind,
        x: Value,
        y: Value,
    },
    /// Multiplies each choice's row by the choice's weight; `y` takes over `x: [R * n_used, width]`.
    WeighChoices { routes: Value, x: Value, y: Value },
    /// Sums the choices of each row by their weights, `[R * n_used, width]` to `[R, width]`.
    Combine {
        routes: Value,
        x: Value,
        carried: CarriedValue,
        y: Value,
    },
    /// Convolves each sequence's rows with its earlier ones, `[T, n_channels]`.
    ShortConv {
        conv: ShortConv<VectorId>,
        x: Value,
        y: Value,
    },
    /// Runs a state space model over each sequence's rows, `[T, n_heads * head_dim]`; `dt` is scratch.
    SsmScan {
        scan: SsmScan<VectorId>,
        x: ValueColumns,
        b: ValueColumns,
        c: ValueColumns,
        dt: Value,
        y: Value,
    },
    /// Runs the gated delta rule over each sequence's rows, `[T, n_v_heads * head_dim_v]`; its inputs are scratch.
    DeltaNet {
        net: DeltaNet<VectorId>,
        qkv: Value,
        alpha: Value,
        beta: Value,
        y: Value,
    },
    /// Repeats each row `n` times: `[R, width]` to `[R, n * width]`.
    RepeatRows { n: usize, x: Value, y: Value },
    /// Scales each other stream to the magnitude of the first; `y` takes over `others: [R, n * width]`.
    MatchMagnitudes { first: Value, others: Value, y: Value },
    /// Predicts all streams from one another by `factors: [R, (n + 1)^2]`; the results take over the streams.
    PredictStreams {
        factors: Value,
        first: Value,
        others: Value,
        y_first: Value,
        y_others: Value,
    },
    /// Corrects all streams by the difference of `first` and `predicted`, by `factors: [R, n + 1]`; the results take over the streams.
    CorrectStreams {
        factors: Value,
        predicted: Value,
        first: Value,
        others: Value,
        y_first: Value,
        y_others: Value,
    },
    /// Adds a row to each other stream; `y` takes over `others`.
    AddToOthers { x: Value, others: Value, y: Value },
    /// Multiplies all rows by one; `y` takes over `x`.
    MultiplyByRow { row: VectorId, x: Value, y: Value },
    /// Sums the rows over the ranks of a group; `y` takes over `x`.
    AllReduce { x: Value, y: Value },
    /// Gives every rank the whole rows from the columns that each has computed: `[L, n_each]` to `[L, width]`. The buffer of
    /// all parts, `[L, n_ranks * n_each]`, is scratch.
    AllGather {
        n_ranks: usize,
        width: usize,
        x: Value,
        parts: Value,
        y: Value,
    },
    /// Takes the mean of each sequence's rows, `[T, width]` to `[O, width]`.
    MeanOfSequences { x: Value, y: Value },
    /// Keeps a copy of a layer's rows until the step has been read.
    Tap { layer_idx: usize, x: Value, y: Value },
    /// Ends the step: samples from the logits, `[L, n_vocab]`, and keeps the requested hidden rows, `[O, width]`. The logits are
    /// scratch.
    Sample {
        logits: Option<Value>,
        rows: Option<Value>,
    },

    /// Fused: multiplies one input by several matrices.
    LinearGroup { x: Value, products: Vec<ProductTo> },
    /// Fused: `y = f(gate * x) * (up * x)`. The result of `up` is scratch.
    LinearGated {
        activation: Activation,
        x: Value,
        gate: LinearId,
        up: ProductTo,
        y: Value,
    },
    /// Fused: [`Op::LinearGated`] for experts.
    ExpertsGated {
        activation: Activation,
        routes: Value,
        x: Value,
        gate: LinearId,
        up: ProductTo,
        y: Value,
    },
    /// Fused: `sum = x + scale * delta; normed = norm(sum)`; the sum takes over `x`.
    AddNorm {
        scale: f32,
        x: Value,
        delta: Value,
        norm: NormId,
        sum: Value,
        normed: Value,
    },
    /// Fused: a product, summed over the ranks of a group if `is_reduced`, then [`Op::AddNorm`]. The product's result is
    /// scratch. A product of `normed` follows.
    LinearAddNorm {
        product: ProductTo,
        input: Value,
        is_reduced: bool,
        scale: f32,
        x: Value,
        norm: NormId,
        sum: Value,
        normed: Value,
    },
    /// Fused: norms and rotates queries and keys, and stores keys and values; the results take over queries and keys.
    RopeStoreKv {
        heads: StoredHeads,
        y_q: Value,
        y_k: Value,
    },
    /// Fused: [`Op::RopeStoreKv`], then attention; queries and keys are scratch.
    RopeAttention {
        heads: StoredHeads,
        attention: AttentionId,
        y: Value,
    },
}
