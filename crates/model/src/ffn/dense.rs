//! [`DenseFfn`]: one feed-forward network for all tokens.
//!
//! `W_down (f(W_gate x) * W_up x)`, or `W_down f(W_up x)` without a gate. In a sparse network, `f` reads only
//! the part of `W_gate x` above a threshold: the mean plus a multiple of the standard deviation.

use tokenmill_backend::{
    Activation, Xielu,
    program::{LinearId, Op, Program, Value},
};

use crate::{
    DenseDescriptor, GateUpOrder, LoadError, XieluNumbers,
    loader::{LayerPlace, Loader, RowsOf},
};

/// The weights of a dense network.
pub(crate) struct DenseFfn {
    activation: Activation,
    /// xIELU with its parameters, if that is the activation.
    xielu: Option<Xielu>,
    /// Threshold of a sparse gate.
    cutoff: Option<f32>,
    /// `None` for a network without a gate.
    gate: Option<LinearId>,
    up: LinearId,
    down: LinearId,
}

impl DenseFfn {
    /// Loads the tensors `ffn_gate`, `ffn_up` and `ffn_down`, with `suffix` appended to their names.
    pub(super) fn load(
        place: LayerPlace,
        suffix: &str,
        dense: &DenseDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let DenseDescriptor { n_ff, bias, .. } = *dense;
        let name = |part: &str| place.name(&format!("{part}{suffix}"));
        let (gate_name, up_name) = (name("ffn_gate"), name("ffn_up"));
        // Some files join gate and up in one tensor.
        let is_joined = dense.is_gated
            && !loader.source.contains(&format!("{gate_name}.weight"))
            && loader.has_rows(&format!("{up_name}.weight"), 2 * n_ff);
        let (gate_name, [gate_rows, up_rows]) = if is_joined {
            let half = |first| RowsOf::run(first, n_ff, 2 * n_ff);
            let rows = match dense.joined {
                GateUpOrder::GateFirst => [half(0), half(n_ff)],
                GateUpOrder::UpFirst => [half(n_ff), half(0)],
            };
            (&up_name, rows)
        } else {
            (&gate_name, [RowsOf::all(n_ff); 2])
        };
        Ok(Self {
            activation: dense.activation,
            cutoff: dense.cutoff,
            xielu: match dense.xielu {
                None => None,
                Some(XieluNumbers::Known(xielu)) => Some(xielu),
                Some(XieluNumbers::InTensors) => Some(load_xielu(place, loader)?),
            },
            gate: if dense.is_gated {
                Some(loader.linear_part(gate_name, gate_rows, n_embd, bias)?)
            } else {
                None
            },
            up: loader.linear_part(&up_name, up_rows, n_embd, bias)?,
            down: loader.linear(&name("ffn_down"), n_embd, n_ff, bias)?,
        })
    }
}

fn load_xielu(place: LayerPlace, loader: &mut Loader<'_>) -> Result<Xielu, LoadError> {
    let mut number = |part: &str| {
        let values = loader.all_values(&place.name(&format!("ffn_act.{part}")), &[1])?;
        Ok::<_, LoadError>(values[0])
    };
    let (alpha_p, alpha_n) = (number("alpha_p")?, number("alpha_n")?);
    Ok(Xielu::from_trained(
        alpha_p,
        alpha_n,
        number("beta")?,
        number("eps")?,
    ))
}

impl DenseFfn {
    /// Writes the network over the rows `x`.
    pub(super) fn write(&self, program: &mut Program, x: Value) -> Value {
        let activation = self.activation;
        let inner = if let Some(gate) = self.gate {
            let (mut gate, up) = (program.linear(gate, x), program.linear(self.up, x));
            if let Some(cutoff) = self.cutoff {
                gate = program.push(|y| Op::CutBelow { cutoff, x: gate, y });
            }
            program.gated(activation, gate, up)
        } else {
            let up = program.linear(self.up, x);
            match self.xielu {
                Some(xielu) => program.push(|y| Op::Xielu { xielu, x: up, y }),
                None => program.activation(activation, up),
            }
        };
        program.linear(self.down, inner)
    }
}
