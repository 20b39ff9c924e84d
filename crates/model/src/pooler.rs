//! [`Pooler`]: reduces each sequence to one row, and computes the network's output from it.
//!
//! Layers work on one row per token. Invariant: the result of [`Pooler::write`] has one row for each output row of
//! the step, in the same order.

use tokenmill_backend::{
    Activation, Pooling, RowSet,
    program::{LinearId, NormId, Op, Program, Value},
};

use crate::{HeadLayer, LoadError, PoolingDescriptor, loader::Loader};

/// The weights of a pooling head.
pub(crate) struct Pooler {
    kind: Pooling,
    head: Vec<Step>,
}

enum Step {
    Linear(LinearId),
    Norm(NormId),
    Activation(Activation),
    Tanh,
}

impl Pooler {
    pub(crate) fn load(pooling: &PoolingDescriptor, loader: &mut Loader<'_>) -> Result<Self, LoadError> {
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

impl Pooler {
    /// Returns whether all of a sequence's rows are needed instead of only the output rows.
    pub(crate) fn reads_all_rows(&self) -> bool {
        self.kind == Pooling::Mean
    }

    /// Writes the pooled rows, one for each output row of the step, from those of all tokens.
    pub(crate) fn write(&self, program: &mut Program, x: Value) -> Value {
        let mut rows = match self.kind {
            Pooling::Mean => program.push(|y| Op::MeanOfSequences { x, y }),
            _ => program.gather(RowSet::Outputs, x),
        };
        for step in &self.head {
            rows = match step {
                Step::Linear(linear) => program.linear(*linear, rows),
                Step::Norm(norm) => program.norm(*norm, rows),
                Step::Activation(activation) => program.activation(*activation, rows),
                Step::Tanh => program.tanh(rows),
            };
        }
        rows
    }
}
