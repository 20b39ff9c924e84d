//! [`Program::fused`]: operations that follow each other become one, where a device computes both at once.
//!
//! Invariant: a fused operation replaces exactly its [expansion](Op::expand). On the host it gives the same bits; on a device,
//! products of one input may be summed in another order, so only adjacent ones are grouped.

use crate::NetworkPart;

use super::{
    ExpertInputKind, Op, ProductTo, Program, Stamped, StoredHeads, Value, ValueInfo, run::MAX_GROUP,
};

impl Program {
    /// Returns the program with all fused operations.
    #[must_use]
    pub fn fused(&self) -> Self {
        let mut program = self.clone();
        let n_reads = program.read_counts();
        program.fuse_heads(&n_reads);
        for fuse in [fuse_group, fuse_gated, fuse_add_norm, fuse_linear_add_norm] {
            let ops = std::mem::take(&mut program.ops);
            let mut rest = &ops[..];
            while let Some(first) = rest.first() {
                let part = first.part;
                let (op, n_replaced) =
                    fuse(rest, &n_reads, &program.values).unwrap_or_else(|| (first.op.clone(), 1));
                program.ops.push(Stamped { op, part });
                rest = &rest[n_replaced..];
            }
        }
        program
    }

    /// Returns how often each value is read.
    fn read_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.values.len()];
        for value in self.ops.iter().flat_map(|stamped| stamped.op.reads()) {
            counts[value.index()] += 1;
        }
        counts
    }

    /// Fuses everything between the products of queries, keys and values and the result of attention.
    fn fuse_heads(&mut self, n_reads: &[usize]) {
        let mut op_idx = 0;
        while op_idx < self.ops.len() {
            if let Some((first, end, op)) = self.heads_at(op_idx, n_reads) {
                let part = self.ops[op_idx].part;
                self.ops.splice(first..end, [Stamped { op, part }]);
                op_idx = first;
            }
            op_idx += 1;
        }
    }

    /// Returns the operations around a store of keys and values at an index, and the fused one.
    fn heads_at(&self, store_idx: usize, n_reads: &[usize]) -> Option<(usize, usize, Op)> {
        let Op::StoreKv {
            layer_idx,
            k: stored_k,
            v,
        } = self.ops[store_idx].op
        else {
            return None;
        };
        let before = |first: usize, n: usize| first.checked_sub(n).map(|op_idx| &self.ops[op_idx].op);
        let following = self.ops.get(store_idx + 1).and_then(|stamped| match stamped.op {
            Op::Attention { attention, q, y } if attention.layer_idx == layer_idx => Some((attention, q, y)),
            _ => None,
        });
        // The queries as they are read afterwards, and as they are found while going back.
        let mut turned_q = following.map(|(_, q, _)| q);
        let (mut first, mut k, mut rope) = (store_idx, stored_k, None);
        let mut q = turned_q;
        if let (
            Some(&Op::Rope {
                rope: of_q,
                x: q_x,
                y: q_y,
            }),
            Some(&Op::Rope {
                rope: of_k,
                x: k_x,
                y: k_y,
            }),
        ) = (before(first, 2), before(first, 1))
            && k_y == k
            && of_q == of_k
            && turned_q.is_none_or(|q| q == q_y)
        {
            (first, k, rope) = (first - 2, k_x, Some(of_k));
            (q, turned_q) = (Some(q_x), Some(q_y));
        }
        let (mut q_norm, mut k_norm) = (None, None);
        // Normed rows that are rotated next are no results of the fused operation, so nothing else may read them.
        let is_inside = |value: Value| rope.is_none() || n_reads[value.index()] == 1;
        if let Some(&Op::Norm { norm, x, y }) = before(first, 1)
            && y == k
            && is_inside(y)
        {
            (first, k, k_norm) = (first - 1, x, Some(norm));
        }
        if let Some(&Op::Norm { norm, x, y }) = before(first, 1)
            && Some(y) == q
            && is_inside(y)
        {
            (first, q, q_norm) = (first - 1, Some(x), Some(norm));
        }
        let (q, turned_q) = (q?, turned_q?);
        if k != stored_k && n_reads[stored_k.index()] != 1 {
            return None;
        }
        let heads = StoredHeads {
            layer_idx,
            q_norm,
            k_norm,
            rope,
            q,
            k,
            v,
        };
        match following {
            Some((attention, _, y)) if n_reads[turned_q.index()] == 1 => {
                Some((first, store_idx + 2, Op::RopeAttention { heads, attention, y }))
            }
            _ if q != turned_q && k != stored_k => {
                let op = Op::RopeStoreKv {
                    heads,
                    y_q: turned_q,
                    y_k: stored_k,
                };
                Some((first, store_idx + 1, op))
            }
            _ => None,
        }
    }
}

