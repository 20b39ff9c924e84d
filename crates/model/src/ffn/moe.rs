//! [`MoeFfn`]: a feed-forward network of experts; each token goes to a few of them.
//!
//! ```text
//! choices, weights = route(W_router x + b)
//! y = sum over a token's choices e of weight[e] * W_down[e] (f(W_gate[e] x) * W_up[e] x)
//! y += shared(x), or sigmoid(w_shared x) * shared(x)
//! ```
//!
//! If weights multiply the input, the sum is over
//! `W_down[e] (f(weight[e] * W_gate[e] x) * (weight[e] * W_up[e] x))`. The weight of the linear
//! factor can then be applied to the result, as above.
//!
//! If experts have narrower rows of their own, `x` is `W_latent_down x` for them, and their output is
//! multiplied by `W_latent_up` before the shared network's part is added.
//!
//! The experts' matrices are one tensor each, `[n_in, n_out, n_experts]`.

use tokenmill_backend::{
    Activation, NetworkPart, Router,
    program::{CarriedValue, ExpertInputKind, LinearId, Op, Program, Value, VectorId},
};

use crate::{
    LoadError, MoeDescriptor, Presence, RouterDescriptor,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::DenseFfn;

/// The weights of experts.
pub(crate) struct MoeFfn {
    layer_idx: usize,
    logits: LinearId,
    router: Router<VectorId>,
    activation: Activation,
    weighs_input: bool,
    /// `None` for experts without a gate.
    gate: Option<LinearId>,
    up: LinearId,
    down: LinearId,
    /// Projections to the experts' own rows and back.
    latent: Option<[LinearId; 2]>,
    shared: Option<Shared>,
}

/// The shared network, which all tokens go through.
struct Shared {
    ffn: DenseFfn,
    gate: Option<LinearId>,
}

impl MoeFfn {
    pub(super) fn load(
        place: LayerPlace,
        moe: &MoeDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let name = |part: &str| place.name(part);
        let RouterDescriptor {
            n_experts,
            n_used,
            bias: router_bias,
            choice_bias,
            ..
        } = moe.router;
        let (n_ff, bias) = (moe.n_ff, moe.bias);
        // Some files join gate and up in one tensor, with each expert's gate before its up.
        let joined = name("ffn_gate_up_exps");
        let is_joined = moe.is_gated && loader.source.contains(&format!("{joined}.weight"));
        let half = |first| RowsOf::run(first, n_ff, 2 * n_ff);
        let (gate_name, up_name, gate_rows, up_rows) = if is_joined {
            (joined.clone(), joined, half(0), half(n_ff))
        } else {
            let all = RowsOf::all(n_ff);
            (name("ffn_gate_exps"), name("ffn_up_exps"), all, all)
        };
        let width = moe.latent.map_or(n_embd, |latent| latent.width);
        loader.enter(NetworkPart::Experts(place.layer_idx));
        let gate = if moe.is_gated {
            Some(loader.experts(&gate_name, n_experts, gate_rows, width, bias)?)
        } else {
            None
        };
        let up = loader.experts(&up_name, n_experts, up_rows, width, bias)?;
        let down = loader.experts(&name("ffn_down_exps"), n_experts, RowsOf::all(width), n_ff, bias)?;
        let choice_bias = loader.vector(&name("exp_probs_b.bias"), n_experts, choice_bias)?;
        let expert_scales =
            loader.vector(&name("ffn_down_exps.scale"), n_experts, moe.router.expert_scales)?;
        loader.enter(NetworkPart::Ffn(place.layer_idx));
        let latent = match moe.latent {
            None => None,
            Some(latent) => Some([
                loader.linear(&name("ffn_latent_down"), width, n_embd, latent.bias)?,
                loader.linear(&name("ffn_latent_up"), n_embd, width, latent.bias)?,
            ]),
        };
        let shared = match &moe.shared {
            None => None,
            Some(shared) => Some(Shared {
                ffn: DenseFfn::load(place, "_shexp", &shared.dense, loader)?,
                gate: if shared.has_gate {
                    Some(loader.linear(&name("ffn_gate_inp_shexp"), 1, n_embd, Presence::Absent)?)
                } else {
                    None
                },
            }),
        };
        Ok(Self {
            layer_idx: place.layer_idx,
            logits: loader.linear(&name("ffn_gate_inp"), n_experts, n_embd, router_bias)?,
            router: Router {
                n_experts,
                n_used,
                score: moe.router.score,
                choice_bias,
                groups: moe.router.groups,
                is_normalized: moe.router.is_normalized,
                scale: moe.router.scale,
                expert_scales,
            },
            activation: moe.activation,
            weighs_input: moe.weighs_input,
            gate,
            up,
            down,
            latent,
            shared,
        })
    }
}

impl MoeFfn {
    /// Writes the network over the rows `x`. The router may read other rows.
    pub(super) fn write(&self, program: &mut Program, router_x: Value, x: Value) -> Value {
        let own = NetworkPart::Ffn(self.layer_idx);
        let experts = NetworkPart::Experts(self.layer_idx);
        let logits = program.linear(self.logits, router_x);
        let rows = self
            .latent
            .map_or(x, |[to_latent, _]| program.linear(to_latent, x));
        program.enter(experts);
        let router = self.router;
        let routes = program.push(|y| Op::Route { router, x: logits, y });
        let inner = self.write_inner(program, routes, rows);
        let choices = program.experts_linear(self.down, routes, ExpertInputKind::OfChoices, inner);
        // A device may compute the shared network while the host computes the experts.
        program.enter(own);
        let shared = self.shared.as_ref().map(|shared| {
            let rows = shared.ffn.write(program, x);
            (rows, shared.gate.map(|gate| program.linear(gate, x)))
        });
        program.enter(experts);
        let Some([_, back]) = self.latent else {
            let carried = match shared {
                None => CarriedValue::Nothing,
                Some((rows, None)) => CarriedValue::Whole(rows),
                Some((rows, Some(gates))) => CarriedValue::Gated(rows, gates),
            };
            let combined = program.combine(routes, choices, carried);
            program.enter(own);
            return combined;
        };
        let combined = program.combine(routes, choices, CarriedValue::Nothing);
        program.enter(own);
        let whole = program.linear(back, combined);
        match shared {
            None => whole,
            Some((rows, None)) => program.add(1.0, rows, whole),
            // Gated shared networks occur only in families without latent rows.
            Some((_, Some(_))) => unreachable!("refused with rows of the experts' own"),
        }
    }

    /// Writes the input of the experts' last product.
    fn write_inner(&self, program: &mut Program, routes: Value, x: Value) -> Value {
        let mut product = |linear| program.experts_linear(linear, routes, ExpertInputKind::OfRows, x);
        let Some(gate) = self.gate else {
            let up = product(self.up);
            return program.activation(self.activation, up);
        };
        let (mut gate, up) = (product(gate), product(self.up));
        if self.weighs_input {
            gate = program.push(|y| Op::WeighChoices { routes, x: gate, y });
        }
        program.gated(self.activation, gate, up)
    }
}
