//! The operations on experts, each on its side.
//!
//! Invariant: rows are routed on the side of the experts, so a step's choices never cross the border.

use tokenmill_backend::{
    Activation, BackendError, Carried, ExpertInput, ExpertOperations, Linear, LinearJob, Memory, NetworkPart,
    Routed, Router, Side, SplitOperations,
};

use crate::{
    Placed, PlacedBuffer,
    buffer::Buffers as _,
    kept::{OfDevice, OfHost, Operand as _, with_linears},
};

/// Returns the buffer that experts read, and its number of rows.
fn input_values<T>(input: ExpertInput<'_, T>, n_rows: usize, n_choices: usize) -> (&T, usize) {
    match input {
        ExpertInput::Rows(rows) => (rows, n_rows),
        ExpertInput::Choices(rows) => (rows, n_choices),
    }
}

/// Returns an input of the same kind, with a side's own buffer.
fn same_input<'a, T, U>(kind: &ExpertInput<'_, T>, rows: &'a U) -> ExpertInput<'a, U> {
    match kind {
        ExpertInput::Rows(_) => ExpertInput::Rows(rows),
        ExpertInput::Choices(_) => ExpertInput::Choices(rows),
    }
}

impl<H: SplitOperations, D: SplitOperations> ExpertOperations for Placed<H, D> {
    fn route(
        &mut self,
        router: &Router<<Self as Memory>::Vector>,
        n_rows: usize,
        logits: &PlacedBuffer<H::Buffer, D::Buffer>,
        routes: &mut Self::Routes,
    ) -> Result<(), BackendError> {
        let side = self.now;
        self.bring(side, logits, n_rows * router.n_experts)?;
        if !self.runs_on(side)? {
            return Ok(());
        }
        match side {
            Side::Host => router.with(OfHost, |router| {
                (self.host).route(router, n_rows, &*OfHost.shared(logits)?, routes.host_mut()?)
            }),
            Side::Device => router.with(OfDevice, |router| {
                (self.device).route(router, n_rows, &*OfDevice.shared(logits)?, routes.device_mut()?)
            }),
        }
    }

    fn begin_next_to(
        &mut self,
        part: NetworkPart,
        rows: &PlacedBuffer<H::Buffer, D::Buffer>,
        n_rows: usize,
        width: usize,
    ) -> Result<bool, BackendError> {
        let other = self.placement.side(part, self.goes_to_device, self.now);
        let is_next_to = self.now == Side::Host && other == Side::Device;
        if is_next_to {
            self.bring(Side::Host, rows, n_rows * width)?;
        }
        Ok(is_next_to)
    }

    fn experts_linear(
        &mut self,
        experts: &Linear<<Self as Memory>::Matrix, <Self as Memory>::Vector>,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(&experts.matrix));
        let (rows, n_rows) = input_values(input, routed.n_rows, routed.n_choices());
        self.bring(side, rows, n_rows * experts.n_in)?;
        output.written_on(side);
        let (n_rows, n_used) = (routed.n_rows, routed.n_used);
        if !self.runs_on(side)? {
            return Ok(());
        }
        match side {
            Side::Host => with_linears(OfHost, [experts], |[experts]| {
                let routed = Routed {
                    routes: routed.routes.host()?,
                    n_rows,
                    n_used,
                };
                let rows = OfHost.shared(rows)?;
                let input = same_input(&input, &*rows);
                self.host
                    .experts_linear(experts, routed, input, OfHost.own(output)?)
            }),
            Side::Device => with_linears(OfDevice, [experts], |[experts]| {
                let routed = Routed {
                    routes: routed.routes.device()?,
                    n_rows,
                    n_used,
                };
                let rows = OfDevice.shared(rows)?;
                let input = same_input(&input, &*rows);
                self.device
                    .experts_linear(experts, routed, input, OfDevice.own(output)?)
            }),
        }
    }

    fn combine(
        &mut self,
        routed: Routed<'_, Self>,
        width: usize,
        choices: &PlacedBuffer<H::Buffer, D::Buffer>,
        carried: Carried<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        output: &mut PlacedBuffer<H::Buffer, D::Buffer>,
    ) -> Result<(), BackendError> {
        let side = self.now;
        let (n_rows, n_used) = (routed.n_rows, routed.n_used);
        self.bring(side, choices, routed.n_choices() * width)?;
        match &carried {
            Carried::Nothing => {}
            Carried::Whole => self.bring(side, output, n_rows * width)?,
            Carried::Gated(gates) => {
                self.bring(side, output, n_rows * width)?;
                self.bring(side, gates, n_rows)?;
            }
        }
        output.written_on(side);
        if !self.runs_on(side)? {
            return Ok(());
        }
        match side {
            Side::Host => {
                let gates = gates_of(&carried).map(|gates| OfHost.shared(gates)).transpose()?;
                let routed = Routed {
                    routes: routed.routes.host()?,
                    n_rows,
                    n_used,
                };
                let carried = same_carried(&carried, gates.as_deref());
                let choices = OfHost.shared(choices)?;
                self.host
                    .combine(routed, width, &*choices, carried, OfHost.own(output)?)
            }
            Side::Device => {
                let gates = gates_of(&carried)
                    .map(|gates| OfDevice.shared(gates))
                    .transpose()?;
                let routed = Routed {
                    routes: routed.routes.device()?,
                    n_rows,
                    n_used,
                };
                let carried = same_carried(&carried, gates.as_deref());
                let choices = OfDevice.shared(choices)?;
                self.device
                    .combine(routed, width, &*choices, carried, OfDevice.own(output)?)
            }
        }
    }
}

