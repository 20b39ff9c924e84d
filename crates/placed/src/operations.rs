//! The operations of programs, each on its side, in the order of [`Backend`].
//!
//! Invariant: an operation copies its inputs to its side before it runs, and records its outputs.

use tokenmill_backend::{
    Activation, Allocation, Attention, Backend, BackendError, ExecutorLimits, ExpertInput, ForwardBatch,
    KvLayout, Linear, LinearJob, Memory as _, MemoryPlan, NetworkPart, NetworkShape, Norm, PageCopy,
    PageGroup, Rope, RopeStoreKv, Routed, RowSet, Side, SplitOperations, StateLayout, StepOutput, StepShape,
    StepTrace, Temperature,
};
use tokenmill_gguf::TensorType;

use crate::{
    Kept, Placed, PlacedBuffer,
    buffer::Buffers as _,
    kept::{OfDevice, OfHost, Operand as _, StoreOperand as _, lend, with_linears, with_norms},
    placed::on_side,
};

/// The rows of a buffer of some backend.
type Rows<H, D> =
    PlacedBuffer<<H as tokenmill_backend::Memory>::Buffer, <D as tokenmill_backend::Memory>::Buffer>;
type Matrix<H, D> = Kept<<H as tokenmill_backend::Memory>::Matrix, <D as tokenmill_backend::Memory>::Matrix>;
type Vector<H, D> = Kept<<H as tokenmill_backend::Memory>::Vector, <D as tokenmill_backend::Memory>::Vector>;

impl<H: SplitOperations, D: SplitOperations> Backend for Placed<H, D> {
    const NAME: &'static str = D::NAME;

    fn supports(&self, ty: TensorType) -> bool {
        self.host.supports(ty) || self.device.supports(ty)
    }

    fn bytes_of(&self, allocation: &Allocation<'_>) -> usize {
        (Side::ALL.iter())
            .map(|&side| self.bytes_on(side, NetworkPart::Common, allocation))
            .fold(0, usize::saturating_add)
    }

    fn is_split(&self) -> bool {
        true
    }

    fn bytes_at(&self, side: Side, part: NetworkPart, allocation: &Allocation<'_>) -> usize {
        self.bytes_on(side, part, allocation)
    }

    fn prepare(
        &mut self,
        network: &NetworkShape,
        limits: &ExecutorLimits,
        kv: &KvLayout,
        plan: &MemoryPlan,
    ) -> Result<(), BackendError> {
        let of = |side| {
            (
                self.placement.network_of(side, network),
                self.kv_layout_of(side, kv),
            )
        };
        let [(host_network, host_kv), (device_network, device_kv)] = Side::ALL.map(of);
        self.is_encoder = limits.is_encoder;
        // A lack of memory is detected before anything is allocated.
        self.device.prepare(&device_network, limits, &device_kv, plan)?;
        let host_plan = plan.on_host.as_deref().unwrap_or(plan);
        self.host.prepare(&host_network, limits, &host_kv, host_plan)
    }

    fn alloc_kv(&mut self, layout: &KvLayout) -> Result<(), BackendError> {
        self.number_kv(layout);
        let [host, device] = Side::ALL.map(|side| self.kv_layout_of(side, layout));
        self.groups = [host.groups.clone(), device.groups.clone()];
        self.host.alloc_kv(&host)?;
        self.device.alloc_kv(&device)
    }

    fn alloc_states(&mut self, layout: &StateLayout) -> Result<(), BackendError> {
        self.number_states(layout);
        let [host, device] = Side::ALL.map(|side| self.state_layout_of(side, layout));
        if !host.layers.is_empty() {
            self.host.alloc_states(&host)?;
        }
        if !device.layers.is_empty() {
            self.device.alloc_states(&device)?;
        }
        Ok(())
    }

    fn trace(&self) -> Option<StepTrace> {
        self.device.trace()
    }

    fn begin_step(&mut self, batch: &ForwardBatch) -> Result<StepShape, BackendError> {
        self.begin(batch)
    }

    fn run_step(
        &mut self,
        shape: StepShape,
        mut body: impl FnMut(&mut Self, StepShape) -> Result<(), BackendError>,
    ) -> Result<(), BackendError> {
        self.run(shape, &mut body)
    }

    fn read(&mut self, output: &mut StepOutput) -> Result<(), BackendError> {
        self.read_step(output)
    }

