//! [`Program::shapes_of`]: the shapes of an operation's results, which follow from its operands and weights.
//!
//! Building, changing and verifying a program share this table. Invariant: it refuses operands that the operation cannot
//! take.

use crate::RowSet;

use super::{
    AttentionId, CarriedValue, ExpertInputKind, LinearId, MatrixId, NormId, Op, Program, RopeId, RowCount,
    RowKind, StoredHeads, Value, ValueInfo, VectorId, run::MAX_GROUP,
};

/// The shapes of an operation's results, or the reason why it cannot be.
type Shapes = Result<Vec<ValueInfo>, String>;

/// Returns an error with a reason unless `is_right`.
fn check(is_right: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if is_right { Ok(()) } else { Err(reason()) }
}

fn floats(rows: RowCount, width: usize) -> ValueInfo {
    ValueInfo::Floats { rows, width }
}

fn check_columns(rows: ValueInfo, first: usize, width: usize) -> Result<(), String> {
    let is_inside = first.checked_add(width).is_some_and(|end| end <= rows.width());
    check(is_inside, || {
        format!("columns {first} to {first} + {width} of {rows}")
    })
}

impl Program {
    /// Returns the shapes of an operation's results, in the order in which [`Op::visit`] names them.
    ///
    /// # Errors
    /// A reason, if the operation cannot take its operands or weights.
    #[expect(clippy::too_many_lines, reason = "one arm for each operation")]
    pub fn shapes_of(&self, op: &Op) -> Shapes {
        let one = |info| Ok(vec![info]);
        match op {
            Op::Embed { table, .. } => one(floats(RowCount::TOKENS, self.matrix_dims(*table)?[1])),
            Op::HiddenInputs { width, .. } => one(floats(RowCount::TOKENS, *width)),
            Op::AddInputRows { x, .. } | Op::ScaleByPosition { x, .. } => one(self.tokens(*x)?),
            Op::AddRow { row, x, .. } | Op::MultiplyByRow { row, x, .. } => {
                let x = self.floats(*x)?;
                self.check_len(*row, x.width())?;
                one(x)
            }
            Op::AddPositions { table, x, .. } => {
                let x = self.tokens(*x)?;
                let len = self.vector_len(*table)?;
                check(x.width() > 0 && len.is_multiple_of(x.width()), || {
                    format!("a table of {len} values for rows of {}", x.width())
                })?;
                one(x)
            }
            Op::Norm { norm, x, .. } => one(self.normed(norm, *x)?),
            Op::Linear { linear, x, .. } => one(self.product(linear, self.floats(*x)?, 1)?),
            Op::HeadsLinear {
                heads, n_heads, x, ..
            } => {
                let x = self.floats(*x)?;
                let is_right = x.width() == n_heads * heads.n_in;
                check(is_right, || {
                    format!("{n_heads} heads of {} in rows of {}", heads.n_in, x.width())
                })?;
                self.check_matrix(heads, *n_heads)?;
                one(floats(x.rows(), n_heads * heads.n_out))
            }
            Op::Rope { rope, x, .. } => one(self.rotated(rope, *x)?),
            Op::StoreKv { layer_idx, k, v } => {
                self.check_stored(*layer_idx, *k, *v)?;
                Ok(Vec::new())
            }
            Op::StoreLatent { layer_idx, row } => {
                let layer = self.kv_layer(*layer_idx)?;
                check(layer.has_values_in_keys, || {
                    "a latent row for a layer with values".to_owned()
                })?;
                self.check_tokens(*row, layer.n_kv_heads * layer.head_dim_k)?;
                Ok(Vec::new())
            }
            Op::Attention { attention, q, .. } => {
                let layer = self.kv_layer(attention.layer_idx)?;
                self.check_tokens(*q, attention.n_heads * layer.head_dim_k)?;
                self.check_heads(attention)?;
                one(floats(RowCount::TOKENS, attention.n_heads * layer.head_dim_v))
            }
            Op::Activation { x, up, .. } => {
                let x = self.floats(*x)?;
                if let Some(up) = up {
                    self.check_same(x, *up)?;
                }
                one(x)
            }
            Op::Xielu { x, .. } | Op::CutBelow { x, .. } | Op::Scale { x, .. } | Op::AllReduce { x, .. } => {
                one(self.floats(*x)?)
            }
            Op::Move { x, .. } | Op::Tap { x, .. } => one(self.floats(*x)?),
            Op::Add { x, delta, .. } => {
                let x = self.floats(*x)?;
                self.check_same(x, *delta)?;
                one(x)
            }
            Op::TakeColumns { first, width, x, .. } => {
                let x = self.floats(*x)?;
                check_columns(x, *first, *width)?;
                one(floats(x.rows(), *width))
            }
            Op::Join {
                n_parts, left, right, ..
            } => {
                let (left, right) = (self.floats(*left)?, self.floats(*right)?);
                check(left.rows() == right.rows(), || "rows of two kinds".to_owned())?;
                for width in [left.width(), right.width()] {
                    check(*n_parts > 0 && width.is_multiple_of(*n_parts), || {
                        format!("{n_parts} parts of {width} values")
                    })?;
                }
                one(floats(left.rows(), left.width() + right.width()))
            }
            Op::Gather { rows, x, .. } => match rows {
                RowSet::Outputs => {
                    let x = self.tokens(*x)?;
                    one(floats(RowCount::each(RowKind::Outputs), x.width()))
                }
                RowSet::LogitsOfOutputs => one(self.logit_rows(*x)?),
            },
            Op::AsLogits { x, .. } => one(self.logit_rows(*x)?),
            Op::Route { router, x, .. } => {
                let x = self.floats(*x)?;
                let n_experts = router.n_experts;
                check(x.width() == n_experts, || {
                    format!("{} logits for {n_experts} experts", x.width())
                })?;
                for vector in [router.choice_bias, router.expert_scales].into_iter().flatten() {
                    self.check_len(vector, n_experts)?;
                }
                one(ValueInfo::Routes {
                    rows: x.rows(),
                    n_experts,
                    n_used: router.n_used,
                })
            }
            Op::ExpertsLinear {
                experts,
                routes,
                rows,
                x,
                ..
            } => {
                let (of_rows, choices, n_experts) = self.routed(*routes)?;
                let x = self.floats(*x)?;
                let expected = match rows {
                    ExpertInputKind::OfRows => of_rows,
                    ExpertInputKind::OfChoices => choices,
                };
                check(x.rows() == expected, || {
                    format!("rows {}, expected {expected}", x.rows())
                })?;
                let product = self.product(experts, x, n_experts)?;
                one(floats(choices, product.width()))
            }
            Op::WeighChoices { routes, x, .. } => {
                let (_, choices, _) = self.routed(*routes)?;
                let x = self.floats(*x)?;
                check(x.rows() == choices, || {
                    format!("rows {}, expected {choices}", x.rows())
                })?;
                one(x)
            }
            Op::Combine {
                routes, x, carried, ..
            } => {
                let (rows, choices, _) = self.routed(*routes)?;
                let x = self.floats(*x)?;
                check(x.rows() == choices, || {
                    format!("rows {}, expected {choices}", x.rows())
                })?;
                let result = floats(rows, x.width());
                match carried {
                    CarriedValue::Nothing => {}
                    CarriedValue::Whole(carried) => self.check_same(result, *carried)?,
                    CarriedValue::Gated(carried, gates) => {
                        self.check_same(result, *carried)?;
                        self.check_same(floats(rows, 1), *gates)?;
                    }
                }
                one(result)
            }
            Op::ShortConv { conv, x, .. } => {
                self.check_tokens(*x, conv.n_channels)?;
                self.check_len(conv.weight, conv.n_channels * conv.n_taps)?;
                if let Some(bias) = conv.bias {
                    self.check_len(bias, conv.n_channels)?;
                }
                one(floats(RowCount::TOKENS, conv.n_channels))
            }
            Op::SsmScan {
                scan, x, b, c, dt, ..
            } => {
                let width = scan.n_heads * scan.head_dim;
                for (columns, width) in [
                    (x, width),
                    (b, scan.n_groups * scan.n_state),
                    (c, scan.n_groups * scan.n_state),
                ] {
                    let rows = self.tokens(columns.x)?;
                    check_columns(rows, columns.first, width)?;
                }
                self.check_tokens(*dt, scan.n_heads)?;
                let n_decays = if scan.has_own_decays { scan.n_state } else { 1 };
                self.check_len(scan.a, n_decays * scan.n_heads)?;
                self.check_len(scan.skip, scan.n_heads)?;
                self.check_len(scan.dt_bias, scan.n_heads)?;
                one(floats(RowCount::TOKENS, width))
            }
            Op::DeltaNet {
                net,
                qkv,
                alpha,
                beta,
                ..
            } => {
                self.check_tokens(*qkv, net.qkv_width())?;
                self.check_tokens(*alpha, net.n_v_heads * net.decays_of_head())?;
                self.check_tokens(*beta, net.n_v_heads)?;
                self.check_len(net.a, net.n_v_heads)?;
                self.check_len(net.dt_bias, net.n_v_heads * net.decays_of_head())?;
                one(floats(RowCount::TOKENS, net.n_v_heads * net.head_dim_v))
            }
            Op::RepeatRows { n, x, .. } => {
                let x = self.floats(*x)?;
                one(floats(x.rows(), n * x.width()))
            }
            Op::MatchMagnitudes { first, others, .. } => one(self.streams(*first, *others)?.1),
            Op::PredictStreams {
                factors,
                first,
                others,
                ..
            } => {
                let (n, [first, others]) = self.stream_pair(*first, *others)?;
                self.check_same(floats(first.rows(), n * n), *factors)?;
                Ok(vec![first, others])
            }
            Op::CorrectStreams {
                factors,
                predicted,
                first,
                others,
                ..
            } => {
                let (n, [first, others]) = self.stream_pair(*first, *others)?;
                self.check_same(floats(first.rows(), n), *factors)?;
                self.check_same(first, *predicted)?;
                Ok(vec![first, others])
            }
            Op::AddToOthers { x, others, .. } => one(self.streams(*x, *others)?.1),
            Op::AllGather {
                n_ranks, width, x, ..
            } => {
                let x = self.floats(*x)?;
                let parts = n_ranks * x.width();
                check(parts >= *width, || {
                    format!("{parts} columns of all ranks for rows of {width}")
                })?;
                Ok(vec![floats(x.rows(), parts), floats(x.rows(), *width)])
            }
            Op::MeanOfSequences { x, .. } => {
                let x = self.tokens(*x)?;
                one(floats(RowCount::each(RowKind::Outputs), x.width()))
            }
            Op::Sample { logits, rows } => {
                for value in [logits, rows].into_iter().flatten() {
                    self.floats(*value)?;
                }
                Ok(Vec::new())
            }
            Op::LinearGroup { x, products } => {
                let x = self.floats(*x)?;
                check((2..=MAX_GROUP).contains(&products.len()), || {
                    format!("a group of {} products", products.len())
                })?;
                products
                    .iter()
                    .map(|product| self.product(&product.linear, x, 1))
                    .collect()
            }
            Op::LinearGated { x, gate, up, .. } => {
                let x = self.floats(*x)?;
                let both = vec![self.product(gate, x, 1)?, self.product(&up.linear, x, 1)?];
                check(both[0] == both[1], || "a gate of another width".to_owned())?;
                Ok(both)
            }
            Op::ExpertsGated {
                routes, x, gate, up, ..
            } => {
                let (rows, choices, n_experts) = self.routed(*routes)?;
                let x = self.floats(*x)?;
                check(x.rows() == rows, || format!("rows {}, expected {rows}", x.rows()))?;
                let widths = [
                    self.product(gate, x, n_experts)?,
                    self.product(&up.linear, x, n_experts)?,
                ];
                check(widths[0] == widths[1], || "a gate of another width".to_owned())?;
                Ok(vec![floats(choices, gate.n_out); 2])
            }
            Op::AddNorm { x, delta, norm, .. } => {
                self.check_same(self.floats(*x)?, *delta)?;
                let normed = self.normed(norm, *x)?;
                Ok(vec![normed; 2])
            }
            Op::LinearAddNorm {
                product,
                input,
                x,
                norm,
                ..
            } => {
                let delta = self.product(&product.linear, self.floats(*input)?, 1)?;
                self.check_same(delta, *x)?;
                let normed = self.normed(norm, *x)?;
                Ok(vec![normed; 3])
            }
            Op::RopeStoreKv { heads, .. } => {
                let are_turned = heads.rope.is_some() || heads.q_norm.is_some() && heads.k_norm.is_some();
                check(are_turned, || "queries or keys that nothing turns".to_owned())?;
                Ok(self.stored(heads)?.to_vec())
            }
            Op::RopeAttention { heads, attention, .. } => {
                let [q, _] = self.stored(heads)?;
                let layer = self.kv_layer(attention.layer_idx)?;
                let expected = attention.n_heads * layer.head_dim_k;
                check(attention.layer_idx == heads.layer_idx, || {
                    "keys of another layer".to_owned()
                })?;
                check(q.width() == expected, || {
                    format!("queries of {}, expected {expected}", q.width())
                })?;
                self.check_heads(attention)?;
                one(floats(RowCount::TOKENS, attention.n_heads * layer.head_dim_v))
            }
        }
    }

