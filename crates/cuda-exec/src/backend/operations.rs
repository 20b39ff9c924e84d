//! The operations of the forward pass, each a launch or a few.
//!
//! The order is that of [`Backend`]. Invariant: an operation queues work on the device and neither allocates nor
//! waits.

use tokenmill_backend::{
    Activation, Allocation, Attention, Backend, BackendError, ColumnGather, ExecutorLimits, ExpertInput,
    ForwardBatch, KvLayout, Linear, LinearAddNorm, LinearJob, MatrixData, Memory, MemoryPlan, NetworkShape,
    Norm, PageCopy, PageGroup, Rope, RopeStoreKv, Routed, RowSet, SamplingMode, StateLayout, StepOutput,
    StepShape, StepTrace, Temperature,
};
use tokenmill_gguf::TensorType;

use crate::modules::type_suffix;

use super::{CudaBackend, CudaBuffer, Sources, prepared, trace::Tracer};

/// Largest number of tokens in a step: some grids have one thread block per token along y, whose size is limited.
const MAX_STEP_TOKENS: usize = 65_535;

impl Memory for CudaBackend {
    type Matrix = crate::Matrix;
    type Vector = crate::Buffer<f32>;
    type Buffer = CudaBuffer;
    type Routes = crate::DeviceRoutes;

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<crate::Matrix, BackendError> {
        self.load_matrix(data)
    }

    fn share_matrix(matrix: &crate::Matrix) -> Option<crate::Matrix> {
        Some(matrix.clone())
    }

    fn upload_vector(&mut self, values: &[f32]) -> Result<crate::Buffer<f32>, BackendError> {
        Ok(self.device.upload("weights", values)?)
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<CudaBuffer, BackendError> {
        self.make_buffer(max_rows, width)
    }

    fn alloc_routes(
        &mut self,
        max_rows: usize,
        n_experts: usize,
        n_used: usize,
    ) -> Result<crate::DeviceRoutes, BackendError> {
        self.make_routes(max_rows, n_experts, n_used)
    }
}

impl Backend for CudaBackend {
    const NAME: &'static str = "the CUDA backend";

    fn supports(&self, ty: TensorType) -> bool {
        type_suffix(ty).is_some()
    }

    fn bytes_of(&self, allocation: &Allocation<'_>) -> usize {
        match *allocation {
            Allocation::Matrix {
                ty,
                n_out,
                n_in,
                usage,
                ..
            } => crate::MatrixLayout::of(ty, n_out, n_in).map_or(usize::MAX, |layout| {
                let n_bytes = crate::buffer_bytes::<u8>(layout.bytes());
                self.planned.note(layout, usage);
                n_bytes
            }),
            Allocation::Vector { len } => crate::buffer_bytes::<f32>(len),
            Allocation::Buffer { max_rows, width } => CudaBuffer::device_bytes(max_rows, width),
            // A page of a layer has a multiple of 256 bytes, so the store's buffers are not padded.
            Allocation::KvPage(layout) => crate::KvStore::page_bytes(layout),
            Allocation::State(layout) => crate::StateSlots::slot_bytes(layout),
            Allocation::Routes {
                max_rows,
                n_experts,
                n_used,
            } => crate::DeviceRoutes::device_bytes(max_rows, n_experts, n_used),
            Allocation::Workspace(network, limits) => self.size_of_workspace(network, limits),
        }
    }

    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        kv: &KvLayout,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        // Fails before gigabytes are copied if the load cannot succeed.
        super::load::check(network)?;
        crate::KvStore::check(kv)?;
        if network.has_streams {
            self.ops.load_streams()?;
        }
        if kv.layers.iter().any(|layer| layer.has_values_in_keys) {
            self.ops.load_latent()?;
        }
        if limits.max_batch_tokens > MAX_STEP_TOKENS {
            return Err(BackendError::Unsupported {
                feature: format!(
                    "steps of {} tokens, only of {MAX_STEP_TOKENS} and fewer",
                    limits.max_batch_tokens
                ),
                device: Self::NAME,
            });
        }
        self.make_workspace(network, limits, plan)
    }

    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<(), BackendError> {
        self.make_kv_store(layout)
    }

    fn alloc_states(&mut self, layout: &StateLayout) -> Result<(), BackendError> {
        self.make_states(layout)
    }

    fn all_reduce(&mut self, n_rows: usize, width: usize, rows: &mut CudaBuffer) -> Result<(), BackendError> {
        self.add_up(n_rows * width, rows)
    }