    fn copy_pages(&mut self, group: PageGroup, copies: &[PageCopy]) -> Result<(), BackendError> {
        if self.groups[Side::Host as usize].contains(&group) {
            self.host.copy_pages(group, copies)?;
        }
        if self.groups[Side::Device as usize].contains(&group) {
            self.device.copy_pages(group, copies)?;
        }
        Ok(())
    }

    fn embed(
        &mut self,
        table: &Matrix<H, D>,
        scale: f32,
        n_tokens: usize,
        output: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(table));
        output.written_on(side);
        on_side!(self, side, |own, of| lend(of, [Some(table)], |[table]| {
            let outcome = match &table {
                Some(table) => (of.own(output)).and_then(|output| own.embed(table, scale, n_tokens, output)),
                None => Ok(()),
            };
            (outcome, [table])
        }))
    }

    fn add_row(
        &mut self,
        row: &Vector<H, D>,
        n_rows: usize,
        width: usize,
        rows: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(row));
        self.bring(side, rows, n_rows * width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| lend(of, [Some(row)], |[row]| {
            let outcome = match &row {
                Some(row) => (of.own(rows)).and_then(|rows| own.add_row(row, n_rows, width, rows)),
                None => Ok(()),
            };
            (outcome, [row])
        }))
    }

    fn add_positions(
        &mut self,
        table: &Vector<H, D>,
        n_tokens: usize,
        width: usize,
        rows: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(table));
        self.bring(side, rows, n_tokens * width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| lend(of, [Some(table)], |[table]| {
            let outcome = match &table {
                Some(table) => {
                    (of.own(rows)).and_then(|rows| own.add_positions(table, n_tokens, width, rows))
                }
                None => Ok(()),
            };
            (outcome, [table])
        }))
    }

    fn mean_of_sequences(
        &mut self,
        shape: &StepShape,
        width: usize,
        input: &Rows<H, D>,
        output: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, input, shape.n_tokens * width)?;
        output.written_on(side);
        let shape = self.shape_on(side);
        on_side!(self, side, |own, of| own.mean_of_sequences(
            &shape,
            width,
            &*of.shared(input)?,
            of.own(output)?
        ))
    }

    fn scale_by_position(
        &mut self,
        temperature: Temperature,
        n_tokens: usize,
        width: usize,
        rows: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, rows, n_tokens * width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| own.scale_by_position(
            temperature,
            n_tokens,
            width,
            of.own(rows)?
        ))
    }

    fn norm(
        &mut self,
        norm: &Norm<Vector<H, D>>,
        input: &Rows<H, D>,
        n_rows: usize,
        output: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(norm.weight.as_ref());
        self.bring(side, input, n_rows * norm.width)?;
        output.written_on(side);
        on_side!(self, side, |own, of| norm.with(of, |norm| {
            own.norm(norm, &*of.shared(input)?, n_rows, of.own(output)?)
        }))
    }

    fn norm_in_place(
        &mut self,
        norm: &Norm<Vector<H, D>>,
        n_rows: usize,
        row_width: usize,
        rows: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(norm.weight.as_ref());
        self.bring(side, rows, n_rows * row_width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| norm.with(of, |norm| {
            own.norm_in_place(norm, n_rows, row_width, of.own(rows)?)
        }))
    }

    fn linear(
        &mut self,
        linear: &Linear<Matrix<H, D>, Vector<H, D>>,
        input: &Rows<H, D>,
        n_rows: usize,
        output: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(&linear.matrix));
        self.bring(side, input, n_rows * linear.n_in)?;
        output.written_on(side);
        on_side!(self, side, |own, of| with_linears(of, [linear], |[linear]| {
            own.linear(linear, &*of.shared(input)?, n_rows, of.own(output)?)
        }))
    }

    fn linear_group(
        &mut self,
        input: &Rows<H, D>,
        n_rows: usize,
        jobs: &mut [LinearJob<'_, Self>],
    ) -> Result<(), BackendError> {
        let is_together = (jobs.windows(2)).all(|pair| {
            self.side_of(Some(&pair[0].linear.matrix)) == self.side_of(Some(&pair[1].linear.matrix))
                // If keys are also the values, both use one matrix, which only one job at a time can borrow.
                && !std::ptr::eq(pair[0].linear, pair[1].linear)
        });
        match jobs {
            [a, b] if is_together => self.linears(input, n_rows, [a, b]),
            [a, b, c] if is_together => self.linears(input, n_rows, [a, b, c]),
            [a, b, c, d] if is_together => self.linears(input, n_rows, [a, b, c, d]),
            jobs => (jobs.iter_mut()).try_for_each(|job| self.linear(job.linear, input, n_rows, job.output)),
        }
    }

    fn linear_gated(
        &mut self,
        activation: Activation,
        input: &Rows<H, D>,
        n_rows: usize,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(&gate.linear.matrix));
        self.bring(side, input, n_rows * gate.linear.n_in)?;
        gate.output.written_on(side);
        up.output.written_on(side);
        on_side!(self, side, |own, of| with_linears(
            of,
            [gate.linear, up.linear],
            |[g, u]| {
                let gate = LinearJob {
                    linear: g,
                    output: of.own(gate.output)?,
                };
                let up = LinearJob {
                    linear: u,
                    output: of.own(up.output)?,
                };
                own.linear_gated(activation, &*of.shared(input)?, n_rows, gate, up)
            }
        ))
    }

    fn experts_gated(
        &mut self,
        activation: Activation,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, Rows<H, D>>,
        mut gate: LinearJob<'_, Self>,
        mut up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        self.experts_gated_here(activation, routed, input, &mut gate, &mut up)
    }

    fn rope(
        &mut self,
        rope: &Rope<Vector<H, D>>,
        n_tokens: usize,
        row_width: usize,
        heads: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(&rope.inv_freqs));
        self.bring(side, heads, n_tokens * row_width)?;
        heads.written_on(side);
        on_side!(self, side, |own, of| rope.with(of, |rope| {
            own.rope(rope, n_tokens, row_width, of.own(heads)?)
        }))
    }

    fn store_kv(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        k: &Rows<H, D>,
        v: &Rows<H, D>,
    ) -> Result<(), BackendError> {
        let (side, own_idx) = self.kv_place(layer_idx);
        let shape = self.kv_shapes[layer_idx];
        self.bring(side, k, n_tokens * shape.n_kv_heads * shape.head_dim_k)?;
        self.bring(side, v, n_tokens * shape.n_kv_heads * shape.head_dim_v)?;
        on_side!(self, side, |own, of| own.store_kv(
            own_idx,
            n_tokens,
            &*of.shared(k)?,
            &*of.shared(v)?
        ))
    }

    fn attention(
        &mut self,
        attention: &Attention<Vector<H, D>>,
        shape: &StepShape,
        q: &Rows<H, D>,
        output: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let (side, own_idx) = self.kv_place(attention.layer_idx);
        let head_dim_k = self.kv_shapes[attention.layer_idx].head_dim_k;
        self.bring(side, q, shape.n_tokens * attention.n_heads * head_dim_k)?;
        output.written_on(side);
        let shape = self.shape_on(side);
        on_side!(self, side, |own, of| attention.with(of, own_idx, |attention| {
            own.attention(attention, &shape, &*of.shared(q)?, of.own(output)?)
        }))
    }

    fn activation(
        &mut self,
        activation: Activation,
        n_rows: usize,
        width: usize,
        rows: &mut Rows<H, D>,
        up: Option<&Rows<H, D>>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, rows, n_rows * width)?;
        if let Some(up) = up {
            self.bring(side, up, n_rows * width)?;
        }
        rows.written_on(side);
        on_side!(self, side, |own, of| {
            let up = up.map(|up| of.shared(up)).transpose()?;
            own.activation(activation, n_rows, width, of.own(rows)?, up.as_deref())
        })
    }

    fn add(
        &mut self,
        scale: f32,
        n_rows: usize,
        width: usize,
        rows: &mut Rows<H, D>,
        delta: &Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, rows, n_rows * width)?;
        self.bring(side, delta, n_rows * width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| own.add(
            scale,
            n_rows,
            width,
            of.own(rows)?,
            &*of.shared(delta)?
        ))
    }

    fn add_norm(
        &mut self,
        scale: f32,
        delta: &Rows<H, D>,
        norm: &Norm<Vector<H, D>>,
        n_rows: usize,
        hidden: &mut Rows<H, D>,
        normed: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        if self.side_of(norm.weight.as_ref()) != side {
            // Only the sum crosses the border.
            self.add(scale, n_rows, norm.width, hidden, delta)?;
            return self.norm(norm, hidden, n_rows, normed);
        }
        self.bring(side, hidden, n_rows * norm.width)?;
        self.bring(side, delta, n_rows * norm.width)?;
        hidden.written_on(side);
        normed.written_on(side);
        on_side!(self, side, |own, of| norm.with(of, |norm| {
            let delta = of.shared(delta)?;
            own.add_norm(scale, &*delta, norm, n_rows, of.own(hidden)?, of.own(normed)?)
        }))
    }

    fn gather(
        &mut self,
        rows: RowSet,
        shape: &StepShape,
        width: usize,
        input: &Rows<H, D>,
        output: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        let n_rows = match rows {
            RowSet::Outputs => shape.n_tokens,
            RowSet::LogitsOfOutputs => shape.n_outputs,
        };
        self.bring(side, input, n_rows * width)?;
        output.written_on(side);
        let shape = self.shape_on(side);
        on_side!(self, side, |own, of| own.gather(
            rows,
            &shape,
            width,
            &*of.shared(input)?,
            of.own(output)?
        ))
    }

    fn scale_logits(
        &mut self,
        scale: f32,
        cap: Option<f32>,
        n_rows: usize,
        width: usize,
        logits: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, logits, n_rows * width)?;
        logits.written_on(side);
        on_side!(self, side, |own, of| own.scale_logits(
            scale,
            cap,
            n_rows,
            width,
            of.own(logits)?
        ))
    }

    fn sample(
        &mut self,
        shape: &StepShape,
        n_vocab: usize,
        n_embd: usize,
        logits: &mut Rows<H, D>,
        outputs: &Rows<H, D>,
    ) -> Result<(), BackendError> {
        self.enter(NetworkPart::Output);
        let side = self.now;
        self.bring(side, logits, shape.n_logits * n_vocab)?;
        self.bring(side, outputs, shape.n_outputs * n_embd)?;
        let shape = self.shape_on(side);
        on_side!(self, side, |own, of| {
            let outputs = of.shared(outputs)?;
            own.sample(&shape, n_vocab, n_embd, of.own(logits)?, &*outputs)
        })
    }

    fn rope_store_kv(&mut self, job: RopeStoreKv<'_, Self>, n_tokens: usize) -> Result<(), BackendError> {
        let (side, own_idx) = self.kv_place(job.layer_idx);
        let shape = self.kv_shapes[job.layer_idx];
        self.bring(side, job.q, n_tokens * job.q_width)?;
        self.bring(side, job.k, n_tokens * job.k_width)?;
        self.bring(side, job.v, n_tokens * shape.n_kv_heads * shape.head_dim_v)?;
        job.q.written_on(side);
        job.k.written_on(side);
        let RopeStoreKv {
            q_norm,
            k_norm,
            rope,
            q_width,
            k_width,
            q,
            k,
            v,
            ..
        } = job;
        on_side!(self, side, |own, of| with_norms(
            of,
            [q_norm, k_norm],
            |[q_norm, k_norm]| {
                let mut run = |rope: Option<&Rope<_>>| {
                    let v = of.shared(v)?;
                    let job = RopeStoreKv {
                        layer_idx: own_idx,
                        q_norm,
                        k_norm,
                        rope,
                        q_width,
                        k_width,
                        q: of.own(q)?,
                        k: of.own(k)?,
                        v: &*v,
                    };
                    own.rope_store_kv(job, n_tokens)
                };
                match rope {
                    Some(rope) => rope.with(of, |rope| run(Some(rope))),
                    None => run(None),
                }
            }
        ))
    }
}

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    /// Multiplies one input by several matrices of one side.
    fn linears<const N: usize>(
        &mut self,
        input: &Rows<H, D>,
        n_rows: usize,
        jobs: [&mut LinearJob<'_, Self>; N],
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(&jobs[0].linear.matrix));
        self.bring(side, input, n_rows * jobs[0].linear.n_in)?;
        for job in &jobs {
            job.output.written_on(side);
        }
        let linears = jobs.each_ref().map(|job| job.linear);
        on_side!(self, side, |own, of| with_linears(of, linears, |linears| {
            let mut rest = linears.iter();
            let mut outcome = Ok(());
            // An array, so that nothing is allocated.
            let jobs = jobs.map(|job| {
                let linear = rest.next().expect("as many as there are jobs");
                match of.own(&mut *job.output) {
                    Ok(output) => Some(LinearJob { linear, output }),
                    Err(error) => {
                        outcome = Err(error);
                        None
                    }
                }
            });
            outcome?;
            let mut jobs = jobs.map(|job| job.expect("an output that is missing was an error"));
            own.linear_group(&*of.shared(input)?, n_rows, &mut jobs)
        }))
    }
}
