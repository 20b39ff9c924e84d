//! Operations whose numbers do not fit their weights are refused, each with its reason.

use crate::DeltaDecays;

use super::super::{LinearId, MatrixId, NormId, Op, ProductTo, Program, StoredHeads, VectorId};
use super::{networks, passed};

/// A vector that no program has.
const UNKNOWN: VectorId = VectorId(999);

/// Appends mutants of an operation's numbers, none of which may be accepted.
fn mutants(op: &Op) -> Vec<Op> {
    let mut mutants = Vec::new();
    let mut add = |mutate: &dyn Fn(&mut Op) -> bool| {
        let mut mutant = op.clone();
        if mutate(&mut mutant) {
            mutants.push(mutant);
        }
    };
    for mutate in LINEARS {
        add(&|op| linear_of(op).map(mutate).is_some());
    }
    for mutate in NORMS {
        add(&|op| norm_of(op).map(mutate).is_some());
    }
    for mutate in HEADS {
        add(&|op| heads_of(op).map(mutate).is_some());
    }
    for mutate in OTHERS {
        add(mutate);
    }
    mutants
}

fn linear_of(op: &mut Op) -> Option<&mut LinearId> {
    match op {
        Op::Linear { linear, .. }
        | Op::HeadsLinear { heads: linear, .. }
        | Op::ExpertsLinear { experts: linear, .. }
        | Op::LinearGated { gate: linear, .. }
        | Op::ExpertsGated { gate: linear, .. }
        | Op::LinearAddNorm {
            product: ProductTo { linear, .. },
            ..
        } => Some(linear),
        Op::LinearGroup { products, .. } => products.last_mut().map(|product| &mut product.linear),
        _ => None,
    }
}

/// Changes that make a product another one.
const LINEARS: &[fn(&mut LinearId)] = &[
    |linear| linear.n_out += 1,
    |linear| linear.n_in += 1,
    |linear| linear.matrix = MatrixId(999),
    // A vector of the wrong length, or none.
    |linear| linear.bias = Some(UNKNOWN),
];

fn norm_of(op: &mut Op) -> Option<&mut NormId> {
    match op {
        Op::Norm { norm, .. } | Op::AddNorm { norm, .. } | Op::LinearAddNorm { norm, .. } => Some(norm),
        Op::RopeStoreKv { heads, .. } | Op::RopeAttention { heads, .. } => heads.k_norm.as_mut(),
        _ => None,
    }
}

/// Changes that make a norm another one.
const NORMS: &[fn(&mut NormId)] = &[
    |norm| norm.width = 0,
    |norm| norm.width += 1,
    |norm| norm.weight = Some(UNKNOWN),
    |norm| norm.bias = Some(UNKNOWN),
];

fn heads_of(op: &mut Op) -> Option<&mut StoredHeads> {
    match op {
        Op::RopeStoreKv { heads, .. } | Op::RopeAttention { heads, .. } => Some(heads),
        _ => None,
    }
}

/// Changes of heads that are stored.
const HEADS: &[fn(&mut StoredHeads)] = &[
    |heads| heads.layer_idx = 99,
    |heads| {
        if let Some(rope) = &mut heads.rope {
            rope.inv_freqs = UNKNOWN;
        } else {
            heads.q = heads.v;
        }
    },
];

/// Sets a number or a weight of an operation that has it.
macro_rules! set {
    ($($variant:ident { $($field:ident).+ = $value:expr }),+ $(,)?) => {
        &[$(|op| {
            set!(@ op, $variant, $($field).+, $value)
        }),+]
    };
    (@ $op:ident, $variant:ident, $field:ident, $value:expr) => {
        if let Op::$variant { $field, .. } = $op { *$field = $value; true } else { false }
    };
    (@ $op:ident, $variant:ident, $field:ident . $inner:ident, $value:expr) => {
        if let Op::$variant { $field, .. } = $op { $field.$inner = $value; true } else { false }
    };
}

