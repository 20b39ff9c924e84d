//! [`OverVectors`]: replaces the vectors of an operation's arguments, so that indices become a device's vectors for a call.

use crate::{Attention, DeltaNet, Linear, Norm, Rope, Router, ShortConv, SsmScan};

/// Arguments that contain vectors.
pub trait OverVectors<V> {
    /// The same arguments with other vectors.
    type Of<W>;

    /// Replaces each vector, in a fixed order.
    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> Self::Of<W>;
}

impl<V> OverVectors<V> for Norm<V> {
    type Of<W> = Norm<W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> Norm<W> {
        Norm {
            kind: self.kind,
            width: self.width,
            weight: self.weight.map(&mut *map),
            bias: self.bias.map(map),
            eps: self.eps,
        }
    }
}

impl<V> OverVectors<V> for Rope<V> {
    type Of<W> = Rope<W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> Rope<W> {
        Rope {
            style: self.style,
            head_dim: self.head_dim,
            n_dims: self.n_dims,
            inv_freqs: map(self.inv_freqs),
            magnitude: self.magnitude,
            axes: self.axes,
        }
    }
}

impl<V> OverVectors<V> for Attention<V> {
    type Of<W> = Attention<W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> Attention<W> {
        Attention {
            layer_idx: self.layer_idx,
            n_heads: self.n_heads,
            scale: self.scale,
            is_causal: self.is_causal,
            window: self.window,
            is_chunked: self.is_chunked,
            softcap: self.softcap,
            sinks: self.sinks.map(&mut *map),
            slopes: self.slopes.map(map),
        }
    }
}

impl<V> OverVectors<V> for Router<V> {
    type Of<W> = Router<W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> Router<W> {
        Router {
            n_experts: self.n_experts,
            n_used: self.n_used,
            score: self.score,
            choice_bias: self.choice_bias.map(&mut *map),
            groups: self.groups,
            is_normalized: self.is_normalized,
            scale: self.scale,
            expert_scales: self.expert_scales.map(map),
        }
    }
}

impl<V> OverVectors<V> for ShortConv<V> {
    type Of<W> = ShortConv<W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> ShortConv<W> {
        ShortConv {
            state_idx: self.state_idx,
            n_channels: self.n_channels,
            n_taps: self.n_taps,
            weight: map(self.weight),
            bias: self.bias.map(map),
            has_silu: self.has_silu,
        }
    }
}

impl<V> OverVectors<V> for DeltaNet<V> {
    type Of<W> = DeltaNet<W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> DeltaNet<W> {
        DeltaNet {
            state_idx: self.state_idx,
            n_k_heads: self.n_k_heads,
            n_v_heads: self.n_v_heads,
            head_dim_k: self.head_dim_k,
            head_dim_v: self.head_dim_v,
            key_heads: self.key_heads,
            decays: self.decays,
            a: map(self.a),
            dt_bias: map(self.dt_bias),
        }
    }
}

impl<V> OverVectors<V> for SsmScan<V> {
    type Of<W> = SsmScan<W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> SsmScan<W> {
        SsmScan {
            state_idx: self.state_idx,
            n_heads: self.n_heads,
            head_dim: self.head_dim,
            n_groups: self.n_groups,
            n_state: self.n_state,
            has_own_decays: self.has_own_decays,
            a: map(self.a),
            skip: map(self.skip),
            dt_bias: map(self.dt_bias),
        }
    }
}

impl<M, V> OverVectors<V> for Linear<M, V> {
    type Of<W> = Linear<M, W>;

    fn map_vectors<W>(self, map: &mut dyn FnMut(V) -> W) -> Linear<M, W> {
        Linear {
            matrix: self.matrix,
            bias: self.bias.map(map),
            n_out: self.n_out,
            n_in: self.n_in,
            adapter_place: self.adapter_place,
        }
    }
}
