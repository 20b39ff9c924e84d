//! What a model takes of the memory, as it is told before a load.

use std::fs;

use tokenmill_gguf::TensorType;
use tokenmill_testkit::{TinyModel, tiny_llama};

use crate::support::{arg, tokenmill};

#[test]
fn a_large_table_stays_in_its_file_unless_all_is_to_be_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.gguf");
    // A table of 64 MiB: 262,144 rows of 64 numbers, and a head of its own.
    let mut model = TinyModel::random(tiny_llama(), TensorType::F32, 3);
    for table in ["token_embd.weight", "output.weight"] {
        model.add_zeros(table, &[64, 1 << 18]);
    }
    fs::write(&path, model.to_gguf().unwrap()).unwrap();
    let weights = |extra: &[&str]| {
        let args = ["inspect", arg(&path), "--device", "cpu"];
        let text = tokenmill(args.iter().chain(extra)).ok();
        let line = text.lines().find(|line| line.trim_start().starts_with("weights"));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    };
    assert_eq!(weights(&[]), "weights        64.2 MiB");
    assert_eq!(weights(&["--no-mmap"]), "weights       128.2 MiB");
}
