//! Compares whole models with what llama-quantize made of them: types, shapes and the bytes of every tensor.

use std::{fmt::Write, ops::ControlFlow, path::Path};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokenmill_convert::{ConvertError, ImportanceMatrix, Preset, Quantizer, Recipe};
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_testkit::Comparisons;

/// Where the sources of the models lie, in the set of reference data.
const MODELS: [(&str, &str); 3] = [
    // The same numbers in BF16, so that the core set has them, too.
    ("llama", "parity2/quantize/llama-BF16.gguf"),
    ("mixtral", "parity/mixtral/model-F32.gguf"),
    ("wp4m", "models/wp4m/wp4m-f16.gguf"),
];

/// Reads a key of the reference: a preset, `+imatrix` where there was one, and options of llama-quantize.
fn recipe_of(key: &str) -> (Recipe, bool) {
    let mut words = key.split(' ');
    let preset = words.next().unwrap();
    let (preset, has_importance) = match preset.strip_suffix("+imatrix") {
        Some(preset) => (preset, true),
        None => (preset, false),
    };
    let ty = |name: &str| TensorType::from_name(name).unwrap();
    let mut recipe = Recipe::new(preset.parse::<Preset>().unwrap());
    while let Some(option) = words.next() {
        match option {
            "--pure" => recipe.is_pure = true,
            "--leave-output-tensor" => recipe.keeps_output = true,
            "--output-tensor-type" => recipe.output_type = Some(ty(words.next().unwrap())),
            "--token-embedding-type" => recipe.embedding_type = Some(ty(words.next().unwrap())),
            "--tensor-type" => {
                let (name, name_of_type) = words.next().unwrap().split_once('=').unwrap();
                recipe = recipe.with_tensor_type(name, ty(name_of_type)).unwrap();
            }
            other => panic!("unknown option {other}"),
        }
    }
    (recipe, has_importance)
}

fn sha256(bytes: &[u8]) -> String {
    (Sha256::digest(bytes).iter()).fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes any text");
        text
    })
}

/// Compares the tensors of a file with their rows in the reference, and says which differ.
fn differences(path: &Path, expected: &Value) -> Vec<String> {
    let file = GgufFile::open(path).unwrap();
    let mut differences = Vec::new();
    for (name, row) in expected.as_object().unwrap() {
        let tensor = file.tensor(name).unwrap_or_else(|| panic!("{name} is missing"));
        let mut bytes = vec![0; tensor.bytes.len()];
        tensor.bytes.read_into(0, &mut bytes).unwrap();
        let dims: Vec<u64> = row[1]
            .as_array()
            .unwrap()
            .iter()
            .map(|dim| dim.as_u64().unwrap())
            .collect();
        assert_eq!(
            tensor.info.dims.iter().map(|&dim| dim as u64).collect::<Vec<_>>(),
            dims,
            "{name}"
        );
        if tensor.info.ty.name() != row[0].as_str().unwrap() {
            differences.push(format!("{name} is {}, expected {}", tensor.info.ty, row[0]));
        } else if sha256(&bytes) != row[3].as_str().unwrap() {
            differences.push(format!("{name} has other bytes of {}", tensor.info.ty));
        }
    }
    differences
}

/// Quantizes a model in all ways that the reference has, and compares.
#[track_caller]
fn check(model: &str, mut comparisons: Comparisons) {
    let (_, source) = MODELS.iter().find(|(name, _)| *name == model).unwrap();
    let paths = (
        comparisons.find(&format!("parity2/quantize/{model}.json")),
        comparisons.find(&format!("parity2/quantize/imatrix-{model}.gguf")),
        comparisons.find(source),
    );
    let (Some(reference), Some(matrix), Some(source)) = paths else {
        return;
    };
    let reference: Value = serde_json::from_slice(&std::fs::read(reference).unwrap()).unwrap();
    let matrix = ImportanceMatrix::open(matrix).unwrap();
    let file = GgufFile::open(source).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.gguf");
    let mut wrong = Vec::new();
    for (key, expected) in reference["presets"].as_object().unwrap() {
        let (recipe, has_importance) = recipe_of(key);
        let file_type = recipe.preset.file_type();
        let mut quantizer = Quantizer::new(&file, recipe).threads(2);
        if has_importance {
            quantizer = quantizer.importance(&matrix);
        }
        let result = quantizer.write(&path, &mut |_| ControlFlow::Continue(()));
        if expected.get("error").is_some() {
            assert!(
                matches!(result, Err(ConvertError::NeedsImportance { .. })),
                "{key}: {result:?}"
            );
            continue;
        }
        result.unwrap_or_else(|error| panic!("{key}: {error}"));
        let found = differences(&path, &expected["tensors"]);
        wrong.extend(found.into_iter().map(|difference| format!("{key}: {difference}")));
        wrong.extend(differences(&path, &reference["unquantised"]));
        let written = GgufFile::open(&path).unwrap();
        assert_eq!(
            written.metadata().u32("general.file_type").unwrap(),
            file_type,
            "{key}"
        );
        for quantize_key in expected["kv"]["quantize_keys"].as_array().unwrap() {
            assert!(
                written.metadata().get(quantize_key.as_str().unwrap()).is_some(),
                "{key}: {quantize_key}"
            );
        }
        comparisons.compared(1);
    }
    assert!(
        wrong.is_empty(),
        "{} tensors differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_dense_model_with_odd_rows_has_the_reference_bytes() {
    check("llama", Comparisons::of("quantized llama"));
}

#[test]
fn a_model_with_experts_has_the_reference_bytes() {
    check("mixtral", Comparisons::of("quantized mixtral"));
}

#[test]
fn a_model_of_four_layers_has_the_reference_bytes() {
    check("wp4m", Comparisons::of("quantized wp4m"));
}
