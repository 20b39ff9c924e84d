//! [`Backend`]: the fine seam, a method for each operation of a [`program`](crate::program).
//!
//! A device is an implementation of this trait and nothing else. Invariant: an operation sees buffers,
//! weights and counts ([`StepShape`]), never the values of a step (ids, positions, slots, page tables).
//! Values reach the device in [`Backend::begin_step`] alone, into buffers that never move; so everything
//! inside [`Backend::run_step`] can be captured once and replayed.
//!
//! The buffers, with `T` tokens, `O` output rows, `L` logit rows:
//!
//! | buffer | shape |
//! |---|---|
//! | hidden, normed | `[T, n_embd]` |
//! | q | `[T, n_heads * head_dim_k]` |
//! | k, v | `[T, n_kv_heads * head_dim_k]`, `[T, n_kv_heads * head_dim_v]` |
//! | attention output | `[T, n_heads * head_dim_v]` |
//! | gate, up | `[T, n_ff]`, of experts `[T * n_used, n_ff]` |
//! | channels of a convolution | `[T, n_channels]` |
//! | logits | `[L, n_vocab]` |
//!
//! Every operation is row-wise (attention: row-wise given the KV store). On a host backend, a row has the
//! same bits whatever the other rows are; a device may choose kernels by [`StepShape`].

use tokenmill_gguf::TensorType;

use crate::{
    Activation, AdapterOperations, Allocation, Attention, BackendError, ColumnGather, ExecutorLimits,
    ExpertInput, ExpertOperations, ForwardBatch, KvLayout, LatentOperations, LayerOperations, Linear,
    LinearAddNorm, LinearJob, MemoryPlan, NetworkShape, Norm, PageCopy, PageGroup, RecurrentOperations, Rope,
    RopeStoreKv, Routed, RowSet, SequenceMemory, StateLayout, StepOutput, StepShape, StepTrace,
    StreamOperations, Temperature,
};

