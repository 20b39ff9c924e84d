//! Choices between nearly equal experts: which of them the CPU's 8-bit activations change, and the effect on logits.
//!
//! The networks are those whose logits exceed a limit on the CPU and on no backend with exact activations.

use std::sync::Arc;

use tokenmill_backend::KvType;
use tokenmill_model::{Model, ModelOptions};
use tokenmill_testkit::{Comparisons, NaiveBackend, Reference, RouteLog, engines, generate::all_logits};

/// The logits of a prompt, and the experts of each router, `[n_tokens, n_used]`.
struct Run {
    logits: Vec<f32>,
    routes: Vec<Vec<u32>>,
}

fn options(n_tokens: usize) -> ModelOptions {
    ModelOptions {
        n_ctx: Some(n_tokens),
        max_batch_tokens: n_tokens,
        max_batch_seqs: 1,
        max_logit_rows: n_tokens,
        kv_type: KvType::F32,
        ..Default::default()
    }
}

fn on_cpu(model: &Model, prompt: &[u32]) -> Run {
    let routes = RouteLog::default();
    let seen = Arc::clone(&routes);
    let mut backend = engines::cpu(1);
    backend.observe_routes(Box::new(move |experts| {
        seen.lock().unwrap().push(experts.to_vec());
    }));
    let mut executor = engines::load(model, backend, &options(prompt.len())).unwrap();
    let logits = all_logits(&mut executor, prompt).unwrap();
    let routes = routes.lock().unwrap().clone();
    Run { logits, routes }
}

/// Runs with exact activations, and these choices or its own.
fn exact(model: &Model, prompt: &[u32], routes: Vec<Vec<u32>>) -> Run {
    let log = RouteLog::default();
    let backend = NaiveBackend::with_routes(routes, Arc::clone(&log));
    let mut executor = engines::load(model, backend, &options(prompt.len())).unwrap();
    let logits = all_logits(&mut executor, prompt).unwrap();
    let routes = log.lock().unwrap().clone();
    Run { logits, routes }
}

/// Returns the divergence of the distributions at each position.
fn divergences(expected: &[f32], found: &[f32], n_vocab: usize) -> Vec<f64> {
    let log_softmax = |row: &[f32]| -> Vec<f64> {
        let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = row.iter().map(|&x| (f64::from(x) - max).exp()).sum();
        row.iter().map(|&x| f64::from(x) - max - sum.ln()).collect()
    };
    let rows = expected.chunks_exact(n_vocab).zip(found.chunks_exact(n_vocab));
    rows.map(|(expected, found)| {
        let (expected, found) = (log_softmax(expected), log_softmax(found));
        (expected.iter().zip(&found))
            .map(|(expected, found)| expected.exp() * (expected - found))
            .sum()
    })
    .collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The CPU meets the limit when it is compared with exact arithmetic that makes the same choices. If it exceeds the limit
/// otherwise, exact arithmetic with the CPU's choices differs from exact arithmetic with its own by about as much. So the
/// choices explain the excess.
#[test]
fn turned_choices_explain_the_logits_that_exceed_a_limit() {
    let mut comparisons = Comparisons::of("turned choices between experts");
    for path in ["parity/glm4_moe", "parity2/glm4_moe_mtp", "parity/qwen3_next"] {
        let Some(folder) = comparisons.find(path) else {
            continue;
        };
        let reference = Reference::open(&folder).unwrap();
        let model = Model::open(folder.join(&reference.facts.types["Q4_K_M"].file)).unwrap();
        let limit = reference.facts.tolerance.q8_activations["Q4_K_M"]
            .kl_mean
            .unwrap();
        let (mut n_choices, mut n_turned) = (0, 0);
        let [mut own, mut same, mut of_choices] = [const { Vec::new() }; 3];
        for prompt in reference.facts.prompts.iter().take(2) {
            let cpu = on_cpu(&model, prompt);
            let n_vocab = cpu.logits.len() / prompt.len();
            let free = exact(&model, prompt, Vec::new());
            let following = exact(&model, prompt, cpu.routes.clone());
            for (cpu, free) in cpu.routes.iter().zip(&free.routes) {
                let n_used = cpu.len() / prompt.len();
                for (cpu, free) in cpu.chunks_exact(n_used).zip(free.chunks_exact(n_used)) {
                    n_choices += n_used;
                    n_turned += cpu.iter().filter(|expert| !free.contains(expert)).count();
                }
            }
            own.extend(divergences(&free.logits, &cpu.logits, n_vocab));
            same.extend(divergences(&following.logits, &cpu.logits, n_vocab));
            of_choices.extend(divergences(&free.logits, &following.logits, n_vocab));
        }
        let [own, same, of_choices] = [own, same, of_choices].map(|values| mean(&values));
        println!(
            "{path}: {n_turned} of {n_choices} choices turned; mean KL of the CPU {own:.1e}, with the same choices {same:.1e}, of the \
             choices alone {of_choices:.1e}, limit {limit:.1e}"
        );
        assert!(same <= limit, "{path}: {same:.1e} above {limit:.1e}");
        assert!(
            own <= limit || of_choices >= own / 2.0,
            "{path}: {of_choices:.1e} of {own:.1e}"
        );
        comparisons.compared(1);
    }
}
