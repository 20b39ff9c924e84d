//! The demo model's file and words, for tests with its network and without.

use std::{
    io::{Write, stderr},
    path::PathBuf,
};

use tokenmill::{ModelSource, ModelWords};
use tokenmill_model::Model;

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
