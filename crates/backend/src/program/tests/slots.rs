//! Memory that values share: a simulated device finds each value where it reads it.

use std::collections::HashMap;

use crate::{Activation, ExecutorLimits, NetworkPart};

use super::super::slots::Beside;
use super::super::{
    CarriedValue, ExpertInputKind, Op, OperandRole, Program, Slot, Slots, Stamped, Value, ValueInfo,
};
use super::net::{HEAD_DIM, KV_WIDTH, N_EMBD, N_EXPERTS, N_HEADS, Net, attention_to};
use super::{assert_verified, networks, passed};

fn limits() -> ExecutorLimits {
    ExecutorLimits {
        n_vocab: super::net::N_VOCAB,
        n_embd: N_EMBD,
        n_ctx: 256,
        n_pages: 16,
        n_host_pages: 0,
        max_batch_tokens: 32,
        max_batch_seqs: 4,
        max_logit_rows: 8,
        kv_window: None,
        window_group: None,
        pooling: None,
        is_encoder: false,
        n_states: 4,
    }
}

/// A program with its memory.
struct Assigned {
    program: Program,
    slot_of: Vec<Option<u32>>,
}

impl Assigned {
    fn slot(&self, value: Value) -> usize {
        let slot = self.slot_of[value.index()];
        slot.unwrap_or_else(|| panic!("{value} has no memory\n{}", self.program)) as usize
    }

    /// Returns the first name of a value.
    fn origin(&self, value: Value) -> Value {
        let named = self.program.ops.iter().find_map(|stamped| match stamped.op {
            Op::AsLogits { x, y } if y == value => Some(x),
            _ => None,
        });
        named.unwrap_or(value)
    }

    /// Returns the operands that results take over, with the results; a norm takes its operand over where their slot is one.
    fn taken(&self, op: &Op) -> Vec<(Value, Value)> {
        let operands = op.operands();
        let sources = operands
            .iter()
            .filter(|(_, role)| matches!(role, OperandRole::Take | OperandRole::MayTake));
        (sources.zip(op.results()))
            .filter(|((source, role), result)| {
                *role == OperandRole::Take || self.slot(*source) == self.slot(*result)
            })
            .map(|((source, _), result)| (*source, result))
            .collect()
    }

    /// Runs the operations in an order; each slot holds a value, or nothing that is defined.
    fn simulate(&self, n_slots: usize, order: &[usize], name: &str) {
        let mut held: Vec<Option<Value>> = vec![None; n_slots];
        for &op_idx in order {
            let op = &self.program.ops[op_idx].op;
            let line = self.program.line(op_idx);
            for value in op.reads() {
                let found = held[self.slot(value)];
                assert_eq!(
                    found,
                    Some(self.origin(value)),
                    "{name}: {line} reads\n{}",
                    self.program
                );
            }
            if let Op::AsLogits { .. } = op {
                continue;
            }
            let taken = self.taken(op);
            for (value, role) in op.operands() {
                let is_taken = taken.iter().any(|(source, _)| *source == value);
                if role == OperandRole::Scratch || is_taken {
                    held[self.slot(value)] = None;
                }
            }
            for result in op.results() {
                held[self.slot(result)] = Some(result);
            }
        }
        for Stamped { op, .. } in &self.program.ops {
            match op {
                Op::Tap { y, .. } => assert_eq!(held[self.slot(*y)], Some(*y), "{name}: a tap is gone"),
                Op::Sample { rows: Some(rows), .. } => assert_eq!(held[self.slot(*rows)], Some(*rows)),
                _ => {}
            }
        }
    }

    /// Asserts that an operation's operands have memory of their own, except what its results take over.
    fn check_op(&self, op_idx: usize, name: &str) {
        let op = &self.program.ops[op_idx].op;
        let line = self.program.line(op_idx);
        if let Op::AsLogits { x, y } = op {
            assert_eq!(self.slot(*x), self.slot(*y), "{name}: {line}");
            return;
        }
        let taken = self.taken(op);
        for (source, result) in &taken {
            assert_eq!(self.slot(*source), self.slot(*result), "{name}: {line}");
        }
        let results: Vec<Value> = op.results().collect();
        for (idx, result) in results.iter().enumerate() {
            let slot = self.slot(*result);
            let others = results[..idx].iter();
            assert!(
                others.into_iter().all(|other| self.slot(*other) != slot),
                "{name}: {line}"
            );
            for value in op.reads().filter(|value| !taken.contains(&(*value, *result))) {
                assert_ne!(
                    self.slot(value),
                    slot,
                    "{name}: {line} writes {value}\n{}",
                    self.program
                );
            }
        }
        // A device mutates scratch, too.
        let operands = op.operands();
        for (idx, (scratch, role)) in operands.iter().enumerate() {
            let others = operands.iter().enumerate().filter(|(other, _)| *other != idx);
            for (_, (value, _)) in others.filter(|_| *role == OperandRole::Scratch) {
                assert_ne!(self.slot(*value), self.slot(*scratch), "{name}: {line}");
            }
        }
        // The next product may compute the norm, and then reads the sum.
        if let (Op::LinearAddNorm { sum, .. }, Some(next)) = (op, self.program.ops.get(op_idx + 1)) {
            for result in next.op.results() {
                assert_ne!(
                    self.slot(result),
                    self.slot(*sum),
                    "{name}: {line}\n{}",
                    self.program
                );
            }
        }
    }

