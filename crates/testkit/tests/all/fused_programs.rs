//! Fused operations equal their expansions: every kind of network gives the same bits with and without them, in steps of all
//! variants.

use tokenmill_backend::{ForwardBatch, RowOutput, SeqState, StepOutput, program::Fusion};
use tokenmill_gguf::TensorType;
use tokenmill_model::{Descriptor, ModelOptions, Presence};
use tokenmill_testkit::{
    EXPERT_VARIANTS, MEMORY_KINDS, NaiveBackend, TinyModel, VARIANTS, engines,
    engines::Loadable,
    generate::{ids, run},
    tiny_experts, tiny_llama,
};

/// Runs the same steps with a network and returns all results: a prompt with logits at every position, one in parts that
/// have no result, and tokens of three sequences at once, of which some have logits, hidden rows or neither.
fn results<B: Loadable>(model: &TinyModel, backend: B, fusion: Fusion) -> Vec<StepOutput> {
    let options = ModelOptions {
        n_pages: Some(16),
        max_batch_seqs: 4,
        max_logit_rows: 32,
        n_states: Some(4),
        fusion,
        ..Default::default()
    };
    let mut executor = engines::tiny(model, backend, &options);
    let (n_vocab, has_states) = (executor.limits().n_vocab as u32, executor.limits().n_states > 0);
    let tokens: Vec<u32> = (0..20).map(|idx| (7 * idx + 3) % n_vocab).collect();
    let mut outputs = Vec::new();
    let mut step = |parts: &[(u32, &[u32], u32)], rows: &[u32], hidden: &[u32]| {
        let mut batch = ForwardBatch::default();
        for &(slot, tokens, first) in parts {
            batch.push_sequence(ids(tokens), first, &[2 * slot, 2 * slot + 1]);
            if has_states {
                batch.states.push(SeqState::own(slot));
            }
        }
        batch.logit_rows = rows.to_vec();
        batch.outputs = vec![RowOutput::Logits; rows.len()];
        batch.hidden_rows = hidden.to_vec();
        outputs.push(run(&mut executor, &batch).unwrap());
    };
    let all: Vec<u32> = (0..20).collect();
    step(&[(0, &tokens, 0)], &all, &[]);
    step(&[(1, &tokens[..7], 0)], &[], &[]);
    step(&[(1, &tokens[7..8], 7), (2, &tokens[3..9], 0)], &[], &[]);
    step(
        &[
            (0, &tokens[..1], 20),
            (1, &tokens[8..13], 8),
            (2, &tokens[..2], 6),
        ],
        &[0, 5],
        &[7],
    );
    step(
        &[
            (0, &tokens[4..5], 21),
            (1, &tokens[5..6], 13),
            (2, &tokens[6..7], 8),
        ],
        &[0, 1, 2],
        &[],
    );
    step(&[(0, &tokens[4..5], 22)], &[], &[0]);
    step(&[(0, &tokens[5..6], 23)], &[], &[]);
    step(&[(0, &tokens[6..9], 24), (1, &tokens[..1], 14)], &[], &[1, 3]);
    outputs
}

fn check<B: Loadable>(name: &str, descriptor: &Descriptor, ty: TensorType, backend: impl Fn() -> B) {
    let mut model = TinyModel::random(descriptor.clone(), ty, 5);
    if descriptor.token_types != Presence::Absent {
        model.dequantize("token_types.weight");
    }
    if descriptor.n_learned_positions.is_some() {
        model.dequantize("position_embd.weight");
    }
    let fused = results(&model, backend(), Fusion::All);
    let expanded = results(&model, backend(), Fusion::None);
    for (step, (fused, expanded)) in fused.iter().zip(&expanded).enumerate() {
        let bits = |values: &[f32]| -> Vec<u32> { values.iter().map(|value| value.to_bits()).collect() };
        assert_eq!(
            bits(&fused.logits),
            bits(&expanded.logits),
            "{name} in {ty}, step {step}"
        );
        assert!(
            fused.logits.iter().all(|value| value.is_finite()),
            "{name} in {ty}, step {step}"
        );
    }
}

#[test]
fn networks_have_the_same_bits_without_fused_operations() {
    let networks = [
        (tiny_llama(), VARIANTS),
        (tiny_experts(), EXPERT_VARIANTS),
        (tiny_llama(), MEMORY_KINDS),
    ];
    for (base, variants) in networks {
        check("the plain network", &base, TensorType::Q8_0, || engines::cpu(2));
        for (name, change) in variants {
            let mut descriptor = base.clone();
            change(&mut descriptor);
            check(name, &descriptor, TensorType::BF16, || engines::cpu(2));
            check(name, &descriptor, TensorType::F32, NaiveBackend::new);
        }
    }
}
