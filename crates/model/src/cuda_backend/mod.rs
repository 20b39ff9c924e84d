//! [`CudaBackend`]: the fine seam over the CUDA executor.
//!
//! Only translation stands here; the kernels and their launches are `cuda-exec`'s. Values of a step go up in one copy
//! ([`step`]), results come down behind the step and are waited for once ([`results`]). Invariant: everything is
//! allocated in [`Backend::prepare`] and the load that follows, and operations inside [`Backend::run_step`] only launch, so a
//! decode step is captured once for its shape and replayed.

mod quantized;
mod results;
mod step;

use tokenmill_cuda_exec as exec;
use tokenmill_gguf::TensorType;

use self::{
    quantized::QuantizedForms,
    results::{Results, Sources},
    step::StepInputs,
};
use crate::{
    Activation, Attention, Backend, BackendError, Descriptor, ExecutorLimits, ForwardBatch, KvLayout, KvType,
    Linear, LinearJob, MatrixData, MatrixUsage, MemoryPlan, Norm, NormKind, PAGE_TOKENS, PageCopy, Phase,
    Rope, RopeStoreKv, RopeStyle, RowSet, SamplingMode, StepOutput, StepShape,
};

pub(crate) const DEVICE: &str = "the CUDA backend";

/// A GPU.
pub struct CudaBackend {
    device: exec::Device,
    ops: exec::Ops,
    uploader: exec::Uploader,
    kv: Option<exec::KvStore>,
    kv_heads: Vec<exec::KvShape>,
    workspace: Option<Workspace>,
    n_buffers: usize,
    graphs: exec::GraphCache<StepShape, Sources>,
    /// Counts the moves of what captured steps hold.
    epoch: u64,
    uses_graphs: bool,
}

/// What steps need beside weights, activations and KV.
struct Workspace {
    inputs: StepInputs,
    results: Results,
    quantized: QuantizedForms,
    attention: exec::AttentionScratch,
    argmax: exec::ArgmaxScratch,
    /// Tokens sampled by the newest step that sampled on the device.
    sampled: exec::Buffer<u32>,
}

/// An activation buffer with a number that tells it from others.
pub struct CudaBuffer {
    id: usize,
    values: exec::Buffer<f32>,
}

impl CudaBackend {
    /// Takes an opened device.
    ///
    /// # Errors
    /// A device error: a driver that does not take the kernels.
    pub fn new(device: exec::Device) -> Result<Self, exec::CudaExecError> {
        Ok(Self {
            ops: exec::Ops::load(&device)?,
            uploader: exec::Uploader::new(&device),
            kv: None,
            kv_heads: Vec::new(),
            workspace: None,
            n_buffers: 0,
            graphs: exec::GraphCache::default(),
            epoch: 0,
            uses_graphs: true,
            device,
        })
    }

    /// Turns the capture of decode steps on or off; it is on at first.
    #[must_use]
    pub fn with_graphs(mut self, uses_graphs: bool) -> Self {
        self.uses_graphs = uses_graphs;
        self
    }

    /// The device.
    pub fn device(&self) -> &exec::Device {
        &self.device
    }

    /// Captured steps.
    pub fn n_graphs(&self) -> usize {
        self.graphs.n_graphs()
    }

    fn workspace(&mut self) -> &mut Workspace {
        prepared(&mut self.workspace)
    }

    /// Captures a step and keeps the graph; nothing of it has run then.
    fn capture(
        &mut self,
        shape: StepShape,
        body: &mut impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        let capture = exec::Capture::begin(&self.device)?;
        body(self, shape)?;
        let graph = capture.finish()?;
        let sources = self.workspace().results.sources();
        self.graphs.insert(shape, graph, sources);
        Ok(())
    }

    /// Replays the step's graph if there is one.
    fn replay(&mut self, shape: &StepShape) -> Result<Replayed, BackendError> {
        match self.graphs.plan(shape, self.epoch) {
            exec::StepPlan::Replay(graph, sources) => {
                graph.replay()?;
                let sources = sources.clone();
                self.workspace().results.set_sources(sources);
                Ok(Replayed::Yes)
            }
            exec::StepPlan::Capture => Ok(Replayed::NotCaptured),
            exec::StepPlan::Eager => Ok(Replayed::CannotBe),
        }
    }