    fn floats(&self, value: Value) -> Result<ValueInfo, String> {
        match self.value(value) {
            Some(info @ ValueInfo::Floats { .. }) => Ok(*info),
            Some(ValueInfo::Routes { .. }) => Err(format!("{value} are routes, expected numbers")),
            None => Err(format!("{value} is not a value of the program")),
        }
    }

    fn tokens(&self, value: Value) -> Result<ValueInfo, String> {
        let info = self.floats(value)?;
        check(info.rows() == RowCount::TOKENS, || {
            format!("{value} has rows {}, expected T", info.rows())
        })?;
        Ok(info)
    }

    /// Returns the shape of the logit rows of output rows, which may be all tokens.
    fn logit_rows(&self, x: Value) -> Result<ValueInfo, String> {
        let x = self.floats(x)?;
        let is_output = x.rows().times == 1 && x.rows().kind != RowKind::Logits;
        check(is_output, || format!("rows {} to pick from", x.rows()))?;
        Ok(floats(RowCount::each(RowKind::Logits), x.width()))
    }

    fn check_tokens(&self, value: Value, width: usize) -> Result<(), String> {
        let found = self.tokens(value)?.width();
        check(found == width, || {
            format!("{value} has {found} values a row, expected {width}")
        })
    }

    fn check_same(&self, expected: ValueInfo, value: Value) -> Result<(), String> {
        let found = self.floats(value)?;
        check(found == expected, || {
            format!("{value} is {found}, expected {expected}")
        })
    }

