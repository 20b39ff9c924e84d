//! Mutated programs: each is refused with a reason, or it is sound.
//!
//! Rules for a mutant that is accepted: every operand is written before it is read, and once; the last operation alone ends the
//! step; and an operand that replaces another one has the same shape, unless [`admits`] names the exception.

use super::super::{
    CarriedValue, ExpertInputKind, Op, OperandRole, Program, RowCount, RowKind, Value, ValueInfo,
};
use super::{assert_verified, networks, passed};

/// Returns whether the order of a program's operations is right, judged without shapes.
fn is_sound(program: &Program) -> bool {
    let mut written: Vec<Value> = Vec::new();
    let n_ops = program.ops.len();
    for (op_idx, stamped) in program.ops.iter().enumerate() {
        if !stamped.op.reads().all(|value| written.contains(&value)) {
            return false;
        }
        for value in stamped.op.results() {
            if written.contains(&value) || program.value(value).is_none() {
                return false;
            }
            written.push(value);
        }
        if matches!(stamped.op, Op::Sample { .. }) != (op_idx + 1 == n_ops) {
            return false;
        }
    }
    n_ops > 0
}

/// Returns whether an operation may take an operand of another shape in the place of one.
fn admits(op: &Op, operand: usize, old: ValueInfo, new: ValueInfo) -> bool {
    let is_floats = matches!(new, ValueInfo::Floats { .. });
    match op {
        // The device samples from whatever rows there are.
        Op::Sample { .. } => is_floats,
        // Wider rows have these columns, too.
        Op::TakeColumns { .. } | Op::SsmScan { .. } => is_floats && old.rows() == new.rows(),
        // Output rows may be all tokens.
        Op::Gather { .. } => is_floats && old.width() == new.width() && new.rows().kind != RowKind::Logits,
        // Narrower streams are more streams.
        Op::MatchMagnitudes { .. } | Op::AddToOthers { .. } => {
            is_floats && old.rows() == new.rows() && operand == 0
        }
        // Only the number of choices matters.
        Op::Combine { .. } | Op::WeighChoices { .. } if operand == 0 => matches!(
            (old, new),
            (
                ValueInfo::Routes { rows: old, n_used: a, .. },
                ValueInfo::Routes { rows: new, n_used: b, .. }
            ) if old == new && a == b
        ),
        _ => false,
    }
}

/// Replaces an operand of an operation.
fn replaced(op: &Op, operand: usize, by: Value) -> Op {
    let mut op = op.clone();
    let mut idx = 0;
    op.visit(&mut |value, _| {
        if idx == operand {
            *value = by;
        }
        idx += 1;
    });
    op
}

/// Asserts that a mutant's verdict is right, and that a refusal has a reason.
fn check_order(mutant: &Program, name: &str) {
    match mutant.verify() {
        Ok(()) => assert!(is_sound(mutant), "{name}\n{mutant}"),
        Err(error) => {
            assert!(!error.reason.is_empty(), "{name}");
            assert!(!is_sound(mutant), "{name}: {error}\n{mutant}");
        }
    }
}

/// Replaces each operand of each operation by each value, and by one that does not exist.
fn check_operands(program: &Program, name: &str) -> [usize; 2] {
    let n_values = program.values.len() as u32;
    let [mut n_refused, mut n_accepted] = [0; 2];
    let mut mutant = program.clone();
    for op_idx in 0..program.ops.len() {
        let op = &program.ops[op_idx].op;
        for (operand, (old, role)) in op.operands().into_iter().enumerate() {
            for by in (0..=n_values).map(Value).filter(|by| *by != old) {
                mutant.ops[op_idx].op = replaced(op, operand, by);
                let name = || format!("{name}: operation {op_idx}, {by} for {old}");
                let verdict = mutant.verify();
                let is_same = program.value(by) == program.value(old);
                match (&verdict, program.value(by)) {
                    (Ok(()), Some(&new)) => {
                        let old = program.values[old.index()];
                        let fits = is_same || role != OperandRole::Result && admits(op, operand, old, new);
                        assert!(fits && is_sound(&mutant), "{}\n{mutant}", name());
                        n_accepted += 1;
                    }
                    (Ok(()), None) => panic!("{}: an unknown value\n{mutant}", name()),
                    (Err(error), _) => {
                        assert!(!error.reason.is_empty(), "{}", name());
                        let is_wrong = !is_same || !is_sound(&mutant);
                        assert!(is_wrong, "{}: {error}\n{mutant}", name());
                        n_refused += 1;
                    }
                }
            }
        }
        mutant.ops[op_idx].op = op.clone();
    }
    [n_refused, n_accepted]
}