    /// Asserts that each value fits in its slot.
    fn check_sizes(&self, slots: &[Slot], name: &str) {
        for Stamped { op, .. } in &self.program.ops {
            for (value, _) in op.operands() {
                let info = self.program.values[value.index()];
                let n_rows = info.rows().at_most(&limits());
                match (info, slots[self.slot(value)]) {
                    (
                        ValueInfo::Floats { width, .. },
                        Slot::Floats {
                            max_rows,
                            width: row_width,
                        },
                    ) => {
                        assert!(n_rows <= max_rows && width == row_width, "{name}: {value}");
                    }
                    (
                        ValueInfo::Routes {
                            n_experts, n_used, ..
                        },
                        Slot::Routes {
                            max_rows,
                            n_experts: of_experts,
                            n_used: of_used,
                        },
                    ) => {
                        assert!(
                            n_rows <= max_rows && [n_experts, n_used] == [of_experts, of_used],
                            "{name}"
                        );
                    }
                    (info, slot) => panic!("{name}: {value} is {info}, in {slot:?}"),
                }
            }
        }
    }

    /// Returns the order of the operations: as written, or with shared networks before the experts.
    fn order(&self, is_shared_first: bool) -> Vec<usize> {
        let mut order = Vec::new();
        let mut op_idx = 0;
        while op_idx < self.program.ops.len() {
            order.push(op_idx);
            op_idx += 1;
            if let Some(Beside { experts, shared }) =
                self.program.beside(op_idx - 1).filter(|_| is_shared_first)
            {
                op_idx = shared.end;
                order.extend(shared.chain(experts));
            }
        }
        order
    }
}

/// Asserts that a program is another one with copies of some operands.
fn assert_copied(program: &Program, copied: &Program, name: &str) {
    let mut sources: HashMap<Value, Value> = HashMap::new();
    let mut ops = Vec::new();
    for Stamped { op, part } in &copied.ops {
        if let Op::Move { x, y } = op {
            sources.insert(*y, *x);
            continue;
        }
        let mut op = op.clone();
        op.visit(&mut |value, _| *value = sources.get(value).copied().unwrap_or(*value));
        ops.push(Stamped { op, part: *part });
    }
    assert_eq!(ops, program.ops, "{name}");
}

/// Asserts the claims about memory for the programs of all variants, which share it; returns the slots.
pub(super) fn check(program: &Program, name: &str) -> Slots {
    let (mut of_narrowed, mut of_fused) = (Slots::default(), Slots::default());
    for (variant, narrowed, fused) in passed(program) {
        for (written, slots) in [(narrowed, &mut of_narrowed), (fused, &mut of_fused)] {
            let name = format!("{name}, {variant:?}");
            let mut program = written.clone();
            let slot_of = slots.assign(&mut program, &limits());
            assert_verified(&program, &name);
            assert_copied(&written, &program, &name);
            let assigned = Assigned { program, slot_of };
            assigned.check_sizes(slots.slots(), &name);
            for op_idx in 0..assigned.program.ops.len() {
                assigned.check_op(op_idx, &name);
            }
            for is_shared_first in [false, true] {
                let order = assigned.order(is_shared_first);
                assigned.simulate(slots.slots().len(), &order, &name);
            }
        }
    }
    of_fused
}

#[test]
fn each_value_is_where_it_is_read() {
    for (name, program) in networks::all(3) {
        check(&program, name);
    }
}

#[test]
fn memory_does_not_grow_with_the_layers() {
    // Experts and recurrent networks alternate between two kinds of layers.
    for ((name, few), (_, many)) in networks::all(2).into_iter().zip(networks::all(6)) {
        assert_eq!(check(&few, name).slots(), check(&many, name).slots(), "{name}");
    }
}

#[test]
fn llama_works_in_few_slots() {
    let slots = check(&networks::llama(2), "llama");
    let of_width = |expected: usize| {
        let is_wide = |slot: &&Slot| matches!(slot, Slot::Floats { width, .. } if *width == expected);
        slots.slots().iter().filter(is_wide).count()
    };
    // The stream, its norm, and queries or the result of attention, for all tokens and for the outputs.
    assert!(of_width(N_EMBD) <= 6, "{slots:?}");
    assert_eq!([of_width(KV_WIDTH), of_width(128)], [2, 2]);
}

