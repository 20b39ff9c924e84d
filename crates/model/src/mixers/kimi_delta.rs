//! [`KimiDeltaMixer`]: a gated delta net with a decay per channel (KDA).
//!
//! ```text
//! q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x))
//! alpha, beta, z = W_fb W_fa x, W_beta x, W_gb W_ga x
//! y = delta_net(q, k, v, alpha, beta)    mixed = norm(y) * sigmoid(z)      output = W_o mixed
//! ```
//!
//! Source: "Kimi Linear: An Expressive, Efficient Attention Architecture", 2025, section 3.

use tokenmill_backend::{
    Activation, DeltaDecays, DeltaNet, KeyHeads, ShortConv,
    program::{LinearId, NormId, Op, Program, Value, VectorId},
};

use crate::{
    KimiDeltaDescriptor, LoadError, Presence,
    loader::{LayerPlace, Loader},
};

/// The weights of a KDA layer.
pub(crate) struct KimiDeltaMixer {
    q: LinearId,
    k: LinearId,
    v: LinearId,
    beta: LinearId,
    /// Projections of the decays and of the output gate.
    decay: LowRank,
    gate: LowRank,
    conv: ShortConv<VectorId>,
    net: DeltaNet<VectorId>,
    norm: NormId,
    pub(super) output: LinearId,
}

/// A product of two narrow matrices.
struct LowRank {
    down: LinearId,
    up: LinearId,
}

impl KimiDeltaMixer {
    pub(super) fn load(
        place: LayerPlace,
        net: &KimiDeltaDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let (n_embd, width) = (loader.descriptor.n_embd, net.width());
        let KimiDeltaDescriptor {
            n_heads,
            head_dim,
            n_taps,
        } = *net;
        let name = |part: &str| place.name(part);
        let rms = loader.descriptor.rms_norm();
        let mut taps = Vec::new();
        for part in ["ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"] {
            let weight = name(&format!("{part}.weight"));
            taps.extend(loader.all_values(&weight, &[n_taps, width])?);
        }
        let mut plain = |part: &str, n_out, n_in| loader.linear(&name(part), n_out, n_in, Presence::Absent);
        let mut low_rank = |down, up| {
            Ok::<_, LoadError>(LowRank {
                down: plain(down, head_dim, n_embd)?,
                up: plain(up, width, head_dim)?,
            })
        };
        let (decay, gate) = (low_rank("ssm_f_a", "ssm_f_b")?, low_rank("ssm_g_a", "ssm_g_b")?);
        Ok(Self {
            q: plain("attn_q", width, n_embd)?,
            k: plain("attn_k", width, n_embd)?,
            v: plain("attn_v", width, n_embd)?,
            beta: plain("ssm_beta", n_heads, n_embd)?,
            output: plain("attn_output", n_embd, width)?,
            decay,
            gate,
            conv: ShortConv {
                state_idx: place.state_idx,
                n_channels: 3 * width,
                n_taps,
                weight: loader.add_vector(&name("ssm_conv1d"), &taps)?,
                bias: None,
                has_silu: true,
            },
            net: DeltaNet {
                state_idx: place.state_idx,
                n_k_heads: n_heads,
                n_v_heads: n_heads,
                head_dim_k: head_dim,
                head_dim_v: head_dim,
                key_heads: KeyHeads::Grouped,
                decays: DeltaDecays::OfChannels,
                a: loader.required_vector(&name("ssm_a"), &[n_heads])?,
                dt_bias: loader.required_vector(&name("ssm_dt.bias"), &[width])?,
            },
            norm: loader.norm(&name("ssm_norm"), head_dim, rms)?,
        })
    }
}

impl KimiDeltaMixer {
    /// Writes the delta net over the rows `x`; returns the rows that the output projection reads.
    pub(super) fn write(&self, program: &mut Program, x: Value) -> Value {
        let products = [self.q, self.k, self.v, self.decay.down, self.gate.down, self.beta];
        let [q, k, v, decay, gate, beta] = products.map(|linear| program.linear(linear, x));
        let alpha = program.linear(self.decay.up, decay);
        let qk = program.join(1, q, k);
        let qkv = program.join(1, qk, v);
        let (conv, net) = (self.conv, self.net);
        let qkv = program.push(|y| Op::ShortConv { conv, x: qkv, y });
        let y = program.push(|y| Op::DeltaNet {
            net,
            qkv,
            alpha,
            beta,
            y,
        });
        let gate = program.linear(self.gate.up, gate);
        let y = program.norm(self.norm, y);
        program.gated(Activation::Sigmoid, gate, y)
    }
}
