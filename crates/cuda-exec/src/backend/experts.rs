//! The operations on experts.
//!
//! Invariant: only the device knows which rows go to which experts, so a launch depends on counts only and is captured
//! like any other.

use tokenmill_backend::{
    Activation, Backend, BackendError, Carried, ExpertInput, ExpertOperations, Linear, LinearJob, Routed,
    Router,
};

use super::{CudaBackend, CudaBuffer};

impl ExpertOperations for CudaBackend {
    fn route(
        &mut self,
        router: &Router<crate::Buffer<f32>>,
        n_rows: usize,
        logits: &CudaBuffer,
        routes: &mut crate::DeviceRoutes,
    ) -> Result<(), BackendError> {
        let router = router.map(crate::Buffer::view);
        Ok(self.ops.route(&router, n_rows, logits.read(), routes)?)
    }

    fn experts_linear(
        &mut self,
        experts: &Linear<crate::Matrix, crate::Buffer<f32>>,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, CudaBuffer>,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let mut job = [LinearJob {
            linear: experts,
            output,
        }];
        self.multiply_experts(routed, input, &mut job)
    }

    fn combine(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &CudaBuffer,
        carried: Carried<'_, CudaBuffer>,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let carried = match carried {
            Carried::Nothing => crate::CarriedRows::Nothing,
            Carried::Whole => crate::CarriedRows::Whole,
            Carried::Gated(gates) => crate::CarriedRows::Gated(gates.read()),
        };
        Ok(self.ops.combine(
            routed.routes,
            [routed.n_rows, routed.n_used],
            width,
            choices.read(),
            carried,
            output.write(),
        )?)
    }
}

impl CudaBackend {
    /// Multiplies the inputs of experts by up to two matrices of one layout.
    fn multiply_experts(
        &self,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, CudaBuffer>,
        jobs: &mut [LinearJob<'_, Self>],
    ) -> Result<(), BackendError> {
        let linear = jobs[0].linear;
        let matrix = &linear.matrix;
        let (rows, n_rows, is_by_choice) = match input {
            ExpertInput::Rows(rows) => (rows, routed.n_rows, false),
            ExpertInput::Choices(rows) => (rows, routed.n_choices(), true),
        };
        let form = if matrix.takes_quantized_input() {
            Some(rows.read_quantized(&self.ops, [n_rows, linear.n_in])?)
        } else {
            None
        };
        let input = crate::ExpertRows {
            is_by_choice,
            floats: rows.read(),
            quantized: form.as_ref().map(|form| form.view()),
        };
        let counts = crate::RouteCounts {
            n_rows: routed.n_rows,
            n_used: routed.n_used,
            n_experts: matrix.n_out() / linear.n_out,
        };
        let mut products = jobs.iter_mut().map(|job| crate::Product {
            matrix: &job.linear.matrix,
            bias: job.linear.bias.as_ref().map(crate::Buffer::view),
            output: job.output.write(),
        });
        let (routes, n_out) = (routed.routes, linear.n_out);
        // Arrays instead of a vector: nothing is allocated on the step path.
        match (products.next(), products.next()) {
            (Some(a), Some(b)) => self.ops.experts(routes, counts, input, n_out, &mut [a, b])?,
            (Some(a), None) => self.ops.experts(routes, counts, input, n_out, &mut [a])?,
            _ => {}
        }
        Ok(())
    }

    /// Multiplies the inputs of experts by a gate and an up matrix and applies the activation; see
    /// [`Backend::experts_gated`].
    pub(super) fn gate_experts(
        &mut self,
        activation: Activation,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, CudaBuffer>,
        gate: LinearJob<'_, Self>,
        up: LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        let n_out = gate.linear.n_out;
        let is_one_launch = gate.linear.matrix.layout() == up.linear.matrix.layout();
        let mut jobs = [gate, up];
        for jobs in jobs.chunks_mut(if is_one_launch { 2 } else { 1 }) {
            self.multiply_experts(routed, input, jobs)?;
        }
        let [gate, up] = jobs;
        self.activation(
            activation,
            routed.n_choices(),
            n_out,
            gate.output,
            Some(up.output),
        )
    }
}
