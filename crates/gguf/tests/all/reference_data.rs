//! Files that other software wrote, and files crafted to be wrong.

use std::{collections::BTreeMap, fs, path::Path};

use tokenmill_gguf::{GgufError, GgufFile, TensorType};
use tokenmill_testkit::Comparisons;

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Opens a file and reads everything that a model loader would.
fn open_fully(path: &Path) -> Result<(), GgufError> {
    let file = GgufFile::open(path)?;
    for tensor in file.tensors() {
        let view = file.tensor(&tensor.name).expect("a listed tensor");
        assert_eq!(view.bytes.len(), tensor.n_bytes);
    }
    file.metadata().opt_string_array("tokenizer.ggml.tokens")?;
    file.metadata().opt_f32_array("tokenizer.ggml.scores")?;
    Ok(())
}

#[test]
fn crafted_files_are_judged_as_their_index_says() {
    let mut comparisons = Comparisons::of("malformed files");
    let Some(dir) = comparisons.find("gguf/malformed") else {
        return;
    };
    let index: BTreeMap<String, serde_json::Value> =
        serde_json::from_value(json(&dir.join("index.json"))).unwrap();
    assert_eq!(index.len(), 36);
    let mut messages = BTreeMap::new();
    for (name, entry) in &index {
        let result = open_fully(&dir.join(name));
        match entry["expect"].as_str().unwrap() {
            "accept" => assert!(result.is_ok(), "{name}: {result:?}"),
            // The tokenizer refuses an id past the vocabulary; the container is sound.
            "reject" if name == "vocab-bos-out-of-range.gguf" => {
                assert!(result.is_ok(), "{name}: {result:?}");
            }
            "reject" => assert!(result.is_err(), "{name} was accepted, though: {}", entry["why"]),
            "either-no-crash" => {}
            other => panic!("{name}: unknown expectation {other}"),
        }
        if let Err(error) = result {
            let message = error.to_string();
            let (_, reason) = message.split_once(".gguf: ").unwrap_or(("", &message));
            messages.insert(name.trim_end_matches(".gguf").to_owned(), reason.to_owned());
        }
    }
    insta::assert_debug_snapshot!(messages);
    comparisons.compared(index.len());
}

#[test]
fn files_of_the_reference_implementation_open() {
    let mut comparisons = Comparisons::of("files by llama.cpp");
    for folder in [
        "models/stories260K",
        "models/wp4m",
        "vocab",
        "parity/llama",
        "parity/qwen2",
    ] {
        let Some(folder) = comparisons.find(folder) else {
            continue;
        };
        let mut n_files = 0;
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "gguf") {
                open_fully(&path).unwrap();
                n_files += 1;
            }
        }
        assert!(n_files > 1, "only {n_files} files in {}", folder.display());
        comparisons.compared(n_files);
    }
}

#[test]
fn type_table_agrees_with_the_reference_libraries() {
    let mut comparisons = Comparisons::of("tensor types");
    let Some(path) = comparisons.find("vectors/types.json") else {
        return;
    };
    let types: BTreeMap<String, serde_json::Value> = serde_json::from_value(json(&path)).unwrap();
    let mut n_types = 0;
    for (name, facts) in &types {
        let Some(id) = facts.get("type_id").and_then(serde_json::Value::as_u64) else {
            continue;
        };
        let ty = TensorType::from_name(name).unwrap();
        assert_eq!(u64::from(ty.id()), id, "{name}");
        assert_eq!(
            facts["block_size"].as_u64(),
            Some(ty.block_len() as u64),
            "{name}"
        );
        assert_eq!(
            facts["block_bytes"].as_u64(),
            Some(ty.block_bytes() as u64),
            "{name}"
        );
        n_types += 1;
    }
    assert!(n_types >= 25, "only {n_types} types compared");
    comparisons.compared(n_types);
}