/// Returns the fused operation at the front of `ops`, and how many it replaces.
type Fused = Option<(Op, usize)>;

/// Adjacent products of one input.
fn fuse_group(ops: &[Stamped], _: &[usize], _: &[ValueInfo]) -> Fused {
    let Op::Linear { x, .. } = ops[0].op else {
        return None;
    };
    let product = |stamped: &Stamped| match stamped.op {
        Op::Linear { linear, x: input, y } if input == x && stamped.part == ops[0].part => {
            Some(ProductTo { linear, y })
        }
        _ => None,
    };
    let products: Vec<ProductTo> = ops.iter().map_while(product).take(MAX_GROUP).collect();
    let n_products = products.len();
    (n_products > 1).then_some((Op::LinearGroup { x, products }, n_products))
}

/// Two products of one input and the activation of the first times the second.
fn fuse_gated(ops: &[Stamped], n_reads: &[usize], _: &[ValueInfo]) -> Fused {
    let is_read_once = |values: [Value; 2]| values.iter().all(|value| n_reads[value.index()] == 1);
    let op = |idx: usize| ops.get(idx).map(|stamped| &stamped.op);
    match (op(0)?, op(1)?, op(2)) {
        (
            Op::LinearGroup { x, products },
            &Op::Activation {
                activation,
                x: gated,
                up: Some(up),
                y,
            },
            _,
        ) => {
            let [gate_product, up_product] = products[..] else {
                return None;
            };
            let is_pair = gate_product.y == gated && up_product.y == up && is_read_once([gated, up]);
            let gate = gate_product.linear;
            is_pair.then_some((
                Op::LinearGated {
                    activation,
                    x: *x,
                    gate,
                    up: up_product,
                    y,
                },
                2,
            ))
        }
        (
            &Op::ExpertsLinear {
                experts: gate,
                routes,
                rows: ExpertInputKind::OfRows,
                x,
                y: gate_y,
            },
            &Op::ExpertsLinear {
                experts,
                routes: up_routes,
                rows: ExpertInputKind::OfRows,
                x: up_x,
                y: up_y,
            },
            Some(&Op::Activation {
                activation,
                x: gated,
                up: Some(up),
                y,
            }),
        ) => {
            let is_pair = [gate_y, up_y] == [gated, up]
                && [routes, x] == [up_routes, up_x]
                && is_read_once([gated, up]);
            let up = ProductTo {
                linear: experts,
                y: up_y,
            };
            is_pair.then_some((
                Op::ExpertsGated {
                    activation,
                    routes,
                    x,
                    gate,
                    up,
                    y,
                },
                3,
            ))
        }
        _ => None,
    }
}

/// A sum and the norm of its whole rows.
fn fuse_add_norm(ops: &[Stamped], _: &[usize], values: &[ValueInfo]) -> Fused {
    let (
        Op::Add {
            scale,
            x,
            delta,
            y: sum,
        },
        Op::Norm {
            norm,
            x: normed_x,
            y: normed,
        },
    ) = (&ops[0].op, &ops.get(1)?.op)
    else {
        return None;
    };
    let is_whole = norm.width == values[sum.index()].width();
    (sum == normed_x && is_whole).then_some((
        Op::AddNorm {
            scale: *scale,
            x: *x,
            delta: *delta,
            norm: *norm,
            sum: *sum,
            normed: *normed,
        },
        2,
    ))
}

/// A product that ends half a layer, its sum with the stream, and the norm before the products of the next half.
fn fuse_linear_add_norm(ops: &[Stamped], n_reads: &[usize], _: &[ValueInfo]) -> Fused {
    let &Op::Linear {
        linear,
        x: input,
        y: own,
    } = &ops[0].op
    else {
        return None;
    };
    let (is_reduced, product_y, n_before) = match ops.get(1)?.op {
        Op::AllReduce { x, y } if x == own => (true, y, 2),
        _ => (false, own, 1),
    };
    let &Op::AddNorm {
        scale,
        x,
        delta,
        norm,
        sum,
        normed,
    } = &ops.get(n_before)?.op
    else {
        return None;
    };
    let follower = ops.get(n_before + 1)?;
    let follows = match follower.op {
        Op::Linear { x, .. } | Op::LinearGroup { x, .. } | Op::LinearGated { x, .. } => x == normed,
        _ => false,
    };
    let is_alone = delta == product_y && [own, delta].iter().all(|value| n_reads[value.index()] == 1);
    // The head's product has far more rows than one of a layer, each of which would have to compute the norm.
    (is_alone && follows && follower.part != NetworkPart::Output).then_some((
        Op::LinearAddNorm {
            product: ProductTo { linear, y: product_y },
            input,
            is_reduced,
            scale,
            x,
            norm,
            sum,
            normed,
        },
        n_before + 1,
    ))
}
