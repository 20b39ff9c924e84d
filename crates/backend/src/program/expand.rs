//! [`Program::expanded`]: fused operations as the simple ones that they stand for.

use crate::{NetworkPart, Norm};

use super::{ExpertInputKind, Op, ProductTo, Program, Stamped, StoredHeads, Value, VectorId};

impl Op {
    /// Returns the simple operations that a fused one stands for, in order, with the same operands and results; `None` for a
    /// simple operation. `copy` creates a value of the shape of another one.
    pub fn expand(&self, copy: &mut dyn FnMut(Value) -> Value) -> Option<Vec<Self>> {
        Some(match self {
            Self::LinearGroup { x, products } => {
                let product = |&ProductTo { linear, y }: &ProductTo| Self::Linear { linear, x: *x, y };
                products.iter().map(product).collect()
            }
            Self::LinearGated {
                activation,
                x,
                gate,
                up,
                y,
            } => {
                let gated = copy(*y);
                vec![
                    Self::Linear {
                        linear: *gate,
                        x: *x,
                        y: gated,
                    },
                    Self::Linear {
                        linear: up.linear,
                        x: *x,
                        y: up.y,
                    },
                    Self::Activation {
                        activation: *activation,
                        x: gated,
                        up: Some(up.y),
                        y: *y,
                    },
                ]
            }
            Self::ExpertsGated {
                activation,
                routes,
                x,
                gate,
                up,
                y,
            } => {
                let gated = copy(*y);
                let product = |experts, y| Self::ExpertsLinear {
                    experts,
                    routes: *routes,
                    rows: ExpertInputKind::OfRows,
                    x: *x,
                    y,
                };
                vec![
                    product(*gate, gated),
                    product(up.linear, up.y),
                    Self::Activation {
                        activation: *activation,
                        x: gated,
                        up: Some(up.y),
                        y: *y,
                    },
                ]
            }
            Self::AddNorm {
                scale,
                x,
                delta,
                norm,
                sum,
                normed,
            } => vec![
                Self::Add {
                    scale: *scale,
                    x: *x,
                    delta: *delta,
                    y: *sum,
                },
                Self::Norm {
                    norm: *norm,
                    x: *sum,
                    y: *normed,
                },
            ],
            Self::LinearAddNorm {
                product,
                input,
                is_reduced,
                scale,
                x,
                norm,
                sum,
                normed,
            } => {
                let (linear, delta) = (product.linear, product.y);
                let mut ops = Vec::new();
                if *is_reduced {
                    let own = copy(delta);
                    ops.push(Self::Linear {
                        linear,
                        x: *input,
                        y: own,
                    });
                    ops.push(Self::AllReduce { x: own, y: delta });
                } else {
                    ops.push(Self::Linear {
                        linear,
                        x: *input,
                        y: delta,
                    });
                }
                ops.push(Self::Add {
                    scale: *scale,
                    x: *x,
                    delta,
                    y: *sum,
                });
                ops.push(Self::Norm {
                    norm: *norm,
                    x: *sum,
                    y: *normed,
                });
                ops
            }
            Self::RopeStoreKv { heads, y_q, y_k } => heads.expand([*y_q, *y_k], copy),
            Self::RopeAttention { heads, attention, y } => {
                let results = [heads.q, heads.k].map(&mut *copy);
                let mut ops = heads.expand(results, copy);
                // Without a norm or a rotation there is no operation that would write another value.
                let is_turned = |norm: Option<Norm<VectorId>>| norm.is_some() || heads.rope.is_some();
                let q = if is_turned(heads.q_norm) {
                    results[0]
                } else {
                    heads.q
                };
                ops.push(Self::Attention {
                    attention: *attention,
                    q,
                    y: *y,
                });
                ops
            }
            _ => return None,
        })
    }
}

impl StoredHeads {
    /// Returns the norms, rotations and the store; the turned queries and keys are `results`, unless nothing turns them.
    fn expand(&self, results: [Value; 2], copy: &mut dyn FnMut(Value) -> Value) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut turned = [self.q, self.k];
        for ((value, result), norm) in turned.iter_mut().zip(results).zip([self.q_norm, self.k_norm]) {
            if let Some(norm) = norm {
                let y = if self.rope.is_some() { copy(*value) } else { result };
                ops.push(Op::Norm { norm, x: *value, y });
                *value = y;
            }
        }
        if let Some(rope) = self.rope {
            for (value, y) in turned.iter_mut().zip(results) {
                ops.push(Op::Rope { rope, x: *value, y });
                *value = y;
            }
        }
        ops.push(Op::StoreKv {
            layer_idx: self.layer_idx,
            k: turned[1],
            v: self.v,
        });
        ops
    }
}

impl Program {
    /// Returns the program with simple operations only.
    #[must_use]
    pub fn expanded(&self) -> Self {
        let mut program = Self {
            ops: Vec::new(),
            ..self.clone()
        };
        for Stamped { op, part } in &self.ops {
            let part: NetworkPart = *part;
            let mut copy = |value: Value| {
                let info = program.values[value.index()];
                program.add_value(info)
            };
            match op.expand(&mut copy) {
                None => program.ops.push(Stamped { op: op.clone(), part }),
                Some(ops) => program.ops.extend(ops.into_iter().map(|op| Stamped { op, part })),
            }
        }
        program
    }
}
