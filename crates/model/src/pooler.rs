//! [`Pooler`]: reduces each sequence to one row, and computes the network's output from it.
//!
//! Layers work on one row per token. Invariant: after [`Pooler::run`] there is one row for each output row of
//! the step, in the same order.

use tokenmill_backend::{
    Activation, Backend, BackendError, ExecutorLimits, Linear, Memory, Norm, Pooling, StepShape,
};

use crate::{Descriptor, HeadLayer, LoadError, PoolingDescriptor, loader::Loader};

/// The weights of a pooling head.
pub(crate) struct Pooler<M: Memory> {
    kind: Pooling,
    head: Vec<Step<M>>,
}

enum Step<M: Memory> {
    Linear(Linear<M::Matrix, M::Vector>),
    Norm(Norm<M::Vector>),
    Activation(Activation),
    Tanh,
}

/// Two rows per sequence; each step reads one and writes the other.
pub(crate) struct PoolBuffers<T> {
    a: T,
    b: T,
}

impl<M: Memory> Pooler<M> {
    pub(crate) fn load(pooling: &PoolingDescriptor, loader: &mut Loader<'_, M>) -> Result<Self, LoadError> {
        let norm = loader.descriptor.norm;
        let mut width = loader.descriptor.n_embd;
        let mut head = Vec::with_capacity(pooling.head.len());
        for layer in &pooling.head {
            head.push(match *layer {
                HeadLayer::Linear { name, n_out, bias } => {
                    let n_in = std::mem::replace(&mut width, n_out);
                    Step::Linear(loader.linear(name, n_out, n_in, bias)?)
                }
                HeadLayer::Norm { name } => Step::Norm(loader.norm(name, width, norm)?),
                HeadLayer::Activation(activation) => Step::Activation(activation),
                HeadLayer::Tanh => Step::Tanh,
            });
        }
        Ok(Self {
            kind: pooling.kind,
            head,
        })
    }
}

impl<T> PoolBuffers<T> {
    /// Allocates for the largest step, if the network pools.
    pub(crate) fn alloc<M: Memory<Buffer = T>>(
        descriptor: &Descriptor,
        limits: &ExecutorLimits,
        memory: &mut M,
    ) -> Result<Option<Self>, BackendError> {
        let Some(pooling) = &descriptor.pooling else {
            return Ok(None);
        };
        let width = pooling.widest_row(descriptor.n_embd);
        Ok(Some(Self {
            a: memory.alloc(limits.max_batch_tokens, width)?,
            b: memory.alloc(limits.max_batch_tokens, width)?,
        }))
    }
}

impl<B: Backend> Pooler<B> {
    /// Returns whether all of a sequence's rows are needed instead of only the output rows.
    pub(crate) fn reads_all_rows(&self) -> bool {
        self.kind == Pooling::Mean
    }

    /// Returns the width of a pooled row if a token's row has `n_embd` values.
    pub(crate) fn output_width(&self, n_embd: usize) -> usize {
        let widths = self.head.iter().filter_map(|step| match step {
            Step::Linear(linear) => Some(linear.n_out),
            _ => None,
        });
        widths.last().unwrap_or(n_embd)
    }

    /// Computes the pooled rows from `rows`, `[T, n_embd]` if all are needed, else `[O, n_embd]`. Returns the
    /// buffer with the result.
    pub(crate) fn run<'a>(
        &self,
        backend: &mut B,
        shape: &StepShape,
        n_embd: usize,
        rows: &'a B::Buffer,
        buffers: &'a mut PoolBuffers<B::Buffer>,
    ) -> Result<&'a B::Buffer, BackendError> {
        let n_rows = shape.n_outputs;
        // The references are swapped, not the buffers, so a captured step finds its data in place.
        let (mut a, mut b) = (&mut buffers.a, &mut buffers.b);
        let mut width = n_embd;
        // Whether `a` holds the current input; before that, it is outside the buffers.
        let mut is_copied = false;
        if self.kind == Pooling::Mean {
            backend.mean_of_sequences(shape, width, rows, a)?;
            is_copied = true;
        }
        for step in &self.head {
            match step {
                Step::Linear(linear) => {
                    let input = if is_copied { &*a } else { rows };
                    backend.linear(linear, input, n_rows, b)?;
                    width = linear.n_out;
                    std::mem::swap(&mut a, &mut b);
                    is_copied = true;
                }
                Step::Norm(norm) => {
                    let input = if is_copied { &*a } else { rows };
                    backend.norm(norm, input, n_rows, b)?;
                    std::mem::swap(&mut a, &mut b);
                    is_copied = true;
                }
                Step::Activation(activation) => backend.activation(*activation, n_rows, width, a, None)?,
                // A softcap of 1 is the hyperbolic tangent.
                Step::Tanh => backend.scale_logits(1.0, Some(1.0), n_rows, width, a)?,
            }
        }
        Ok(if is_copied { a } else { rows })
    }
}
