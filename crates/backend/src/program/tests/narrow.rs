//! A narrowed program computes the rows that its step wants, and keeps all that later steps need.

use crate::{NetworkPart, Phase, RowSet, SamplingMode, StepShape};

use super::super::narrow::Wanted;
use super::super::{
    CarriedValue, ExpertInputKind, Op, Program, RowCount, RowKind, Stamped, StepVariant, Value, ValueInfo,
};
use super::net::{HEAD_DIM, N_EMBD, N_EXPERTS, N_HEADS, Net, attention_to};
use super::{assert_verified, kind, name_of, networks};

/// Returns the operations that store, keep a state or keep rows, in order.
fn effects(program: &Program) -> Vec<&Op> {
    let ops = program.ops.iter().map(|stamped| &stamped.op);
    ops.filter(|op| op.has_effect() && !matches!(op, Op::Sample { .. }))
        .collect()
}

fn n_gathers(program: &Program, of: RowSet) -> usize {
    let ops = program.ops.iter();
    ops.filter(|stamped| matches!(stamped.op, Op::Gather { rows, .. } if rows == of))
        .count()
}

/// Asserts that every operation is needed.
fn assert_no_unread(program: &Program, name: &str) {
    let last_reads = program.last_reads();
    for (op_idx, Stamped { op, .. }) in program.ops.iter().enumerate() {
        let is_read = |value: Value| last_reads[value.index()] > Some(op_idx);
        let is_needed = op.has_effect() || op.results().any(is_read);
        assert!(
            is_needed,
            "{name}: nobody reads {}\n{program}",
            program.line(op_idx)
        );
    }
}

/// Returns whether a value can be picked by row: routes, and rows of choices, stay with their tokens.
fn is_picked(info: ValueInfo) -> bool {
    matches!(info, ValueInfo::Floats { rows, .. } if rows.times == 1)
}

/// Returns the end of the operations that need all rows: the last of these, and the readers of its routes and choices, which have
/// no output rows.
fn last_of_all_rows(program: &Program) -> usize {
    let ops = &program.ops;
    let mut end = ops
        .iter()
        .rposition(|stamped| stamped.op.needs_all_rows())
        .map_or(0, |op_idx| op_idx + 1);
    loop {
        let is_before = |value: Value| {
            let mut results = ops[..end].iter().flat_map(|stamped| stamped.op.results());
            results.any(|result| result == value)
        };
        let reads_them = |stamped: &Stamped| {
            stamped.op.reads().any(|value| {
                let info = program.values[value.index()];
                info.rows().kind == RowKind::Tokens && !is_picked(info) && is_before(value)
            })
        };
        match ops[end..].iter().rposition(reads_them) {
            Some(behind) => end += behind + 1,
            None => return end,
        }
    }
}

/// Asserts the claims about narrowed programs, for all variants.
pub(super) fn check(program: &Program, name: &str) {
    for variant in StepVariant::ALL {
        let name = format!("{name}, {variant:?}");
        let narrowed = program.narrowed(variant);
        assert_verified(&narrowed, &name);
        assert_no_unread(&narrowed, &name);
        assert_eq!(
            effects(&narrowed).len(),
            effects(program).len(),
            "{name}\n{narrowed}"
        );
        let Some(Op::Sample { logits, rows }) = narrowed.ops.last().map(|stamped| &stamped.op) else {
            panic!("{name}: nothing ends the step\n{narrowed}");
        };
        let Some(Op::Sample {
            logits: all_logits,
            rows: all_rows,
        }) = program.ops.last().map(|stamped| &stamped.op)
        else {
            panic!("{name}: nothing ends the step as written");
        };
        let wants_logits = variant.logits != Wanted::None;
        assert_eq!(logits.is_some(), all_logits.is_some() && wants_logits, "{name}");
        assert_eq!(
            rows.is_some(),
            all_rows.is_some() && variant.outputs != Wanted::None,
            "{name}"
        );
        match variant.outputs {
            Wanted::All => assert_eq!(n_gathers(&narrowed, RowSet::Outputs), 0, "{name}\n{narrowed}"),
            Wanted::Some => check_rows(&narrowed, &name),
            Wanted::None => {
                let head = narrowed
                    .ops
                    .iter()
                    .filter(|stamped| stamped.part == NetworkPart::Output);
                let n_head = head.filter(|stamped| !stamped.op.has_effect()).count();
                assert_eq!(n_head, 0, "{name}\n{narrowed}");
            }
        }
        if variant.logits != Wanted::Some {
            assert_eq!(
                n_gathers(&narrowed, RowSet::LogitsOfOutputs),
                0,
                "{name}\n{narrowed}"
            );
        }
    }
}

/// Asserts that output rows are gathered right after the operations that need all rows, and that no later value has rows of tokens.
fn check_rows(narrowed: &Program, name: &str) {
    let end = last_of_all_rows(narrowed);
    for (op_idx, Stamped { op, .. }) in narrowed.ops.iter().enumerate().skip(end) {
        let line = narrowed.line(op_idx);
        let is_pick = matches!(
            op,
            Op::Gather {
                rows: RowSet::Outputs,
                ..
            }
        );
        for value in op.results() {
            assert_ne!(
                kind(narrowed, value),
                RowKind::Tokens,
                "{name}: {line}\n{narrowed}"
            );
        }
        for value in op.reads().filter(|_| !is_pick) {
            assert_ne!(
                kind(narrowed, value),
                RowKind::Tokens,
                "{name}: {line}\n{narrowed}"
            );
        }
    }
    let is_pick = |op_idx: usize| name_of(narrowed, op_idx) == "gather";
    let n_ops = narrowed.ops.len();
    let first_other = (end..n_ops).find(|&op_idx| !is_pick(op_idx)).unwrap_or(n_ops);
    let later = (first_other..n_ops).filter(|&op_idx| {
        matches!(
            narrowed.ops[op_idx].op,
            Op::Gather {
                rows: RowSet::Outputs,
                ..
            }
        )
    });
    assert_eq!(later.count(), 0, "{name}: rows are picked at once\n{narrowed}");
}

