//! [`Run`]: runs a prepared program on a backend, one call an operation.

use std::array;

use crate::{
    Backend, BackendError, Columns, Linear, LinearJob, Memory, Norm, Rope, RopeStoreKv, StepShape,
    StreamsShape,
};

use super::{
    LinearId, OverVectors, Prepared, ProductTo, StoredHeads, Value, ValueColumns, ValueInfo, VariantProgram,
    VectorId, tables::Tables,
};

/// Largest number of products in a group.
pub(super) const MAX_GROUP: usize = 6;
pub(super) type Done = Result<(), BackendError>;
/// A matrix on a device.
pub(super) type LinearOf<B> = Linear<<B as Memory>::Matrix, <B as Memory>::Vector>;

/// A step that runs.
pub(super) struct Run<'a, B: Backend> {
    pub(super) backend: &'a mut B,
    pub(super) tables: &'a mut Tables<B>,
    pub(super) program: &'a VariantProgram,
    pub(super) shape: &'a StepShape,
    pub(super) prepared: &'a Prepared,
}

/// Values that an operation reads.
pub(super) struct Read<'a, B: Backend> {
    tables: &'a Tables<B>,
    program: &'a VariantProgram,
}

impl<'a, B: Backend> Read<'a, B> {
    pub(super) fn of(&self, value: Value) -> &'a B::Buffer {
        let buffer = self.tables.buffers[self.program.slot(value)].as_ref();
        buffer.expect("no operation reads and writes the same memory")
    }

    pub(super) fn routes(&self, value: Value) -> &'a B::Routes {
        let routes = self.tables.routes[self.program.slot(value)].as_ref();
        routes.expect("no operation reads and writes the same memory")
    }

    pub(super) fn columns(&self, columns: ValueColumns) -> Columns<'a, B::Buffer> {
        Columns {
            rows: self.of(columns.x),
            row_width: self.program.values[columns.x.index()].width(),
            first: columns.first,
        }
    }
}