/// Drops, repeats and swaps operations.
fn check_operations(program: &Program, name: &str) {
    for op_idx in 0..program.ops.len() {
        let mut mutant = program.clone();
        mutant.ops.remove(op_idx);
        check_order(&mutant, &format!("{name} without operation {op_idx}"));
        let mut mutant = program.clone();
        mutant.ops.insert(op_idx, program.ops[op_idx].clone());
        check_order(&mutant, &format!("{name} with operation {op_idx} twice"));
        for other in [op_idx + 1, op_idx + 5]
            .into_iter()
            .filter(|other| *other < program.ops.len())
        {
            let mut mutant = program.clone();
            mutant.ops.swap(op_idx, other);
            check_order(
                &mutant,
                &format!("{name} with operations {op_idx} and {other} swapped"),
            );
        }
    }
}

#[test]
fn mutated_operands_are_refused_unless_they_fit() {
    for (name, program) in networks::all(2) {
        let [n_refused, n_accepted] = check_operands(&program, name);
        assert!(
            n_refused > 4 * n_accepted && n_accepted > 0,
            "{name}: {n_refused}, {n_accepted}"
        );
    }
}

#[test]
fn mutated_operands_of_fused_programs_are_refused_unless_they_fit() {
    for (name, program) in networks::all(2) {
        let (_, _, fused) = passed(&program).next().expect("seven variants");
        let [n_refused, n_accepted] = check_operands(&fused, name);
        assert!(
            n_refused > 4 * n_accepted && n_accepted > 0,
            "{name}: {n_refused}, {n_accepted}"
        );
    }
}

#[test]
fn mutated_orders_are_refused_unless_they_are_sound() {
    for (name, program) in networks::all(2) {
        check_operations(&program, name);
        // The variant of some outputs and some logits has all kinds of rows.
        let (variant, _, fused) = passed(&program).nth(4).expect("seven variants");
        check_operations(&fused, &format!("{name}, {variant:?}"));
    }
}

#[test]
fn mutated_shapes_are_refused() {
    for (name, program) in networks::all(2) {
        let written: Vec<Value> = program
            .ops
            .iter()
            .flat_map(|stamped| stamped.op.results())
            .collect();
        for value in written {
            let mutants = match program.values[value.index()] {
                ValueInfo::Floats { rows, width } => {
                    let narrow = ValueInfo::Floats {
                        rows,
                        width: width + 1,
                    };
                    let times = rows.times + 1;
                    let more = ValueInfo::Floats {
                        rows: RowCount { times, ..rows },
                        width,
                    };
                    let kind = if rows.kind == RowKind::Logits {
                        RowKind::Tokens
                    } else {
                        RowKind::Logits
                    };
                    let others = ValueInfo::Floats {
                        rows: RowCount { kind, ..rows },
                        width,
                    };
                    let routes = ValueInfo::Routes {
                        rows,
                        n_experts: 2,
                        n_used: 1,
                    };
                    [narrow, more, others, routes]
                }
                ValueInfo::Routes {
                    rows,
                    n_experts,
                    n_used,
                } => {
                    let others = RowCount::each(RowKind::Outputs);
                    let width = n_experts;
                    [
                        ValueInfo::Routes {
                            rows: others,
                            n_experts,
                            n_used,
                        },
                        ValueInfo::Routes {
                            rows,
                            n_experts,
                            n_used: n_used + 1,
                        },
                        ValueInfo::Routes {
                            rows,
                            n_experts: n_experts + 1,
                            n_used,
                        },
                        ValueInfo::Floats { rows, width },
                    ]
                }
            };
            for info in mutants {
                let mut mutant = program.clone();
                mutant.values[value.index()] = info;
                assert!(mutant.verify().is_err(), "{name}: {value} as {info}\n{mutant}");
            }
        }
    }
}

