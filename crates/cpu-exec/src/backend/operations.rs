//! The operations of programs on the host, in the order of [`Backend`].
//!
//! Loading and the operations that few networks need are in other files. Invariant: buffers are allocated at
//! load, operations take slices of them.

use std::{io, sync::Arc};

use tokenmill_backend::{
    Activation, Allocation, Attention, Backend, BackendError, ExecutorLimits, ExpertInput, ForwardBatch,
    KvLayout, KvStores, Linear, LinearJob, MemoryPlan, NetworkShape, Norm, NormKind, PageCopy, PageGroup,
    Rope, Routed, RowSet, StateLayout, StepOutput, StepShape, Temperature,
};
use tokenmill_gguf::TensorType;
use tokenmill_quant::format;

use super::{
    CpuBackend, CpuVector, KV_ALLOCATED, PagedStore,
    experts::expert_rows,
    failed,
    load::{n_experts, workspace_sizes},
    values_of,
};
use crate::linear::{linear_few, linear_gated_adapted};

impl Backend for CpuBackend {
    const NAME: &'static str = "the CPU";

    fn supports(&self, ty: TensorType) -> bool {
        format(ty).is_some()
    }

    fn bytes_of(&self, allocation: &Allocation<'_>) -> usize {
        match *allocation {
            Allocation::Matrix {
                ty,
                n_out,
                n_in,
                usage,
                is_in_file,
            } => {
                if is_in_file && self.leaves_in_file(usage, ty, n_out, n_in) {
                    return 0;
                }
                let n_experts = n_experts(usage);
                let one = crate::Matrix::packed_bytes(ty, n_out / n_experts, n_in);
                one.map_or(usize::MAX, |n_bytes| n_bytes.saturating_mul(n_experts))
            }
            Allocation::Routes {
                max_rows,
                n_experts,
                n_used,
            } => crate::Routes::room_bytes(max_rows, n_experts, n_used),
            Allocation::Vector { len } => len * size_of::<f32>(),
            Allocation::Buffer { max_rows, width } => {
                max_rows.saturating_mul(width).saturating_mul(size_of::<f32>())
            }
            Allocation::KvPage(layout) => {
                crate::KvStore::page_bytes(&layout.layers, layout.key_type, layout.value_type)
            }
            Allocation::State(layout) => layout.state_bytes(),
            Allocation::Workspace(network, limits) => {
                workspace_sizes(network, limits).n_bytes(self.host.pool().n_threads())
            }
        }
    }

    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        _: &KvLayout,
        _: &MemoryPlan,
    ) -> Result<(), BackendError> {
        self.workspace
            .reserve(&workspace_sizes(network, limits))
            .map_err(|error| failed("allocating the workspace", error))
    }

    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<(), BackendError> {
        let stores = KvStores::new(layout, |layout| {
            let store = |n_pages| {
                crate::KvStore::new(&layout.layers, n_pages, layout.key_type, layout.value_type).map_err(
                    |error| match error {
                        crate::CpuExecError::KvHeadDim { .. } => {
                            failed("choosing the type of keys and values", error)
                        }
                        error => failed("allocating the KV store", error),
                    },
                )
            };
            let n_host_pages = Some(layout.n_host_pages).filter(|&n| n > 0);
            Ok(PagedStore {
                pool: store(layout.n_pages)?,
                host_tier: n_host_pages.map(store).transpose()?,
            })
        });
        self.kv = Some(stores?);
        self.kv_types = (layout.key_type, layout.value_type);
        Ok(())
    }

    fn alloc_states(&mut self, layout: &StateLayout) -> Result<(), BackendError> {
        let store = crate::StateStore::new(layout);
        self.states = Some(store.map_err(|error| failed("allocating the states", error))?);
        Ok(())
    }

    fn takes_late_masks(&self) -> bool {
        true
    }

    fn takes_rows(&self) -> bool {
        true
    }

    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        self.n_steps += 1;
        Ok(self.step.begin(batch))
    }

    fn run_step(
        &mut self,
        shape: StepShape,
        mut body: impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.set_width(&shape);
        let host = Arc::clone(&self.host);
        let _entered = host.pool().enter();
        body(self, shape)
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        self.step.read(output);
        Ok(())
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError> {
        let stores = self.kv.as_mut().expect(KV_ALLOCATED);
        let PagedStore {
            pool: kv,
            host_tier: tier,
        } = stores.group_mut(group);
        for &copy in copies {
            let present = "a page of the host tier is in range only where there is one";
            match copy {
                PageCopy::Duplicate { from, to } => kv.copy_page(from, to),
                PageCopy::Download { page, host_page } => {
                    tier.as_mut().expect(present).copy_page_from(kv, page, host_page);
                }
                PageCopy::Upload { host_page, page } => {
                    kv.copy_page_from(tier.as_ref().expect(present), host_page, page);
                }
            }
        }
        Ok(())
    }

    fn embed(
        &mut self,
        table: &crate::Matrix,
        scale: f32,
        n_tokens: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let output = &mut output[..n_tokens * table.n_cols()];
        let embedded = crate::embed(
            &self.host,
            table,
            self.step.tokens(),
            &mut self.row_buffers,
            output,
        );
        embedded.map_err(|error| {
            let tensor = table.name().unwrap_or("embedding").to_owned();
            match error.kind() {
                io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => BackendError::WeightsChanged {
                    tensor,
                    source: error.into(),
                },
                _ => BackendError::ReadTensor {
                    tensor,
                    source: error.into(),
                },
            }
        })?;
        if scale != 1.0 {
            crate::scale(&self.host, output, scale);
        }
        self.step.take_input_rows(table.n_cols(), output);
        Ok(())
    }

    fn take_hidden_inputs(
        &mut self,
        n_tokens: usize,
        width: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let n_values = n_tokens * width;
        output[..n_values].copy_from_slice(&self.step.batch().hidden_inputs[..n_values]);
        Ok(())
    }

    fn add_input_rows(
        &mut self,
        part: usize,
        n_tokens: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.step
            .add_input_rows(part, width, &mut rows[..n_tokens * width]);
        Ok(())
    }

    fn add_row(
        &mut self,
        row: &CpuVector,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for rows in rows.chunks_exact_mut(width).take(n_rows) {
            crate::add(&self.host, rows, &row.values);
        }
        Ok(())
    }

    fn add_positions(
        &mut self,
        table: &CpuVector,
        n_tokens: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let positions = &self.step.batch().positions[..n_tokens];
        for (row, &position) in rows.chunks_exact_mut(width).zip(positions) {
            crate::add(
                &self.host,
                row,
                &table.values[position as usize * width..][..width],
            );
        }
        Ok(())
    }

    fn mean_of_sequences(
        &mut self,
        _: &StepShape,
        width: usize,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for (ends, mean) in (self.step.batch().seq_starts.windows(2)).zip(output.chunks_exact_mut(width)) {
            let tokens = ends[0] as usize..ends[1] as usize;
            let n_tokens = tokens.len();
            mean.fill(0.0);
            for row in input[tokens.start * width..tokens.end * width].chunks_exact(width) {
                crate::add(&self.host, mean, row);
            }
            crate::scale(&self.host, mean, 1.0 / n_tokens as f32);
        }
        Ok(())
    }

    fn scale_by_position(
        &mut self,
        temperature: Temperature,
        n_tokens: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let positions = &self.step.batch().positions[..n_tokens];
        for (row, &position) in rows.chunks_exact_mut(width).zip(positions) {
            crate::scale(&self.host, row, temperature.factor(position as usize));
        }
        Ok(())
    }

    fn norm(
        &mut self,
        norm: &Norm<CpuVector>,
        input: &Vec<f32>,
        n_rows: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let n = n_rows * norm.width;
        let (input, output) = (&input[..n], &mut output[..n]);
        let (weight, bias) = (values_of(norm.weight.as_ref()), values_of(norm.bias.as_ref()));
        match (norm.kind, bias) {
            (NormKind::Layer, bias) => {
                crate::layer_norm(&self.host, input, norm.width, weight, bias, norm.eps, output);
            }
            (NormKind::Rms, None) => crate::rms_norm(&self.host, input, norm.width, weight, norm.eps, output),
            (NormKind::Rms, Some(_)) => {
                output.copy_from_slice(input);
                self.normalize(norm, output);
            }
        }
        Ok(())
    }

    fn norm_in_place(
        &mut self,
        norm: &Norm<CpuVector>,
        n_rows: usize,
        row_width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.normalize(norm, &mut rows[..n_rows * row_width]);
        Ok(())
    }

    fn linear(
        &mut self,
        linear: &Linear<crate::Matrix, CpuVector>,
        input: &Vec<f32>,
        n_rows: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        self.linear_group(input, n_rows, &mut [LinearJob { linear, output }])
    }

    fn linear_group(
        &mut self,
        input: &Vec<f32>,
        n_rows: usize,
        jobs: &mut [LinearJob<'_, Self>],
    ) -> Result<(), BackendError> {
        let Some(first) = jobs.first() else {
            return Ok(());
        };
        let input = &input[..n_rows * first.linear.n_in];
        self.show_rows(jobs.iter().map(|job| &job.linear.matrix), input);
        // Arrays rather than lists avoid an allocation.
        for jobs in jobs.chunks_mut(MAX_JOBS) {
            let mut places = [None; MAX_JOBS];
            for (place, job) in places.iter_mut().zip(&*jobs) {
                *place = job.linear.adapter_place;
            }
            self.with_changes(&places, n_rows, |host, workspace, adapting| {
                let run = |targets: &mut [crate::LinearTarget<'_>]| {
                    linear_few(host, workspace, input, targets, adapting);
                };
                match jobs {
                    [a] => run(&mut [target(a, n_rows)]),
                    [a, b] => run(&mut [target(a, n_rows), target(b, n_rows)]),
                    [a, b, c] => run(&mut [target(a, n_rows), target(b, n_rows), target(c, n_rows)]),
                    [a, b, c, d] => run(&mut [a, b, c, d].map(|job| target(job, n_rows))),
                    _ => unreachable!("one to {MAX_JOBS} jobs"),
                }
            });
        }
        Ok(())
    }

    fn linear_gated(
        &mut self,
        activation: Activation,
        input: &Vec<f32>,
        n_rows: usize,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        let (gate_linear, up_linear) = (gate.linear, up.linear);
        let input = &input[..n_rows * gate_linear.n_in];
        self.show_rows([&gate_linear.matrix, &up_linear.matrix].into_iter(), input);
        let places = [gate_linear.adapter_place, up_linear.adapter_place];
        self.with_changes(&places, n_rows, |host, workspace, adapting| {
            linear_gated_adapted(
                host,
                workspace,
                input,
                (&gate_linear.matrix, values_of(gate_linear.bias.as_ref())),
                (&up_linear.matrix, values_of(up_linear.bias.as_ref())),
                activation,
                &mut gate.output[..n_rows * gate_linear.n_out],
                adapting,
            );
        });
        Ok(())
    }

    fn experts_gated(
        &mut self,
        activation: Activation,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, Vec<f32>>,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        let (gate_linear, up_linear) = (gate.linear, up.linear);
        let input = expert_rows(input, routed, gate_linear.n_in);
        self.show_choices(&gate_linear.matrix, routed.routes, input);
        self.show_choices(&up_linear.matrix, routed.routes, input);
        crate::experts_gated(
            &self.host,
            &mut self.workspace,
            routed.routes,
            input,
            (&gate_linear.matrix, values_of(gate_linear.bias.as_ref())),
            (&up_linear.matrix, values_of(up_linear.bias.as_ref())),
            activation,
            &mut gate.output[..routed.n_choices() * gate_linear.n_out],
        );
        Ok(())
    }

    fn rope(
        &mut self,
        rope: &Rope<CpuVector>,
        n_tokens: usize,
        row_width: usize,
        heads: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let angles_idx = self.angles_of(rope);
        crate::rope(
            &self.host,
            rope.style,
            &self.angles[angles_idx].angles,
            &mut heads[..n_tokens * row_width],
            row_width / rope.head_dim,
            rope.head_dim,
        );
        Ok(())
    }

    fn store_kv(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        k: &Vec<f32>,
        v: &Vec<f32>,
    ) -> Result<(), BackendError> {
        let stores = self.kv.as_mut().expect(KV_ALLOCATED);
        let (group, layer_idx) = stores.place(layer_idx);
        let kv = &mut stores.group_mut(group).pool;
        let shape = kv.shape(layer_idx);
        let slots = &self.step.batch().slots_in(group)[..n_tokens];
        let keys = &k[..n_tokens * shape.n_kv_heads * shape.head_dim_k];
        let values = &v[..n_tokens * shape.n_kv_heads * shape.head_dim_v];
        kv.store(&self.host, layer_idx, slots, keys, values);
        Ok(())
    }

    fn attention(
        &mut self,
        attention: &Attention<CpuVector>,
        shape: &StepShape,
        q: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let batch = self.step.batch();
        let stores = self.kv.as_ref().expect(KV_ALLOCATED);
        let (group, layer_idx) = stores.place(attention.layer_idx);
        let kv = &stores.group(group).pool;
        let heads = kv.shape(layer_idx);
        let n_rows = shape.n_tokens * attention.n_heads;
        crate::attention(
            &self.host,
            &mut self.workspace,
            kv,
            &q[..n_rows * heads.head_dim_k],
            &crate::AttentionBatch {
                positions: &batch.positions,
                seq_starts: &batch.seq_starts,
                last_seen: &batch.last_seen,
                window_seen: &batch.window_seen,
                page_starts: &batch.page_starts,
                pages: batch.pages_in(group),
            },
            &Attention {
                layer_idx,
                ..attention.map(|vector| vector.values.as_slice())
            },
            &mut output[..n_rows * heads.head_dim_v],
        );
        Ok(())
    }

    fn activation(
        &mut self,
        activation: Activation,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
        up: Option<&Vec<f32>>,
    ) -> Result<(), BackendError> {
        let n = n_rows * width;
        let rows = &mut rows[..n];
        match up {
            Some(up) => crate::gated(&self.host, activation, rows, &up[..n]),
            None => crate::activate(&self.host, activation, rows),
        }
        Ok(())
    }

    fn add(
        &mut self,
        scale: f32,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
        delta: &Vec<f32>,
    ) -> Result<(), BackendError> {
        let n = n_rows * width;
        let (rows, delta) = (&mut rows[..n], &delta[..n]);
        if scale == 1.0 {
            crate::add(&self.host, rows, delta);
        } else {
            crate::add_scaled(&self.host, rows, delta, scale);
        }
        Ok(())
    }

    fn gather(
        &mut self,
        rows: RowSet,
        _: &StepShape,
        width: usize,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for (out, &row) in output.chunks_exact_mut(width).zip(self.step.rows(rows)) {
            out.copy_from_slice(&input[row as usize * width..][..width]);
        }
        Ok(())
    }

    fn scale_logits(
        &mut self,
        scale: f32,
        cap: Option<f32>,
        n_rows: usize,
        width: usize,
        logits: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let logits = &mut logits[..n_rows * width];
        if scale != 1.0 {
            crate::scale(&self.host, logits, scale);
        }
        if let Some(cap) = cap {
            crate::soft_cap(&self.host, logits, cap);
        }
        Ok(())
    }

    fn sample(
        &mut self,
        shape: &StepShape,
        n_vocab: usize,
        n_embd: usize,
        logits: &mut Vec<f32>,
        outputs: &Vec<f32>,
    ) -> Result<(), BackendError> {
        let logits = &logits[..shape.n_logits * n_vocab];
        (self.sampling).run(&self.host, &mut self.step, logits, n_vocab, outputs, n_embd);
        Ok(())
    }
}

/// The maximum number of jobs of a group that run as one.
const MAX_JOBS: usize = 4;

fn target<'a>(job: &'a mut LinearJob<'_, CpuBackend>, n_rows: usize) -> crate::LinearTarget<'a> {
    let linear = job.linear;
    crate::LinearTarget {
        bias: values_of(linear.bias.as_ref()),
        ..crate::LinearTarget::new(&linear.matrix, &mut job.output[..n_rows * linear.n_out])
    }
}
