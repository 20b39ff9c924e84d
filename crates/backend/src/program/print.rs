//! The printed form of a program: one line an operation.
//!
//! ```text
//! x7 = linear(x6, blk.0.attn_q) [T, 64]
//! x9 = rope(x7!, neox 16) [T, 64]
//! ```
//!
//! `!` marks an operand whose memory a result takes over, `~` one that is scratch.

use std::fmt;

use crate::{NormKind, RopeStyle};

use super::{
    CarriedValue, ExpertInputKind, LinearId, MatrixId, NormId, Op, OperandRole, Program, RopeId, Stamped,
    StoredHeads, VectorId,
};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut part = None;
        for (op_idx, stamped) in self.ops.iter().enumerate() {
            if part != Some(stamped.part) {
                part = Some(stamped.part);
                writeln!(f, "-- {:?}", stamped.part)?;
            }
            writeln!(f, "{}", self.line(op_idx))?;
        }
        Ok(())
    }
}

impl Program {
    /// Returns one operation, printed.
    pub(super) fn line(&self, op_idx: usize) -> String {
        let Stamped { op, .. } = &self.ops[op_idx];
        let (mut results, mut shapes, mut arguments) = (Vec::new(), Vec::new(), Vec::new());
        for (value, role) in op.operands() {
            match role {
                OperandRole::Result => {
                    results.push(value.to_string());
                    let shape = self.value(value).map(ToString::to_string);
                    if shape.is_some() && shapes.last() != shape.as_ref() {
                        shapes.extend(shape);
                    }
                }
                OperandRole::Read | OperandRole::MayTake => arguments.push(value.to_string()),
                OperandRole::Take => arguments.push(format!("{value}!")),
                OperandRole::Scratch => arguments.push(format!("{value}~")),
            }
        }
        let (name, attributes) = self.described(op);
        arguments.extend(attributes);
        let call = format!("{name}({})", arguments.join(", "));
        if results.is_empty() {
            call
        } else {
            format!("{} = {call} {}", results.join(", "), shapes.join(", "))
        }
    }

    /// Returns an operation's name, and its arguments that are no values.
    #[expect(clippy::too_many_lines, reason = "one arm for each operation")]
    fn described(&self, op: &Op) -> (&'static str, Vec<String>) {
        let scale = |scale: &f32| {
            if *scale == 1.0 {
                Vec::new()
            } else {
                vec![format!("scale {scale}")]
            }
        };
        match op {
            Op::Embed {
                table, scale: factor, ..
            } => {
                let mut arguments = vec![self.matrix_name(*table)];
                arguments.extend(scale(factor));
                ("embed", arguments)
            }
            Op::HiddenInputs { .. } => ("hidden_inputs", Vec::new()),
            Op::AddInputRows { part, .. } => ("add_input_rows", vec![format!("part {part}")]),
            Op::AddRow { row, .. } => ("add_row", vec![self.vector_name(*row)]),
            Op::AddPositions { table, .. } => ("add_positions", vec![self.vector_name(*table)]),
            Op::ScaleByPosition { temperature, .. } => (
                "scale_by_position",
                vec![format!(
                    "scale {} every {}",
                    temperature.scale, temperature.interval
                )],
            ),
            Op::Norm { norm, .. } => ("norm", self.norm_words(norm)),
            Op::Linear { linear, .. } => ("linear", self.linear_words(linear)),
            Op::HeadsLinear { heads, n_heads, .. } => (
                "heads_linear",
                [self.linear_words(heads), vec![format!("{n_heads} heads")]].concat(),
            ),
            Op::Rope { rope, .. } => ("rope", vec![rope_words(rope)]),
            Op::StoreKv { layer_idx, .. } => ("store_kv", vec![format!("kv.{layer_idx}")]),
            Op::StoreLatent { layer_idx, .. } => ("store_latent", vec![format!("kv.{layer_idx}")]),
            Op::Attention { attention, .. } => ("attention", attention_words(attention)),
            Op::Activation { activation, .. } => ("activation", vec![format!("{activation:?}")]),
            Op::Xielu { .. } => ("xielu", Vec::new()),
            Op::CutBelow { cutoff, .. } => ("cut_below", vec![cutoff.to_string()]),
            Op::Add { scale: factor, .. } => ("add", scale(factor)),
            Op::Scale {
                scale: factor, cap, ..
            } => {
                let cap = cap.map(|cap| format!("cap {cap}"));
                ("scale", scale(factor).into_iter().chain(cap).collect())
            }
            Op::TakeColumns { first, width, .. } => {
                // A refused operation is printed, too.
                let end = first.saturating_add(*width);
                ("take_columns", vec![format!("{first}..{end}")])
            }
            Op::Join { n_parts, .. } => ("join", parts(*n_parts, "parts")),
            Op::Gather { rows, .. } => ("gather", vec![format!("{rows:?}")]),
            Op::AsLogits { .. } => ("as_logits", Vec::new()),
            Op::Move { .. } => ("move", Vec::new()),
            Op::Route { router, .. } => (
                "route",
                vec![format!("{} of {}", router.n_used, router.n_experts)],
            ),
            Op::ExpertsLinear { experts, rows, .. } => {
                let mut words = self.linear_words(experts);
                if *rows == ExpertInputKind::OfChoices {
                    words.push("of choices".to_owned());
                }
                ("experts_linear", words)
            }
            Op::WeighChoices { .. } => ("weigh_choices", Vec::new()),
            Op::Combine { carried, .. } => {
                let words = match carried {
                    CarriedValue::Gated(..) => vec!["gated".to_owned()],
                    CarriedValue::Nothing | CarriedValue::Whole(_) => Vec::new(),
                };
                ("combine", words)
            }
            Op::ShortConv { conv, .. } => {
                let names = [Some(conv.weight), conv.bias].into_iter().flatten();
                let names: Vec<String> = names.map(|vector| self.vector_name(vector)).collect();
                (
                    "short_conv",
                    [vec![format!("state.{}", conv.state_idx)], names].concat(),
                )
            }
            Op::SsmScan { scan, .. } => ("ssm_scan", vec![format!("state.{}", scan.state_idx)]),
            Op::DeltaNet { net, .. } => ("delta_net", vec![format!("state.{}", net.state_idx)]),
            Op::RepeatRows { n, .. } => ("repeat_rows", vec![n.to_string()]),
            Op::MatchMagnitudes { .. } => ("match_magnitudes", Vec::new()),
            Op::PredictStreams { .. } => ("predict_streams", Vec::new()),
            Op::CorrectStreams { .. } => ("correct_streams", Vec::new()),
            Op::AddToOthers { .. } => ("add_to_others", Vec::new()),
            Op::MultiplyByRow { row, .. } => ("multiply_by_row", vec![self.vector_name(*row)]),
            Op::AllReduce { .. } => ("all_reduce", Vec::new()),
            Op::AllGather { n_ranks, .. } => ("all_gather", parts(*n_ranks, "ranks")),
            Op::MeanOfSequences { .. } => ("mean_of_sequences", Vec::new()),
            Op::Tap { layer_idx, .. } => ("tap", vec![format!("layer {layer_idx}")]),
            Op::Sample { .. } => ("sample", Vec::new()),
            Op::LinearGroup { products, .. } => {
                let names = products
                    .iter()
                    .flat_map(|product| self.linear_words(&product.linear));
                ("linear_group", names.collect())
            }
            Op::LinearGated {
                activation, gate, up, ..
            }
            | Op::ExpertsGated {
                activation, gate, up, ..
            } => {
                let name = if matches!(op, Op::LinearGated { .. }) {
                    "linear_gated"
                } else {
                    "experts_gated"
                };
                let mut words = vec![format!("{activation:?}")];
                words.extend(self.linear_words(gate));
                words.extend(self.linear_words(&up.linear));
                (name, words)
            }
            Op::AddNorm {
                scale: factor, norm, ..
            } => ("add_norm", [scale(factor), self.norm_words(norm)].concat()),
            Op::LinearAddNorm {
                product,
                scale: factor,
                norm,
                ..
            } => {
                let words = [
                    self.linear_words(&product.linear),
                    scale(factor),
                    self.norm_words(norm),
                ];
                ("linear_add_norm", words.concat())
            }
            Op::RopeStoreKv { heads, .. } => ("rope_store_kv", self.heads_words(heads)),
            Op::RopeAttention { heads, attention, .. } => {
                let mut words = self.heads_words(heads);
                words.extend(attention_words(attention).into_iter().skip(1));
                ("rope_attention", words)
            }
        }
    }

