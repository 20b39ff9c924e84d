//! The operations on recurrent states, each on the side of the state.
//!
//! Invariant: the layers of a side's store have their own indices; the slots of states mean the same on both
//! sides.

use tokenmill_backend::{
    BackendError, Columns, DeltaNet, DeltaNetRows, Memory, RecurrentOperations, ShortConv, Side,
    SplitOperations, SsmRows, SsmScan, StepShape,
};

use crate::{
    Placed, PlacedBuffer,
    buffer::Buffers as _,
    kept::{OfDevice, OfHost, StoreOperand as _},
    placed::on_side,
};

impl<H: SplitOperations, D: SplitOperations> RecurrentOperations for Placed<H, D> {
    fn short_conv(
        &mut self,
        conv: &ShortConv<<Self as Memory>::Vector>,
        shape: &StepShape,
        input: &PlacedBuffer<H::Buffer, D::Buffer>,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let (side, state_idx) = self.state_place(conv.state_idx);
        self.bring(side, input, shape.n_tokens * conv.n_channels)?;
        output.written_on(side);
        let shape = self.shape_on(side);
        on_side!(self, side, |own, of| conv.with(of, state_idx, |conv| {
            own.short_conv(conv, &shape, &*of.shared(input)?, of.own(output)?)
        }))
    }

    fn delta_net(
        &mut self,
        net: &DeltaNet<<Self as Memory>::Vector>,
        shape: &StepShape,
        rows: DeltaNetRows<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let (side, state_idx) = self.state_place(net.state_idx);
        let (n, n_heads) = (shape.n_tokens, net.n_v_heads);
        self.bring(side, rows.qkv, n * net.qkv_width())?;
        self.bring(side, rows.alpha, n * n_heads * net.decays_of_head())?;
        self.bring(side, rows.beta, n * n_heads)?;
        for written in [&*rows.qkv, rows.alpha, rows.beta, output] {
            written.written_on(side);
        }
        let shape = self.shape_on(side);
        on_side!(self, side, |own, of| net.with(of, state_idx, |net| {
            let rows = DeltaNetRows {
                qkv: of.own(rows.qkv)?,
                alpha: of.own(rows.alpha)?,
                beta: of.own(rows.beta)?,
            };
            own.delta_net(net, &shape, rows, of.own(output)?)
        }))
    }

    fn ssm_scan(
        &mut self,
        scan: &SsmScan<<Self as Memory>::Vector>,
        shape: &StepShape,
        rows: SsmRows<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let (side, state_idx) = self.state_place(scan.state_idx);
        let n = shape.n_tokens;
        for columns in [&rows.x, &rows.b, &rows.c] {
            self.bring(side, columns.rows, n * columns.row_width)?;
        }
        self.bring(side, rows.dt, n * scan.n_heads)?;
        rows.dt.written_on(side);
        output.written_on(side);
        let shape = self.shape_on(side);
        on_side!(self, side, |own, of| scan.with(of, state_idx, |scan| {
            let [x, b, c] = [
                of.shared(rows.x.rows)?,
                of.shared(rows.b.rows)?,
                of.shared(rows.c.rows)?,
            ];
            let rows = SsmRows {
                x: same_columns(&rows.x, &*x),
                b: same_columns(&rows.b, &*b),
                c: same_columns(&rows.c, &*c),
                dt: of.own(rows.dt)?,
            };
            own.ssm_scan(scan, &shape, rows, of.own(output)?)
        }))
    }
}

/// Returns the same columns of a side's own buffer.
fn same_columns<'a, T, U>(columns: &Columns<'_, T>, rows: &'a U) -> Columns<'a, U> {
    Columns {
        rows,
        row_width: columns.row_width,
        first: columns.first,
    }
}
