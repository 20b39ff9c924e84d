//! The tiny decision models in Q8_0 and Q4_K_M: their probabilities differ from those in F32 no more than the types' rounding explains.
//!
//! The noise is measured, not assumed: each weight gets its own rounding error with a random sign, and the network is computed in F32. Such
//! files are as far from the original as the quantized one. Invariant: the original, the quantized and the noisy file have the same tensors.

use std::{fs, ops::ControlFlow, path::Path};

use tokenmill::{Device, Model};
use tokenmill_convert::{Preset, Quantizer, Recipe};
use tokenmill_gguf::{GgufFile, GgufWriter, Metadata, TensorType};
use tokenmill_quant::dequantize_row;
use tokenmill_testkit::Random;

use super::{Case, cases, folder, params};

/// Noisy files of each model.
const N_DRAWS: u64 = 6;

/// Largest ratio of a quantized file's differences to the noise. Products round the activations to 8 bits too, whose error is that of
/// weights in Q8_0 and gives 1.5 at most; the differences of some dozen probabilities scatter by less than twice.
const MOST: f64 = 3.0;

/// Width of rows that divide into blocks of 256.
const WIDTH: usize = 256;

/// Returns the numbers of a tensor.
fn values(file: &GgufFile, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).expect("both files have it");
    let bytes = tensor.bytes.to_vec().unwrap();
    if tensor.info.ty == TensorType::F32 {
        let numbers = bytes.chunks_exact(4);
        return numbers
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")))
            .collect();
    }
    let mut values = vec![0.0; tensor.info.n_elements()];
    dequantize_row(tensor.info.ty, &bytes, &mut values).unwrap();
    values
}

/// Writes a file of F32 tensors.
fn write(path: &Path, metadata: Metadata, tensors: &[(String, Vec<u64>, Vec<f32>)]) {
    let mut writer = GgufWriter::with_metadata(metadata);
    for (name, dims, _) in tensors {
        writer.add_tensor(name, TensorType::F32, dims).unwrap();
    }
    let mut out = writer.write_header(Vec::new()).unwrap();
    for (.., values) in tensors {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        out.write(&bytes).unwrap();
    }
    fs::write(path, out.finish().unwrap()).unwrap();
}

/// Writes the network of `original` with the rounding errors of `quantized`, each with a random sign.
fn write_noisy(path: &Path, original: &GgufFile, quantized: &GgufFile, seed: u64) {
    let tensors: Vec<_> = (original.tensors())
        .map(|info| {
            let mut random = Random::named(seed, &info.name);
            let numbers = values(original, &info.name);
            let rounded = values(quantized, &info.name);
            let noisy = numbers.iter().zip(&rounded).map(|(&number, &rounded)| {
                let error = rounded - number;
                if random.below(2) == 0 {
                    number + error
                } else {
                    number - error
                }
            });
            let dims = info.dims.iter().map(|&dim| dim as u64).collect();
            (info.name.clone(), dims, noisy.collect())
        })
        .collect();
    write(path, original.metadata().clone(), &tensors);
}

/// Returns all probabilities of the cases in a row.
fn probabilities(path: &Path, cases: &[&Case]) -> Vec<f64> {
    let options = Model::options().context(1024).sequences(4).threads(1);
    let model = options.device(Device::Cpu).load(path).unwrap();
    let mut all = Vec::new();
    for case in cases {
        let answers = model
            .start_deciding(case.state.clone(), case.asked.questions(), &params(&case.asked))
            .unwrap();
        for decision in answers {
            all.extend(decision.unwrap().probabilities);
        }
    }
    all
}

/// Returns the root of the mean square of the differences.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let squares: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (squares / a.len() as f64).sqrt()
}

