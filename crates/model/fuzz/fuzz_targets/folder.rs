//! Opens damaged Hugging Face folders: a sound `config.json` and a sound safetensors header with their structure changed,
//! and the input's bytes in the place of either. Every tensor that is listed can be read.
//!
//! ```text
//! cd crates/model && mkdir -p fuzz/corpus/folder
//! TMPDIR=/dev/shm cargo +nightly fuzz run folder fuzz/corpus/folder -- -max_total_time=600
//! ```
#![no_main]

#[path = "../../../testkit/tests/all/folder_parts.rs"]
mod folder_parts;
#[path = "../../../testkit/src/json_mutation.rs"]
mod json_mutation;
#[path = "../../../testkit/src/text_mutation.rs"]
#[expect(dead_code, reason = "no text is mutated here")]
mod text_mutation;

use std::fs;

use libfuzzer_sys::fuzz_target;
use tokenmill_model::Model;

fuzz_target!(|bytes: &[u8]| {
    let (mut config, mut header) = (folder_parts::config(), folder_parts::header());
    let parts = folder_parts::parts();
    for (index, choices) in bytes.chunks(8).take(8).enumerate() {
        let json = if index % 2 == 0 { &mut config } else { &mut header };
        json_mutation::mutate_json(json, &parts, &mut text_mutation::choices(choices));
    }
    let sound = folder_parts::config().to_string();
    let weights = |header: &str| folder_parts::safetensors(header, folder_parts::N_DATA_BYTES);
    open(config.to_string().as_bytes(), &weights(&header.to_string()));
    open(sound.as_bytes(), &weights(&String::from_utf8_lossy(bytes)));
    open(sound.as_bytes(), bytes);
    open(bytes, &weights(&folder_parts::header().to_string()));
});

fn open(config: &[u8], weights: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    fs::write(folder.path().join("config.json"), config).expect("a file in it");
    fs::write(folder.path().join("model.safetensors"), weights).expect("a file in it");
    if let Ok(model) = Model::open(folder.path()) {
        for info in model.weights().infos() {
            let tensor = model.weights().tensor(&info.name).expect("a listed tensor");
            assert_eq!(tensor.bytes.to_vec().expect("its bytes are there").len(), info.n_bytes);
        }
    }
}
