//! Reads damaged adapters for a small model: the input as a GGUF file, as a safetensors file behind a sound
//! `adapter_config.json`, and as that configuration. An accepted adapter has a rank, and matrices of the matching shapes.
//!
//! ```text
//! cd crates/model && mkdir -p fuzz/corpus/adapter
//! TMPDIR=/dev/shm cargo +nightly fuzz run adapter fuzz/corpus/adapter -- -max_total_time=600
//! ```
#![no_main]

#[path = "../../../testkit/tests/all/folder_parts.rs"]
#[expect(dead_code, reason = "an adapter has a part of them")]
mod folder_parts;

use std::{fs, sync::LazyLock};

use libfuzzer_sys::fuzz_target;
use tokenmill_gguf::GgufFile;
use tokenmill_model::{AdapterReader, Model};

const CONFIG: &[u8] = br#"{"peft_type":"LORA","r":1,"lora_alpha":2,"rank_pattern":{"q_proj":2}}"#;

static READER: LazyLock<AdapterReader> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let weights = folder_parts::safetensors(&folder_parts::header().to_string(), folder_parts::N_DATA_BYTES);
    fs::write(folder.path().join("config.json"), folder_parts::config().to_string()).expect("a file in it");
    fs::write(folder.path().join("model.safetensors"), weights).expect("a file in it");
    Model::open(folder.path()).expect("a sound folder").adapter_reader()
});

fuzz_target!(|bytes: &[u8]| {
    let of_file = GgufFile::from_bytes(bytes).ok().and_then(|file| READER.from_gguf(&file).ok());
    let of_folders = [READER.from_peft(CONFIG, bytes).ok(), READER.from_peft(bytes, bytes).ok()];
    for adapter in of_file.into_iter().chain(of_folders.into_iter().flatten()) {
        for weight in &adapter.weights {
            assert!(weight.rank > 0 && weight.scale.is_finite());
            let row_bytes = |n| weight.b.ty.row_bytes(n).expect("rows of floats");
            assert_eq!(weight.b.bytes.len(), weight.n_out * row_bytes(weight.rank));
        }
    }
});
