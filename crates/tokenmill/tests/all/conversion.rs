//! Folders that become files, compared with the files that llama.cpp's converter made of the same folders.

mod encoders_of_images;
mod variants;

use std::{
    collections::BTreeSet,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use serde_json::json;
use tokenmill::{
    Error, LoadOptions,
    convert::{Conversion, QuantizeSummary},
    load::ModelSource,
};
use tokenmill_convert::{ImportanceMatrix, OutType, QuantizeProgress, Quantizer, Recipe};
use tokenmill_gguf::{GgufFile, TensorType, Value};
use tokenmill_quant::Format;
use tokenmill_testkit::{Comparisons, Random};

/// Intended differences from the reference: the network (`*` for all), the key or the end of a tensor's name, and the reason.
const DEVIATIONS: &[(&str, &str, &str)] = &[
    (
        "*",
        "general.name",
        "the folders had other names when the files were made",
    ),
    (
        "gpt_neox",
        "general.file_type",
        "the reference forgets it for this architecture",
    ),
    (
        "bloom",
        "bloom.context_length",
        "the reference writes the width in place of the context",
    ),
    (
        "falcon",
        "falcon.context_length",
        "the reference writes 2,048 whatever the configuration says",
    ),
    (
        "bert",
        "tokenizer.ggml.pre",
        "the fixture's tokenizer was forced to a name; WordPiece has no pre-tokenizer to name",
    ),
    ("bert_rerank", "tokenizer.ggml.pre", "as bert"),
    ("nomic_bert", "tokenizer.ggml.pre", "as bert"),
    (
        "bert_rerank",
        "cls.weight",
        "the reference leaves the pooler out, without which scores are others than transformers'",
    ),
    ("bert_rerank", "cls.bias", "as cls.weight"),
    ("bert_rerank", "general.size_label", "counts the pooler"),
    (
        "xlmr_rerank",
        "tokenizer.ggml.tokens",
        "the reference reads sentencepiece.bpe.model, which lacks `<mask>`",
    ),
    ("xlmr_rerank", "tokenizer.ggml.scores", "as tokenizer.ggml.tokens"),
    (
        "xlmr_rerank",
        "tokenizer.ggml.token_type",
        "as tokenizer.ggml.tokens",
    ),
    (
        "xlm_roberta",
        "tokenizer.ggml.tokens",
        "the reference reads sentencepiece.bpe.model, which lacks `<mask>`",
    ),
    ("xlm_roberta", "tokenizer.ggml.scores", "as tokenizer.ggml.tokens"),
    (
        "xlm_roberta",
        "tokenizer.ggml.token_type",
        "as tokenizer.ggml.tokens",
    ),
    (
        "roberta",
        "tokenizer.ggml.pre",
        "the fixture's tokenizer was forced to a name",
    ),
    (
        "dots1",
        "dots1.expert_gating_func",
        "the reference leaves out what its reader takes for granted",
    ),
    (
        "hy_v3",
        "hy_v3.leading_dense_block_count",
        "the reference leaves out what its reader sees in the tensors",
    ),
    (
        "gemma3n",
        "gemma3n.activation_sparsity_scale",
        "the last bit of a quantile of the normal distribution",
    ),
    ("mamba", "ssm_a", "the last bit of an exponential"),
    ("mamba2", "ssm_a", "the last bit of an exponential"),
    (
        "falcon_h1",
        "ssm_in.weight",
        "two factors are multiplied before the weight, and rounded once",
    ),
];

/// Networks of this repository whose files are the reference's.
const BY_CONVERTER: [&str; 9] = [
    "afmoe",
    "arcee",
    "dots1",
    "exaone",
    "hy_v3",
    "minicpm",
    "qwen3_vl_moe",
    "roberta",
    "xlm_roberta",
];

/// Numbers of tensors in the list may differ by so much, relatively.
const LAST_BITS: f32 = 3e-7;

fn is_listed(network: &str, what: &str) -> bool {
    (DEVIATIONS.iter()).any(|(of, end, _)| (*of == network || *of == "*") && what.ends_with(end))
}

fn convert(folder: &Path, out: OutType) -> Result<(tempfile::TempDir, PathBuf, QuantizeSummary), Error> {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("out.gguf");
    let summary =
        Conversion::open(folder, None)?.write(&path, out, Some(2), &mut |_| ControlFlow::Continue(()))?;
    Ok((temporary, path, summary))
}

fn numbers(file: &GgufFile, name: &str) -> Vec<f32> {
    let view = file.tensor(name).unwrap();
    let format = Format::of(view.info.ty).unwrap();
    let mut values = vec![0.0; view.info.n_elements()];
    let row_len = view.info.row_len();
    let row_bytes = format.row_bytes(row_len).unwrap();
    let bytes = view.bytes.to_vec().unwrap();
    for (row, out) in bytes.chunks(row_bytes).zip(values.chunks_mut(row_len)) {
        format.dequantize_row(row, out).unwrap();
    }
    values
}

fn short(value: Option<&Value>) -> String {
    let text = value.map_or("nothing".to_owned(), |value| format!("{value:?}"));
    text.chars().take(120).collect()
}

/// All that differs between a file and the reference's.
fn differences(network: &str, own: &GgufFile, reference: &GgufFile) -> Vec<String> {
    let mut found = Vec::new();
    let keys: BTreeSet<&str> = (own.metadata().iter().chain(reference.metadata().iter()))
        .map(|(key, _)| key)
        .collect();
    for key in keys.into_iter().filter(|key| !is_listed(network, key)) {
        let (a, b) = (own.metadata().get(key), reference.metadata().get(key));
        if a != b {
            found.push(format!("{network}: {key} is {}, expected {}", short(a), short(b)));
        }
    }
    for info in own.tensors() {
        if reference.tensor(&info.name).is_none() && !is_listed(network, &info.name) {
            found.push(format!("{network}: {} is extra", info.name));
        }
    }
    for info in reference.tensors() {
        let name = &info.name;
        let Some(view) = own.tensor(name) else {
            found.push(format!("{network}: {name} is missing"));
            continue;
        };
        if (view.info.ty, &view.info.dims) != (info.ty, &info.dims) {
            let (ty, dims) = (view.info.ty, &view.info.dims);
            found.push(format!(
                "{network}: {name} is {ty} {dims:?}, expected {} {:?}",
                info.ty, info.dims
            ));
        } else if is_listed(network, name) {
            let pairs = numbers(own, name).into_iter().zip(numbers(reference, name));
            if let Some((a, b)) = pairs
                .into_iter()
                .find(|(a, b)| (a - b).abs() > LAST_BITS * b.abs())
            {
                found.push(format!("{network}: {name} has {a}, expected {b}"));
            }
        } else if view.bytes.to_vec().unwrap() != reference.tensor(name).unwrap().bytes.to_vec().unwrap() {
            found.push(format!("{network}: {name} has other bytes"));
        }
    }
    found
}

#[test]
fn files_are_those_of_the_reference() {
    let mut comparisons = Comparisons::of("converted folders");
    let mut found = Vec::new();
    for folder in comparisons.networks() {
        let network = folder.file_name().unwrap().to_str().unwrap().to_owned();
        if folder.parent().unwrap().ends_with("networks") && !BY_CONVERTER.contains(&network.as_str()) {
            comparisons.skip("a file that llama.cpp's converter did not write");
            continue;
        }
        let types = [
            ("F32", OutType::F32),
            ("F16", OutType::F16),
            ("BF16", OutType::Bf16),
            // The experts of such a folder stay as they are; others have quantized files of this name.
            ("MXFP4", OutType::F32),
        ];
        let mut n_compared = 0;
        for (name, out) in types {
            let reference = folder.join(format!("model-{name}.gguf"));
            let is_mxfp4_folder = name == "MXFP4" && network.ends_with("_mxfp4");
            if name == "MXFP4" && !is_mxfp4_folder {
                continue;
            }
            if !reference.is_file() || !folder.join("hf/model.safetensors").is_file() {
                continue;
            }
            let (_temporary, path, _) =
                convert(&folder.join("hf"), out).unwrap_or_else(|error| panic!("{network}: {error}"));
            let own = GgufFile::open(&path).unwrap();
            found.extend(differences(&network, &own, &GgufFile::open(&reference).unwrap()));
            n_compared += 1;
        }
        match n_compared {
            0 => comparisons.skip("no folder and file of this network"),
            n => comparisons.compared(n),
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The folder of a small network in the core set or the full one.
fn any_folder(comparisons: &mut Comparisons, name: &str) -> Option<PathBuf> {
    let folders = comparisons.networks();
    folders
        .into_iter()
        .map(|folder| folder.join("hf"))
        .find(|folder| {
            folder.join("model.safetensors").is_file()
                && folder.parent().is_some_and(|parent| parent.ends_with(name))
        })
}

fn copy(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    copy
}

#[test]
fn what_cannot_be_converted_is_said_in_one_line_and_leaves_no_file() {
    let mut comparisons = Comparisons::of("folders that are not converted");
    let Some(folder) = any_folder(&mut comparisons, "llama") else {
        return;
    };
    let check = |change: &dyn Fn(&Path), expected: &str| {
        let copy = copy(&folder);
        change(copy.path());
        let target = tempfile::tempdir().unwrap();
        let result = Conversion::open(copy.path(), None).and_then(|conversion| {
            conversion.write(target.path().join("out.gguf"), OutType::Auto, None, &mut |_| {
                ControlFlow::Continue(())
            })
        });
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
        assert_eq!(fs::read_dir(target.path()).unwrap().count(), 0, "{expected}");
    };
    let index = |folder: &Path| {
        let text = r#"{"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}"#;
        fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
    };
    check(&index, "`model-00002-of-00002.safetensors` is missing");
    let rename = |folder: &Path| {
        let part = folder.join("model-00001-of-00002.safetensors");
        fs::rename(folder.join("model.safetensors"), part).unwrap();
    };
    check(&rename, "`model-00002-of-00002.safetensors` is missing");
    let damage = |folder: &Path| {
        let path = folder.join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        // The last tensor's last number becomes NaN, in F16 as in BF16.
        let n = bytes.len();
        bytes[n - 2..].copy_from_slice(&[0xff, 0x7f]);
        fs::write(path, bytes).unwrap();
    };
    check(&damage, "NaN");
    let forget = |folder: &Path| fs::remove_file(folder.join("tokenizer.json")).unwrap();
    check(&forget, "neither a tokenizer.json nor a tokenizer.model");
    let unknown = |folder: &Path| {
        let path = folder.join("config.json");
        let text = fs::read_to_string(&path)
            .unwrap()
            .replace("LlamaForCausalLM", "NoSuchModel");
        fs::write(path, text).unwrap();
    };
    check(&unknown, "`NoSuchModel` is not supported");
    comparisons.compared(5);
    // Features that a file cannot express are named by the key of the folder's own configuration.
    for (name, key, value, expected) in [
        (
            "deepseek_v3",
            "/rope_scaling/mscale",
            json!(0.5),
            "rope.scaling.magnitude` is ",
        ),
        (
            "llama4",
            "/attn_scale",
            json!(0.3),
            "mixer.temperature.scale` is 0.3 in the folder",
        ),
        (
            "gemma2",
            "/query_pre_attn_scalar",
            json!(100),
            "`layers[0].mixer.scale` is 0.1 in the folder",
        ),
    ] {
        let Some(folder) = any_folder(&mut comparisons, name) else {
            continue;
        };
        let copy = copy(&folder);
        let path = copy.path().join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        *config.pointer_mut(key).unwrap() = value;
        fs::write(path, config.to_string()).unwrap();
        let message = Conversion::open(copy.path(), None).err().unwrap().to_string();
        let key = key.trim_start_matches('/').replace('/', ".");
        assert!(message.contains(expected), "{name}: {message}");
        assert!(
            message.contains(&format!("config.json says it with {key}")) && !message.contains("besides"),
            "{name}: {message}"
        );
        comparisons.compared(1);
    }
}

#[test]
fn presets_are_those_of_quantize() {
    let mut comparisons = Comparisons::of("presets of converted folders");
    let Some(folder) = any_folder(&mut comparisons, "llama") else {
        return;
    };
    let (_temporary, path, summary) = convert(&folder, "q4_k_m".parse().unwrap()).unwrap();
    let own = GgufFile::open(&path).unwrap();
    let reference = folder.with_file_name("model-Q4_K_M.gguf");
    if reference.is_file() {
        assert_eq!(
            differences("llama", &own, &GgufFile::open(&reference).unwrap()),
            Vec::<String>::new()
        );
        comparisons.compared(1);
    }
    assert_eq!(summary.n_tensors, own.tensors().len());
    assert!(own.tensors().any(|info| info.ty == TensorType::Q4_K));
}

/// `--quantize` loads a folder in the types of the file that `convert` writes with the same preset, including hybrids, experts and
/// layers for drafts.
#[test]
fn a_folder_is_loaded_in_the_types_of_its_file() {
    let mut comparisons = Comparisons::of("presets of loaded folders");
    for folder in comparisons.networks() {
        let hf = folder.join("hf");
        if !hf.join("model.safetensors").is_file() {
            comparisons.skip("no folder of this network");
            continue;
        }
        let preset = "q4_k_m".parse().unwrap();
        let Ok((_temporary, path, _)) = convert(&hf, OutType::Preset(preset)) else {
            comparisons.skip("a preset that does not go with its shapes");
            continue;
        };
        let file = GgufFile::open(&path).unwrap();
        let loaded = LoadOptions::default()
            .quantize(preset)
            .open_network(&ModelSource::Folder(hf))
            .unwrap();
        let mut n_quantized = 0;
        for info in loaded.weights().infos() {
            let Some(written) = file.tensor(&info.name).map(|tensor| tensor.info) else {
                continue;
            };
            n_quantized += usize::from(written.ty.block_len() > 1);
            // Tensors that are quantized in the folder stay.
            if written.ty.block_len() > 1 || info.ty.block_len() > 1 {
                assert_eq!(info.ty, written.ty, "{}: {}", folder.display(), info.name);
            }
        }
        // A network may have no rows of whole blocks.
        let has_whole_blocks = file
            .tensors()
            .any(|info| info.dims.len() > 1 && info.dims[0] % 32 == 0);
        assert_eq!(n_quantized > 0, has_whole_blocks, "{}", folder.display());
        comparisons.compared(1);
    }
}

/// An importance matrix with random numbers for the matrices of a file, in llama.cpp's older form.
fn write_importance(path: &Path, file: &GgufFile, change: impl Fn(&str) -> String) {
    let mut random = Random::new(3);
    let matrices = || {
        file.tensors()
            .filter(|info| info.name.starts_with("blk.") && info.dims.len() == 2)
    };
    let mut bytes = (matrices().count() as i32).to_le_bytes().to_vec();
    for info in matrices() {
        let name = change(&info.name);
        bytes.extend((name.len() as i32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend(1_i32.to_le_bytes());
        bytes.extend((info.dims[0] as i32).to_le_bytes());
        let numbers = random.values(info.dims[0]);
        bytes.extend(numbers.into_iter().flat_map(|number| number.abs().to_le_bytes()));
    }
    bytes.extend(5_i32.to_le_bytes());
    bytes.extend(4_i32.to_le_bytes());
    bytes.extend(b"text");
    fs::write(path, bytes).unwrap();
}

/// A folder is converted with an importance matrix to the file that it would be by way of a file in the type of the weights.
#[test]
fn importance_counts_as_it_does_in_quantize() {
    let mut comparisons = Comparisons::of("folders converted with importance");
    let Some(folder) = any_folder(&mut comparisons, "qwen2") else {
        return;
    };
    let (temporary, whole, _) = convert(&folder, OutType::Auto).unwrap();
    let file = GgufFile::open(&whole).unwrap();
    let path = |name: &str| temporary.path().join(name);
    write_importance(&path("imatrix.dat"), &file, str::to_owned);
    let matrix = ImportanceMatrix::open(path("imatrix.dat")).unwrap();
    let go_on = &mut |_: QuantizeProgress<'_>| ControlFlow::Continue(());
    for preset in ["q4_k_m", "iq4_xs", "q4_0"] {
        let out: OutType = preset.parse().unwrap();
        let with_importance = Conversion::open(&folder, None)
            .unwrap()
            .importance(matrix.clone());
        let summary = with_importance
            .write(path("own.gguf"), out, Some(1), go_on)
            .unwrap();
        let recipe = Recipe::new(preset.parse().unwrap());
        let quantizer = Quantizer::new(&file, recipe).importance(&matrix).threads(1);
        let expected = quantizer.write(path("expected.gguf"), go_on).unwrap();
        assert_eq!(
            summary.without_importance, expected.without_importance,
            "{preset}"
        );
        let [own, expected] = ["own.gguf", "expected.gguf"].map(|name| fs::read(path(name)).unwrap());
        assert!(own == expected, "{preset}: other bytes");
        // The matrix changes something.
        let (_temporary, without, _) = convert(&folder, out).unwrap();
        assert!(fs::read(without).unwrap() != own, "{preset}");
        comparisons.compared(1);
    }

    let message = |name: &str, out: &str| {
        let matrix = ImportanceMatrix::open(path(name)).unwrap();
        let conversion = Conversion::open(&folder, None).unwrap().importance(matrix);
        let result = conversion.write(path("no.gguf"), out.parse().unwrap(), None, &mut |_| {
            ControlFlow::Continue(())
        });
        assert!(!path("no.gguf").exists());
        result.unwrap_err().to_string()
    };
    write_importance(&path("other.dat"), &file, |name| name.replace("blk.", "layer."));
    assert!(message("other.dat", "q4_k_m").starts_with("the importance matrix belongs to another model"));
    write_importance(&path("swapped.dat"), &file, |name| {
        if name.contains("ffn_up") {
            name.replace("ffn_up", "ffn_down")
        } else {
            format!("x{name}")
        }
    });
    let swapped = message("swapped.dat", "q4_k_m");
    assert!(
        swapped.starts_with("the importance matrix belongs to another model: tensor `blk."),
        "{swapped}"
    );
    assert!(message("imatrix.dat", "f16").starts_with("an importance matrix changes nothing in F16"));
}