/// Asserts the reason for which a mutant of a network is refused.
fn check(program: &Program, mutate: impl FnOnce(&mut Program), expected: &str) {
    assert_verified(program, "unchanged");
    let mut mutant = program.clone();
    mutate(&mut mutant);
    let error = mutant.verify().expect_err(expected);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_refusal_names_the_operation_and_the_reason() {
    let llama = networks::llama(1);
    // The first layer: embed, norm, q, k, v, two ropes, store, attention.
    let set = |op_idx: usize, operand: usize, by: u32| {
        move |program: &mut Program| {
            program.ops[op_idx].op = replaced(&program.ops[op_idx].op, operand, Value(by));
        }
    };
    check(
        &llama,
        set(1, 0, 3),
        "operation 1 of the program (x1 = norm(x3, blk.0.attn_norm) [T, 64]): x3 is read before it is written",
    );
    check(
        &llama,
        set(1, 0, 99),
        "operation 1 of the program (x1 = norm(x99, blk.0.attn_norm) [T, 64]): x99 is not a value of the program",
    );
    check(
        &llama,
        set(2, 1, 0),
        "operation 2 of the program (x0 = linear(x1, blk.0.attn_q) [T, 64]): x0 is written twice",
    );
    check(
        &llama,
        set(7, 0, 2),
        "operation 7 of the program (store_kv(x2, x4, kv.0)): x2 has 64 values a row, expected 32",
    );
    check(
        &llama,
        |program| {
            program.ops[1].op = Op::Sample {
                logits: None,
                rows: None,
            }
        },
        "operation 1 of the program (sample()): it ends a step, and others follow",
    );
    check(
        &llama,
        |program| program.ops.truncate(8),
        "operation 7 of the program (store_kv(x6, x4, kv.0)): the last operation does not end the step",
    );
    check(
        &llama,
        |program| program.ops.clear(),
        "operation 0 of the program (none): nothing ends the step",
    );
    check(
        &llama,
        |program| {
            program.values[2] = ValueInfo::Floats {
                rows: RowCount::TOKENS,
                width: 63,
            }
        },
        "operation 2 of the program (x2 = linear(x1, blk.0.attn_q) [T, 63]): x2 is [T, 63], expected [T, 64]",
    );
    let gathered = llama.ops.len() - 5;
    check(
        &llama,
        move |program| {
            let value = program.ops[gathered].op.results().next().expect("a result");
            program.ops[4].op = replaced(&program.ops[4].op, 0, value);
        },
        "operation 4 of the program (x4 = linear(x16, blk.0.attn_v) [T, 32]): x16 is read before it is written",
    );
}

#[test]
fn rows_of_another_kind_are_refused() {
    let llama = networks::llama(1);
    let n_ops = llama.ops.len();
    // The output rows, their norm, the logit rows, the logits, and the end.
    let Op::Gather { x: stream, .. } = llama.ops[n_ops - 5].op else {
        panic!("the head begins with its rows");
    };
    let y = llama.ops[n_ops - 4].op.results().next().expect("normed rows");
    check(
        &llama,
        |program| {
            program.ops[n_ops - 4].op = Op::Add {
                scale: 1.0,
                x: stream,
                delta: Value(16),
                y,
            }
        },
        "operation 18 of the program (x17 = add(x15!, x16) [O, 64]): x16 is [O, 64], expected [T, 64]",
    );
    check(
        &llama,
        |program| {
            let Op::Gather { x, .. } = &mut program.ops[n_ops - 3].op else {
                panic!("the head's product has its rows");
            };
            *x = stream;
            program.ops[n_ops - 2].op = Op::Gather {
                rows: crate::RowSet::Outputs,
                x: Value(18),
                y: Value(19),
            };
        },
        "operation 20 of the program (x19 = gather(x18, Outputs) [L, 256]): x18 has rows L, expected T",
    );
}

#[test]
fn routes_and_numbers_are_not_exchanged() {
    let experts = networks::experts(1);
    let find = |wanted: fn(&Op) -> bool| {
        let found = experts.ops.iter().position(|stamped| wanted(&stamped.op));
        found.expect("the network has the operation")
    };
    let route = find(|op| matches!(op, Op::Route { .. }));
    let routes = experts.ops[route].op.results().next().expect("routes");
    let first = find(|op| {
        matches!(
            op,
            Op::ExpertsLinear {
                rows: ExpertInputKind::OfRows,
                ..
            }
        )
    });
    let combine = find(|op| {
        matches!(
            op,
            Op::Combine {
                carried: CarriedValue::Gated(..),
                ..
            }
        )
    });
    let reason = |op_idx: usize, operand: usize, by: Value| {
        let mut mutant = experts.clone();
        mutant.ops[op_idx].op = replaced(&experts.ops[op_idx].op, operand, by);
        mutant.verify().expect_err("it is refused").reason
    };
    assert_eq!(reason(first, 1, routes), "x14 are routes, expected numbers");
    assert_eq!(reason(first, 0, Value(0)), "x0 are not routes");
    assert_eq!(reason(combine, 2, routes), "x14 are routes, expected numbers");
    assert_eq!(reason(combine, 3, Value(0)), "x0 is [T, 64], expected [T, 1]");
}