    fn routed(&self, routes: Value) -> Result<(RowCount, RowCount, usize), String> {
        match self.value(routes) {
            Some(&ValueInfo::Routes {
                rows,
                n_experts,
                n_used,
            }) => {
                let choices = RowCount {
                    kind: rows.kind,
                    times: rows.times * n_used,
                };
                Ok((rows, choices, n_experts))
            }
            _ => Err(format!("{routes} are not routes")),
        }
    }

    /// Returns the number of streams and the shape of the others.
    fn streams(&self, first: Value, others: Value) -> Result<(usize, ValueInfo), String> {
        let (first, others) = (self.floats(first)?, self.floats(others)?);
        let is_right = first.width() > 0
            && others.width().is_multiple_of(first.width())
            && first.rows() == others.rows();
        check(is_right, || format!("streams {others} beside {first}"))?;
        Ok((1 + others.width() / first.width(), others))
    }

    fn stream_pair(&self, first: Value, others: Value) -> Result<(usize, [ValueInfo; 2]), String> {
        let (n, of_others) = self.streams(first, others)?;
        Ok((n, [self.floats(first)?, of_others]))
    }

    fn normed(&self, norm: &NormId, x: Value) -> Result<ValueInfo, String> {
        let x = self.floats(x)?;
        check(norm.width > 0 && x.width().is_multiple_of(norm.width), || {
            format!("norms of {} values in {x}", norm.width)
        })?;
        for vector in [norm.weight, norm.bias].into_iter().flatten() {
            let len = self.vector_len(vector)?;
            check(len == norm.width || len == x.width(), || {
                format!("a norm's vector of {len} values for {x}")
            })?;
        }
        Ok(x)
    }

