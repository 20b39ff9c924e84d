//! The operations on experts, each as its formula.
//!
//! Invariant: choices are in the order of their rows and ranks.

use tokenmill_backend::{BackendError, Carried, ExpertInput, ExpertOperations, Linear, Routed, Router};

use super::{
    NaiveBackend, NaiveMatrix, dot,
    router::{Choice, choose, sigmoid},
};

impl ExpertOperations for NaiveBackend {
    fn route(
        &mut self,
        router: &Router<Vec<f32>>,
        n_rows: usize,
        logits: &Vec<f32>,
        routes: &mut Vec<Choice>,
    ) -> Result<(), BackendError> {
        routes.clear();
        let given = self.given_routes.pop_front();
        for (row_idx, row) in logits.chunks_exact(router.n_experts).take(n_rows).enumerate() {
            let given = given
                .as_ref()
                .map(|given| &given[row_idx * router.n_used..][..router.n_used]);
            routes.extend(choose(router, row, given));
        }
        if let Some(log) = &self.route_log {
            let experts = routes.iter().map(|choice| choice.expert as u32).collect();
            log.lock().expect("no thread failed with the log").push(experts);
        }
        Ok(())
    }

    fn experts_linear(
        &mut self,
        experts: &Linear<NaiveMatrix, Vec<f32>>,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let (n_in, n_out) = (experts.n_in, experts.n_out);
        for (choice_idx, choice) in routed.routes.iter().enumerate() {
            let x = match input {
                ExpertInput::Rows(rows) => &rows[choice_idx / routed.n_used * n_in..][..n_in],
                ExpertInput::Choices(rows) => &rows[choice_idx * n_in..][..n_in],
            };
            for (i, out) in output[choice_idx * n_out..][..n_out].iter_mut().enumerate() {
                let row = choice.expert * n_out + i;
                *out = dot(experts.matrix.row(row), x) + experts.bias.as_ref().map_or(0.0, |bias| bias[row]);
            }
        }
        Ok(())
    }

    fn combine(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &Vec<f32>,
        carried: Carried<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        for (row_idx, out) in output.chunks_exact_mut(width).take(routed.n_rows).enumerate() {
            for (i, out) in out.iter_mut().enumerate() {
                *out = match carried {
                    Carried::Nothing => 0.0,
                    Carried::Whole => *out,
                    Carried::Gated(gates) => *out * sigmoid(gates[row_idx]),
                };
                for choice_idx in row_idx * routed.n_used..(row_idx + 1) * routed.n_used {
                    *out += routed.routes[choice_idx].weight * choices[choice_idx * width + i];
                }
            }
        }
        Ok(())
    }
}