    fn all_gather(&mut self, gather: ColumnGather<'_, CudaBuffer>) -> Result<(), BackendError> {
        self.gather_columns(gather)
    }

    fn works_apart(&self) -> bool {
        true
    }

    fn takes_rows(&self) -> bool {
        true
    }

    fn trace(&self) -> Option<StepTrace> {
        self.tracer.as_ref().map(Tracer::trace)
    }

    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        self.begin_counted(batch, true)
    }

    fn run_step(
        &mut self,
        shape: StepShape,
        mut body: impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.run_best(shape, &mut body)
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        self.workspace().results.read(output)?;
        match &mut self.tracer {
            Some(tracer) => Ok(tracer.read()?),
            None => Ok(()),
        }
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError> {
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        Ok(kv.group_mut(group).copy_pages(copies)?)
    }

    fn embed(
        &mut self,
        table: &crate::Matrix,
        scale: f32,
        n_tokens: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let workspace = prepared(&mut self.workspace);
        let ids = crate::TokenIds {
            tokens: workspace.inputs.tokens(n_tokens)?,
            sampled: workspace.picked.view(),
        };
        self.ops.embed(table, ids, scale, output.write())?;
        self.take_input_rows(output)
    }

    fn take_hidden_inputs(
        &mut self,
        n_tokens: usize,
        _: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.copy_hidden(n_tokens, output)
    }

    fn add_input_rows(
        &mut self,
        part: usize,
        _: usize,
        _: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.add_part(part, rows)
    }

    fn add_row(
        &mut self,
        row: &crate::Buffer<f32>,
        n_rows: usize,
        width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.add_row([n_rows, width], rows.write(), row.view())?)
    }

    fn mean_of_sequences(
        &mut self,
        shape: &StepShape,
        width: usize,
        input: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let seq_starts = prepared(&mut self.workspace).inputs.seq_starts()?;
        let rows = [shape.n_tokens, width];
        Ok(self
            .ops
            .mean_of_sequences(seq_starts, rows, input.read(), output.write())?)
    }

    fn add_positions(
        &mut self,
        table: &crate::Buffer<f32>,
        n_tokens: usize,
        width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let positions = prepared(&mut self.workspace).inputs.positions(n_tokens)?;
        Ok(self
            .ops
            .add_positions(table.view(), positions, width, rows.write())?)
    }

    fn scale_by_position(
        &mut self,
        temperature: Temperature,
        n_tokens: usize,
        width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let positions = prepared(&mut self.workspace).inputs.positions(n_tokens)?;
        Ok(self
            .ops
            .scale_by_position(temperature, positions, width, rows.write())?)
    }

    fn norm(
        &mut self,
        norm: &Norm<crate::Buffer<f32>>,
        input: &CudaBuffer,
        n_rows: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let (values, form) = output.write_both([n_rows, norm.width]);
        Ok(self.ops.norm(norm, n_rows, input.read(), values, form)?)
    }

    fn norm_in_place(
        &mut self,
        norm: &Norm<crate::Buffer<f32>>,
        n_rows: usize,
        row_width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.norm_in_place(norm, n_rows, row_width, rows.write())?)
    }

    fn linear(
        &mut self,
        linear: &Linear<crate::Matrix, crate::Buffer<f32>>,
        input: &CudaBuffer,
        n_rows: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.linear_group(input, n_rows, &mut [LinearJob { linear, output }])
    }

    fn rope(
        &mut self,
        rope: &Rope<crate::Buffer<f32>>,
        n_tokens: usize,
        row_width: usize,
        heads: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.turn(rope, n_tokens, row_width, heads)
    }

    fn store_kv(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        k: &CudaBuffer,
        v: &CudaBuffer,
    ) -> Result<(), BackendError> {
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(layer_idx);
        let places = prepared(&mut self.workspace).inputs.places(n_tokens, group)?;
        let layer = kv.group_mut(group).layer_mut(layer_idx);
        Ok(self.ops.store_kv(places, [k.read(), v.read()], layer)?)
    }

    fn attention(
        &mut self,
        attention: &Attention<crate::Buffer<f32>>,
        shape: &StepShape,
        q: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.attend(attention, shape, q, output)
    }

    fn activation(
        &mut self,
        activation: Activation,
        n_rows: usize,
        width: usize,
        rows: &mut CudaBuffer,
        up: Option<&CudaBuffer>,
    ) -> Result<(), BackendError> {
        let (values, form) = rows.write_both([n_rows, width]);
        Ok(self.ops.activation(
            activation,
            [n_rows, width],
            values,
            up.map(CudaBuffer::read),
            form,
        )?)
    }

    fn add(
        &mut self,
        scale: f32,
        n_rows: usize,
        width: usize,
        rows: &mut CudaBuffer,
        delta: &CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.add(scale, [n_rows, width], rows.write(), delta.read())?)
    }

    fn gather(
        &mut self,
        rows: RowSet,
        shape: &StepShape,
        width: usize,
        input: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let workspace = prepared(&mut self.workspace);
        let (rows, n_input_rows) = workspace.inputs.rows(rows, shape)?;
        Ok(self
            .ops
            .gather(rows, [n_input_rows, width], input.read(), output.write())?)
    }

    fn scale_logits(
        &mut self,
        scale: f32,
        cap: Option<f32>,
        n_rows: usize,
        width: usize,
        logits: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self
            .ops
            .scale_logits(scale, cap, [n_rows, width], logits.write())?)
    }

    fn sample(
        &mut self,
        shape: &StepShape,
        n_vocab: usize,
        _: usize,
        logits: &mut CudaBuffer,
        outputs: &CudaBuffer,
    ) -> Result<(), BackendError> {
        let workspace = prepared(&mut self.workspace);
        let rows = [shape.n_logits, n_vocab];
        match shape.sampling {
            SamplingMode::Raw => {}
            SamplingMode::Argmax => self.ops.argmax(
                rows,
                logits.read(),
                workspace.picked.view_mut(),
                &mut workspace.argmax,
            )?,
            SamplingMode::Full => {
                let previous = &mut workspace.previous;
                let n_previous = previous.len();
                let tokens = workspace.picked.view().range(0..n_previous)?;
                (self.device).copy(crate::Stream::Compute, tokens, &previous.view_mut())?;
                let [records, words] = workspace.inputs.records()?;
                let [tokens, status, logprobs, top_ids, top_logprobs] =
                    (workspace.picked_layout).split(workspace.picked.view_mut())?;
                self.ops.sample(
                    rows,
                    logits.read(),
                    &crate::SampleInputs {
                        records,
                        words,
                        previous: previous.view(),
                        has_many: workspace.inputs.has_many(),
                    },
                    crate::SampleOutputs {
                        scratch: &mut workspace.sampling,
                        tokens,
                        status,
                        logprobs,
                        top_ids,
                        top_logprobs,
                    },
                )?;
            }
        }
        (workspace.results).set_sources(Sources::new(logits.share(), outputs.share()));
        Ok(())
    }

    fn linear_group(
        &mut self,
        input: &CudaBuffer,
        n_rows: usize,
        jobs: &mut [LinearJob<'_, Self>],
    ) -> Result<(), BackendError> {
        self.multiply(input, n_rows, jobs)
    }

    fn linear_gated(
        &mut self,
        activation: Activation,
        input: &CudaBuffer,
        n_rows: usize,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        self.multiply_gated(activation, input, n_rows, gate, up)
    }

    fn experts_gated(
        &mut self,
        activation: Activation,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, CudaBuffer>,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        self.gate_experts(activation, routed, input, gate, up)
    }

    fn add_norm(
        &mut self,
        scale: f32,
        delta: &CudaBuffer,
        norm: &Norm<crate::Buffer<f32>>,
        n_rows: usize,
        hidden: &mut CudaBuffer,
        normed: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let (normed, form) = normed.write_both([n_rows, norm.width]);
        Ok(self
            .ops
            .add_norm(norm, n_rows, (scale, delta.read()), hidden.write(), normed, form)?)
    }

    fn linear_add_norm(&mut self, job: LinearAddNorm<'_, Self>, n_rows: usize) -> Result<(), BackendError> {
        self.multiply_add_norm(job, n_rows)
    }

    fn rope_store_kv(&mut self, job: RopeStoreKv<'_, Self>, n_tokens: usize) -> Result<(), BackendError> {
        self.turn_and_store(job, n_tokens)
    }

    fn rope_attention(
        &mut self,
        job: RopeStoreKv<'_, Self>,
        attention: &Attention<crate::Buffer<f32>>,
        shape: &StepShape,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.turn_and_attend(job, attention, shape, output)
    }
}