    fn rotated(&self, rope: &RopeId, x: Value) -> Result<ValueInfo, String> {
        let x = self.tokens(x)?;
        let is_right =
            rope.head_dim > 0 && x.width().is_multiple_of(rope.head_dim) && rope.n_dims <= rope.head_dim;
        check(is_right, || format!("heads of {} in {x}", rope.head_dim))?;
        self.check_len(rope.inv_freqs, rope.n_dims / 2)?;
        Ok(x)
    }

    fn check_heads(&self, attention: &AttentionId) -> Result<(), String> {
        for vector in [attention.sinks, attention.slopes].into_iter().flatten() {
            self.check_len(vector, attention.n_heads)?;
        }
        Ok(())
    }

    fn check_stored(&self, layer_idx: usize, k: Value, v: Value) -> Result<(), String> {
        let layer = self.kv_layer(layer_idx)?;
        check(!layer.has_values_in_keys, || {
            "values for a layer with values in keys".to_owned()
        })?;
        self.check_tokens(k, layer.n_kv_heads * layer.head_dim_k)?;
        self.check_tokens(v, layer.n_kv_heads * layer.head_dim_v)
    }

    fn stored(&self, heads: &StoredHeads) -> Result<[ValueInfo; 2], String> {
        self.check_stored(heads.layer_idx, heads.k, heads.v)?;
        let mut infos = [self.tokens(heads.q)?, self.tokens(heads.k)?];
        for (info, (value, norm)) in infos
            .iter_mut()
            .zip([(heads.q, heads.q_norm), (heads.k, heads.k_norm)])
        {
            if let Some(norm) = &norm {
                *info = self.normed(norm, value)?;
            }
            if let Some(rope) = &heads.rope {
                *info = self.rotated(rope, value)?;
            }
        }
        Ok(infos)
    }

