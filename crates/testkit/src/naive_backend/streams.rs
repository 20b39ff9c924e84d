//! The operations on streams, each as its formula.

use tokenmill_backend::{BackendError, MIN_MEAN_SQUARE, StreamOperations, StreamsShape};

use super::NaiveBackend;

fn mean_square(row: &[f32]) -> f32 {
    row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32
}

impl StreamOperations for NaiveBackend {
    fn repeat_rows(
        &mut self,
        shape: StreamsShape,
        rows: &Vec<f32>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let StreamsShape {
            n_rows,
            n_others,
            width,
        } = shape;
        for (i, out) in output[..n_rows * n_others * width].iter_mut().enumerate() {
            *out = rows[i / width / n_others * width + i % width];
        }
        Ok(())
    }

    fn match_magnitudes(
        &mut self,
        shape: StreamsShape,
        first: &Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let width = shape.width;
        for (i, other) in (others.chunks_exact_mut(width).enumerate()).take(shape.n_rows * shape.n_others) {
            let target = mean_square(&first[i / shape.n_others * width..][..width]).sqrt();
            let own = mean_square(other).max(MIN_MEAN_SQUARE).sqrt();
            for x in other {
                *x = *x * target / own;
            }
        }
        Ok(())
    }

    fn predict_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Vec<f32>,
        first: &mut Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (n, width) = (shape.n_others + 1, shape.width);
        for row_idx in 0..shape.n_rows {
            for column in 0..width {
                let first = &mut first[row_idx * width + column];
                let place = |i: usize| (row_idx * shape.n_others + i) * width + column;
                let old: Vec<f32> = [*first]
                    .into_iter()
                    .chain((0..shape.n_others).map(|i| others[place(i)]))
                    .collect();
                let predicted = |i: usize| -> f32 {
                    let factors = &factors[(row_idx * n + i) * n..][..n];
                    old[i]
                        + factors
                            .iter()
                            .zip(&old)
                            .map(|(factor, x)| factor * x)
                            .sum::<f32>()
                };
                *first = predicted(0);
                for i in 0..shape.n_others {
                    others[place(i)] = predicted(1 + i);
                }
            }
        }
        Ok(())
    }

    fn correct_streams(
        &mut self,
        shape: StreamsShape,
        factors: &Vec<f32>,
        predicted: &Vec<f32>,
        first: &mut Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (n, width) = (shape.n_others + 1, shape.width);
        for row_idx in 0..shape.n_rows {
            let factors = &factors[row_idx * n..][..n];
            for column in 0..width {
                let at = row_idx * width + column;
                let error = first[at] - predicted[at];
                first[at] = predicted[at] + (1.0 + factors[0]) * error;
                for i in 0..shape.n_others {
                    let at = (row_idx * shape.n_others + i) * width + column;
                    others[at] += (1.0 + factors[1 + i]) * error;
                }
            }
        }
        Ok(())
    }

    fn add_to_others(
        &mut self,
        shape: StreamsShape,
        rows: &Vec<f32>,
        others: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let StreamsShape {
            n_rows,
            n_others,
            width,
        } = shape;
        for (i, x) in others[..n_rows * n_others * width].iter_mut().enumerate() {
            *x += rows[i / width / n_others * width + i % width];
        }
        Ok(())
    }

    fn multiply_by_row(
        &mut self,
        shape: StreamsShape,
        row: &Vec<f32>,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for (i, x) in rows[..shape.n_rows * shape.width].iter_mut().enumerate() {
            *x *= row[i % shape.width];
        }
        Ok(())
    }
}