impl<B: Backend> Run<'_, B> {
    /// Runs all operations of the step.
    pub(super) fn step(&mut self) -> Done {
        if self.shape.n_tokens == 0 {
            return self.sample(None, None);
        }
        (self.program.ops.iter()).try_for_each(|stamped| self.op(&stamped.op))
    }

    pub(super) fn rows(&self, value: Value) -> usize {
        self.program.values[value.index()].rows().of(self.shape)
    }

    pub(super) fn width(&self, value: Value) -> usize {
        self.program.values[value.index()].width()
    }

    /// Calls with the buffers of some results, which no operand of `call` shares.
    pub(super) fn write<const N: usize>(
        &mut self,
        results: [Value; N],
        call: impl FnOnce(&mut B, &Read<'_, B>, [&mut B::Buffer; N]) -> Done,
    ) -> Done {
        let slots = results.map(|value| self.program.slot(value));
        let mut buffers = slots.map(|slot| {
            self.tables.buffers[slot]
                .take()
                .expect("results have memory of their own")
        });
        let read = Read {
            tables: self.tables,
            program: self.program,
        };
        let done = call(self.backend, &read, buffers.each_mut());
        for (slot, buffer) in slots.into_iter().zip(buffers) {
            self.tables.buffers[slot] = Some(buffer);
        }
        done
    }

    /// Calls with arguments whose vectors are the device's.
    pub(super) fn bind<A: OverVectors<VectorId>, R>(
        &mut self,
        arguments: A,
        call: impl FnOnce(&mut Self, &A::Of<B::Vector>) -> R,
    ) -> R
    where
        A::Of<B::Vector>: OverVectors<B::Vector>,
    {
        let (bound, ids) = self.tables.take_vectors(arguments);
        let result = call(self, &bound);
        self.tables.return_vectors::<A>(bound, ids);
        result
    }

    /// Calls with arguments that may be absent.
    fn bind_if<A: OverVectors<VectorId>, R>(
        &mut self,
        arguments: Option<A>,
        call: impl FnOnce(&mut Self, Option<&A::Of<B::Vector>>) -> R,
    ) -> R
    where
        A::Of<B::Vector>: OverVectors<B::Vector>,
    {
        match arguments {
            None => call(self, None),
            Some(arguments) => self.bind(arguments, |run, bound| call(run, Some(bound))),
        }
    }

    /// Calls with a device's matrix and bias.
    pub(super) fn bind_linear<R>(
        &mut self,
        linear: LinearId,
        call: impl FnOnce(&mut Self, &LinearOf<B>) -> R,
    ) -> R {
        let bound = self.tables.take_linear(linear);
        let result = call(self, &bound);
        self.tables.return_linear(linear, bound);
        result
    }

    /// Calls with a device's vector.
    pub(super) fn bind_vector<R>(
        &mut self,
        id: VectorId,
        call: impl FnOnce(&mut Self, &B::Vector) -> R,
    ) -> R {
        let vector = self.tables.vectors[id.0 as usize]
            .take()
            .expect("an operation names a vector once");
        let result = call(self, &vector);
        self.tables.vectors[id.0 as usize] = Some(vector);
        result
    }

    pub(super) fn take_columns(&mut self, columns: ValueColumns, width: usize, y: Value) -> Done {
        let n_rows = self.rows(y);
        self.write([y], |backend, read, [y]| {
            backend.take_columns(read.columns(columns), n_rows, width, y)
        })
    }

    /// Returns the number of rows of routes, and of the experts of each.
    pub(super) fn routed(&self, routes: Value) -> [usize; 2] {
        let n_used = match self.program.values[routes.index()] {
            ValueInfo::Routes { n_used, .. } => n_used,
            ValueInfo::Floats { .. } => unreachable!("a verified program names routes"),
        };
        [self.rows(routes), n_used]
    }

    pub(super) fn streams(&self, first: Value, others: Value) -> StreamsShape {
        let width = self.width(first);
        StreamsShape {
            n_rows: self.rows(first),
            n_others: self.width(others) / width,
            width,
        }
    }

    pub(super) fn group<const N: usize>(&mut self, x: Value, products: [ProductTo; N]) -> Done {
        let n_rows = self.rows(x);
        // Values may be keys: then one matrix is named twice.
        let first_of = |idx: usize| {
            let matrix = products[idx].linear.matrix;
            products
                .iter()
                .position(|product| product.linear.matrix == matrix)
                .unwrap_or(idx)
        };
        let firsts: [usize; N] = array::from_fn(first_of);
        let linears: [Option<LinearOf<B>>; N] =
            array::from_fn(|idx| (firsts[idx] == idx).then(|| self.tables.take_linear(products[idx].linear)));
        let done = self.write(products.map(|product| product.y), |backend, read, outputs| {
            let mut outputs = outputs.into_iter().zip(firsts);
            let mut jobs: [LinearJob<'_, B>; N] = array::from_fn(|_| {
                let (output, first) = outputs.next().expect("as many as products");
                let linear = linears[first].as_ref().expect("the first of its matrix");
                LinearJob { linear, output }
            });
            backend.linear_group(read.of(x), n_rows, &mut jobs)
        });
        for (product, linear) in products.iter().zip(linears) {
            if let Some(linear) = linear {
                self.tables.return_linear(product.linear, linear);
            }
        }
        done
    }

    pub(super) fn pair(
        &mut self,
        [first, second]: [LinearId; 2],
        call: impl FnOnce(&mut Self, [&LinearOf<B>; 2]) -> Done,
    ) -> Done {
        self.bind_linear(first, |run, first| {
            run.bind_linear(second, |run, second| call(run, [first, second]))
        })
    }

    pub(super) fn heads(
        &mut self,
        heads: StoredHeads,
        call: impl FnOnce(&mut Self, &BoundHeads<'_, B>) -> Done,
    ) -> Done {
        let widths = [heads.q, heads.k].map(|value| self.width(value));
        self.bind_if(heads.q_norm, |run, q_norm| {
            run.bind_if(heads.k_norm, |run, k_norm| {
                run.bind_if(heads.rope, |run, rope| {
                    let bound = BoundHeads {
                        layer_idx: heads.layer_idx,
                        q_norm,
                        k_norm,
                        rope,
                        widths,
                    };
                    call(run, &bound)
                })
            })
        })
    }

    pub(super) fn sample(&mut self, logits: Option<Value>, rows: Option<Value>) -> Done {
        let Prepared { n_vocab, n_embd, .. } = *self.prepared;
        let spare = self.prepared.spare();
        let slot_of = |value: Option<Value>| value.map(|value| self.program.slot(value));
        let width = rows.map_or(n_embd, |value| self.width(value));
        let other_than = |slot: Option<usize>| spare[usize::from(slot == Some(spare[0]))];
        let (rows, logits) = (slot_of(rows), slot_of(logits));
        let rows = rows.unwrap_or_else(|| other_than(logits));
        let logits = logits.unwrap_or_else(|| other_than(Some(rows)));
        let mut buffer = self.tables.buffers[logits]
            .take()
            .expect("logits have memory of their own");
        let outputs = self.tables.buffers[rows]
            .as_ref()
            .expect("rows have memory of their own");
        let done = self
            .backend
            .sample(self.shape, n_vocab, width, &mut buffer, outputs);
        self.tables.buffers[logits] = Some(buffer);
        done
    }
}

/// The arguments of an operation on queries and keys.
pub(super) struct BoundHeads<'a, B: Backend> {
    layer_idx: usize,
    q_norm: Option<&'a Norm<B::Vector>>,
    k_norm: Option<&'a Norm<B::Vector>>,
    rope: Option<&'a Rope<B::Vector>>,
    widths: [usize; 2],
}

impl<'a, B: Backend> BoundHeads<'a, B> {
    pub(super) fn job(
        &self,
        q: &'a mut B::Buffer,
        k: &'a mut B::Buffer,
        v: &'a B::Buffer,
    ) -> RopeStoreKv<'a, B> {
        let [q_width, k_width] = self.widths;
        RopeStoreKv {
            layer_idx: self.layer_idx,
            q_norm: self.q_norm,
            k_norm: self.k_norm,
            rope: self.rope,
            q_width,
            k_width,
            q,
            k,
            v,
        }
    }
}
