//! The demo model's file and words, for tests with its network and without.

use std::{
    io::{Write, stderr},
    path::PathBuf,
};

use serde_json::{Map, Value, json};
use tokenmill::{load::ModelSource, text::ModelWords};
use tokenmill_model::Model;
use tokenmill_text::Tokenizer;

/// The demo model's file; `None`, with a printed reason, in a packaged crate that does not have it.
pub(crate) fn demo_path() -> Option<PathBuf> {
    let path = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tokenmill/assets/tokenmill-demo-Q8_0.gguf"
    ));
    // The fuzz crate lies one folder deeper.
    let deeper = PathBuf::from(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tokenmill/assets/tokenmill-demo-Q8_0.gguf"
    ));
    let found = [path, deeper].into_iter().find(|path| path.exists());
    if found.is_none() {
        // Not `eprintln!`, which the test harness shows of failed tests only.
        let _ = writeln!(
            stderr(),
            "skipped: the demo model is not part of a packaged crate"
        );
    }
    found
}

/// The tokenizer and the chat template of a model.
pub(crate) fn words_of(model: &Model) -> ModelWords {
    ModelWords::open(&ModelSource::Demo, model).expect("the demo model's words")
}

/// A tokenizer with a token for each byte, and marks of gaps and of files.
pub(crate) fn tokenizer_to_fill() -> Tokenizer {
    // Source: GPT-2's table of bytes. Printable bytes stand for themselves, the others for characters from
    // 256 on.
    let prints = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=u8::MAX).filter(|&byte| !prints(byte)).zip('\u{100}'..);
    let chars = (0..=u8::MAX)
        .filter(|&byte| prints(byte))
        .map(|byte| (byte, char::from(byte)));
    let vocab: Map<String, Value> = (chars.chain(others))
        .map(|(byte, c)| (c.to_string(), byte.into()))
        .collect();
    let marks = [
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|repo_name|>",
        "<|file_sep|>",
        "<|endoftext|>",
    ];
    let added: Vec<Value> = (256..)
        .zip(marks)
        .map(|(id, mark)| {
            json!({ "id": id, "content": mark, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false })
        })
        .collect();
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let json = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "pre_tokenizer": bytes, "decoder": bytes,
        "post_processor": null, "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    Tokenizer::from_tokenizer_json(json.to_string().as_bytes()).expect("a tokenizer")
}