    fn matrix_name(&self, matrix: MatrixId) -> String {
        let info = self.weights.matrix(matrix);
        info.map_or_else(|| format!("matrix {}", matrix.0), ToString::to_string)
    }

    fn vector_name(&self, vector: VectorId) -> String {
        let info = self.weights.vector(vector);
        info.map_or_else(|| format!("vector {}", vector.0), ToString::to_string)
    }

    fn linear_words(&self, linear: &LinearId) -> Vec<String> {
        let bias = linear.bias.map(|bias| self.vector_name(bias));
        [Some(self.matrix_name(linear.matrix)), bias]
            .into_iter()
            .flatten()
            .collect()
    }

    fn norm_words(&self, norm: &NormId) -> Vec<String> {
        let kind = (norm.kind == NormKind::Layer).then(|| "layer".to_owned());
        let vectors = [norm.weight, norm.bias].into_iter().flatten();
        let vectors = vectors.map(|vector| self.vector_name(vector));
        kind.into_iter().chain(vectors).collect()
    }

    fn heads_words(&self, heads: &StoredHeads) -> Vec<String> {
        let norms = [heads.q_norm, heads.k_norm].into_iter().flatten();
        let mut words = vec![format!("kv.{}", heads.layer_idx)];
        words.extend(norms.flat_map(|norm| self.norm_words(&norm)));
        words.extend(heads.rope.as_ref().map(rope_words));
        words
    }
}

fn parts(n_parts: usize, of: &str) -> Vec<String> {
    if n_parts == 1 {
        Vec::new()
    } else {
        vec![format!("{n_parts} {of}")]
    }
}

fn rope_words(rope: &RopeId) -> String {
    let style = match rope.style {
        RopeStyle::Norm => "pairs",
        RopeStyle::Neox => "halves",
    };
    format!("{style} {} of {}", rope.n_dims, rope.head_dim)
}

fn attention_words(attention: &super::AttentionId) -> Vec<String> {
    let mut words = vec![
        format!("kv.{}", attention.layer_idx),
        format!("{} heads", attention.n_heads),
    ];
    words.push(format!("scale {}", attention.scale));
    if !attention.is_causal {
        words.push("both ways".to_owned());
    }
    if let Some(window) = attention.window {
        let kind = if attention.is_chunked { "chunks" } else { "window" };
        words.push(format!("{kind} {window}"));
    }
    words.extend(attention.softcap.map(|cap| format!("cap {cap}")));
    words.extend(attention.sinks.map(|_| "sinks".to_owned()));
    words.extend(attention.slopes.map(|_| "slopes".to_owned()));
    words
}