fn gates_of<'a, T>(carried: &Carried<'a, T>) -> Option<&'a T> {
    match *carried {
        Carried::Gated(gates) => Some(gates),
        Carried::Nothing | Carried::Whole => None,
    }
}

/// Returns the same carried value, with the gates in a side's own buffer.
fn same_carried<'a, T, U>(kind: &Carried<'_, T>, gates: Option<&'a U>) -> Carried<'a, U> {
    match (kind, gates) {
        (Carried::Gated(_), Some(gates)) => Carried::Gated(gates),
        (Carried::Whole, _) => Carried::Whole,
        _ => Carried::Nothing,
    }
}

impl<H: SplitOperations, D: SplitOperations> Placed<H, D> {
    /// Computes the first half of gated experts, on their side.
    pub(crate) fn experts_gated_here(
        &mut self,
        activation: Activation,
        routed: Routed<'_, Self>,
        input: ExpertInput<'_, PlacedBuffer<H::Buffer, D::Buffer>>,
        gate: &mut LinearJob<'_, Self>,
        up: &mut LinearJob<'_, Self>,
    ) -> Result<(), BackendError> {
        let side = self.side_of(Some(&gate.linear.matrix));
        let (rows, n_rows) = input_values(input, routed.n_rows, routed.n_choices());
        self.bring(side, rows, n_rows * gate.linear.n_in)?;
        gate.output.written_on(side);
        up.output.written_on(side);
        let linears = [gate.linear, up.linear];
        let (n_rows, n_used) = (routed.n_rows, routed.n_used);
        if !self.runs_on(side)? {
            return Ok(());
        }
        match side {
            Side::Host => with_linears(OfHost, linears, |[g, u]| {
                let routed = Routed {
                    routes: routed.routes.host()?,
                    n_rows,
                    n_used,
                };
                let rows = OfHost.shared(rows)?;
                let gate = LinearJob {
                    linear: g,
                    output: OfHost.own(gate.output)?,
                };
                let up = LinearJob {
                    linear: u,
                    output: OfHost.own(up.output)?,
                };
                let input = same_input(&input, &*rows);
                self.host.experts_gated(activation, routed, input, gate, up)
            }),
            Side::Device => with_linears(OfDevice, linears, |[g, u]| {
                let routed = Routed {
                    routes: routed.routes.device()?,
                    n_rows,
                    n_used,
                };
                let rows = OfDevice.shared(rows)?;
                let gate = LinearJob {
                    linear: g,
                    output: OfDevice.own(gate.output)?,
                };
                let up = LinearJob {
                    linear: u,
                    output: OfDevice.own(up.output)?,
                };
                let input = same_input(&input, &*rows);
                self.device.experts_gated(activation, routed, input, gate, up)
            }),
        }
    }
}