    fn run_eagerly(
        &mut self,
        shape: StepShape,
        body: &mut impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.workspace().quantized.forget_all();
        body(self, shape)
    }
}

enum Replayed {
    Yes,
    NotCaptured,
    CannotBe,
}

fn prepared(workspace: &mut Option<Workspace>) -> &mut Workspace {
    workspace.as_mut().expect("the load prepares before it uploads")
}

impl Backend for CudaBackend {
    type Matrix = exec::Matrix;
    type Vector = exec::Buffer<f32>;
    type Buffer = CudaBuffer;

    fn prepare(
        &mut self,
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        self.epoch += 1;
        let n_bytes = plan.total_bytes() - plan.kv_page_bytes * limits.n_host_pages;
        self.device.reserve("the model", n_bytes)?;
        let [n_heads, dim_v] = widest_attention(descriptor);
        let device = &self.device;
        self.workspace = Some(Workspace {
            inputs: StepInputs::new(device, limits)?,
            results: Results::new(device, limits)?,
            quantized: QuantizedForms::new(device, limits.max_batch_tokens, widest_input(descriptor))?,
            attention: exec::AttentionScratch::new(
                device,
                limits.max_batch_tokens,
                limits.n_ctx.div_ceil(PAGE_TOKENS),
                n_heads,
                dim_v,
            )?,
            argmax: exec::ArgmaxScratch::new(device, limits.max_logit_rows, limits.n_vocab)?,
            sampled: device.alloc("sampling", limits.max_logit_rows)?,
        });
        Ok(())
    }

    fn workspace_bytes(&self, descriptor: &Descriptor, limits: &ExecutorLimits) -> usize {
        let [n_heads, dim_v] = widest_attention(descriptor);
        let max_pages = limits.n_ctx.div_ceil(PAGE_TOKENS);
        let rope_bytes: usize = (descriptor.ropes.iter())
            .map(|rope| self.vector_bytes(rope.n_dims / 2))
            .sum();
        StepInputs::device_bytes(limits)
            + QuantizedForms::device_bytes(limits.max_batch_tokens, widest_input(descriptor))
            + exec::AttentionScratch::device_bytes(limits.max_batch_tokens, max_pages, n_heads, dim_v)
            + exec::ArgmaxScratch::device_bytes(limits.max_logit_rows, limits.n_vocab)
            + exec::buffer_bytes::<u32>(limits.max_logit_rows)
            + rope_bytes
    }

    fn upload_matrix(&mut self, data: &MatrixData<'_>) -> Result<exec::Matrix, BackendError> {
        let usage = exec::MatrixUse {
            is_table: data.usage != MatrixUsage::Linear,
            is_factor: data.usage != MatrixUsage::Embedding,
        };
        (self.uploader)
            .upload(data.ty, [data.n_out, data.n_in], data.bytes, usage)
            .map_err(|error| match error {
                exec::CudaExecError::Layout(exec::LayoutError::UnsupportedType { ty }) => {
                    BackendError::UnsupportedType {
                        tensor: data.name.to_owned(),
                        ty,
                        device: DEVICE,
                    }
                }
                other => other.into(),
            })
    }

    fn upload_vector(&mut self, values: &[f32]) -> Result<exec::Buffer<f32>, BackendError> {
        Ok(self.device.upload("weights", values)?)
    }

    fn alloc(&mut self, max_rows: usize, width: usize) -> Result<CudaBuffer, BackendError> {
        self.epoch += 1;
        self.n_buffers += 1;
        Ok(CudaBuffer {
            id: self.n_buffers,
            values: self.device.alloc("activations", max_rows * width)?,
        })
    }

    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<(), BackendError> {
        // The weights are complete when the KV store is allocated.
        self.uploader.finish()?;
        self.epoch += 1;
        let ty = kv_type(layout)?;
        self.kv_heads = kv_shapes(layout);
        self.kv = Some(exec::KvStore::new(
            &self.device,
            ty,
            &self.kv_heads,
            layout.n_pages,
            layout.n_host_pages,
        )?);
        Ok(())
    }