/// Returns the number of copies in a program with memory.
fn n_moves(mut program: Program) -> usize {
    Slots::default().assign(&mut program, &limits());
    program
        .ops
        .iter()
        .filter(|stamped| matches!(stamped.op, Op::Move { .. }))
        .count()
}

#[test]
fn values_are_copied_only_where_they_are_read_later() {
    for (name, program) in networks::all(2) {
        // The prediction of the streams is read again for their correction.
        let expected = if name == "streams" { 2 } else { 0 };
        assert_eq!(n_moves(program), expected, "{name}");
    }
}

#[test]
fn an_operand_that_is_read_twice_is_copied() {
    let mut net = Net::with_kv(0);
    let x = net.embed();
    let double = net.add(x, x);
    net.sample(None, Some(double));
    check(&net.program, "a double");
    assert_eq!(n_moves(net.program), 1);
}

#[test]
fn rows_that_are_kept_are_copied_before_they_are_taken_over() {
    let mut net = Net::with_kv(0);
    let x = net.embed();
    let layer_idx = 0;
    let kept = net.program.push(|y| Op::Tap { layer_idx, x, y });
    let changed = net.activation(Activation::Silu, kept, None);
    net.sample(None, Some(changed));
    check(&net.program, "a tap that is read");
    assert_eq!(n_moves(net.program), 1);
}

#[test]
fn logits_that_are_rows_as_well_are_copied() {
    let mut net = Net::with_kv(0);
    let x = net.embed();
    net.sample(Some(x), Some(x));
    check(&net.program, "logits and rows");
    assert_eq!(n_moves(net.program), 1);
}

#[test]
fn the_sum_outlives_the_product_behind_its_norm() {
    // Keys and values as wide as the stream: in the last layer of a step without outputs nothing else reads the sum.
    let mut net = Net::with_kv(1);
    let x = net.embed();
    let inside = net.linear("ffn_up", N_EMBD, x);
    let delta = net.linear("ffn_down", N_EMBD, inside);
    let sum = net.add(x, delta);
    let normed = net.norm("attn_norm", sum);
    let wide = net.linear("attn_k", N_EMBD, normed);
    let k = net.columns(0, KV_WIDTH, wide);
    net.store(0, k, k);
    net.sample(None, None);
    check(&net.program, "a sum");
}

/// A layer of experts with a shared network, whose operations a test appends.
fn beside(shared: impl FnOnce(&mut Net, Value, Value) -> Value) -> Program {
    let mut net = Net::with_kv(0);
    net.enter(NetworkPart::Ffn(0));
    let x = net.embed();
    let logits = net.linear("router", N_EXPERTS, x);
    net.enter(NetworkPart::Experts(0));
    let routes = net.route(logits);
    let choices = net.experts("experts", N_EMBD, routes, ExpertInputKind::OfRows, x);
    let other = net.embed();
    net.enter(NetworkPart::Ffn(0));
    let carried = shared(&mut net, x, other);
    net.enter(NetworkPart::Experts(0));
    let y = net.combine(routes, choices, CarriedValue::Whole(carried));
    net.sample(None, Some(y));
    net.program
}

#[test]
fn a_shared_network_leaves_the_input_of_experts_intact() {
    let check = |shared: fn(&mut Net, Value, Value) -> Value, has_order: bool| {
        let program = beside(shared);
        super::slots::check(&program, "a shared network");
        let found = (0..program.ops.len()).find_map(|op_idx| program.beside(op_idx));
        assert_eq!(found.is_some(), has_order, "{program}");
    };
    check(|net, x, _| net.linear("shared", N_EMBD, x), true);
    // These take the input over, as the last operation and before.
    check(|net, x, _| net.norm("shared_norm", x), true);
    check(|net, x, _| net.activation(Activation::Silu, x, None), true);
    check(
        |net, x, _| {
            let x = net.activation(Activation::Silu, x, None);
            net.linear("shared", N_EMBD, x)
        },
        true,
    );
    // A result from between the experts cannot be read before them.
    check(|net, _, other| net.norm("shared_norm", other), false);
}

#[test]
fn queries_that_are_keys_are_copied_before_attention() {
    let mut net = Net::with_kv(1);
    let x = net.embed();
    let q = net.linear("q", N_HEADS * HEAD_DIM, x);
    let k = net.columns(0, KV_WIDTH, q);
    net.store(0, k, k);
    let mixed = net.attention(attention_to(0), q);
    let x = net.add(q, mixed);
    net.sample(None, Some(x));
    check(&net.program, "keys that are values");
}
