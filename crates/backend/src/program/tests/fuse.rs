//! A fused program computes what the unfused one does: its expansion has the same operations.

use std::collections::{BTreeSet, HashMap};

use crate::{Activation, NetworkPart};

use super::super::{CarriedValue, ExpertInputKind, Op, OperandRole, Program, Value};
use super::net::{HEAD_DIM, KV_WIDTH, N_EMBD, N_EXPERTS, N_HEADS, Net, attention_to};
use super::{assert_verified, listed, name_of, networks, passed};

/// The fused operations.
const FUSED: [&str; 7] = [
    "add_norm",
    "experts_gated",
    "linear_add_norm",
    "linear_gated",
    "linear_group",
    "rope_attention",
    "rope_store_kv",
];

/// Asserts that two programs have the same operations up to the names of values.
pub(super) fn assert_same(a: &Program, b: &Program, name: &str) {
    let ops = |program: &Program| program.ops.iter().map(|stamped| stamped.op.clone()).collect();
    let (ops_a, ops_b): (Vec<Op>, Vec<Op>) = (ops(a), ops(b));
    assert_eq!(ops_a.len(), ops_b.len(), "{name}: the first\n{a}the second\n{b}");
    // The first program's names by those of the second.
    let mut names: HashMap<Value, Value> = HashMap::new();
    for (op_a, op_b) in ops_a.iter().zip(&ops_b) {
        let mut operands = op_a.operands().into_iter();
        let mut renamed = op_b.clone();
        renamed.visit(&mut |value, role| {
            let found = operands.next();
            let (expected, _) = found.unwrap_or_else(|| panic!("{name}: {}", listed(&[op_a, op_b])));
            assert_eq!(
                a.value(expected),
                b.value(*value),
                "{name}: {}",
                listed(&[op_a, op_b])
            );
            if role == OperandRole::Result {
                let before = names.insert(*value, expected);
                assert_eq!(before, None, "{name}: {value} is written twice");
            }
            *value = names[value];
        });
        assert_eq!(*op_a, renamed, "{name}");
    }
    let written: BTreeSet<Value> = names.values().copied().collect();
    assert_eq!(written.len(), names.len(), "{name}: two values have one name");
}

/// Asserts that the fused programs of all variants expand to the unfused ones; returns the names of the fused operations.
pub(super) fn check(program: &Program, name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (variant, narrowed, fused) in passed(program) {
        let name = format!("{name}, {variant:?}");
        assert_verified(&fused, &name);
        let expanded = fused.expanded();
        assert_verified(&expanded, &name);
        assert_same(&narrowed, &expanded, &name);
        let remaining = expanded.expanded();
        assert_eq!(
            remaining.to_string(),
            expanded.to_string(),
            "{name}: all is expanded"
        );
        found.extend((0..fused.ops.len()).map(|op_idx| name_of(&fused, op_idx)));
    }
    found.retain(|name| FUSED.contains(&name.as_str()));
    found
}

#[test]
fn a_fused_program_expands_to_the_unfused_one() {
    let mut found = BTreeSet::new();
    for (name, program) in networks::all(3) {
        found.extend(check(&program, name));
    }
    assert_eq!(Vec::from_iter(found), FUSED);
}

#[test]
fn each_network_has_its_fused_operations() {
    let check = |name: &str, expected: &[&str]| {
        let networks = networks::all(2);
        let (_, program) = networks
            .iter()
            .find(|(found, _)| *found == name)
            .expect("a network");
        assert_eq!(Vec::from_iter(check(program, name)), expected, "{name}");
    };
    let of_llama = [
        "add_norm",
        "linear_add_norm",
        "linear_gated",
        "linear_group",
        "rope_attention",
    ];
    check("llama", &of_llama);
    check("sharded", &of_llama);
    check(
        "experts",
        &[
            "add_norm",
            "experts_gated",
            "linear_add_norm",
            "linear_gated",
            "linear_group",
            "rope_attention",
        ],
    );
    check(
        "recurrent",
        &["add_norm", "linear_add_norm", "linear_gated", "linear_group"],
    );
    check(
        "streams",
        &[
            "linear_add_norm",
            "linear_gated",
            "linear_group",
            "rope_attention",
        ],
    );
    check(
        "encoder",
        &["add_norm", "linear_add_norm", "linear_group", "rope_attention"],
    );
    check("latent", &["add_norm", "linear_add_norm"]);
    check(
        "draft",
        &["add_norm", "linear_add_norm", "linear_group", "rope_store_kv"],
    );
}

/// Returns the names of a program's operations after fusion, without the embedding and the end.
fn fused_names(mut net: Net) -> Vec<String> {
    net.sample(None, None);
    let program = net.program;
    assert_verified(&program, "as written");
    let fused = program.fused();
    assert_verified(&fused, "fused");
    assert_same(&program, &fused.expanded(), "expanded");
    let n_ops = fused.ops.len();
    (1..n_ops - 1).map(|op_idx| name_of(&fused, op_idx)).collect()
}

#[test]
fn a_gate_that_is_read_again_is_not_fused() {
    let check = |reads_gate: bool, expected: &[&str]| {
        let mut net = Net::with_kv(0);
        let x = net.embed();
        let gate = net.linear("gate", N_EMBD, x);
        let up = net.linear("up", N_EMBD, x);
        net.activation(Activation::Silu, gate, Some(up));
        if reads_gate {
            net.add(x, gate);
        }
        assert_eq!(fused_names(net), expected);
    };
    check(false, &["linear_gated"]);
    check(true, &["linear_group", "activation", "add"]);
}

