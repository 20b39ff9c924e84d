//! The operations on latent rows, each on its side.
//!
//! Invariant: like all operations here, each first copies its inputs to its side.

use tokenmill_backend::{BackendError, JoinedRows, LatentOperations, Linear, Memory, Side, SplitOperations};

use crate::{
    Placed, PlacedBuffer,
    buffer::Buffers as _,
    kept::{OfDevice, OfHost, with_linears},
    placed::on_side,
};

impl<H: SplitOperations, D: SplitOperations> LatentOperations for Placed<H, D> {
    fn heads_linear(
        &mut self,
        heads: &Linear<<Self as Memory>::Matrix, <Self as Memory>::Vector>,
        n_heads: usize,
        n_rows: usize,
        input: &PlacedBuffer<H::Buffer, D::Buffer>,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(&heads.matrix));
        self.bring(side, input, n_rows * n_heads * heads.n_in)?;
        output.written_on(side);
        on_side!(self, side, |own, of| with_linears(of, [heads], |[heads]| {
            own.heads_linear(heads, n_heads, n_rows, &*of.shared(input)?, of.own(output)?)
        }))
    }

    fn join(
        &mut self,
        n_rows: usize,
        left: JoinedRows<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        right: JoinedRows<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, left.rows, n_rows * left.width)?;
        self.bring(side, right.rows, n_rows * right.width)?;
        output.written_on(side);
        on_side!(self, side, |own, of| {
            let [left_rows, right_rows] = [of.shared(left.rows)?, of.shared(right.rows)?];
            let left = JoinedRows {
                rows: &*left_rows,
                width: left.width,
            };
            let right = JoinedRows {
                rows: &*right_rows,
                width: right.width,
            };
            own.join(n_rows, left, right, of.own(output)?)
        })
    }

    fn store_latent(
        &mut self,
        layer_idx: usize,
        n_tokens: usize,
        rows: &PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let (side, own_idx) = self.kv_place(layer_idx);
        self.bring(side, rows, n_tokens * self.kv_shapes[layer_idx].head_dim_k)?;
        on_side!(self, side, |own, of| own.store_latent(
            own_idx,
            n_tokens,
            &*of.shared(rows)?
        ))
    }
}
