//! [`predict_streams`], [`correct_streams`] and the other operations on streams of hidden states.
//!
//! Unlike in the element-wise passes, each row has factors of its own. Invariant: a row is computed by one
//! thread.

use tokenmill_backend::{MAX_STREAMS, MIN_MEAN_SQUARE, StreamsShape};

use crate::{Host, pool::Columns};

use super::sparsity::sum_of;

/// The number of rows that one thread takes at a time.
const ROWS_PER_CHUNK: usize = 8;

/// Cuts a buffer into runs of [`ROWS_PER_CHUNK`] rows, each `width` wide.
fn chunks(rows: &mut [f32], width: usize) -> Columns<'_, f32> {
    let n_values = rows.len();
    Columns::new(rows, n_values, ROWS_PER_CHUNK * width)
}

/// `output[r][i] = rows[r]`.
///
/// # Panics
/// If there are fewer rows than in the shape.
pub fn repeat_rows(host: &Host, shape: StreamsShape, rows: &[f32], output: &mut [f32]) {
    let StreamsShape { n_others, width, .. } = shape;
    let all_width = n_others * width;
    host.pool()
        .for_each_part(chunks(output, all_width), |chunk_idx, mut output| {
            let first_row = chunk_idx * ROWS_PER_CHUNK;
            for (i, out) in output.row(0).chunks_exact_mut(width).enumerate() {
                out.copy_from_slice(&rows[(first_row + i / n_others) * width..][..width]);
            }
        });
}

/// Scales the other streams to the magnitude of the first; see
/// [`StreamOperations`](tokenmill_backend::StreamOperations::match_magnitudes).
///
/// # Panics
/// If there are fewer rows than in the shape.
pub fn match_magnitudes(host: &Host, shape: StreamsShape, first: &[f32], others: &mut [f32]) {
    let StreamsShape { n_others, width, .. } = shape;
    host.pool()
        .for_each_part(chunks(others, n_others * width), |chunk_idx, mut others| {
            let first_row = chunk_idx * ROWS_PER_CHUNK;
            for (i, others) in others.row(0).chunks_exact_mut(n_others * width).enumerate() {
                let target = mean_square(&first[(first_row + i) * width..][..width]).sqrt();
                for other in others.chunks_exact_mut(width) {
                    let own = mean_square(other).max(MIN_MEAN_SQUARE).sqrt();
                    for x in other {
                        *x = *x * target / own;
                    }
                }
            }
        });
}

fn mean_square(row: &[f32]) -> f32 {
    sum_of(row, |x| x * x) / row.len() as f32
}

/// Predicts all streams from one another; see
/// [`StreamOperations`](tokenmill_backend::StreamOperations::predict_streams).
///
/// # Panics
/// If there are fewer rows than in the shape, or more than [`MAX_STREAMS`] streams.
pub fn predict_streams(
    host: &Host,
    shape: StreamsShape,
    factors: &[f32],
    first: &mut [f32],
    others: &mut [f32],
) {
    let StreamsShape { n_others, width, .. } = shape;
    let n = n_others + 1;
    assert!(n <= MAX_STREAMS, "{n} streams");
    let parts = (chunks(first, width), chunks(others, n_others * width));
    host.pool()
        .for_each_part(parts, |chunk_idx, (mut first, mut others)| {
            let rows = first.row(0).chunks_exact_mut(width);
            for (i, (first, others)) in rows
                .zip(others.row(0).chunks_exact_mut(n_others * width))
                .enumerate()
            {
                let factors = &factors[(chunk_idx * ROWS_PER_CHUNK + i) * n * n..][..n * n];
                for (column, x) in first.iter_mut().enumerate() {
                    let mut old = [0.0; MAX_STREAMS];
                    old[0] = *x;
                    for (old, other) in old[1..].iter_mut().zip(others.chunks_exact(width)) {
                        *old = other[column];
                    }
                    let predicted = |i: usize| {
                        let products = factors[i * n..][..n].iter().zip(&old);
                        products.fold(0.0, |sum, (factor, x)| factor.mul_add(*x, sum)) + old[i]
                    };
                    *x = predicted(0);
                    for (i, other) in others.chunks_exact_mut(width).enumerate() {
                        other[column] = predicted(1 + i);
                    }
                }
            }
        });
}