/// Changes of operations other than products and norms.
const OTHERS: &[fn(&mut Op) -> bool] = set! {
    Embed { table = MatrixId(999) },
    HiddenInputs { width = 63 },
    AddRow { row = UNKNOWN },
    MultiplyByRow { row = UNKNOWN },
    AddPositions { table = UNKNOWN },
    HeadsLinear { n_heads = 3 },
    Rope { rope.head_dim = 0 },
    Rope { rope.head_dim = 9 },
    Rope { rope.n_dims = 4 },
    Rope { rope.n_dims = 32 },
    Rope { rope.inv_freqs = UNKNOWN },
    StoreKv { layer_idx = 99 },
    StoreLatent { layer_idx = 99 },
    Attention { attention.layer_idx = 99 },
    Attention { attention.n_heads = 3 },
    Attention { attention.sinks = Some(UNKNOWN) },
    Attention { attention.slopes = Some(UNKNOWN) },
    TakeColumns { first = 1000 },
    TakeColumns { first = usize::MAX },
    TakeColumns { width = 1000 },
    Join { n_parts = 0 },
    Join { n_parts = 7 },
    Route { router.n_experts = 9 },
    Route { router.n_used = 3 },
    Route { router.choice_bias = Some(UNKNOWN) },
    Route { router.expert_scales = Some(UNKNOWN) },
    ShortConv { conv.n_channels = 63 },
    ShortConv { conv.n_taps = 5 },
    ShortConv { conv.weight = UNKNOWN },
    ShortConv { conv.bias = Some(UNKNOWN) },
    DeltaNet { net.n_v_heads = 2 },
    DeltaNet { net.n_k_heads = 1 },
    DeltaNet { net.decays = DeltaDecays::OfChannels },
    DeltaNet { net.a = UNKNOWN },
    DeltaNet { net.dt_bias = UNKNOWN },
    SsmScan { scan.n_heads = 3 },
    SsmScan { scan.n_state = 9 },
    SsmScan { scan.has_own_decays = true },
    SsmScan { scan.a = UNKNOWN },
    SsmScan { scan.skip = UNKNOWN },
    SsmScan { scan.dt_bias = UNKNOWN },
    SsmScan { x.first = 33 },
    SsmScan { c.first = 100 },
    RepeatRows { n = 2 },
    AllGather { n_ranks = 1 },
    AllGather { width = 257 },
    RopeAttention { attention.layer_idx = 99 },
    RopeAttention { attention.n_heads = 3 },
    RopeAttention { attention.sinks = Some(UNKNOWN) },
    RopeAttention { attention.slopes = Some(UNKNOWN) },
};

/// Asserts that each mutant is refused; returns their number.
fn check(program: &Program, name: &str) -> usize {
    let mut n_mutants = 0;
    for op_idx in 0..program.ops.len() {
        for op in mutants(&program.ops[op_idx].op) {
            let mut mutant = program.clone();
            mutant.ops[op_idx].op = op;
            let verdict = mutant.verify();
            assert!(verdict.is_err(), "{name}: {:?}", mutant.ops[op_idx].op);
            n_mutants += 1;
        }
    }
    n_mutants
}

#[test]
fn operations_that_do_not_fit_their_weights_are_refused() {
    for (name, program) in networks::all(2) {
        assert!(check(&program, name) > program.ops.len(), "{name}");
        let (_, _, fused) = passed(&program).next().expect("seven variants");
        check(&fused, name);
    }
}

#[test]
fn layers_for_latent_rows_and_others_are_not_exchanged() {
    let check = |mut program: Program, has_values_in_keys: bool, expected: &str| {
        for layer in &mut program.kv_layers {
            layer.has_values_in_keys = has_values_in_keys;
        }
        assert_eq!(program.verify().expect_err(expected).reason, expected);
        assert!(program.fused().verify().is_err(), "{expected}");
    };
    check(networks::llama(1), true, "values for a layer with values in keys");
    check(networks::latent(1), false, "a latent row for a layer with values");
}

#[test]
fn a_group_has_as_many_products_as_devices_take() {
    let fused = networks::llama(1).fused();
    let check = |n_products: usize| {
        let mut mutant = fused.clone();
        let Op::LinearGroup { products, .. } = &mut mutant.ops[2].op else {
            panic!("queries, keys and values are a group");
        };
        let last = products[products.len() - 1];
        products.resize(n_products, last);
        mutant.verify().expect_err("a group of another size").reason
    };
    assert_eq!(check(0), "a group of 0 products");
    assert_eq!(check(1), "a group of 1 products");
    assert_eq!(check(7), "a group of 7 products");
}

#[test]
fn heads_that_nothing_turns_have_no_results() {
    let mut fused = networks::draft(1).fused();
    let heads = fused.ops.iter_mut().find_map(|stamped| heads_of(&mut stamped.op));
    heads.expect("queries and keys are turned").rope = None;
    let reason = fused.verify().expect_err("nothing writes the results").reason;
    assert_eq!(reason, "queries or keys that nothing turns");
}
