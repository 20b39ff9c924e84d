//! [`Backend`]: the fine seam, the operations that the one forward pass is made of.
//!
//! It is separate from the forward pass so that a device is an implementation of this trait and nothing else.
//! Invariant: an operation sees buffers, weights and counts ([`StepShape`]), never the values of a step (ids, positions,
//! slots, page tables). Values reach the device in [`Backend::begin_step`] alone, into buffers that stay where they
//! are; so everything inside [`Backend::run_step`] can be captured once and replayed.
//!
//! What the buffers hold, with `T` tokens, `O` output rows, `L` logit rows:
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
//! Every operation is row-wise (attention: row-wise given the KV store). A host backend gives a row the same bits
//! whatever the other rows are; a device may choose kernels by [`StepShape`].

use tokenmill_gguf::TensorType;

use crate::{
    Activation, AdapterOperations, Allocation, Attention, BackendError, ColumnGather, ExecutorLimits,
    ExpertInput, ExpertOperations, ForwardBatch, KvLayout, LatentOperations, LayerOperations, Linear,
    LinearAddNorm, LinearJob, MemoryPlan, NetworkPart, NetworkShape, Norm, PageCopy, PageGroup,
    RecurrentOperations, Rope, RopeStoreKv, Routed, RowSet, SequenceMemory, Side, StateLayout, StepOutput,
    StepShape, StepTrace, StreamOperations, Temperature,
};

