//! Tests of programs, over a small network of each kind and over random ones.

mod fuse;
mod narrow;
mod net;
mod networks;
mod print;
mod random;
mod refusals;
mod slots;
mod verify;

use std::{collections::HashSet, fmt::Write as _};

use super::{MatrixId, Op, Program, RowKind, Stamped, StepVariant, Value, ValueInfo, VectorId, WeightId};

/// Returns the programs that the passes make of one for a step's variants: each narrowed, and each fused as well.
fn passed(program: &Program) -> impl Iterator<Item = (StepVariant, Program, Program)> {
    StepVariant::ALL.into_iter().map(|variant| {
        let narrowed = program.narrowed(variant);
        let fused = narrowed.fused();
        (variant, narrowed, fused)
    })
}

/// Panics with the program if it does not verify.
fn assert_verified(program: &Program, name: &str) {
    if let Err(error) = program.verify() {
        panic!("{name}: {error}\n{program}");
    }
}

/// Returns the kind of a value's rows.
fn kind(program: &Program, value: Value) -> RowKind {
    program.values[value.index()].rows().kind
}

/// Returns the name under which an operation is printed.
fn name_of(program: &Program, op_idx: usize) -> String {
    let line = program.line(op_idx);
    let call = line.split(" = ").last().unwrap_or_default();
    call.split('(').next().unwrap_or_default().to_owned()
}

/// Returns the operations, one a line, for messages.
fn listed(ops: &[&Op]) -> String {
    ops.iter().fold(String::new(), |mut text, op| {
        writeln!(text, "{op:?}").expect("a string takes all");
        text
    })
}

#[test]
fn each_weight_is_one_of_an_operation() {
    let named = |program: &Program| -> HashSet<WeightId> {
        program
            .ops
            .iter()
            .flat_map(|stamped| stamped.op.weights())
            .collect()
    };
    for (name, program) in networks::all(2) {
        let weights = program.weights();
        let matrices = (0..).map(MatrixId).take_while(|id| weights.matrix(*id).is_some());
        let vectors = (0..).map(VectorId).take_while(|id| weights.vector(*id).is_some());
        let all: HashSet<WeightId> = (matrices.map(WeightId::Matrix))
            .chain(vectors.map(WeightId::Vector))
            .collect();
        assert_eq!(named(&program), all, "{name}");
        assert_eq!(named(&program.fused()), all, "{name}, fused");
    }
}

#[test]
fn each_network_verifies() {
    for (name, program) in networks::all(2) {
        assert_verified(&program, name);
    }
}

#[test]
fn the_networks_have_every_simple_operation() {
    let mut names = Vec::new();
    for (_, program) in networks::all(2) {
        names.extend((0..program.ops.len()).map(|op_idx| name_of(&program, op_idx)));
    }
    names.sort();
    names.dedup();
    let expected = [
        "activation",
        "add",
        "add_input_rows",
        "add_positions",
        "add_row",
        "add_to_others",
        "all_gather",
        "all_reduce",
        "attention",
        "combine",
        "correct_streams",
        "cut_below",
        "delta_net",
        "embed",
        "experts_linear",
        "gather",
        "heads_linear",
        "hidden_inputs",
        "join",
        "linear",
        "match_magnitudes",
        "mean_of_sequences",
        "multiply_by_row",
        "norm",
        "predict_streams",
        "repeat_rows",
        "rope",
        "route",
        "sample",
        "scale",
        "scale_by_position",
        "short_conv",
        "ssm_scan",
        "store_kv",
        "store_latent",
        "take_columns",
        "tap",
        "weigh_choices",
        "xielu",
    ];
    assert_eq!(names, expected);
}

#[test]
fn a_program_knows_its_values_and_weights() {
    let program = networks::llama(1);
    let Stamped {
        op: Op::Embed { table, y, .. },
        ..
    } = program.ops()[0]
    else {
        panic!("the first operation looks up the tokens");
    };
    let table = program.weights().matrix(table).expect("a declared matrix");
    assert_eq!((table.n_out, table.n_in), (net::N_VOCAB, net::N_EMBD));
    let shape = program.value(y).map(ValueInfo::width);
    assert_eq!(shape, Some(net::N_EMBD));
    assert_eq!(program.value(Value(u32::MAX)), None);
}

#[test]
#[should_panic(expected = "x0 is [T, 64], expected [T, 32]")]
fn an_operation_with_wrong_operands_cannot_be_pushed() {
    let mut net = net::Net::new(&[]);
    let x = net.embed();
    let delta = net.linear("narrow", 32, x);
    net.add(delta, x);
}
