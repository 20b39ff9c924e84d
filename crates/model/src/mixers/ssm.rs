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
    Activation, Backend, BackendError, Columns, ExecutorLimits, Linear, LinearJob, Memory, Norm, NormKind,
    ShortConv, SsmRows, SsmScan, StepShape,
};

use crate::{
    Descriptor, LoadError, Presence, SsmDescriptor, SsmKind,
    loader::{LayerPlace, Loader, RowsOf},
};

use super::{MixerRows, load_conv};

/// The weights of a state space model.
pub(crate) struct SsmMixer<M: Memory> {
    z: Linear<M::Matrix, M::Vector>,
    /// Projection into the convolution.
    x: Linear<M::Matrix, M::Vector>,
    source: Source<M>,
    conv: ShortConv<M::Vector>,
    scan: SsmScan<M::Vector>,
    pub(super) output: Linear<M::Matrix, M::Vector>,
}

/// The weights for step sizes, B and C.
enum Source<M: Memory> {
    Mamba {
        rank: Linear<M::Matrix, M::Vector>,
        b: Linear<M::Matrix, M::Vector>,
        c: Linear<M::Matrix, M::Vector>,
        dt: Linear<M::Matrix, M::Vector>,
        /// Norms of the step sizes' rank, and of B and C.
        norms: Option<[Norm<M::Vector>; 2]>,
    },
    Mamba2 {
        dt: Linear<M::Matrix, M::Vector>,
        /// Norm of each group of the gated output.
        norm: Option<Norm<M::Vector>>,
    },
}

/// Intermediate results of a state space model.
pub(super) struct SsmBuffers<T> {
    x: T,
    convolved: T,
    dt: T,
    y: T,
    /// For Mamba: the rank of the step sizes, B and C.
    narrow: Option<[T; 3]>,
}

impl<M: Memory> SsmMixer<M> {
    pub(super) fn load(
        place: LayerPlace,
        ssm: &SsmDescriptor,
        loader: &mut Loader<'_, M>,
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

impl<B: Backend> SsmMixer<B> {
    pub(super) fn mix(
        &self,
        backend: &mut B,
        shape: &StepShape,
        rows: &mut MixerRows<'_, B::Buffer>,
        buffers: &mut SsmBuffers<B::Buffer>,
        wants_output: bool,
    ) -> Result<(), BackendError> {
        let n_tokens = shape.n_tokens;
        let width = self.output.n_in;
        let SsmBuffers {
            x,
            convolved,
            dt,
            y,
            narrow,
        } = buffers;
        let z_job = LinearJob {
            linear: &self.z,
            output: &mut *rows.mixed,
        };
        let x_job = LinearJob {
            linear: &self.x,
            output: &mut *x,
        };
        match &self.source {
            Source::Mamba {
                rank,
                b,
                c,
                dt: dt_linear,
                norms,
            } => {
                let [rank_rows, b_rows, c_rows] = narrow.as_mut().expect("allocated for Mamba");
                backend.linear_group(rows.input, n_tokens, &mut [z_job, x_job])?;
                backend.short_conv(&self.conv, shape, x, convolved)?;
                let mut jobs = [(rank, &mut *rank_rows), (b, &mut *b_rows), (c, &mut *c_rows)]
                    .map(|(linear, output)| LinearJob { linear, output });
                backend.linear_group(convolved, n_tokens, &mut jobs)?;
                if let Some([rank_norm, state_norm]) = norms {
                    backend.norm_in_place(rank_norm, n_tokens, rank_norm.width, rank_rows)?;
                    backend.norm_in_place(state_norm, n_tokens, state_norm.width, b_rows)?;
                    backend.norm_in_place(state_norm, n_tokens, state_norm.width, c_rows)?;
                }
                backend.linear(dt_linear, rank_rows, n_tokens, dt)?;
                let scan_rows = SsmRows {
                    x: Columns::all(&*convolved, width),
                    b: Columns::all(&*b_rows, self.scan.n_state),
                    c: Columns::all(&*c_rows, self.scan.n_state),
                    dt,
                };
                backend.ssm_scan(&self.scan, shape, scan_rows, y)?;
                if wants_output {
                    backend.activation(Activation::Silu, n_tokens, width, rows.mixed, Some(y))?;
                }
            }
            Source::Mamba2 { dt: dt_linear, norm } => {
                let dt_job = LinearJob {
                    linear: dt_linear,
                    output: &mut *dt,
                };
                backend.linear_group(rows.input, n_tokens, &mut [z_job, x_job, dt_job])?;
                backend.short_conv(&self.conv, shape, x, convolved)?;
                let columns = |first| Columns {
                    rows: &*convolved,
                    row_width: self.conv.n_channels,
                    first,
                };
                let scan_rows = SsmRows {
                    x: columns(0),
                    b: columns(width),
                    c: columns(width + self.scan.n_groups * self.scan.n_state),
                    dt,
                };
                backend.ssm_scan(&self.scan, shape, scan_rows, y)?;
                if wants_output {
                    backend.activation(Activation::Silu, n_tokens, width, rows.mixed, Some(y))?;
                    if let Some(norm) = norm {
                        backend.norm_in_place(norm, n_tokens, width, rows.mixed)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl<T> SsmBuffers<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let models = || (descriptor.layers.iter()).filter_map(|layer| layer.mixer.ssm());
        let widest = |width: fn(&SsmDescriptor) -> usize| models().map(width).max();
        let Some(conv) = widest(SsmDescriptor::conv_width) else {
            return Ok(None);
        };
        let n_heads = widest(|ssm| ssm.n_heads).unwrap_or(0);
        let y = widest(SsmDescriptor::inner_width).unwrap_or(0);
        let ranks = models().filter_map(|ssm| match ssm.kind {
            SsmKind::Mamba { dt_rank, .. } => Some(dt_rank),
            SsmKind::Mamba2 { .. } => None,
        });
        let n_state = widest(|ssm| ssm.n_state).unwrap_or(0);
        let rank = ranks.max();
        let mut of_tokens = |width| memory.alloc(limits.max_batch_tokens, width);
        Ok(Some(Self {
            x: of_tokens(conv)?,
            convolved: of_tokens(conv)?,
            dt: of_tokens(n_heads)?,
            y: of_tokens(y)?,
            narrow: match rank {
                Some(rank) => Some([of_tokens(rank)?, of_tokens(n_state)?, of_tokens(n_state)?]),
                None => None,
            },
        }))
    }
}
