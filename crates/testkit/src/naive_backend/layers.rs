//! The operations that few networks need, as their formulas.

use tokenmill_backend::{BackendError, Columns, LayerOperations, Routed, Xielu};

use super::NaiveBackend;

impl LayerOperations for NaiveBackend {
    fn take_columns(
        &mut self,
        input: Columns<'_, Vec<f32>>,
        n_rows: usize,
        width: usize,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for row_idx in 0..n_rows {
            for column in 0..width {
                output[row_idx * width + column] =
                    input.rows[row_idx * input.row_width + input.first + column];
            }
        }
        Ok(())
    }

    fn xielu(
        &mut self,
        xielu: Xielu,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for x in &mut rows[..n_rows * width] {
            let bounded = f64::from(x.min(xielu.eps));
            *x = if *x > 0.0 {
                xielu.alpha_p * *x * *x + xielu.beta * *x
            } else {
                ((bounded.exp() - 1.0) as f32 - *x) * xielu.alpha_n + xielu.beta * *x
            };
        }
        Ok(())
    }

    fn cut_below(
        &mut self,
        cutoff: f32,
        n_rows: usize,
        width: usize,
        rows: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for row in rows.chunks_exact_mut(width).take(n_rows) {
            let mean = row.iter().sum::<f32>() / width as f32;
            let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / width as f32;
            let least = mean + cutoff * variance.sqrt();
            for x in row {
                *x = (*x - least).max(0.0);
            }
        }
        Ok(())
    }

    fn weigh_choices(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for (choice, row) in routed.routes.iter().zip(choices.chunks_exact_mut(width)) {
            for x in row {
                *x *= choice.weight;
            }
        }
        Ok(())
    }
}