    /// Returns the shape of a product; `n_each` matrices are concatenated.
    fn product(&self, linear: &LinearId, x: ValueInfo, n_each: usize) -> Result<ValueInfo, String> {
        check(x.width() == linear.n_in, || {
            format!("{} columns for {x}", linear.n_in)
        })?;
        self.check_matrix(linear, n_each)?;
        Ok(floats(x.rows(), linear.n_out))
    }

    fn check_matrix(&self, linear: &LinearId, n_each: usize) -> Result<(), String> {
        let found = self.matrix_dims(linear.matrix)?;
        let expected = [linear.n_out * n_each, linear.n_in];
        check(found == expected, || {
            format!("a matrix {found:?}, expected {expected:?}")
        })?;
        match linear.bias {
            Some(bias) => self.check_len(bias, linear.n_out * n_each),
            None => Ok(()),
        }
    }

    fn matrix_dims(&self, matrix: MatrixId) -> Result<[usize; 2], String> {
        let info = self.weights.matrix(matrix);
        let info = info.ok_or_else(|| format!("matrix {} does not exist", matrix.0))?;
        Ok([info.n_out, info.n_in])
    }

    fn vector_len(&self, vector: VectorId) -> Result<usize, String> {
        let info = self.weights.vector(vector);
        Ok(info
            .ok_or_else(|| format!("vector {} does not exist", vector.0))?
            .len)
    }

    fn check_len(&self, vector: VectorId, expected: usize) -> Result<(), String> {
        let found = self.vector_len(vector)?;
        check(found == expected, || {
            format!("a vector of {found} values, expected {expected}")
        })
    }

    fn kv_layer(&self, layer_idx: usize) -> Result<crate::KvLayerShape, String> {
        let layer = self.kv_layers.get(layer_idx);
        layer
            .copied()
            .ok_or_else(|| format!("the KV store has no layer {layer_idx}"))
    }
}
