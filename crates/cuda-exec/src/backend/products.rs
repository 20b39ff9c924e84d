//! Launches products for [`CudaBackend`]: several of one input at once, and, for a single row, together with
//! the operations between them.
//!
//! A product may leave a norm to the next one ([`CudaBuffer::leave_norm`]). Invariant: a norm is left only if
//! the operations that follow are known ([`Backend::linear_add_norm`]), and the product that takes it
//! computes its rows, either itself or in a launch ahead of it.

use tokenmill_backend::{Activation, Backend, BackendError, LinearAddNorm, LinearJob, Norm, NormKind};

use super::{CudaBackend, CudaBuffer, buffer::LeftNorm};

/// Returns whether a product of one row can begin with this norm.
fn is_left(norm: &Norm<crate::Buffer<f32>>) -> bool {
    norm.kind == NormKind::Rms
        && norm.bias.is_none()
        && norm.width.is_multiple_of(256)
        && norm.width <= crate::FewRows::NORMED_COLUMNS
}

fn product<'a>(job: &'a mut LinearJob<'_, CudaBackend>) -> crate::Product<'a> {
    crate::Product {
        matrix: &job.linear.matrix,
        bias: job.linear.bias.as_ref().map(crate::Buffer::view),
        output: job.output.write(),
    }
}

/// Returns the input of a product that also computes the norm left to it.
fn normed<'a>(left: &'a mut LeftNorm, twin: &'a mut crate::QuantizedRows) -> crate::NormedInput<'a> {
    crate::NormedInput {
        hidden: left.hidden.view(),
        weight: left.norm.weight.as_ref().map(crate::Buffer::view),
        eps: left.norm.eps,
        output: left.values.view_mut(),
        quantized: twin.view_mut(),
    }
}

impl CudaBackend {
    /// Computes the rows of a norm that was left to a product which does not take it.
    fn make_left(&self, mut left: LeftNorm, twin: &mut crate::QuantizedRows) -> Result<(), BackendError> {
        let values = left.values.view_mut();
        let form = Some(twin.view_mut());
        Ok((self.ops).norm(&left.norm, 1, left.hidden.view(), values, form)?)
    }

    pub(super) fn multiply_add_norm(
        &mut self,
        job: LinearAddNorm<'_, Self>,
        n_rows: usize,
    ) -> Result<(), BackendError> {
        let LinearAddNorm {
            linear,
            input,
            scale,
            delta,
            hidden,
            norm,
            normed,
        } = job;
        let matrix = &linear.matrix;
        let is_joined = n_rows == 1
            && self.group_end.is_none()
            && !self.adapters.change([job.linear])
            && self.ops.can_add(matrix)
            && is_left(norm)
            && normed.can_leave(norm.width);
        if !is_joined {
            self.linear(linear, input, n_rows, delta)?;
            self.all_reduce(n_rows, linear.n_out, delta)?;
            return self.add_norm(scale, delta, norm, n_rows, hidden, normed);
        }
        let form = input.read_quantized(&self.ops, [n_rows, linear.n_in])?;
        let rows = crate::LinearInput {
            n_rows,
            floats: input.read(),
            quantized: Some(form.view()),
        };
        let product = crate::Product {
            matrix,
            bias: linear.bias.as_ref().map(crate::Buffer::view),
            output: hidden.write(),
        };
        self.ops.linear_add(scale, &rows, product)?;
        normed.leave_norm(hidden, norm);
        Ok(())
    }

    pub(super) fn multiply(
        &mut self,
        input: &CudaBuffer,
        n_rows: usize,
        jobs: &mut [LinearJob<'_, Self>],
    ) -> Result<(), BackendError> {
        if let Some((mut left, mut twin)) = input.take_norm() {
            // The changes of adapters need the normed rows.
            let is_changed = self.adapters.change_any(jobs);
            let mut products = jobs.iter_mut().map(product);
            let is_done = !is_changed
                && match (products.next(), products.next(), products.next(), products.next()) {
                    (Some(a), Some(b), Some(c), None) => {
                        self.norm_multiply(&mut left, &mut twin, &mut [a, b, c])?
                    }
                    (Some(a), Some(b), None, _) => self.norm_multiply(&mut left, &mut twin, &mut [a, b])?,
                    (Some(a), None, _, _) => self.norm_multiply(&mut left, &mut twin, &mut [a])?,
                    _ => false,
                };
            if is_done {
                return Ok(());
            }
            self.make_left(left, &mut twin)?;
        }
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
            let mut jobs = jobs.iter_mut().map(product);
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

    /// Norms a row and multiplies it, if one launch can do both.
    fn norm_multiply(
        &self,
        left: &mut LeftNorm,
        twin: &mut crate::QuantizedRows,
        products: &mut [crate::Product<'_>],
    ) -> Result<bool, BackendError> {
        let can = self.ops.can_norm(products);
        if can {
            self.ops.linear_normed(normed(left, twin), products)?;
        }
        Ok(can)
    }

    pub(super) fn multiply_gated(
        &mut self,
        activation: Activation,
        input: &CudaBuffer,
        n_rows: usize,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        if let Some((mut left, mut twin)) = input.take_norm() {
            let is_changed = self.adapters.change([gate.linear, up.linear]);
            if !is_changed && (self.ops).can_norm_gated(&gate.linear.matrix, &up.linear.matrix) {
                let (output, form) = gate.output.write_both([n_rows, gate.linear.n_out]);
                let linears = [gate.linear, up.linear];
                let pair = crate::GatedProduct {
                    matrices: linears.map(|linear| &linear.matrix),
                    biases: linears.map(|linear| linear.bias.as_ref().map(crate::Buffer::view)),
                    activation,
                    output,
                    quantized: form,
                };
                return Ok(self.ops.gated_normed(normed(&mut left, &mut twin), pair)?);
            }
            self.make_left(left, &mut twin)?;
        }
        // The changes of adapters are added before the activation.
        if self.adapters.change([gate.linear, up.linear])
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
            // Float weights usually follow float weights; otherwise the next product has the rows quantized.
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
}
