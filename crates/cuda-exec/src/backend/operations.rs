//! The operations of the forward pass, each a launch or a few.
//!
//! In the order of [`Backend`]. Separate from what a load does and from how a step is run. Invariant: an operation
//! queues work on the device and neither allocates nor waits.

use tokenmill_backend::{
    Activation, Allocation, Attention, Backend, BackendError, ExecutorLimits, ExpertInput, ForwardBatch,
    KvLayerShape, KvLayout, Linear, LinearJob, MatrixData, Memory, MemoryPlan, NetworkShape, Norm, NormKind,
    PageCopy, PageGroup, Rope, RopeStoreKv, Routed, RowSet, SamplingMode, StateLayout, StepOutput, StepShape,
    StepTrace, Temperature,
};
use tokenmill_gguf::TensorType;

use crate::modules::type_suffix;

use super::{CudaBackend, CudaBuffer, Sources, Workspace, prepared, trace::Tracer};

/// Tokens of a step: some grids have a thread block for each along y, and a grid has no more there.
const MAX_STEP_TOKENS: usize = 65_535;

impl Memory for CudaBackend {
    type Matrix = crate::Matrix;
    type Vector = crate::Buffer<f32>;
    type Buffer = CudaBuffer;
    type Routes = crate::DeviceRoutes;

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<crate::Matrix, BackendError> {
        self.load_matrix(data)
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
            Allocation::Matrix { ty, n_out, n_in, .. } => crate::MatrixLayout::of(ty, n_out, n_in)
                .map_or(usize::MAX, |layout| crate::buffer_bytes::<u8>(layout.bytes())),
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
            Allocation::Workspace(network, limits) => Self::size_of_workspace(network, limits),
        }
    }

    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        kv: &KvLayout,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        // What is certain to fail fails before gigabytes are on their way.
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

    fn works_apart(&self) -> bool {
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
        Ok(self.ops.embed(table, ids, scale, output.write())?)
    }

    fn take_hidden_inputs(
        &mut self,
        n_tokens: usize,
        _: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let hidden = prepared(&mut self.workspace).hidden.as_ref();
        let rows = hidden
            .expect("a network that reads hidden states was prepared for")
            .rows(n_tokens)?;
        let target = output.write().range(0..rows.len())?;
        Ok(self.device.copy(crate::Stream::Compute, rows, &target)?)
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
        let workspace = prepared(&mut self.workspace);
        let positions = workspace.inputs.positions(n_tokens)?;
        Ok(self.ops.rope(rope, positions, row_width, heads.write())?)
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
        let kv = self.kv.as_ref().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(attention.layer_idx);
        let Workspace {
            inputs,
            attention: scratch,
            ..
        } = prepared(&mut self.workspace);
        // The kernel quantizes whole warps of a head. What latent attention gives is read by a matrix of each head.
        let KvLayerShape {
            head_dim_v,
            has_values_in_keys,
            ..
        } = self.kv_heads[attention.layer_idx];
        let rows = if has_values_in_keys {
            [shape.n_tokens * attention.n_heads, head_dim_v]
        } else {
            [shape.n_tokens, attention.n_heads * head_dim_v]
        };
        let (values, form) = if head_dim_v.is_multiple_of(32) {
            output.write_both(rows)
        } else {
            (output.write(), None)
        };
        Ok(self.ops.attention(
            attention,
            &inputs.attention(shape, group)?,
            kv.group(group).layer(layer_idx),
            q.read(),
            values,
            form,
            scratch,
        )?)
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
        let Some(n_in) = jobs.first().map(|job| job.linear.n_in) else {
            return Ok(());
        };
        let form = if jobs.iter().any(|job| job.linear.matrix.takes_quantized_input()) {
            Some(input.read_quantized(&self.ops, [n_rows, n_in])?)
        } else {
            None
        };
        let input = crate::LinearInput {
            n_rows,
            floats: input.read(),
            quantized: form.as_ref().map(|form| form.view()),
        };
        for jobs in jobs.chunks_mut(3) {
            let mut jobs = jobs.iter_mut().map(|job| crate::Product {
                matrix: &job.linear.matrix,
                bias: job.linear.bias.as_ref().map(crate::Buffer::view),
                output: job.output.write(),
            });
            // Arrays instead of a vector: nothing is allocated on the step path.
            match (jobs.next(), jobs.next(), jobs.next()) {
                (Some(a), Some(b), Some(c)) => self.ops.linear(&input, &mut [a, b, c])?,
                (Some(a), Some(b), None) => self.ops.linear(&input, &mut [a, b])?,
                (Some(a), None, _) => self.ops.linear(&input, &mut [a])?,
                _ => {}
            }
        }
        self.adapters.add_to(&self.ops, input.floats, n_rows, jobs)
    }

    fn linear_gated(
        &mut self,
        activation: Activation,
        input: &CudaBuffer,
        n_rows: usize,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        // What adapters change is added before the activation.
        if self.adapters.change([&gate, &up])
            || !(self.ops).can_gate(&gate.linear.matrix, &up.linear.matrix, n_rows)
        {
            let mut jobs = [gate, up];
            self.linear_group(input, n_rows, &mut jobs)?;
            let [gate, up] = jobs;
            return self.activation(
                activation,
                n_rows,
                gate.linear.n_out,
                gate.output,
                Some(up.output),
            );
        }
        let gate_out = gate.output;
        let [gate, up] = [gate.linear, up.linear];
        let (form, (output, out_form)) = if gate.matrix.takes_quantized_input() {
            (
                Some(input.read_quantized(&self.ops, [n_rows, gate.n_in])?),
                gate_out.write_both([n_rows, gate.n_out]),
            )
        } else {
            // After float weights come float ones, or else that product has the rows quantized.
            (None, (gate_out.write(), None))
        };
        let input = crate::LinearInput {
            n_rows,
            floats: input.read(),
            quantized: form.as_ref().map(|form| form.view()),
        };
        Ok(self.ops.matvec_gated(
            &input,
            crate::GatedProduct {
                matrices: [&gate.matrix, &up.matrix],
                biases: [gate, up].map(|linear| linear.bias.as_ref().map(crate::Buffer::view)),
                activation,
                output,
                quantized: out_form,
            },
        )?)
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

    fn rope_store_kv(&mut self, job: RopeStoreKv<'_, Self>, n_tokens: usize) -> Result<(), BackendError> {
        let (q, k, v) = (job.q, job.k, job.v);
        let shape = self.kv_heads[job.layer_idx];
        // The kernel normalizes heads by RMS and weight; other norms come before it.
        let mut fused = [None, None];
        let eps = job.q_norm.map_or(0.0, |norm| norm.eps);
        let norms = [
            (job.q_norm, job.q_width, &mut *q),
            (job.k_norm, job.k_width, &mut *k),
        ];
        for (place, (norm, row_width, rows)) in fused.iter_mut().zip(norms) {
            match norm {
                Some(norm)
                    if norm.kind == NormKind::Rms
                        && norm.width == shape.head_dim_k
                        && norm.bias.is_none()
                        && norm.eps == eps
                        && (norm.weight.as_ref()).is_some_and(|weight| weight.len() == norm.width) =>
                {
                    *place = norm.weight.as_ref().map(crate::Buffer::view);
                }
                Some(norm) => self.norm_in_place(norm, n_tokens, row_width, rows)?,
                None => {}
            }
        }
        let workspace = prepared(&mut self.workspace);
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let (group, layer_idx) = kv.place(job.layer_idx);
        Ok(self.ops.rope_kv(
            job.rope,
            job.q_width / shape.head_dim_k,
            workspace.inputs.places(n_tokens, group)?,
            crate::RopeTargets {
                q: q.write(),
                k: k.write(),
                v: v.read(),
                norms: fused,
                eps,
            },
            kv.group_mut(group).layer_mut(layer_idx),
        )?)
    }
}
