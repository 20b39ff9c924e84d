//! The operations on recurrent states on the host.
//!
//! Only recurrent layers have them. Invariant: as in the parent module, this file only slices buffers.

use tokenmill_backend::{
    BackendError, DeltaNet, DeltaNetRows, RecurrentOperations, ShortConv, SsmRows, SsmScan, StepShape,
};

use super::{CpuBackend, CpuVector};

const STATES_ALLOCATED: &str = "the states are allocated at load";

impl RecurrentOperations for CpuBackend {
    fn short_conv(
        &mut self,
        conv: &ShortConv<CpuVector>,
        shape: &StepShape,
        input: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let n = shape.n_tokens * conv.n_channels;
        crate::short_conv(
            &self.host,
            &conv.map(|vector| vector.values.as_slice()),
            &crate::StepStates::of(self.step.batch()),
            self.states.as_mut().expect(STATES_ALLOCATED),
            &input[..n],
            &mut output[..n],
        );
        Ok(())
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<CpuVector>,
        shape: &StepShape,
        rows: DeltaNetRows<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let n_heads = shape.n_tokens * net.n_v_heads;
        let rows = DeltaNetRows {
            qkv: &mut rows.qkv[..shape.n_tokens * net.qkv_width()],
            alpha: &mut rows.alpha[..n_heads * net.decays_of_head()],
            beta: &mut rows.beta[..n_heads],
        };
        crate::delta_net(
            &self.host,
            &net.map(|vector| vector.values.as_slice()),
            &crate::StepStates::of(self.step.batch()),
            self.states.as_mut().expect(STATES_ALLOCATED),
            rows,
            &mut output[..n_heads * net.head_dim_v],
        );
        Ok(())
    }

    fn ssm_scan(
        &mut self,
        scan: &SsmScan<CpuVector>,
        shape: &StepShape,
        rows: SsmRows<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let n_heads = shape.n_tokens * scan.n_heads;
        let rows = SsmRows {
            x: rows.x.map(Vec::as_slice),
            b: rows.b.map(Vec::as_slice),
            c: rows.c.map(Vec::as_slice),
            dt: &mut rows.dt[..n_heads],
        };
        crate::ssm_scan(
            &self.host,
            &scan.map(|vector| vector.values.as_slice()),
            &crate::StepStates::of(self.step.batch()),
            self.states.as_mut().expect(STATES_ALLOCATED),
            rows,
            &mut output[..n_heads * scan.head_dim],
        );
        Ok(())
    }
}