#[test]
fn a_gate_of_experts_that_is_read_again_is_not_fused() {
    let check = |reads_gate: bool, expected: &[&str]| {
        let mut net = Net::with_kv(0);
        let x = net.embed();
        let logits = net.linear("router", N_EXPERTS, x);
        let routes = net.route(logits);
        let gate = net.experts("gate", N_EMBD, routes, ExpertInputKind::OfRows, x);
        let up = net.experts("up", N_EMBD, routes, ExpertInputKind::OfRows, x);
        net.activation(Activation::Silu, gate, Some(up));
        if reads_gate {
            net.combine(routes, gate, CarriedValue::Nothing);
        }
        assert_eq!(fused_names(net)[2..], *expected);
    };
    check(false, &["experts_gated"]);
    check(
        true,
        &["experts_linear", "experts_linear", "activation", "combine"],
    );
}

#[test]
fn heads_are_fused_unless_something_else_reads_them() {
    #[derive(PartialEq)]
    enum Reads {
        Nothing,
        NormedQuery,
        NormedKey,
        TurnedQuery,
        TurnedKey,
    }
    let check = |reads: Reads, expected: &[&str]| {
        let mut net = Net::with_kv(1);
        let x = net.embed();
        let q = net.linear("q", N_HEADS * HEAD_DIM, x);
        let k = net.linear("k", KV_WIDTH, x);
        let v = net.linear("v", KV_WIDTH, x);
        let normed_q = net.head_norm("q_norm", HEAD_DIM, q);
        let normed_k = net.head_norm("k_norm", HEAD_DIM, k);
        let rope = net.rotation(HEAD_DIM);
        let turned_q = net.rope(rope, normed_q);
        let turned_k = net.rope(rope, normed_k);
        net.store(0, turned_k, v);
        net.attention(attention_to(0), turned_q);
        let (a, b) = match reads {
            Reads::Nothing => return assert_eq!(fused_names(net)[1..], *expected),
            Reads::NormedQuery => (x, normed_q),
            Reads::NormedKey => (v, normed_k),
            Reads::TurnedQuery => (x, turned_q),
            Reads::TurnedKey => (v, turned_k),
        };
        net.add(a, b);
        assert_eq!(fused_names(net)[1..], *expected);
    };
    let unfused = ["norm", "norm", "rope", "rope", "store_kv", "attention", "add"];
    check(Reads::Nothing, &["rope_attention"]);
    check(Reads::NormedQuery, &["norm", "rope_attention", "add"]);
    check(Reads::NormedKey, &["norm", "norm", "rope_attention", "add"]);
    check(Reads::TurnedQuery, &["rope_store_kv", "attention", "add"]);
    check(Reads::TurnedKey, &unfused);
}

#[test]
fn keys_that_are_values_as_well_are_not_fused_behind_their_norm() {
    let mut net = Net::with_kv(1);
    let x = net.embed();
    let q = net.linear("q", N_HEADS * HEAD_DIM, x);
    let k = net.linear("k", KV_WIDTH, x);
    let k = net.head_norm("k_norm", HEAD_DIM, k);
    let rope = net.rotation(HEAD_DIM);
    let q = net.rope(rope, q);
    let turned = net.rope(rope, k);
    net.store(0, turned, k);
    net.attention(attention_to(0), q);
    let expected = ["linear_group", "norm", "rope_attention"];
    assert_eq!(fused_names(net), expected);
}

#[test]
fn sums_are_fused_with_norms_of_whole_rows_alone() {
    let check = |width: usize, expected: &[&str]| {
        let mut net = Net::with_kv(0);
        let x = net.embed();
        let delta = net.embed();
        let sum = net.add(x, delta);
        net.head_norm("norm", width, sum);
        assert_eq!(fused_names(net)[1..], *expected);
    };
    check(N_EMBD, &["add_norm"]);
    check(HEAD_DIM, &["add", "norm"]);
}

#[test]
fn a_product_is_fused_with_its_sum_and_norm_before_another_product() {
    #[derive(Clone, Copy, PartialEq)]
    enum End {
        ProductTo,
        ProductOfSum,
        ReadsOwn,
        Head,
    }
    let check = |end: End, is_reduced: bool, expected: &[&str]| {
        let mut net = Net::with_kv(0);
        let x = net.embed();
        let own = net.linear("out", N_EMBD, x);
        let delta = if is_reduced {
            net.program.push(|y| Op::AllReduce { x: own, y })
        } else {
            own
        };
        let sum = net.add(x, delta);
        let normed = net.norm("norm", sum);
        if end == End::Head {
            net.enter(NetworkPart::Output);
        }
        let read = if end == End::ProductOfSum { sum } else { normed };
        let next = net.linear("next", N_EMBD, read);
        if end == End::ReadsOwn {
            net.add(next, own);
        }
        assert_eq!(fused_names(net), expected);
    };
    check(End::ProductTo, false, &["linear_add_norm", "linear"]);
    check(End::ProductTo, true, &["linear_add_norm", "linear"]);
    check(End::ProductOfSum, false, &["linear", "add_norm", "linear"]);
    check(End::ReadsOwn, false, &["linear", "add_norm", "linear", "add"]);
    check(
        End::ReadsOwn,
        true,
        &["linear", "all_reduce", "add_norm", "linear", "add"],
    );
    check(End::Head, false, &["linear", "add_norm", "linear"]);
}

#[test]
fn a_group_has_adjacent_products_of_one_input_and_part() {
    let mut net = Net::with_kv(0);
    let x = net.embed();
    let mut last = x;
    for idx in 0..7 {
        last = net.linear(&format!("a.{idx}"), N_EMBD, x);
    }
    net.linear("b.0", N_EMBD, last);
    net.enter(NetworkPart::Output);
    net.linear("b.1", N_EMBD, last);
    net.linear("b.2", N_EMBD, last);
    assert_eq!(
        fused_names(net),
        ["linear_group", "linear", "linear", "linear_group"]
    );
}