    fn matrix_bytes(&self, ty: TensorType, n_out: usize, n_in: usize, _: MatrixUsage) -> usize {
        exec::MatrixLayout::of(ty, n_out, n_in).map_or(0, |layout| exec::buffer_bytes::<u8>(layout.bytes()))
    }

    fn vector_bytes(&self, len: usize) -> usize {
        exec::buffer_bytes::<f32>(len)
    }

    fn buffer_bytes(&self, max_rows: usize, width: usize) -> usize {
        exec::buffer_bytes::<f32>(max_rows * width)
    }

    fn kv_page_bytes(&self, layout: &KvLayout) -> usize {
        kv_type(layout).map_or(layout.page_bytes(), |ty| {
            // A buffer's padding is below one page's share of it, since pages are counted in whole KiB.
            exec::KvStore::page_bytes(ty, &kv_shapes(layout))
        })
    }

    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        let workspace = prepared(&mut self.workspace);
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        workspace.results.begin(batch);
        let shape = workspace.inputs.begin(batch, &mut workspace.results)?;
        kv.await_pages(workspace.inputs.pages())?;
        Ok(shape)
    }

    fn run_step(
        &mut self,
        shape: StepShape,
        mut body: impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        // Prefill comes in too many shapes, and its kernels run long enough to hide their launches.
        let is_capturable = self.uses_graphs && shape.phase == Phase::Decode && shape.n_tokens > 0;
        let replayed = if is_capturable {
            self.replay(&shape)?
        } else {
            Replayed::CannotBe
        };
        match replayed {
            Replayed::Yes => {}
            Replayed::CannotBe => self.run_eagerly(shape, &mut body)?,
            Replayed::NotCaptured => {
                self.workspace().quantized.forget_all();
                match self.capture(shape, &mut body) {
                    Ok(()) => {
                        self.replay(&shape)?;
                    }
                    Err(error @ BackendError::Lost { .. }) => return Err(error),
                    Err(_) => {
                        self.graphs.give_up(shape);
                        self.run_eagerly(shape, &mut body)?;
                    }
                }
            }
        }
        let workspace = prepared(&mut self.workspace);
        workspace.results.queue(&workspace.sampled)
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        self.workspace().results.read(output)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), BackendError> {
        let moves: Vec<_> = (copies.iter())
            .map(|&copy| match copy {
                PageCopy::Duplicate { from, to } => exec::PageMove::Duplicate {
                    from: from as usize,
                    to: to as usize,
                },
                PageCopy::Download { page, host_page } => exec::PageMove::Download {
                    page: page as usize,
                    host_page: host_page as usize,
                },
                PageCopy::Upload { host_page, page } => exec::PageMove::Upload {
                    host_page: host_page as usize,
                    page: page as usize,
                },
            })
            .collect();
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        Ok(kv.move_pages(&moves)?)
    }

    fn embed(
        &mut self,
        table: &exec::Matrix,
        scale: f32,
        n_tokens: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let workspace = prepared(&mut self.workspace);
        workspace.quantized.forget(output.id);
        let ids = exec::TokenIds {
            tokens: workspace.inputs.tokens(n_tokens)?,
            sampled: workspace.sampled.view(),
        };
        Ok(self.ops.embed(table, ids, scale, output.values.view_mut())?)
    }

    fn norm(
        &mut self,
        norm: &Norm<Self>,
        input: &CudaBuffer,
        n_rows: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let quantized = &mut prepared(&mut self.workspace).quantized;
        let form = quantized.of_new_rows(output.id, norm.width, None);
        Ok(self.ops.norm(
            &norm_of(norm),
            n_rows,
            input.values.view(),
            output.values.view_mut(),
            form,
        )?)
    }

    fn norm_heads(
        &mut self,
        norm: &Norm<Self>,
        n_rows: usize,
        row_width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.workspace().quantized.forget(rows.id);
        let norm = norm_of(norm);
        Ok(self
            .ops
            .norm_heads(&norm, n_rows, row_width, rows.values.view_mut())?)
    }

    fn linear(
        &mut self,
        linear: &Linear<Self>,
        input: &CudaBuffer,
        n_rows: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        self.linear_group(input, n_rows, &mut [LinearJob { linear, output }])
    }

    fn rope(
        &mut self,
        rope: &Rope<Self>,
        n_tokens: usize,
        row_width: usize,
        heads: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let workspace = prepared(&mut self.workspace);
        workspace.quantized.forget(heads.id);
        let positions = workspace.inputs.places(n_tokens)?.positions;
        let widths = [rope.head_dim, row_width];
        Ok(self
            .ops
            .rope(&rope_of(rope), positions, widths, heads.values.view_mut())?)
    }

    fn store_kv(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        k: &CudaBuffer,
        v: &CudaBuffer,
    ) -> Result<(), BackendError> {
        let places = prepared(&mut self.workspace).inputs.places(n_tokens)?;
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        Ok(self.ops.store_kv(
            places,
            [k.values.view(), v.values.view()],
            kv.layer_mut(layer_idx),
        )?)
    }

    fn attention(
        &mut self,
        attention: &Attention<Self>,
        shape: &StepShape,
        q: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let kv = self.kv.as_ref().expect("the KV store was allocated at load");
        let Workspace {
            inputs,
            quantized,
            attention: scratch,
            ..
        } = prepared(&mut self.workspace);
        // The kernel quantizes whole warps of a head.
        let width = attention.n_heads * attention.head_dim_v;
        let form = if attention.head_dim_v.is_multiple_of(32) {
            quantized.of_new_rows(output.id, width, None)
        } else {
            quantized.forget(output.id);
            None
        };
        Ok(self.ops.attention(
            &exec::AttentionShape {
                n_heads: attention.n_heads,
                scale: attention.scale,
                window: attention.window,
                softcap: attention.softcap,
                sinks: attention.sinks.as_ref().map(exec::Buffer::view),
            },
            &inputs.attention(shape)?,
            kv.layer(attention.layer_idx),
            q.values.view(),
            output.values.view_mut(),
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
        let form = (self.workspace.as_mut())
            .and_then(|workspace| workspace.quantized.of_new_rows(rows.id, width, None));
        Ok(self.ops.activation(
            activation_of(activation),
            [n_rows, width],
            rows.values.view_mut(),
            up.map(|up| up.values.view()),
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
        self.workspace().quantized.forget(rows.id);
        let (rows, delta) = (rows.values.view_mut(), delta.values.view());
        Ok(self.ops.add(scale, [n_rows, width], rows, delta)?)
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
        workspace.quantized.forget(output.id);
        let (rows, n_input_rows) = workspace.inputs.rows(rows, shape)?;
        let (input, output) = (input.values.view(), output.values.view_mut());
        Ok(self.ops.gather(rows, [n_input_rows, width], input, output)?)
    }

    fn scale_logits(
        &mut self,
        scale: f32,
        cap: Option<f32>,
        n_rows: usize,
        width: usize,
        logits: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let logits = logits.values.view_mut();
        Ok(self.ops.scale_logits(scale, cap, [n_rows, width], logits)?)
    }

    fn sample(
        &mut self,
        shape: &StepShape,
        [n_vocab, _]: [usize; 2],
        logits: &mut CudaBuffer,
        outputs: &CudaBuffer,
    ) -> Result<(), BackendError> {
        let workspace = prepared(&mut self.workspace);
        if shape.sampling == SamplingMode::Argmax {
            self.ops.argmax(
                [shape.n_logits, n_vocab],
                logits.values.view(),
                workspace.sampled.view_mut(),
                &mut workspace.argmax,
            )?;
        }
        (workspace.results).set_sources(Sources::new(logits.values.share(), outputs.values.share()));
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
        let quantized = &mut prepared(&mut self.workspace).quantized;
        for job in jobs.iter() {
            quantized.forget(job.output.id);
        }
        let form = if jobs.iter().any(|job| job.linear.matrix.takes_quantized_input()) {
            Some(quantized.of(&self.ops, input.id, input.values.view(), [n_rows, n_in])?)
        } else {
            None
        };
        let input = exec::Input {
            n_rows,
            floats: input.values.view(),
            quantized: form,
        };
        for jobs in jobs.chunks_mut(3) {
            let mut jobs = jobs.iter_mut().map(|job| exec::Product {
                matrix: &job.linear.matrix,
                bias: job.linear.bias.as_ref().map(exec::Buffer::view),
                output: job.output.values.view_mut(),
            });
            // Arrays instead of a vector: nothing is allocated on the step path.
            match (jobs.next(), jobs.next(), jobs.next()) {
                (Some(a), Some(b), Some(c)) => self.ops.linear(&input, &mut [a, b, c])?,
                (Some(a), Some(b), None) => self.ops.linear(&input, &mut [a, b])?,
                (Some(a), None, _) => self.ops.linear(&input, &mut [a])?,
                _ => {}
            }
        }
        Ok(())
    }

    fn linear_gated(
        &mut self,
        activation: Activation,
        [gate, up]: [&Linear<Self>; 2],
        input: &CudaBuffer,
        n_rows: usize,
        [gate_out, up_out]: [&mut CudaBuffer; 2],
    ) -> Result<(), BackendError> {
        if !self.ops.can_gate(&gate.matrix, &up.matrix, n_rows) {
            let mut jobs = [
                LinearJob {
                    linear: gate,
                    output: &mut *gate_out,
                },
                LinearJob {
                    linear: up,
                    output: up_out,
                },
            ];
            self.linear_group(input, n_rows, &mut jobs)?;
            return self.activation(activation, n_rows, gate.n_out, gate_out, Some(up_out));
        }
        let quantized = &mut prepared(&mut self.workspace).quantized;
        quantized.of(&self.ops, input.id, input.values.view(), [n_rows, gate.n_in])?;
        let (form, out_form) = quantized.of_both(input.id, gate_out.id, gate.n_out);
        let input = exec::Input {
            n_rows,
            floats: input.values.view(),
            quantized: form,
        };
        Ok(self.ops.matvec_gated(
            &input,
            exec::GatedProduct {
                matrices: [&gate.matrix, &up.matrix],
                biases: [gate, up].map(|linear| linear.bias.as_ref().map(exec::Buffer::view)),
                activation: activation_of(activation),
                output: gate_out.values.view_mut(),
                quantized: out_form,
            },
        )?)
    }

    fn add_norm(
        &mut self,
        scale: f32,
        delta: &CudaBuffer,
        norm: &Norm<Self>,
        n_rows: usize,
        hidden: &mut CudaBuffer,
        normed: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let quantized = &mut prepared(&mut self.workspace).quantized;
        quantized.forget(hidden.id);
        let form = quantized.of_new_rows(normed.id, norm.width, None);
        Ok(self.ops.add_norm(
            &norm_of(norm),
            n_rows,
            (scale, delta.values.view()),
            hidden.values.view_mut(),
            normed.values.view_mut(),
            form,
        )?)
    }

    fn rope_store_kv(
        &mut self,
        job: RopeStoreKv<'_, Self>,
        n_tokens: usize,
        [q, k]: [&mut CudaBuffer; 2],
        v: &CudaBuffer,
    ) -> Result<(), BackendError> {
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
                        && norm.width == shape.dim_k
                        && norm.bias.is_none()
                        && norm.eps == eps
                        && norm.weight.is_some() =>
                {
                    *place = norm.weight.as_ref().map(exec::Buffer::view);
                }
                Some(norm) => self.norm_heads(norm, n_tokens, row_width, rows)?,
                None => {}
            }
        }
        let workspace = prepared(&mut self.workspace);
        workspace.quantized.forget(q.id);
        workspace.quantized.forget(k.id);
        let kv = self.kv.as_mut().expect("the KV store was allocated at load");
        let rope = job.rope.map(rope_of);
        Ok(self.ops.rope_kv(
            rope.as_ref(),
            job.q_width / shape.dim_k,
            workspace.inputs.places(n_tokens)?,
            exec::RopeTargets {
                q: q.values.view_mut(),
                k: k.values.view_mut(),
                v: v.values.view(),
                norms: fused,
                eps,
            },
            kv.layer_mut(job.layer_idx),
        )?)
    }
}

/// Query heads and width of a value head, the largest product of both.
fn widest_attention(descriptor: &Descriptor) -> [usize; 2] {
    let attention = descriptor.layers.iter().map(|layer| &layer.attention);
    attention
        .map(|attention| [attention.n_heads, attention.head_dim_v])
        .max_by_key(|[n_heads, dim_v]| n_heads * (dim_v + 2))
        .unwrap_or([1, 1])
}

/// The widest row that a matrix is multiplied with.
fn widest_input(descriptor: &Descriptor) -> usize {
    (descriptor.layers.iter())
        .flat_map(|layer| {
            [
                layer.ffn.n_ff,
                layer.attention.n_heads * layer.attention.head_dim_v,
            ]
        })
        .chain([descriptor.n_embd])
        .max()
        .unwrap_or(0)
}

fn kv_type(layout: &KvLayout) -> Result<exec::KvType, BackendError> {
    match (layout.key_type, layout.value_type) {
        (KvType::F16, KvType::F16) => Ok(exec::KvType::F16),
        (KvType::F32, KvType::F32) => Ok(exec::KvType::F32),
        (keys, values) => Err(BackendError::Unsupported {
            feature: format!("a KV store of {keys:?} keys and {values:?} values (both F16, or both F32)"),
            device: DEVICE,
        }),
    }
}

fn kv_shapes(layout: &KvLayout) -> Vec<exec::KvShape> {
    (layout.layers.iter())
        .map(|layer| exec::KvShape {
            n_kv_heads: layer.n_kv_heads,
            dim_k: layer.head_dim_k,
            dim_v: layer.head_dim_v,
        })
        .collect()
}

fn norm_of(norm: &Norm<CudaBackend>) -> exec::Norm<'_> {
    exec::Norm {
        kind: match norm.kind {
            NormKind::Rms => exec::NormKind::Rms,
            NormKind::Layer => exec::NormKind::Layer,
        },
        width: norm.width,
        weight: norm.weight.as_ref().map(exec::Buffer::view),
        bias: norm.bias.as_ref().map(exec::Buffer::view),
        eps: norm.eps,
    }
}

