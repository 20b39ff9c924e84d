//! Importance matrices: what is measured here is what llama-imatrix measured on the same text.

use std::fs;

use tokenmill::{LoadOptions, convert::ImportanceRun, load::ModelSource};
use tokenmill_convert::ImportanceMatrix;
use tokenmill_testkit::Comparisons;
use tokenmill_text::EncodeOptions;

/// Tokens of a chunk, and chunks, of the reference.
const CHUNK_TOKENS: usize = 256;
const N_CHUNKS: usize = 40;

/// Greatest relative distance of a mean of squares, four times what was seen: floats are added up in another order.
const TOLERANCE: f32 = 1e-4;

#[test]
fn means_of_squares_are_those_of_the_reference() {
    let mut comparisons = Comparisons::of("importance matrices");
    for model in ["llama", "mixtral"] {
        let paths = (
            comparisons.find(&format!("parity/{model}/model-F32.gguf")),
            comparisons.find(&format!("parity2/quantize/imatrix-{model}.gguf")),
            comparisons.find("text/heldout.txt"),
        );
        let (Some(path), Some(reference), Some(text)) = paths else {
            continue;
        };
        let source = ModelSource::find(&path).unwrap();
        let tokenizer = source.tokenizer(source.open_gguf().unwrap().as_ref()).unwrap();
        let ids = tokenizer.encode(&fs::read_to_string(text).unwrap(), EncodeOptions::default());
        let options = LoadOptions::default().context(CHUNK_TOKENS);
        let mut run = ImportanceRun::open(&path, &options).unwrap();
        for chunk in ids.chunks_exact(CHUNK_TOKENS).take(N_CHUNKS) {
            let mut chunk = chunk.to_vec();
            if let (true, Some(bos)) = (tokenizer.adds_bos(), tokenizer.bos()) {
                chunk[0] = bos;
            }
            run.add(chunk).unwrap();
        }
        let written = tempfile::NamedTempFile::new().unwrap();
        let path = written.path().with_extension("gguf");
        run.sums()
            .write(&path, "heldout.txt", N_CHUNKS as u32, CHUNK_TOKENS as u32)
            .unwrap();
        let (found, expected) = (ImportanceMatrix::open(&path), ImportanceMatrix::open(&reference));
        fs::remove_file(&path).unwrap();
        let (found, expected) = (found.unwrap(), expected.unwrap());
        let mut names: Vec<&str> = expected.names().collect();
        names.sort_unstable();
        for name in names {
            let (found, expected) = (found.get(name).unwrap_or_default(), expected.get(name).unwrap());
            assert_eq!(found.len(), expected.len(), "{model}: {name}");
            for (column, (found, expected)) in found.iter().zip(expected).enumerate() {
                let distance = (found - expected).abs() / expected.abs().max(1e-6);
                assert!(
                    distance <= TOLERANCE,
                    "{model}: {name}, column {column}: {found} instead of {expected}"
                );
            }
            comparisons.compared(1);
        }
    }
}
