//! [`DeltaNetMixer`]: a gated delta net.
//!
//! ```text
//! q, k, v = silu(conv(W_qkv x))        alpha, beta, z = W_alpha x, W_beta x, W_z x
//! y = delta_net(q, k, v, alpha, beta)  mixed = norm(y) * silu(z)      output = W_out mixed
//! ```

use tokenmill_backend::{
    Activation, DeltaDecays, DeltaNet, ShortConv,
    program::{LinearId, NormId, Op, Program, Value, VectorId},
};

use crate::{
    DeltaGates, DeltaNetDescriptor, LoadError, Presence,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::load_conv;

/// The weights of a delta net.
pub(crate) struct DeltaNetMixer {
    qkv: LinearId,
    z: LinearId,
    alpha: LinearId,
    beta: LinearId,
    conv: ShortConv<VectorId>,
    net: DeltaNet<VectorId>,
    norm: NormId,
    pub(super) output: LinearId,
}

impl DeltaNetMixer {
    pub(super) fn load(
        place: LayerPlace,
        net: &DeltaNetDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let name = |part| place.name(part);
        let (qkv_width, v_width, n_v_heads) = (net.qkv_width(), net.v_width(), net.n_v_heads);
        let joined = name("ssm_in");
        let (qkv, z) = if loader.source.contains(&format!("{joined}.weight")) {
            // Some files store, for each key head, its query, its key, and the values and gates of its value
            // heads.
            let (k, v) = (net.head_dim_k, v_width / net.n_k_heads);
            let stride = 2 * k + 2 * v;
            let rows = |first, n_rows| RowsOf {
                first,
                n_rows,
                n_total: stride * net.n_k_heads,
                n_runs: net.n_k_heads,
                stride,
            };
            let qkv = [rows(0, k), rows(k, k), rows(2 * k, v)];
            let qkv = loader.linear_parts(&joined, &qkv, n_embd, Presence::Absent)?;
            let z = loader.linear_part(&joined, rows(2 * k + v, v), n_embd, Presence::Absent)?;
            (qkv, z)
        } else {
            (
                loader.linear(&name("attn_qkv"), qkv_width, n_embd, Presence::Absent)?,
                loader.linear(&name("attn_gate"), v_width, n_embd, Presence::Absent)?,
            )
        };
        let mut plain = |part, n_out, n_in| loader.linear(&name(part), n_out, n_in, Presence::Absent);
        let output = plain("ssm_out", n_embd, v_width)?;
        let (alpha, beta) = match net.gates {
            DeltaGates::Apart => (
                plain("ssm_alpha", n_v_heads, n_embd)?,
                plain("ssm_beta", n_v_heads, n_embd)?,
            ),
            DeltaGates::ByKeyHead => {
                let n_each = n_v_heads / net.n_k_heads;
                let mut part = |start| {
                    let rows = RowsOf {
                        first: start,
                        n_rows: n_each,
                        n_total: 2 * n_v_heads,
                        n_runs: net.n_k_heads,
                        stride: 2 * n_each,
                    };
                    loader.linear_part(&name("ssm_ba"), rows, n_embd, Presence::Absent)
                };
                let beta = part(0)?;
                (part(n_each)?, beta)
            }
        };
        let norm = loader.descriptor.rms_norm();
        Ok(Self {
            qkv,
            z,
            alpha,
            beta,
            conv: load_conv(
                place,
                "ssm_conv1d",
                [qkv_width, net.n_taps],
                Presence::Absent,
                true,
                loader,
            )?,
            net: DeltaNet {
                state_idx: place.state_idx,
                n_k_heads: net.n_k_heads,
                n_v_heads,
                head_dim_k: net.head_dim_k,
                head_dim_v: net.head_dim_v,
                key_heads: net.key_heads,
                decays: DeltaDecays::OfHeads,
                a: loader.required_vector(&name("ssm_a"), &[n_v_heads])?,
                dt_bias: loader.required_vector(&name("ssm_dt.bias"), &[n_v_heads])?,
            },
            norm: loader.norm(&name("ssm_norm"), net.head_dim_v, norm)?,
            output,
        })
    }
}

impl DeltaNetMixer {
    /// Writes the delta net over the rows `x`; returns the rows that the output projection reads.
    pub(super) fn write(&self, program: &mut Program, x: Value) -> Value {
        let [qkv, z, alpha, beta] =
            [self.qkv, self.z, self.alpha, self.beta].map(|linear| program.linear(linear, x));
        let (conv, net) = (self.conv, self.net);
        let qkv = program.push(|y| Op::ShortConv { conv, x: qkv, y });
        let y = program.push(|y| Op::DeltaNet {
            net,
            qkv,
            alpha,
            beta,
            y,
        });
        let y = program.norm(self.norm, y);
        program.gated(Activation::Silu, z, y)
    }
}
