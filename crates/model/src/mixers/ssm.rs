//! [`SsmMixer`]: Mamba and Mamba 2.
//!
//! ```text
//! Mamba     x, z = W_x x0, W_z x0              x = silu(conv(x))
//!           dt, b, c = W_dt W_r x, W_b x, W_c x
//!           y = ssm_scan(x, b, c, dt)          mixed = silu(z) * y                output = W_out mixed
//!
//! Mamba 2   z, xbc, dt = W_z x0, W_xbc x0, W_dt x0
//!           x, b, c = silu(conv(xbc))
//!           y = ssm_scan(x, b, c, dt)          mixed = norm(silu(z) * y)          output = W_out mixed
//! ```

use tokenmill_backend::{
    Activation, Norm, NormKind, ShortConv, SsmScan,
    program::{LinearId, NormId, Op, Program, Value, ValueColumns, VectorId},
};

use crate::{
    LoadError, Presence, SsmDescriptor, SsmKind,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::load_conv;

/// The weights of a state space model.
pub(crate) struct SsmMixer {
    z: LinearId,
    /// Projection into the convolution.
    x: LinearId,
    source: Source,
    conv: ShortConv<VectorId>,
    scan: SsmScan<VectorId>,
    pub(super) output: LinearId,
}

/// The weights for step sizes, B and C.
enum Source {
    Mamba {
        rank: LinearId,
        b: LinearId,
        c: LinearId,
        dt: LinearId,
        /// Norms of the step sizes' rank, and of B and C.
        norms: Option<[NormId; 2]>,
    },
    Mamba2 {
        dt: LinearId,
        /// Norm of each group of the gated output.
        norm: Option<NormId>,
    },
}

impl SsmMixer {
    pub(super) fn load(
        place: LayerPlace,
        ssm: &SsmDescriptor,
        loader: &mut Loader<'_>,
    ) -> Result<Self, LoadError> {
        let n_embd = loader.descriptor.n_embd;
        let name = |part| place.name(part);
        let (width, n_state, n_heads) = (ssm.inner_width(), ssm.n_state, ssm.n_heads);
        let eps = loader.descriptor.norm.eps;
        let rms = |width, weight| Norm {
            kind: NormKind::Rms,
            width,
            weight,
            bias: None,
            eps,
        };
        let (z, x, source) = match ssm.kind {
            SsmKind::Mamba { dt_rank, has_norms } => {
                let mut part = |start| {
                    let rows = RowsOf::run(start, width, 2 * width);
                    loader.linear_part(&name("ssm_in"), rows, n_embd, ssm.bias)
                };
                let (x, z) = (part(0)?, part(width)?);
                let mut part = |start, n| {
                    let rows = RowsOf::run(start, n, dt_rank + 2 * n_state);
                    loader.linear_part(&name("ssm_x"), rows, width, Presence::Absent)
                };
                let (rank, b) = (part(0, dt_rank)?, part(dt_rank, n_state)?);
                let c = part(dt_rank + n_state, n_state)?;
                let source = Source::Mamba {
                    rank,
                    b,
                    c,
                    // The scan adds its bias.
                    dt: loader.linear(&name("ssm_dt"), width, dt_rank, Presence::Absent)?,
                    norms: has_norms.then(|| [rms(dt_rank, None), rms(n_state, None)]),
                };
                (z, x, source)
            }
            SsmKind::Mamba2 { has_norm } => {
                let conv_width = ssm.conv_width();
                let mut part = |start, n| {
                    let rows = RowsOf::run(start, n, width + conv_width + n_heads);
                    loader.linear_part(&name("ssm_in"), rows, n_embd, ssm.bias)
                };
                let (z, x) = (part(0, width)?, part(width, conv_width)?);
                let dt = part(width + conv_width, n_heads)?;
                let group_width = width / ssm.n_groups;
                let norm = if has_norm {
                    let weight =
                        loader.required_vector(&name("ssm_norm.weight"), &[group_width, ssm.n_groups])?;
                    Some(rms(group_width, Some(weight)))
                } else {
                    None
                };
                (z, x, Source::Mamba2 { dt, norm })
            }
        };
        let has_own_decays = matches!(ssm.kind, SsmKind::Mamba { .. });
        let a = if has_own_decays {
            loader.transposed(&name("ssm_a"), [width, n_state])?
        } else {
            loader.required_vector(&name("ssm_a"), &[n_heads])?
        };
        Ok(Self {
            z,
            x,
            source,
            conv: load_conv(
                place,
                "ssm_conv1d",
                [ssm.conv_width(), ssm.n_taps],
                ssm.conv_bias,
                true,
                loader,
            )?,
            scan: SsmScan {
                state_idx: place.state_idx,
                n_heads,
                head_dim: ssm.head_dim,
                n_groups: ssm.n_groups,
                n_state,
                has_own_decays,
                a,
                skip: loader.required_vector(&name("ssm_d"), &[n_heads])?,
                dt_bias: loader.required_vector(&name("ssm_dt.bias"), &[n_heads])?,
            },
            output: loader.linear(&name("ssm_out"), n_embd, width, ssm.bias)?,
        })
    }
}

impl SsmMixer {
    /// Writes the state space model over the rows `x`; returns the rows that the output projection reads.
    pub(super) fn write(&self, program: &mut Program, x: Value) -> Value {
        match &self.source {
            Source::Mamba {
                rank,
                b,
                c,
                dt,
                norms,
            } => {
                let [z, x] = [self.z, self.x].map(|linear| program.linear(linear, x));
                let x = self.write_conv(program, x);
                let mut narrow = [rank, b, c].map(|linear| program.linear(*linear, x));
                if let Some([rank_norm, state_norm]) = *norms {
                    for (rows, norm) in narrow.iter_mut().zip([rank_norm, state_norm, state_norm]) {
                        *rows = program.norm(norm, *rows);
                    }
                }
                let [rank, b, c] = narrow;
                let dt = program.linear(*dt, rank);
                let y = self.write_scan(program, [x, b, c].map(|x| ValueColumns { x, first: 0 }), dt);
                program.gated(Activation::Silu, z, y)
            }
            Source::Mamba2 { dt, norm } => {
                let [z, x, dt] = [self.z, self.x, *dt].map(|linear| program.linear(linear, x));
                let x = self.write_conv(program, x);
                let (width, n) = (self.output.n_in, self.scan.n_groups * self.scan.n_state);
                let columns = [0, width, width + n].map(|first| ValueColumns { x, first });
                let y = self.write_scan(program, columns, dt);
                let gated = program.gated(Activation::Silu, z, y);
                program.norm_if(*norm, gated)
            }
        }
    }

    fn write_conv(&self, program: &mut Program, x: Value) -> Value {
        let conv = self.conv;
        program.push(|y| Op::ShortConv { conv, x, y })
    }

    fn write_scan(&self, program: &mut Program, [x, b, c]: [ValueColumns; 3], dt: Value) -> Value {
        let scan = self.scan;
        program.push(|y| Op::SsmScan { scan, x, b, c, dt, y })
    }
}
