//! The operations that few networks need, each on its side.
//!
//! Invariant: like all operations here, each first copies its inputs to its side.

use tokenmill_backend::{BackendError, Columns, LayerOperations, Routed, Side, SplitOperations, Xielu};

use crate::{
    Placed, PlacedBuffer,
    buffer::Buffers as _,
    kept::{OfDevice, OfHost},
    placed::on_side,
};

impl<H: SplitOperations, D: SplitOperations> LayerOperations for Placed<H, D> {
    fn take_columns(
        &mut self,
        input: Columns<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        n_rows: usize,
        width: usize,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, input.rows, n_rows * input.row_width)?;
        output.written_on(side);
        on_side!(self, side, |own, of| {
            let rows = of.shared(input.rows)?;
            let input = Columns {
                rows: &*rows,
                row_width: input.row_width,
                first: input.first,
            };
            own.take_columns(input, n_rows, width, of.own(output)?)
        })
    }

    fn xielu(
        &mut self,
        xielu: Xielu,
        n_rows: usize,
        width: usize,
        rows: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, rows, n_rows * width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| own.xielu(
            xielu,
            n_rows,
            width,
            of.own(rows)?
        ))
    }

    fn cut_below(
        &mut self,
        cutoff: f32,
        n_rows: usize,
        width: usize,
        rows: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, rows, n_rows * width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| own.cut_below(
            cutoff,
            n_rows,
            width,
            of.own(rows)?
        ))
    }

    fn weigh_choices(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        let (n_rows, n_used) = (routed.n_rows, routed.n_used);
        self.bring(side, choices, routed.n_choices() * width)?;
        choices.written_on(side);
        if !self.runs_on(side)? {
            return Ok(());
        }
        match side {
            Side::Host => {
                let routed = Routed {
                    routes: routed.routes.host()?,
                    n_rows,
                    n_used,
                };
                self.host.weigh_choices(routed, width, OfHost.own(choices)?)
            }
            Side::Device => {
                let routed = Routed {
                    routes: routed.routes.device()?,
                    n_rows,
                    n_used,
                };
                self.device.weigh_choices(routed, width, OfDevice.own(choices)?)
            }
        }
    }
}
