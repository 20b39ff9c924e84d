//! Errors about a Hugging Face folder use the names in the folder.

use std::{fs, path::Path};

use serde_json::{Value, json};
use tokenmill_testkit::Comparisons;

use crate::support::{arg, tokenmill};

#[test]
fn tensors_and_keys_have_the_names_of_the_folder() {
    let mut comparisons = Comparisons::of("errors about folders");
    let Some(original) = comparisons.find("parity/qwen2/hf") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let copy = |changed: Option<(&str, Value)>| {
        for entry in fs::read_dir(&original).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
        if let Some((key, value)) = changed {
            let path: &Path = &folder.path().join("config.json");
            let mut config: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            config[key] = value;
            fs::write(path, config.to_string()).unwrap();
        }
    };
    let out = folder.path().join("out.gguf");
    for (key, value, said) in [
        (
            "tie_word_embeddings",
            json!(false),
            "tensor `output.weight` is missing (`lm_head.weight` in the folder)",
        ),
        (
            "intermediate_size",
            json!(120),
            "tensor `blk.0.ffn_gate.weight` has shape [64, 128], expected [64, 120] (`model.layers.0.mlp.gate_proj.weight` in the \
             folder)",
        ),
        (
            "vocab_size",
            json!(600),
            "`vocab_size` in config.json is 600, but tensor `model.embed_tokens.weight` has 512 rows",
        ),
        (
            "vocab_size",
            json!(500),
            "`vocab_size` in config.json is 500, but tensor `model.embed_tokens.weight` has 512 rows",
        ),
        (
            "num_attention_heads",
            json!(0),
            "expected at least 1 (key `num_attention_heads`)",
        ),
    ] {
        copy(Some((key, value)));
        for args in [
            &["run", "--raw", arg(folder.path()), "x", "-n", "1"][..],
            &["convert", arg(folder.path()), arg(&out)],
        ] {
            let line = tokenmill(args).failed(3);
            assert!(line.contains(said), "{key}: {line}");
        }
        comparisons.compared(1);
    }
    copy(None);
    tokenmill(["run", "--raw", arg(folder.path()), "x", "-n", "1"]).ok();
}
