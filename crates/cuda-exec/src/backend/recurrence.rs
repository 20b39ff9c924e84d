//! The operations on recurrent states.
//!
//! Invariant: the step's inputs say where a sequence's state is, so a launch depends on counts only.

use tokenmill_backend::{
    BackendError, Columns, DeltaNet, DeltaNetRows, RecurrentOperations, ShortConv, SsmRows, SsmScan,
    StepShape,
};

use super::{CudaBackend, CudaBuffer, prepared};

const STATES_ALLOCATED: &str = "the states are allocated at load";

impl RecurrentOperations for CudaBackend {
    fn short_conv(
        &mut self,
        conv: &ShortConv<crate::Buffer<f32>>,
        shape: &StepShape,
        input: &CudaBuffer,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let step = prepared(&mut self.workspace).inputs.states(shape)?;
        let states = self.states.as_mut().expect(STATES_ALLOCATED);
        Ok(self.ops.short_conv(
            &conv.map(crate::Buffer::view),
            step,
            states.layer_mut(conv.state_idx),
            input.read(),
            output.write(),
        )?)
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<crate::Buffer<f32>>,
        shape: &StepShape,
        rows: DeltaNetRows<'_, CudaBuffer>,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let step = prepared(&mut self.workspace).inputs.states(shape)?;
        let states = self.states.as_mut().expect(STATES_ALLOCATED);
        Ok(self.ops.delta_net(
            &net.map(crate::Buffer::view),
            step,
            states.layer_mut(net.state_idx),
            crate::NetRows {
                qkv: rows.qkv.read(),
                alpha: rows.alpha.read(),
                beta: rows.beta.read(),
            },
            output.write(),
        )?)
    }

    fn ssm_scan(
        &mut self,
        scan: &SsmScan<crate::Buffer<f32>>,
        shape: &StepShape,
        rows: SsmRows<'_, CudaBuffer>,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let step = prepared(&mut self.workspace).inputs.states(shape)?;
        let states = self.states.as_mut().expect(STATES_ALLOCATED);
        Ok(self.ops.ssm_scan(
            &scan.map(crate::Buffer::view),
            step,
            states.layer_mut(scan.state_idx),
            crate::ScanRows {
                x: view_of(&rows.x),
                b: view_of(&rows.b),
                c: view_of(&rows.c),
                dt: rows.dt.read(),
            },
            output.write(),
        )?)
    }
}

fn view_of<'a>(columns: &Columns<'a, CudaBuffer>) -> crate::ColumnsView<'a> {
    crate::ColumnsView {
        rows: columns.rows.read(),
        row_width: columns.row_width,
        first: columns.first,
    }
}