/// A device, as the forward pass sees it. Static dispatch; one value owns the device memory of one model.
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

    /// Whether matrices of this type can be computed.
    fn supports(&self, ty: TensorType) -> bool;

    /// Device memory that an allocation takes; `usize::MAX` where it is beyond that.
    fn bytes_of(&self, allocation: &Allocation<'_>) -> usize;

    /// Whether the backend is made of two, of which each has some parts of the network.
    fn is_split(&self) -> bool {
        false
    }

    /// Memory that an allocation of a part takes on a side. A backend that is not split has everything on [`Side::Device`].
    fn bytes_at(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize {
        let _ = part;
        match side {
            Side::Device => self.bytes_of(allocation),
            Side::Host => 0,
        }
    }

    /// Called once, before anything else is asked of the backend: with the widths of the network, the largest step, the
    /// KV store, and the memory planned for all of them.
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

    /// Allocates the store of recurrent states. Called once, after the KV store, where the network has recurrent layers.
    ///
    /// # Errors
    /// A device error.
    fn alloc_states(&mut self, layout: &StateLayout) -> Result<(), BackendError>;

    /// Whether the device works apart from the host's threads, so that a second step is worth submitting while one runs.
    fn works_apart(&self) -> bool {
        false
    }

    /// Whether [`RowMask::Late`](crate::RowMask::Late) is waited for where rows are sampled, not in [`Self::begin_step`].
    fn takes_late_masks(&self) -> bool {
        false
    }

    /// Whether steps may have inputs that are no tokens, and tokens that see those after them
    /// ([`ForwardBatch::input_rows`], [`ForwardBatch::last_seen`]).
    fn takes_rows(&self) -> bool {
        false
    }

    /// What the time of the steps read so far went to; `None` where the device does not measure it, or was not asked to.
    fn trace(&self) -> Option<StepTrace> {
        None
    }

    /// Takes the values of a validated step into the device's input buffers and says its shape, which may be padded.
    ///
    /// A [`TokenSource::SampledRow`](crate::TokenSource::SampledRow) names a row sampled in the step that began before
    /// this one, whose results may not have been read yet.
    ///
    /// # Errors
    /// A device error.
    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError>;

    /// Runs `body`, the forward pass of one step. Overridden to capture and replay, or to enter a thread pool once. `body`
    /// may be run again where its first run was only a capture that failed.
    ///
    /// # Errors
    /// What `body` returned, or a device error.
    fn run_step(
        &mut self,
        shape: StepShape,
        mut body: impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        body(self, shape)
    }

    /// Waits for the oldest step that was not read yet and writes its results: sampled rows, log-probabilities, raw
    /// logits and hidden states that its batch asked for.
    ///
    /// # Errors
    /// A device error of that step.
    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError>;

    /// Copies whole KV pages of a group in order, after the steps begun before and ahead of those begun later. The pages are in
    /// range.
    ///
    /// # Errors
    /// A device error.
    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError>;

    /// Looks up the step's tokens: `output[t] = scale * table[tokens[t]]`, `[T, n_embd]`. Where an input is a row, it is
    /// that row, not scaled.
    fn embed(
        &mut self,
        table: &Self::Matrix,
        scale: f32,
        n_tokens: usize,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError>;

    /// Takes the step's [`ForwardBatch::hidden_inputs`]: `output[t] = hidden_inputs[t]`, `[T, n_embd]`.
    ///
    /// # Errors
    /// [`BackendError::Unsupported`] where the device takes none, or a device error.
    fn take_hidden_inputs(
        &mut self,
        n_tokens: usize,
        width: usize,
        output: &mut Self::Buffer,
    ) -> Result<(), BackendError> {
        let _ = (n_tokens, width, output);
        Err(BackendError::Unsupported {
            feature: "a layer that guesses further tokens".to_owned(),
            device: Self::NAME,
        })
    }

    /// Adds to the rows of inputs that are no tokens what these have for the stream behind a layer: columns `part * width` and
    /// following of [`ForwardBatch::input_rows`]; `rows: [T, width]`. Backends without such inputs do nothing.
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

    /// Adds to each token's row that of its position: `rows[t] += table[positions[t]]`; `table: [positions, width]`, longer than
    /// any sequence.
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

    /// Normalizes in place every run of `norm.width` values of each row `[row_width]`: with the width of a head, each
    /// head by itself; with the width of a row, the row. All runs of a row have the norm's
    /// weight `[width]` in common, or each has its own where the weight is as long as a row.
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

    /// Rotates the heads of each token's row by its position, in place: `heads: [T, row_width]`, a multiple of
    /// `rope.head_dim`.
    ///
    /// With `angle(i) = position * inv_freqs[i]`, where `rope.axes` says which position that is, the pair `(a, b)` becomes
    /// `magnitude * (a cos - b sin, a sin + b cos)`. Values beyond `2 * inv_freqs.len()` of a head stay.
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

    /// Adds up the rows over the ranks of a group that compute parts of one network together, `[n_rows, width]`: each has its part of
    /// the sum before, and the sum afterwards. A backend that has a network for itself leaves them as they are.
    fn all_reduce(
        &mut self,
        n_rows: usize,
        width: usize,
        rows: &mut Self::Buffer,
    ) -> Result<(), BackendError> {
        let _ = (n_rows, width, rows);
        Ok(())
    }

    /// Gives every rank of a group the rows whose columns the ranks have computed a part of each. A backend whose networks are whole is
    /// never asked.
    fn all_gather(&mut self, gather: ColumnGather<'_, Self::Buffer>) -> Result<(), BackendError> {
        let _ = gather;
        Err(BackendError::Unsupported {
            feature: "an output head that is divided among several devices".to_owned(),
            device: Self::NAME,
        })
    }

    /// Copies the rows that `rows` names, `[T or O, width]`, to the front of `output`.
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

    /// Ends the step's computation: samples from, or keeps, the logits `[L, n_vocab]` as the batch asked per row (present
    /// where `L > 0`), and keeps the hidden rows among `outputs: [O, n_embd]` that it asked for. The results wait for
    /// [`Backend::read`].
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

    /// The first half of a gated feed-forward network: `gate.output = f(gate * input) * (up * input)`; `up.output` is
    /// scratch.
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

    /// [`Backend::linear_gated`] of experts: `gate.output = f(gate * input) * (up * input)`, `[n_choices, n_out]`; `up.output` is
    /// scratch.
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

    /// A residual addition and the norm that follows it: `hidden += scale * delta; normed = norm(hidden)`.
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

    /// A product that is added to the stream, and the norm behind it: `hidden += scale * (matrix * input + bias)`, of a shard the sum over all ranks;
    /// `normed = norm(hidden)`. A product of `normed` ([`Backend::linear`], [`Backend::linear_group`] or
    /// [`Backend::linear_gated`]) with as many rows is next: before it nothing writes `hidden`, and nothing reads or writes `normed`. So the norm may be
    /// left to that.
    fn linear_add_norm(&mut self, job: LinearAddNorm<'_, Self>, n_rows: usize) -> Result<(), BackendError> {
        self.linear(job.linear, job.input, n_rows, job.delta)?;
        self.all_reduce(n_rows, job.linear.n_out, job.delta)?;
        self.add_norm(job.scale, job.delta, job.norm, n_rows, job.hidden, job.normed)
    }

    /// Everything between the projections and attention: norms of q and k, rotation of both, the store of k and v.
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

    /// [`Backend::rope_store_kv`] and [`Backend::attention`] of the same layer. What queries and keys are afterwards is left open.
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