/// Quantizes a file and compares the answers. `least_of_type` is a type, and the number of tensors that at least have it.
fn check(original: &Path, preset: Preset, cases: &[&Case], least_of_type: (TensorType, usize)) {
    let temporary = tempfile::tempdir().unwrap();
    let [quantized, noisy] = ["quantized.gguf", "noisy.gguf"].map(|name| temporary.path().join(name));
    let file = GgufFile::open(original).unwrap();
    (Quantizer::new(&file, Recipe::new(preset)).threads(1))
        .write(&quantized, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    let rounded = GgufFile::open(&quantized).unwrap();
    let (ty, least) = least_of_type;
    let n_of_type = rounded.tensors().filter(|tensor| tensor.ty == ty).count();
    assert!(n_of_type >= least, "{n_of_type} tensors in {ty}");
    let expected = probabilities(original, cases);
    let found = difference(&probabilities(&quantized, cases), &expected);
    let squares: f64 = (0..N_DRAWS)
        .map(|seed| {
            write_noisy(&noisy, &file, &rounded, seed);
            difference(&probabilities(&noisy, cases), &expected).powi(2)
        })
        .sum();
    let noise = (squares / N_DRAWS as f64).sqrt();
    let name = original.display();
    println!("{name} {preset:?}: {found:.2e}, noise {noise:.2e}");
    assert!(found > 0.0 && noise > 0.0, "{name} {preset:?} changes nothing");
    assert!(
        found <= MOST * noise,
        "{name} {preset:?}: {found:.2e}, noise {noise:.2e}"
    );
}

#[test]
fn q8_0_answers_within_the_noise_of_its_rounding() {
    let cases = cases();
    for family in ["laya", "openjev", "lev", "nimble", "kev"] {
        let own: Vec<&Case> = cases.iter().filter(|case| case.family == family).collect();
        assert!(!own.is_empty(), "{family}");
        let path = folder().join(format!("{family}.gguf"));
        // Rows of 48 are no whole blocks; each layer has one matrix of them.
        check(&path, Preset::Q8_0, &own, (TensorType::Q8_0, 8));
    }
}

/// Writes the tiny OpenJev with rows of [`WIDTH`] and other random weights.
fn write_wide(path: &Path) {
    let narrow = GgufFile::open(folder().join("openjev.gguf")).unwrap();
    let mut metadata = Metadata::new();
    for (key, value) in narrow.metadata().iter() {
        match key {
            "qwen3.embedding_length" | "qwen3.feed_forward_length" => metadata.insert(key, WIDTH as u32),
            "qwen3.attention.key_length" | "qwen3.attention.value_length" => {
                metadata.insert(key, WIDTH as u32 / 2)
            }
            _ => metadata.insert(key, value.clone()),
        }
        .unwrap();
    }
    let n_vocab = narrow.tensor("token_embd.weight").unwrap().info.dims[1];
    let half = WIDTH / 2;
    let tensors: Vec<_> = (narrow.tensors())
        .map(|info| {
            let part = info.name.rsplit('.').nth(1).expect("names end in `.weight`");
            let dims = match part {
                "token_embd" => vec![WIDTH, n_vocab],
                "attn_q_norm" | "attn_k_norm" => vec![half],
                "attn_k" | "attn_v" => vec![WIDTH, half],
                _ if info.dims.len() == 1 => vec![WIDTH],
                _ => vec![WIDTH, WIDTH],
            };
            let numbers = Random::named(3, &info.name).values(dims.iter().product());
            // Uniform numbers have a standard deviation of 1 / √3. The narrow model has deviations of 0.2, 1 and 1.5 / √width.
            let (center, deviation) = match part {
                "token_embd" => (0.0, 1.0),
                _ if dims.len() == 1 => (1.0, 0.2),
                _ => (0.0, 1.5 / (WIDTH as f32).sqrt()),
            };
            let numbers = numbers
                .iter()
                .map(|number| center + number * deviation * 3_f32.sqrt());
            let dims = dims.iter().map(|&dim| dim as u64).collect();
            (info.name.clone(), dims, numbers.collect())
        })
        .collect();
    write(path, metadata, &tensors);
}

#[test]
fn q4_k_m_answers_within_the_noise_of_its_rounding() {
    let temporary = tempfile::tempdir().unwrap();
    let wide = temporary.path().join("wide.gguf");
    write_wide(&wide);
    let cases = cases();
    let own: Vec<&Case> = cases.iter().filter(|case| case.family == "openjev").collect();
    // The mixture gives some matrices 6 bits.
    check(&wide, Preset::Q4_K_M, &own, (TensorType::Q4_K, 8));
    check(&wide, Preset::Q8_0, &own, (TensorType::Q8_0, 15));
}
