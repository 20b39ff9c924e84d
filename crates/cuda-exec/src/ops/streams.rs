//! The operations on streams of hidden states. Kernels: `streams.cu`.
//!
//! Invariant: that of its parent.

use tokenmill_backend::{MAX_STREAMS, StreamsShape};

use super::Ops;
use crate::{Args, CudaExecError, Device, Kernel, LaunchShape, View, ViewMut, error::Result};

/// Largest number of streams for the first of the two kernels for predictions.
const FEW_STREAMS: usize = 4;

/// The kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamKernels {
    repeat_rows: Kernel,
    match_magnitudes: Kernel,
    /// For few streams, and for as many as a network has.
    predict_streams: [Kernel; 2],
    correct_streams: Kernel,
    add_to_others: Kernel,
    multiply_by_row: Kernel,
}

impl StreamKernels {
    fn load(device: &Device) -> Result<Self> {
        let kernel = |name: &str| device.kernel("streams", name);
        Ok(Self {
            repeat_rows: kernel("repeat_rows")?,
            match_magnitudes: kernel("match_magnitudes")?,
            predict_streams: [kernel("predict_streams_n4")?, kernel("predict_streams_n16")?],
            correct_streams: kernel("correct_streams")?,
            add_to_others: kernel("add_to_others")?,
            multiply_by_row: kernel("multiply_by_row")?,
        })
    }
}

/// Counts of values of the first stream, and of the others.
fn lens(shape: StreamsShape) -> [usize; 2] {
    let n_values = shape.n_rows * shape.width;
    [n_values, n_values * shape.n_others]
}

/// One thread for each value of the other streams.
fn others_grid(shape: StreamsShape) -> LaunchShape {
    LaunchShape::new([shape.width.div_ceil(256), shape.n_rows, shape.n_others], 256)
}

impl Ops {
    /// Loads the kernels of streams, before any step.
    ///
    /// # Errors
    /// [`CudaExecError::DriverTooOld`], or the driver's.
    pub fn load_streams(&mut self) -> Result<()> {
        self.streams = Some(StreamKernels::load(&self.device)?);
        Ok(())
    }

    fn stream_kernels(&self) -> &StreamKernels {
        self.streams.as_ref().expect("loaded for networks with streams")
    }

    /// Repeats each row once for each of the other streams.
    ///
    /// # Errors
    /// [`CudaExecError::Bounds`], or the driver's.
    ///
    /// # Panics
    /// If [`Self::load_streams`] was not called.
    pub fn repeat_rows(
        &self,
        shape: StreamsShape,
        rows: View<'_, f32>,
        output: ViewMut<'_, f32>,
    ) -> Result<()> {
        let [n_first, n_others] = lens(shape);
        let args = Args::new()
            .read(rows.range(0..n_first)?)
            .count(shape.width)
            .write(output.range(0..n_others)?);
        let kernel = self.stream_kernels().repeat_rows;
        self.device.launch(kernel, others_grid(shape), &args)
    }

    /// Scales the other streams to the magnitude of the first; see
    /// [`StreamOperations`](tokenmill_backend::StreamOperations::match_magnitudes).
    ///
    /// # Errors
    /// As [`Self::repeat_rows`].
    ///
    /// # Panics
    /// As [`Self::repeat_rows`].
    pub fn match_magnitudes(
        &self,
        shape: StreamsShape,
        first: View<'_, f32>,
        others: ViewMut<'_, f32>,
    ) -> Result<()> {
        let [n_first, n_others] = lens(shape);
        let args = Args::new()
            .read(first.range(0..n_first)?)
            .count(shape.width)
            .write(others.range(0..n_others)?);
        let launch = LaunchShape::new([shape.n_rows, shape.n_others, 1], 256);
        let kernel = self.stream_kernels().match_magnitudes;
        self.device.launch(kernel, launch, &args)
    }

    /// Predicts all streams from one another; see
    /// [`StreamOperations`](tokenmill_backend::StreamOperations::predict_streams).
    ///
    /// # Errors
    /// [`CudaExecError::Unsupported`] beyond [`MAX_STREAMS`] streams, or as [`Self::repeat_rows`].
    ///
    /// # Panics
    /// As [`Self::repeat_rows`].
    pub fn predict_streams(
        &self,
        shape: StreamsShape,
        factors: View<'_, f32>,
        first: ViewMut<'_, f32>,
        others: ViewMut<'_, f32>,
    ) -> Result<()> {
        let n = shape.n_others + 1;
        if n > MAX_STREAMS {
            return Err(CudaExecError::Unsupported {
                feature: format!("network with {n} streams of hidden states (at most {MAX_STREAMS})"),
            });
        }
        let [n_first, n_others] = lens(shape);
        let args = Args::new()
            .read(factors.range(0..shape.n_rows * n * n)?)
            .count(shape.n_others)
            .count(shape.width)
            .write(first.range(0..n_first)?)
            .write(others.range(0..n_others)?);
        let kernel = self.stream_kernels().predict_streams[usize::from(n > FEW_STREAMS)];
        self.launch_elementwise(kernel, [shape.n_rows, shape.width], &args)
    }

    /// Corrects all streams by a layer's result in `first`; see
    /// [`StreamOperations`](tokenmill_backend::StreamOperations::correct_streams).
    ///
    /// # Errors
    /// As [`Self::repeat_rows`].
    ///
    /// # Panics
    /// As [`Self::repeat_rows`].
    pub fn correct_streams(
        &self,
        shape: StreamsShape,
        factors: View<'_, f32>,
        predicted: View<'_, f32>,
        first: ViewMut<'_, f32>,
        others: ViewMut<'_, f32>,
    ) -> Result<()> {
        let [n_first, n_others] = lens(shape);
        let args = Args::new()
            .read(factors.range(0..shape.n_rows * (shape.n_others + 1))?)
            .read(predicted.range(0..n_first)?)
            .count(shape.n_others)
            .count(shape.width)
            .write(first.range(0..n_first)?)
            .write(others.range(0..n_others)?);
        let kernel = self.stream_kernels().correct_streams;
        self.launch_elementwise(kernel, [shape.n_rows, shape.width], &args)
    }

    /// Adds a row to each of the other streams.
    ///
    /// # Errors
    /// As [`Self::repeat_rows`].
    ///
    /// # Panics
    /// As [`Self::repeat_rows`].
    pub fn add_to_others(
        &self,
        shape: StreamsShape,
        rows: View<'_, f32>,
        others: ViewMut<'_, f32>,
    ) -> Result<()> {
        let [n_first, n_others] = lens(shape);
        let args = Args::new()
            .read(rows.range(0..n_first)?)
            .count(shape.width)
            .write(others.range(0..n_others)?);
        let kernel = self.stream_kernels().add_to_others;
        self.device.launch(kernel, others_grid(shape), &args)
    }

    /// Multiplies all rows by one.
    ///
    /// # Errors
    /// As [`Self::repeat_rows`].
    ///
    /// # Panics
    /// As [`Self::repeat_rows`].
    pub fn multiply_by_row(
        &self,
        shape: StreamsShape,
        row: View<'_, f32>,
        rows: ViewMut<'_, f32>,
    ) -> Result<()> {
        let [n_first, _] = lens(shape);
        let args = Args::new()
            .write(rows.range(0..n_first)?)
            .read(row.range(0..shape.width)?)
            .count(shape.width);
        let kernel = self.stream_kernels().multiply_by_row;
        self.launch_elementwise(kernel, [shape.n_rows, shape.width], &args)
    }
}
