//! Visible rounding: greedy tokens that differ from another program's at near-ties, and log-probabilities with keys and
//! values in half precision. Results of the CPU are compared with plain loops over the same weights, which round less.

use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenmill_backend::{Executor, KvType};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_model::{Model, ModelOptions};
use tokenmill_quant::CpuFeatures;
use tokenmill_testkit::{Comparisons, NaiveBackend, engines, generate::all_logits};

fn ids(value: &Value) -> Vec<u32> {
    (value.as_array().expect("a list").iter())
        .map(|id| id.as_u64().expect("a token id") as u32)
        .collect()
}

/// Logits at every position: by the CPU, and by plain loops.
struct Logits {
    cpu: Vec<f32>,
    naive: Vec<f32>,
    n_vocab: usize,
}

impl Logits {
    fn of(path: &Path, kv_type: KvType, tokens: &[u32]) -> Self {
        let options = ModelOptions {
            max_batch_tokens: 512,
            max_logit_rows: 512,
            kv_type,
            ..Default::default()
        };
        let model = Model::open(path).unwrap();
        let backend = CpuBackend::new(None, CpuFeatures::detect()).unwrap();
        let mut cpu = engines::load(&model, backend, &options).unwrap();
        let mut naive = engines::load(&model, NaiveBackend::new(), &options).unwrap();
        Self {
            n_vocab: cpu.limits().n_vocab,
            cpu: all_logits(&mut cpu, tokens).unwrap(),
            naive: all_logits(&mut naive, tokens).unwrap(),
        }
    }

    /// Returns the row of logits from which the token after position `index` is chosen.
    fn rows(&self, index: usize) -> (&[f32], &[f32]) {
        let range = index * self.n_vocab..(index + 1) * self.n_vocab;
        (&self.cpu[range.clone()], &self.naive[range])
    }
}

fn argmax(row: &[f32]) -> u32 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|&x| x == max).unwrap() as u32
}

fn max_difference(first: &[f32], second: &[f32]) -> f32 {
    (first.iter().zip(second))
        .map(|(first, second)| (first - second).abs())
        .fold(0.0, f32::max)
}

fn log_softmax(row: &[f32]) -> Vec<f32> {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
    row.iter().map(|&x| x - max - sum.ln() as f32).collect()
}

/// Returns the demo model's folder and reference.
fn demo(folder: Option<PathBuf>) -> Option<(PathBuf, Value)> {
    let folder = folder?;
    let reference = serde_json::from_slice(&std::fs::read(folder.join("reference.json")).unwrap()).unwrap();
    Some((folder, reference))
}

/// Both programs quantize activations, each in its own way, so each moves a logit by about as much as the CPU's differ from
/// those of plain loops. If the other program chose another token, the two tokens are closer in exact arithmetic than that,
/// and ours is at least as good.
#[test]
fn every_token_that_differs_from_the_reference_is_a_near_tie() {
    let mut comparisons = Comparisons::of("near-ties of the demo model");
    let Some((folder, reference)) = demo(comparisons.find("../demo-model")) else {
        return;
    };
    for ty in ["Q8_0", "Q4_K_M"] {
        let path = folder.join(format!("tokenmill-demo-{ty}.gguf"));
        let (mut n_tokens, mut n_different) = (0, 0);
        for prompt in reference["prompts"].as_array().unwrap() {
            let before = ids(&prompt["ids"]);
            let theirs = ids(&prompt["llama_cpp"][ty]["ids"]);
            let logits = Logits::of(&path, KvType::F16, &[&before[..], &theirs].concat());
            for (index, &their) in theirs.iter().enumerate() {
                let (cpu, naive) = logits.rows(before.len() - 1 + index);
                let our = argmax(cpu);
                n_tokens += 1;
                comparisons.compared(1);
                if our == their {
                    continue;
                }
                n_different += 1;
                let noise = max_difference(cpu, naive);
                let margin = (naive[our as usize] - naive[their as usize]).abs();
                println!("{ty} {index}: margin {margin}, noise {noise}");
                assert!(
                    margin <= 2.0 * noise && noise < 0.5,
                    "{ty} {}: token {index} is {our}, not {their}; the margin {margin} is no near-tie at noise {noise}",
                    prompt["name"]
                );
            }
        }
        println!("{ty}: {n_different} of {n_tokens}");
        assert!(
            n_different <= n_tokens / 20,
            "{n_different} of {n_tokens} tokens differ"
        );
    }
}

/// The rounding of K and V to half precision explains the change of log-probabilities with a KV cache of this type: plain
/// loops that round nothing else change as much, and with the same rounding the CPU agrees with them.
#[test]
fn rounding_keys_and_values_explains_the_log_probabilities_of_the_f16_cache() {
    let mut comparisons = Comparisons::of("rounding of the f16 cache");
    let Some((folder, reference)) = demo(comparisons.find("../demo-model")) else {
        return;
    };
    let path = folder.join("tokenmill-demo-F16.gguf");
    let (mut rounding, mut f32_rest, mut f16_rest) = (0.0_f32, 0.0_f32, 0.0_f32);
    for prompt in reference["prompts"].as_array().unwrap() {
        let tokens = [ids(&prompt["ids"]), ids(&prompt["hf_f32"]["ids"])].concat();
        let exact = Logits::of(&path, KvType::F32, &tokens);
        let rounded = Logits::of(&path, KvType::F16, &tokens);
        for index in 0..tokens.len() {
            let (exact_cpu, exact_naive) = exact.rows(index);
            let (rounded_cpu, rounded_naive) = rounded.rows(index);
            let [exact_cpu, exact_naive, rounded_cpu, rounded_naive] =
                [exact_cpu, exact_naive, rounded_cpu, rounded_naive].map(log_softmax);
            comparisons.compared(1);
            rounding = rounding.max(max_difference(&rounded_naive, &exact_naive));
            f32_rest = f32_rest.max(max_difference(&exact_cpu, &exact_naive));
            f16_rest = f16_rest.max(max_difference(&rounded_cpu, &rounded_naive));
        }
    }
    println!("rounding {rounding}, the rest with f32 {f32_rest}, with f16 {f16_rest}");
    assert!(f32_rest < 2e-4, "{f32_rest}");
    assert!(rounding < 0.1, "{rounding}");
    assert!(f16_rest < rounding, "{f16_rest} and {rounding}");
}
