//! The operations that few networks need.
//!
//! Separate because they are a trait of their own. Invariant: a network that needs one which is not here is refused when it is
//! loaded.

use tokenmill_backend::{
    Backend, BackendError, Columns, LayerOperation, LayerOperations, NetworkShape, Routed, Xielu,
};

use super::{CudaBackend, CudaBuffer};

impl LayerOperations for CudaBackend {
    fn take_columns(
        &mut self,
        input: Columns<'_, CudaBuffer>,
        n_rows: usize,
        width: usize,
        output: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        Ok(self.ops.take_columns(
            input.rows.read(),
            [n_rows, input.row_width],
            [input.first, width],
            output.write(),
        )?)
    }

    fn xielu(
        &mut self,
        xielu: Xielu,
        n_rows: usize,
        width: usize,
        rows: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let (values, form) = rows.write_both([n_rows, width]);
        Ok(self.ops.xielu(xielu, [n_rows, width], values, form)?)
    }

    fn cut_below(&mut self, _: f32, _: usize, _: usize, _: &mut CudaBuffer) -> Result<(), BackendError> {
        Err(lacking(LayerOperation::CutBelow))
    }

    fn weigh_choices(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &mut CudaBuffer,
    ) -> Result<(), BackendError> {
        let n_choices = routed.n_choices();
        Ok(self
            .ops
            .weigh_choices(routed.routes, n_choices, width, choices.write())?)
    }
}

impl CudaBackend {
    /// Operations that it lacks: a network that needs one of them is refused by name when it is loaded.
    pub const LACKS: &'static [LayerOperation] = &[
        LayerOperation::ChannelDecays,
        LayerOperation::CutBelow,
        LayerOperation::Streams,
    ];
}

/// Says whether the device has all that a network needs.
pub(super) fn check(network: &NetworkShape) -> Result<(), BackendError> {
    match network
        .needs
        .iter()
        .find(|need| CudaBackend::LACKS.contains(need))
    {
        None => Ok(()),
        Some(&operation) => Err(lacking(operation)),
    }
}

pub(super) fn lacking(operation: LayerOperation) -> BackendError {
    BackendError::Unsupported {
        feature: operation.feature().to_owned(),
        device: CudaBackend::NAME,
    }
}