/// Corrects all streams by a layer's result in `first`; see
/// [`StreamOperations`](tokenmill_backend::StreamOperations::correct_streams).
///
/// # Panics
/// If there are fewer rows than in the shape.
pub fn correct_streams(
    host: &Host,
    shape: StreamsShape,
    factors: &[f32],
    predicted: &[f32],
    first: &mut [f32],
    others: &mut [f32],
) {
    let StreamsShape { n_others, width, .. } = shape;
    let n = n_others + 1;
    let parts = (chunks(first, width), chunks(others, n_others * width));
    host.pool()
        .for_each_part(parts, |chunk_idx, (mut first, mut others)| {
            let rows = first.row(0).chunks_exact_mut(width);
            for (i, (first, others)) in rows
                .zip(others.row(0).chunks_exact_mut(n_others * width))
                .enumerate()
            {
                let row_idx = chunk_idx * ROWS_PER_CHUNK + i;
                let factors = &factors[row_idx * n..][..n];
                let predicted = &predicted[row_idx * width..][..width];
                for (other, factor) in others.chunks_exact_mut(width).zip(&factors[1..]) {
                    for ((x, result), predicted) in other.iter_mut().zip(&*first).zip(predicted) {
                        *x += (1.0 + factor) * (result - predicted);
                    }
                }
                for (x, predicted) in first.iter_mut().zip(predicted) {
                    *x = predicted + (1.0 + factors[0]) * (*x - predicted);
                }
            }
        });
}

/// `others[r][i] += rows[r]`.
///
/// # Panics
/// If there are fewer rows than in the shape.
pub fn add_to_others(host: &Host, shape: StreamsShape, rows: &[f32], others: &mut [f32]) {
    let StreamsShape { n_others, width, .. } = shape;
    host.pool()
        .for_each_part(chunks(others, n_others * width), |chunk_idx, mut others| {
            let first_row = chunk_idx * ROWS_PER_CHUNK;
            for (i, other) in others.row(0).chunks_exact_mut(width).enumerate() {
                let row = &rows[(first_row + i / n_others) * width..][..width];
                for (x, y) in other.iter_mut().zip(row) {
                    *x += y;
                }
            }
        });
}

/// `rows[r] *= row`.
///
/// # Panics
/// If `rows` is not a whole number of rows.
pub fn multiply_by_row(host: &Host, row: &[f32], rows: &mut [f32]) {
    assert!(rows.len().is_multiple_of(row.len()), "rows to multiply");
    host.pool().for_each_part(chunks(rows, row.len()), |_, mut rows| {
        for x in rows.row(0).chunks_exact_mut(row.len()) {
            for (x, y) in x.iter_mut().zip(row) {
                *x *= y;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use tokenmill_quant::CpuFeatures;

    use super::*;

    #[test]
    fn a_correction_by_the_prediction_itself_changes_nothing() {
        let host = Host::new(2, CpuFeatures::detect()).unwrap();
        let shape = StreamsShape {
            n_rows: 2 * ROWS_PER_CHUNK + 3,
            n_others: 2,
            width: 3,
        };
        let numbers = |n: usize| -> Vec<f32> { (0..n as u32).map(|i| (i % 13) as f32 - 5.0).collect() };
        let mut first = numbers(shape.n_rows * 3);
        let mut others = numbers(shape.n_rows * 6);
        let (predicted, before) = (first.clone(), others.clone());
        let factors = numbers(shape.n_rows * 3);
        correct_streams(&host, shape, &factors, &predicted, &mut first, &mut others);
        assert_eq!((&first, &others), (&predicted, &before));
        // Without factors, the error of 1 is added to all streams unchanged.
        for x in &mut first {
            *x += 1.0;
        }
        let none = vec![0.0; factors.len()];
        correct_streams(&host, shape, &none, &predicted, &mut first, &mut others);
        assert!(others.iter().zip(&before).all(|(x, old)| *x == old + 1.0));
        assert!(first.iter().zip(&predicted).all(|(x, old)| *x == old + 1.0));
    }

    #[test]
    fn predictions_are_made_of_the_streams_before_them() {
        let host = Host::new(2, CpuFeatures::detect()).unwrap();
        let shape = StreamsShape {
            n_rows: ROWS_PER_CHUNK + 1,
            n_others: 1,
            width: 2,
        };
        let mut first = vec![1.0; shape.n_rows * 2];
        let mut others = vec![10.0; shape.n_rows * 2];
        // The streams are exchanged: each loses itself and gets the other.
        let factors = [-1.0, 1.0, 1.0, -1.0].repeat(shape.n_rows);
        predict_streams(&host, shape, &factors, &mut first, &mut others);
        assert!(first.iter().all(|&x| x == 10.0) && others.iter().all(|&x| x == 1.0));
        let mut repeated = vec![0.0; shape.n_rows * 2];
        repeat_rows(&host, shape, &first, &mut repeated);
        assert_eq!(repeated, first);
        match_magnitudes(&host, shape, &first, &mut others);
        assert!(others.iter().all(|&x| (x - 10.0).abs() < 1e-5));
        add_to_others(&host, shape, &first, &mut others);
        multiply_by_row(&host, &[2.0, 3.0], &mut others);
        assert!(
            others
                .chunks_exact(2)
                .all(|x| (x[0] - 40.0).abs() < 1e-4 && (x[1] - 60.0).abs() < 1e-4)
        );
    }
}
