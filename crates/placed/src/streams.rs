//! The operations on streams, each on its side.
//!
//! Invariant: like all operations here, each first copies its inputs to its side.

use tokenmill_backend::{BackendError, Memory, Side, SplitOperations, StreamOperations, StreamsShape};

use crate::{
    Placed, PlacedBuffer,
    buffer::Buffers as _,
    kept::{OfDevice, OfHost, lend},
    placed::on_side,
};

type Rows<H, D> = PlacedBuffer<<H as Memory>::Buffer, <D as Memory>::Buffer>;

impl<H: SplitOperations, D: SplitOperations> StreamOperations for Placed<H, D> {
    fn repeat_rows(
        &mut self,
        shape: StreamsShape,
        rows: &Rows<H, D>,
        output: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, rows, shape.n_rows * shape.width)?;
        output.written_on(side);
        on_side!(self, side, |own, of| own.repeat_rows(
            shape,
            &*of.shared(rows)?,
            of.own(output)?
        ))
    }

    fn match_magnitudes(
        &mut self,
        shape: StreamsShape,
        first: &Rows<H, D>,
        others: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, first, shape.n_rows * shape.width)?;
        self.bring(side, others, others_len(shape))?;
        others.written_on(side);
        on_side!(self, side, |own, of| own.match_magnitudes(
            shape,
            &*of.shared(first)?,
            of.own(others)?
        ))
    }

    fn predict_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Rows<H, D>,
        first: &mut Rows<H, D>,
        others: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        let n_streams = shape.n_others + 1;
        self.bring(side, factors, shape.n_rows * n_streams * n_streams)?;
        self.bring(side, first, shape.n_rows * shape.width)?;
        self.bring(side, others, others_len(shape))?;
        first.written_on(side);
        others.written_on(side);
        on_side!(self, side, |own, of| own.predict_streams(
            shape,
            &*of.shared(factors)?,
            of.own(first)?,
            of.own(others)?
        ))
    }

    fn correct_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Rows<H, D>,
        predicted: &Rows<H, D>,
        first: &mut Rows<H, D>,
        others: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, factors, shape.n_rows * (shape.n_others + 1))?;
        self.bring(side, predicted, shape.n_rows * shape.width)?;
        self.bring(side, first, shape.n_rows * shape.width)?;
        self.bring(side, others, others_len(shape))?;
        first.written_on(side);
        others.written_on(side);
        on_side!(self, side, |own, of| own.correct_streams(
            shape,
            &*of.shared(factors)?,
            &*of.shared(predicted)?,
            of.own(first)?,
            of.own(others)?
        ))
    }

    fn add_to_others(
        &mut self,
        shape: StreamsShape,
        rows: &Rows<H, D>,
        others: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, rows, shape.n_rows * shape.width)?;
        self.bring(side, others, others_len(shape))?;
        others.written_on(side);
        on_side!(self, side, |own, of| own.add_to_others(
            shape,
            &*of.shared(rows)?,
            of.own(others)?
        ))
    }

    fn multiply_by_row(
        &mut self,
        shape: StreamsShape,
        row: &<Self as Memory>::Vector,
        rows: &mut Rows<H, D>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(row));
        self.bring(side, rows, shape.n_rows * shape.width)?;
        rows.written_on(side);
        on_side!(self, side, |own, of| lend(of, [Some(row)], |[row]| {
            let outcome = match &row {
                Some(row) => (of.own(rows)).and_then(|rows| own.multiply_by_row(shape, row, rows)),
                None => Ok(()),
            };
            (outcome, [row])
        }))
    }
}

/// Returns the number of values in all streams but the first.
fn others_len(shape: StreamsShape) -> usize {
    shape.n_rows * shape.n_others * shape.width
}