#[test]
fn each_network_is_narrowed_for_each_variant() {
    for (name, program) in networks::all(3) {
        check(&program, name);
    }
}

#[test]
fn the_variant_of_all_logits_picks_no_rows() {
    let program = networks::llama(2);
    let narrowed = program.narrowed(StepVariant::ALL[0]);
    let written: Vec<Stamped> = (program.ops.iter())
        .filter(|stamped| {
            !matches!(
                stamped.op,
                Op::Gather {
                    rows: RowSet::Outputs,
                    ..
                }
            )
        })
        .cloned()
        .collect();
    assert_eq!(narrowed.ops.len(), written.len());
    // A norm, the rows of the logits, their product and the end follow the layers.
    let n_ops = written.len();
    assert_eq!(narrowed.ops[..n_ops - 4], written[..n_ops - 4]);
    // The logits' rows are bounded as such, not as those of all tokens.
    assert!(matches!(narrowed.ops[n_ops - 3].op, Op::AsLogits { .. }));
    let logits = narrowed.ops[n_ops - 2].op.results().next().unwrap();
    assert_eq!(
        narrowed.value(logits).unwrap().rows(),
        RowCount::each(RowKind::Logits)
    );
}

#[test]
fn a_step_without_outputs_ends_with_the_last_store() {
    let program = networks::llama(2).narrowed(StepVariant::ALL[6]);
    let names: Vec<String> = (0..program.ops.len())
        .map(|op_idx| name_of(&program, op_idx))
        .collect();
    let n_ops = names.len();
    assert_eq!(
        names[n_ops - 6..],
        ["norm", "linear", "linear", "rope", "store_kv", "sample"]
    );
}

#[test]
fn layers_behind_the_last_store_are_dropped_without_outputs() {
    let program = networks::streams(4).narrowed(StepVariant::ALL[6]);
    let is_late = |part: NetworkPart| matches!(part, NetworkPart::Mixer(1..) | NetworkPart::Ffn(_));
    assert_eq!(
        program.ops.iter().filter(|stamped| is_late(stamped.part)).count(),
        0,
        "{program}"
    );
    assert_eq!(effects(&program).len(), 1);
}

#[test]
fn the_stream_and_the_result_of_attention_are_picked() {
    let variant = StepVariant {
        outputs: Wanted::Some,
        logits: Wanted::Some,
    };
    let program = networks::llama(2).narrowed(variant);
    assert_eq!(n_gathers(&program, RowSet::Outputs), 2, "{program}");
    assert_eq!(n_gathers(&program, RowSet::LogitsOfOutputs), 1, "{program}");
}

#[test]
fn a_pooled_network_picks_no_rows() {
    for variant in StepVariant::ALL {
        let program = networks::encoder(2).narrowed(variant);
        assert_eq!(n_gathers(&program, RowSet::Outputs), 0, "{program}");
    }
}

#[test]
fn routes_from_before_the_last_attention_stay_with_all_rows() {
    let mut net = Net::with_kv(1);
    net.enter(NetworkPart::Mixer(0));
    let x = net.embed();
    let logits = net.linear("router", N_EXPERTS, x);
    let routes = net.route(logits);
    let q = net.linear("q", N_HEADS * HEAD_DIM, x);
    let mixed = net.attention(attention_to(0), q);
    let choices = net.experts("experts", N_EMBD, routes, ExpertInputKind::OfRows, mixed);
    let delta = net.combine(routes, choices, CarriedValue::Nothing);
    let x = net.add(x, delta);
    let program = net.head(x);
    check(&program, "routes before attention");
    let variant = StepVariant {
        outputs: Wanted::Some,
        logits: Wanted::All,
    };
    let narrowed = program.narrowed(variant);
    assert_eq!(n_gathers(&narrowed, RowSet::Outputs), 2, "{narrowed}");
}

#[test]
fn rows_that_only_end_the_step_are_picked_behind_nothing() {
    let mut net = Net::with_kv(0);
    net.sample(None, None);
    check(&net.program, "an empty step");
}

#[test]
fn a_shape_has_one_variant() {
    let check = |[n_tokens, n_outputs, n_logits]: [usize; 3], [outputs, logits]: [Wanted; 2]| {
        let shape = StepShape {
            n_tokens,
            n_seqs: 1,
            n_outputs,
            n_logits,
            n_hidden: n_outputs - n_logits,
            max_pages: 1,
            longest: n_tokens,
            phase: Phase::Mixed,
            sampling: SamplingMode::Raw,
        };
        let variant = StepVariant::of(&shape);
        assert_eq!(variant, StepVariant { outputs, logits });
        assert_eq!(StepVariant::ALL[variant.index()], variant);
    };
    check([3, 3, 3], [Wanted::All, Wanted::All]);
    check([3, 3, 2], [Wanted::All, Wanted::Some]);
    check([3, 3, 0], [Wanted::All, Wanted::None]);
    check([3, 2, 2], [Wanted::Some, Wanted::All]);
    check([3, 2, 1], [Wanted::Some, Wanted::Some]);
    check([3, 2, 0], [Wanted::Some, Wanted::None]);
    check([3, 0, 0], [Wanted::None, Wanted::None]);
}