fn rope_of(rope: &Rope<CudaBackend>) -> exec::Rope<'_> {
    exec::Rope {
        style: match rope.style {
            RopeStyle::Norm => exec::RopeStyle::Norm,
            RopeStyle::Neox => exec::RopeStyle::Neox,
        },
        n_dims: rope.n_dims,
        inv_freqs: rope.inv_freqs.view(),
        magnitude: rope.magnitude,
    }
}

fn activation_of(activation: Activation) -> exec::Activation {
    match activation {
        Activation::Silu => exec::Activation::Silu,
        Activation::GeluErf => exec::Activation::GeluErf,
        Activation::GeluTanh => exec::Activation::GeluTanh,
        Activation::Relu => exec::Activation::Relu,
        Activation::ReluSquared => exec::Activation::ReluSquared,
    }
}

impl From<exec::CudaExecError> for BackendError {
    fn from(error: exec::CudaExecError) -> Self {
        match error {
            exec::CudaExecError::OutOfMemory {
                purpose,
                needed_bytes,
                free_bytes,
            } => Self::OutOfMemory {
                purpose,
                needed_bytes,
                free_bytes,
                device: DEVICE,
            },
            exec::CudaExecError::Lost { operation, reason } => Self::Lost { operation, reason },
            exec::CudaExecError::Failed { operation, reason } => Self::Failed { operation, reason },
            exec::CudaExecError::Unsupported { feature } => Self::Unsupported {
                feature,
                device: DEVICE,
            },
            other => Self::Failed {
                operation: "a CUDA operation",
                reason: other.to_string(),
            },
        }
    }
}
