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
    Activation, Backend, BackendError, Carried, ExecutorLimits, ExpertInput, Linear, LinearJob, Memory,
    NetworkPart, Routed, Router,
};

use crate::{
    Descriptor, LoadError, MoeDescriptor, Presence, RouterDescriptor,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::{DenseBuffers, DenseFfn};

/// The weights of experts.
pub(crate) struct MoeFfn<M: Memory> {
    layer_idx: usize,
    logits: Linear<M::Matrix, M::Vector>,
    router: Router<M::Vector>,
    activation: Activation,
    weighs_input: bool,
    /// `None` for experts without a gate.
    gate: Option<Linear<M::Matrix, M::Vector>>,
    up: Linear<M::Matrix, M::Vector>,
    down: Linear<M::Matrix, M::Vector>,
    /// Projections to the experts' own rows and back.
    latent: Option<[Linear<M::Matrix, M::Vector>; 2]>,
    shared: Option<Shared<M>>,
}

/// The shared network, which all tokens go through.
struct Shared<M: Memory> {
    ffn: DenseFfn<M>,
    gate: Option<Linear<M::Matrix, M::Vector>>,
}

/// Intermediate results of the experts.
pub(super) struct MoeBuffers<T, R> {
    /// `[T, n_experts]`.
    logits: T,
    routes: R,
    /// `[T * n_used, n_ff]`.
    gate: T,
    up: T,
    /// `[T * n_used, n_embd]`.
    down: T,
    /// `[T, 1]`, if a shared network has a gate.
    shared_gate: Option<T>,
    /// Input and output rows of the experts, `[T, latent]`, and `[T, n_embd]`; only if experts have rows of
    /// their own.
    latent: Option<[T; 2]>,
}

impl<M: Memory> MoeFfn<M> {
    pub(super) fn load(
        place: LayerPlace,
        moe: &MoeDescriptor,
        loader: &mut Loader<'_, M>,
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
        loader.memory.enter(NetworkPart::Experts(place.layer_idx));
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
        loader.memory.enter(NetworkPart::Ffn(place.layer_idx));
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

impl<B: Backend> MoeFfn<B> {
    /// Computes `n_rows` rows. The router may read other rows than the experts.
    pub(super) fn run(
        &self,
        backend: &mut B,
        [router_input, input]: [&B::Buffer; 2],
        n_rows: usize,
        buffers: &mut MoeBuffers<B::Buffer, B::Routes>,
        mut shared_buffers: Option<&mut DenseBuffers<B::Buffer>>,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let MoeBuffers {
            logits,
            routes,
            gate,
            up,
            down,
            shared_gate,
            latent,
        } = buffers;
        backend.linear(&self.logits, router_input, n_rows, logits)?;
        let mut latent = match &self.latent {
            None => None,
            Some([to_latent, back]) => {
                let [rows, whole] = latent.as_mut().expect("allocated for experts' own rows");
                backend.linear(to_latent, input, n_rows, rows)?;
                Some((rows, back, whole))
            }
        };
        backend.enter(NetworkPart::Experts(self.layer_idx));
        backend.route(&self.router, n_rows, logits, routes)?;
        let routed = Routed {
            routes: &*routes,
            n_rows,
            n_used: self.router.n_used,
        };
        let rows = latent.as_ref().map_or(input, |(rows, ..)| rows);
        let own = NetworkPart::Ffn(self.layer_idx);
        // The shared network can run on the device while the host computes the experts.
        let is_shared_first =
            self.shared.is_some() && backend.begin_next_to(own, rows, n_rows, self.up.n_in)?;
        let rows = ExpertInput::Rows(rows);
        if is_shared_first {
            backend.enter(own);
            self.run_shared(backend, input, n_rows, &mut shared_buffers, shared_gate, output)?;
            backend.enter(NetworkPart::Experts(self.layer_idx));
        }
        let inside = if let Some(gate_linear) = &self.gate {
            let gate_job = LinearJob {
                linear: gate_linear,
                output: &mut *gate,
            };
            let up_job = LinearJob {
                linear: &self.up,
                output: up,
            };
            if self.weighs_input {
                let width = gate_linear.n_out;
                backend.experts_linear(gate_linear, routed, rows, gate_job.output)?;
                backend.weigh_choices(routed, width, gate_job.output)?;
                backend.experts_linear(&self.up, routed, rows, up_job.output)?;
                let n_choices = routed.n_choices();
                let up = Some(&*up_job.output);
                backend.activation(self.activation, n_choices, width, gate_job.output, up)?;
            } else {
                backend.experts_gated(self.activation, routed, rows, gate_job, up_job)?;
            }
            gate
        } else {
            backend.experts_linear(&self.up, routed, rows, up)?;
            backend.activation(self.activation, routed.n_choices(), self.up.n_out, up, None)?;
            up
        };
        backend.experts_linear(&self.down, routed, ExpertInput::Choices(inside), down)?;
        if !is_shared_first {
            backend.enter(own);
            self.run_shared(backend, input, n_rows, &mut shared_buffers, shared_gate, output)?;
            backend.enter(NetworkPart::Experts(self.layer_idx));
        }
        let carried = match (&self.shared, shared_gate) {
            (None, _) => Carried::Nothing,
            (Some(Shared { gate: Some(_), .. }), Some(gates)) => Carried::Gated(&*gates),
            (Some(_), _) => Carried::Whole,
        };
        let Some((rows, back, whole)) = &mut latent else {
            backend.combine(routed, self.down.n_out, down, carried, output)?;
            backend.enter(own);
            return Ok(());
        };
        backend.combine(routed, self.down.n_out, down, Carried::Nothing, rows)?;
        backend.enter(own);
        match carried {
            Carried::Nothing => backend.linear(back, rows, n_rows, output),
            // Gated shared networks occur only in families without latent rows.
            Carried::Gated(_) => unreachable!("refused with rows of the experts' own"),
            Carried::Whole => {
                backend.linear(back, rows, n_rows, whole)?;
                backend.add(1.0, n_rows, back.n_out, output, whole)
            }
        }
    }

    /// Computes the shared network, if there is one, and the logits of its gate, if it has one.
    fn run_shared(
        &self,
        backend: &mut B,
        input: &B::Buffer,
        n_rows: usize,
        buffers: &mut Option<&mut DenseBuffers<B::Buffer>>,
        gates: &mut Option<B::Buffer>,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let Some(shared) = &self.shared else {
            return Ok(());
        };
        let buffers = buffers.as_mut().expect("allocated for a shared network");
        shared.ffn.run(backend, input, n_rows, buffers, output)?;
        match &shared.gate {
            None => Ok(()),
            Some(linear) => {
                let gates = gates.as_mut().expect("allocated for the gate");
                backend.linear(linear, input, n_rows, gates)
            }
        }
    }
}

impl<T, R> MoeBuffers<T, R> {
    pub(super) fn alloc<M: Memory<Buffer = T, Routes = R>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let layers = || (descriptor.layers.iter()).filter_map(|layer| layer.ffn.moe());
        let most = |of: fn(&MoeDescriptor) -> usize| layers().map(of).max().unwrap_or(0);
        if layers().next().is_none() {
            return Ok(None);
        }
        let max_rows = limits.max_batch_tokens;
        let (n_experts, n_used) = (most(|moe| moe.router.n_experts), most(|moe| moe.router.n_used));
        let n_choices = max_rows.saturating_mul(n_used);
        let inside = most(|moe| moe.n_ff);
        let latent = most(|moe| moe.latent.map_or(0, |latent| latent.width));
        Ok(Some(Self {
            logits: memory.alloc(max_rows, n_experts)?,
            routes: memory.alloc_routes(max_rows, n_experts, n_used)?,
            gate: memory.alloc(n_choices, inside)?,
            up: memory.alloc(n_choices, inside)?,
            down: memory.alloc(n_choices, descriptor.n_embd.max(latent))?,
            latent: if latent > 0 {
                Some([
                    memory.alloc(max_rows, latent)?,
                    memory.alloc(max_rows, descriptor.n_embd)?,
                ])
            } else {
                None
            },
            shared_gate: if layers().any(|moe| moe.shared.is_some_and(|shared| shared.has_gate)) {
                Some(memory.alloc(max_rows, 1)?)
            } else {
                None
            },
        }))
    }
}
