//! [`DenseFfn`]: one feed-forward network for all tokens.
//!
//! `W_down (f(W_gate x) * W_up x)`, or `W_down f(W_up x)` without a gate. In a sparse network, `f` reads only
//! the part of `W_gate x` above a threshold: the mean plus a multiple of the standard deviation.

use tokenmill_backend::{
    Activation, Backend, BackendError, ExecutorLimits, Linear, LinearJob, Memory, Xielu,
};

use crate::{
    DenseDescriptor, Descriptor, GateUpOrder, LoadError, XieluNumbers,
    loader::{LayerPlace, Loader, RowsOf},
};

/// The weights of a dense network.
pub(crate) struct DenseFfn<M: Memory> {
    activation: Activation,
    /// xIELU with its parameters, if that is the activation.
    xielu: Option<Xielu>,
    /// Threshold of a sparse gate.
    cutoff: Option<f32>,
    /// `None` for a network without a gate.
    gate: Option<Linear<M::Matrix, M::Vector>>,
    up: Linear<M::Matrix, M::Vector>,
    down: Linear<M::Matrix, M::Vector>,
}

/// Inner rows of a dense network, `[T, n_ff]`.
pub(super) struct DenseBuffers<T> {
    gate: T,
    up: T,
}

impl<M: Memory> DenseFfn<M> {
    /// Loads the tensors `ffn_gate`, `ffn_up` and `ffn_down`, with `suffix` appended to their names.
    pub(super) fn load(
        place: LayerPlace,
        suffix: &str,
        dense: &DenseDescriptor,
        loader: &mut Loader<'_, M>,
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

fn load_xielu<M: Memory>(place: LayerPlace, loader: &mut Loader<'_, M>) -> Result<Xielu, LoadError> {
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

impl<B: Backend> DenseFfn<B> {
    pub(super) fn run(
        &self,
        backend: &mut B,
        input: &B::Buffer,
        n_rows: usize,
        buffers: &mut DenseBuffers<B::Buffer>,
        output: &mut B::Buffer,
    ) -> Result<(), BackendError> {
        let inner = self.run_inner(backend, input, n_rows, buffers)?;
        backend.linear(&self.down, inner, n_rows, output)
    }

    /// Returns the last product.
    pub(super) fn down(&self) -> &Linear<B::Matrix, B::Vector> {
        &self.down
    }

    /// Computes the input of the last product, beginning with products of `input`.
    pub(super) fn run_inner<'a>(
        &self,
        backend: &mut B,
        input: &B::Buffer,
        n_rows: usize,
        buffers: &'a mut DenseBuffers<B::Buffer>,
    ) -> Result<&'a B::Buffer, BackendError> {
        let DenseBuffers { gate, up } = buffers;
        if let Some(gate_linear) = &self.gate {
            let gate_job = LinearJob {
                linear: gate_linear,
                output: &mut *gate,
            };
            let up_job = LinearJob {
                linear: &self.up,
                output: &mut *up,
            };
            if let Some(cutoff) = self.cutoff {
                let n_ff = gate_linear.n_out;
                let mut jobs = [gate_job, up_job];
                backend.linear_group(input, n_rows, &mut jobs)?;
                backend.cut_below(cutoff, n_rows, n_ff, gate)?;
                backend.activation(self.activation, n_rows, n_ff, gate, Some(up))?;
            } else {
                backend.linear_gated(self.activation, input, n_rows, gate_job, up_job)?;
            }
            return Ok(gate);
        }
        backend.linear(&self.up, input, n_rows, up)?;
        match self.xielu {
            Some(xielu) => backend.xielu(xielu, n_rows, self.up.n_out, up)?,
            None => backend.activation(self.activation, n_rows, self.up.n_out, up, None)?,
        }
        Ok(up)
    }
}

impl<T> DenseBuffers<T> {
    pub(super) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let dense = (descriptor.layers.iter()).filter_map(|layer| layer.ffn.dense());
        let Some(n_ff) = dense.map(|dense| dense.n_ff).max() else {
            return Ok(None);
        };
        Ok(Some(Self {
            gate: memory.alloc(limits.max_batch_tokens, n_ff)?,
            up: memory.alloc(limits.max_batch_tokens, n_ff)?,
        }))
    }
}
