//! The operations on experts on the host.
//!
//! Only networks with experts have them. Invariant: as in the parent module, this file only slices buffers.

use tokenmill_backend::{BackendError, Carried, ExpertInput, ExpertOperations, Linear, Routed, Router};

use super::{CpuBackend, CpuVector, values_of};

/// Observes the experts of each row of a step's layer, `[n_rows, n_used]`, best first; see
/// [`CpuBackend::observe_routes`].
pub type RouteObserver = Box<dyn FnMut(&[u32]) + Send>;

impl CpuBackend {
    /// Passes the choices of every router to `observer`, layer by layer. A comparison of arithmetic needs
    /// them: rounding alone cannot explain a difference that comes from another choice between experts of
    /// nearly equal score.
    pub fn observe_routes(&mut self, observer: RouteObserver) {
        self.route_observer = Some(observer);
    }
}

impl ExpertOperations for CpuBackend {
    fn route(
        &mut self,
        router: &Router<CpuVector>,
        n_rows: usize,
        logits: &Vec<f32>,
        routes: &mut crate::Routes,
    ) -> Result<(), BackendError> {
        let router = router.map(|vector| vector.values.as_slice());
        routes.fill(&self.host, &router, &logits[..n_rows * router.n_experts]);
        if let Some(observe) = &mut self.route_observer {
            observe(routes.experts());
        }
        Ok(())
    }

    fn experts_linear(
        &mut self,
        experts: &Linear<crate::Matrix, CpuVector>,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, Vec<f32>>,
        output: &mut Vec<f32>,
    ) -> Result<(), BackendError> {
        let input = expert_rows(input, routed, experts.n_in);
        self.show_choices(&experts.matrix, routed.routes, input);
        crate::experts_linear(
            &self.host,
            &mut self.workspace,
            routed.routes,
            input,
            (&experts.matrix, values_of(experts.bias.as_ref())),
            &mut output[..routed.n_choices() * experts.n_out],
        );
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
        let carried = match carried {
            Carried::Nothing => Carried::Nothing,
            Carried::Whole => Carried::Whole,
            Carried::Gated(gates) => Carried::Gated(gates.as_slice()),
        };
        crate::combine(
            &self.host,
            routed.routes,
            width,
            &choices[..routed.n_choices() * width],
            &carried,
            &mut output[..routed.n_rows * width],
        );
        Ok(())
    }
}

/// Returns the rows that experts read.
pub(super) fn expert_rows<'a>(
    input: ExpertInput<'a, Vec<f32>>,
    routed: Routed<'_, CpuBackend>,
    width: usize,
) -> ExpertInput<'a, [f32]> {
    match input {
        ExpertInput::Rows(rows) => ExpertInput::Rows(&rows[..routed.n_rows * width]),
        ExpertInput::Choices(rows) => ExpertInput::Choices(&rows[..routed.n_choices() * width]),
    }
}