/// A device, as a program sees it. Static dispatch; one value owns the device memory of one model.
///
/// Required methods are the operations; provided ones compose them and are overridden to fuse. All activations are f32
/// at this seam; a backend may keep a second form of a buffer (quantized, half) with it. Every operation's error is
/// a device error.
#[expect(
    clippy::missing_errors_doc,
    reason = "the operations fail alike, which the trait's documentation says"
)]
pub trait Backend:
    AdapterOperations
    + ExpertOperations
    + LatentOperations
    + LayerOperations
    + RecurrentOperations
    + SequenceMemory
    + StreamOperations
{
    /// The device's name, for errors.
    const NAME: &'static str;

    /// Returns whether it can compute matrices of this type.
    fn supports(&self, ty: TensorType) -> bool;

    /// Returns the device memory of an allocation; `usize::MAX` on overflow.
    fn bytes_of(&self, allocation: &Allocation<'_>) -> usize;

    /// Prepares the backend, before anything else is called: with the widths of the network, the largest
    /// step, the KV store, and the memory planned for all of them.
    ///
    /// # Errors
    /// A device error, such as too little memory.
    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        kv: &KvLayout,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        let _ = (network, limits, kv, plan);
        Ok(())
    }

    /// Allocates the KV store. Called once, after the weights and before the first step.
    ///
    /// # Errors
    /// A device error.
    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<(), BackendError>;

    /// Allocates the store of recurrent states. Called once, after the KV store, if the network has recurrent
    /// layers.
    ///
    /// # Errors
    /// A device error.
    fn alloc_states(&mut self, layout: &StateLayout) -> Result<(), BackendError>;

    /// Returns whether the device works independently of the host's threads, so that submitting a second step
    /// while one runs pays.
    fn works_apart(&self) -> bool {
        false
    }

    /// Returns whether [`RowMask::Late`](crate::RowMask::Late) is awaited when rows are sampled, not in
    /// [`Self::begin_step`].
    fn takes_late_masks(&self) -> bool {
        false
    }

    /// Returns whether steps may have non-token inputs, and tokens that see later ones
    /// ([`ForwardBatch::input_rows`], [`ForwardBatch::last_seen`]).
    fn takes_rows(&self) -> bool {
        false
    }

    /// Returns how the steps read so far spent their time; `None` if the device does not measure it, or was
    /// not asked to.
    fn trace(&self) -> Option<StepTrace> {
        None
    }

    /// Uploads the values of a validated step into the device's input buffers and returns its shape, which
    /// may be padded.
    ///
    /// A [`TokenSource::SampledRow`](crate::TokenSource::SampledRow) refers to a row sampled in the previous
    /// step, whose results may not have been read yet.
    ///
    /// # Errors
    /// A device error.
    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError>;

    /// Runs `body`, the program of one step. Overridden to capture and replay, or to enter a thread pool
    /// once. `body` may run again if its first run was only a failed capture.
    ///
    /// # Errors
    /// The error of `body`, or a device error.
    fn run_step(
        &mut self,
        shape: StepShape,
        mut body: impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        body(self, shape)
    }

    /// Waits for the oldest unread step and writes its results: the sampled rows, log-probabilities, raw
    /// logits and hidden states that its batch requested.
    ///
    /// # Errors
    /// A device error of that step.
    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError>;

    /// Copies whole KV pages of a group in order, between the steps begun earlier and those begun later. The
    /// pages are in range.
    ///
    /// # Errors
    /// A device error.
    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError>;

    /// Looks up the step's tokens: `output[t] = scale * table[tokens[t]]`, `[T, n_embd]`. A non-token input
    /// is copied instead, not scaled.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        scale: f32,
        n_tokens: usize,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Copies the step's [`ForwardBatch::hidden_inputs`]: `output[t] = hidden_inputs[t]`, `[T, n_embd]`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] if the device accepts none, or a device error.
    fn take_hidden_inputs(
        &mut self,
        n_tokens: usize,
        width: usize,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError> {
        let _ = (n_tokens, width, output);
        Err(BackendError::Unsupported {
            feature: "an MTP layer".to_owned(),
            device: Self::NAME,
        })
    }

    /// Adds a part of the non-token inputs to their rows after a layer: the `width` columns of
    /// [`ForwardBatch::input_rows`] from `part * width` on; `rows: [T, width]`. Backends without such inputs
    /// do nothing.
    fn add_input_rows(
        &mut self,
        part: usize,
        n_tokens: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError> {
        let _ = (part, n_tokens, width, rows);
        Ok(())
    }

    /// Adds one row to all: `rows[r] += row`, `[n_rows, width]`.
    fn add_row(
        &mut self,
        row: &Self::Vector,
        n_rows: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Adds to each token's row that of its position: `rows[t] += table[positions[t]]`;
    /// `table: [positions, width]`, longer than any sequence.
    fn add_positions(
        &mut self,
        table: &Self::Vector,
        n_tokens: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Takes the mean of each sequence's rows: `input: [T, width]`, `output: [S, width]`.
    fn mean_of_sequences(
        &mut self,
        shape: &StepShape,
        width: usize,
        input: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Multiplies each token's row by the factor of its position, see [`Temperature`]; `[T, width]`.
    fn scale_by_position(
        &mut self,
        temperature: Temperature,
        n_tokens: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Normalizes each row: `output = norm(input)`, both `[n_rows, norm.width]`.
    fn norm(
        &mut self,
        norm: &Norm<Self::Vector>,
        input: &Self::Buffer,
        n_rows: usize,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Normalizes in place every run of `norm.width` values of each row `[row_width]`: each head separately
    /// if the width is a head's, or the whole row. All runs of a row share the norm's weight `[width]`,
    /// unless the weight is as long as a row.
    fn norm_in_place(
        &mut self,
        norm: &Norm<Self::Vector>,
        n_rows: usize,
        row_width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Multiplies: `output[r] = matrix * input[r] + bias`; `input: [n_rows, n_in]`, `output: [n_rows, n_out]`.
    fn linear(
        &mut self,
        linear: &Linear<Self::Matrix, Self::Vector>,
        input: &Self::Buffer,
        n_rows: usize,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Rotates the heads of each token's row by its position, in place: `heads: [T, row_width]`, a multiple
    /// of `rope.head_dim`.
    ///
    /// With `angle(i) = position * inv_freqs[i]`, for the position that `rope.axes` selects, the pair
    /// `(a, b)` becomes `magnitude * (a cos - b sin, a sin + b cos)`. Values of a head beyond
    /// `2 * inv_freqs.len()` are unchanged.
    fn rope(
        &mut self,
        rope: &Rope<Self::Vector>,
        n_tokens: usize,
        row_width: usize,
        heads: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Stores each token's `k` and `v` row in its slot of the KV store of layer `layer_idx`, rounded to the store's type.
    fn store_kv(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        k: &Self::Buffer,
        v: &Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Attends from each token's query to its sequence's stored keys and values at positions up to its own (which must be
    /// stored): `q: [T, n_heads * head_dim_k]`, `output: [T, n_heads * head_dim_v]`. See [`Attention`] for the formula.
    fn attention(
        &mut self,
        attention: &Attention<Self::Vector>,
        shape: &StepShape,
        q: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Applies the activation in place: `rows = f(rows) * up`, or `f(rows)` without `up`; `[n_rows, width]`.
    fn activation(
        &mut self,
        activation: Activation,
        n_rows: usize,
        width: usize,
        rows: &mut Self::Buffer,
        up: Option<&Self::Buffer>,
    ) -> Result<(), BackendError>;

    /// Adds: `rows += scale * delta`, `[n_rows, width]`.
    fn add(
        &mut self,
        scale: f32,
        n_rows: usize,
        width: usize,
        rows: &mut Self::Buffer,
        delta: &Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Sums the rows over the ranks of a group that compute parts of one network, `[n_rows, width]`: each
    /// holds its term before and the sum afterwards. A backend that has a whole network leaves them
    /// unchanged.
    fn all_reduce(
        &mut self,
        n_rows: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError> {
        let _ = (n_rows, width, rows);
        Ok(())
    }

    /// Gives every rank of a group the whole rows from the columns that each rank has computed. Never called
    /// on a backend with a whole network.
    fn all_gather(&mut self, gather: ColumnGather<'_, Self::Buffer>) -> Result<(), BackendError> {
        let _ = gather;
        Err(BackendError::Unsupported {
            feature: "an output head that is divided among several devices".to_owned(),
            device: Self::NAME,
        })
    }

    /// Copies the rows selected by `rows`, `[T or O, width]`, to the front of `output`.
    fn gather(
        &mut self,
        rows: RowSet,
        shape: &StepShape,
        width: usize,
        input: &Self::Buffer,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Scales and caps logits in place: `x = scale * x`, then `x = cap * tanh(x / cap)`; `[n_rows, width]`.
    fn scale_logits(
        &mut self,
        scale: f32,
        cap: Option<f32>,
        n_rows: usize,
        width: usize,
        logits: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Ends the step's computation: samples from, or keeps, the logits `[L, n_vocab]` as the batch requests
    /// per row (present if `L > 0`), and keeps the requested hidden rows of `outputs: [O, n_embd]`.
    /// [`Backend::read`] returns the results.
    fn sample(
        &mut self,
        shape: &StepShape,
        n_vocab: usize,
        n_embd: usize,
        logits: &mut Self::Buffer,
        outputs: &Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Multiplies one input by several matrices.
    fn linear_group(
        &mut self,
        input: &Self::Buffer,
        n_rows: usize,
        jobs: &mut [LinearJob<'_, Self>],
    ) -> Result<(), BackendError> {
        for job in jobs {
            self.linear(job.linear, input, n_rows, job.output)?;
        }
        Ok(())
    }

    /// Computes the first half of a gated feed-forward network:
    /// `gate.output = f(gate * input) * (up * input)`; `up.output` is scratch.
    fn linear_gated(
        &mut self,
        activation: Activation,
        input: &Self::Buffer,
        n_rows: usize,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        let mut jobs = [gate, up];
        self.linear_group(input, n_rows, &mut jobs)?;
        let [gate, up] = jobs;
        self.activation(
            activation,
            n_rows,
            gate.linear.n_out,
            gate.output,
            Some(up.output),
        )
    }

    /// Computes [`Backend::linear_gated`] for experts: `gate.output = f(gate * input) * (up * input)`,
    /// `[n_choices, n_out]`; `up.output` is scratch.
    fn experts_gated(
        &mut self,
        activation: Activation,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, Self::Buffer>,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        self.experts_linear(gate.linear, routed, input, gate.output)?;
        self.experts_linear(up.linear, routed, input, up.output)?;
        let (n_choices, n_out) = (routed.n_choices(), gate.linear.n_out);
        self.activation(activation, n_choices, n_out, gate.output, Some(up.output))
    }

    /// Adds to the residual and applies the next norm: `hidden += scale * delta; normed = norm(hidden)`.
    fn add_norm(
        &mut self,
        scale: f32,
        delta: &Self::Buffer,
        norm: &Norm<Self::Vector>,
        n_rows: usize,
        hidden: &mut Self::Buffer,
        normed: &mut Self::Buffer,
    ) -> Result<(), BackendError> {
        self.add(scale, n_rows, norm.width, hidden, delta)?;
        self.norm(norm, hidden, n_rows, normed)
    }

    /// Adds a product to the stream and applies the next norm: `hidden += scale * (matrix * input + bias)`,
    /// in a shard the sum over all ranks; then `normed = norm(hidden)`. A product of `normed`
    /// ([`Backend::linear`], [`Backend::linear_group`] or [`Backend::linear_gated`]) with the same number of
    /// rows follows. Until then nothing writes `hidden`, and nothing reads or writes `normed`, so the norm
    /// may be deferred to that product.
    fn linear_add_norm(&mut self, job: LinearAddNorm<'_, Self>, n_rows: usize) -> Result<(), BackendError> {
        self.linear(job.linear, job.input, n_rows, job.delta)?;
        self.all_reduce(n_rows, job.linear.n_out, job.delta)?;
        self.add_norm(job.scale, job.delta, job.norm, n_rows, job.hidden, job.normed)
    }

    /// Does everything between the projections and attention: norms of q and k, rotation of both, the store
    /// of k and v.
    fn rope_store_kv(&mut self, job: RopeStoreKv<'_, Self>, n_tokens: usize) -> Result<(), BackendError> {
        if let Some(norm) = job.q_norm {
            self.norm_in_place(norm, n_tokens, job.q_width, job.q)?;
        }
        if let Some(norm) = job.k_norm {
            self.norm_in_place(norm, n_tokens, job.k_width, job.k)?;
        }
        if let Some(rope) = job.rope {
            self.rope(rope, n_tokens, job.q_width, job.q)?;
            self.rope(rope, n_tokens, job.k_width, job.k)?;
        }
        self.store_kv(job.layer_idx, n_tokens, job.k, job.v)
    }

    /// Runs [`Backend::rope_store_kv`] and [`Backend::attention`] of the same layer. The contents of queries
    /// and keys are undefined afterwards.
    fn rope_attention(
        &mut self,
        job: RopeStoreKv<'_, Self>,
        attention: &Attention<Self::Vector>,
        shape: &StepShape,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError> {
        let q = job.q;
        self.rope_store_kv(RopeStoreKv { q: &mut *q, ..job }, shape.n_tokens)?;
        self.attention(attention, shape, q, output)
    }
}
